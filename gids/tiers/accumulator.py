"""How many batches to read together: enough accesses to keep the drives busy, no more than the budget holds."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gids.errors import ConfigError
from gids.storage import DeviceCurve
from gids.tiers.plan import Counters
from gids.types import TableKey

#: Values of :attr:`AccessModel.sharpness` that a fit tries: from a long, soft bend to a queue without any.
SHARPNESS = tuple(step / 10 for step in range(4, 31))

#: Share of the most that was measured from which on a drive counts as settled, as in :attr:`DeviceCurve.best_depth`.
SETTLED = 0.95


@dataclass(frozen=True)
class AccessModel:
    """GIDS's model of a drive (paper equations 2 and 3), with one constant more.

    ``n`` accesses that overlap take ``overhead_s + n / peak_iops``: for the first part the drive delivers nothing, in
    the second it runs at its peak. So it achieves ``peak_iops * n / (n + peak_iops * overhead_s)``, and the share ``p``
    of the peak takes ``n = peak_iops * overhead_s * p / (1 - p)``.

    Drives differ in how their latency grows on the way to the peak. With ``x = n / (peak_iops * overhead_s)`` the
    general form is ``peak_iops * x / (1 + x**s) ** (1 / s)``: the paper's for a sharpness ``s`` of 1, softer below
    (a virtual disk that needs ever more depth for a little more speed), and for large ``s`` a drive that serves every
    access in ``overhead_s`` until it is at its peak.

    Attributes
    ----------
    peak_iops : float
        Accesses per second of one drive in steady state.
    overhead_s : float
        T_i + T_t: from the start to the first row, and from the last access to the end.
    drives : int
        Drives that share the accesses.
    sharpness : float
        The bend between latency and peak; 1 is the paper's.
    settled_depth : float
        Depth from which on one drive was not seen to become faster. Infinite for a model that is not fitted: its peak is
        then known, and nothing about it extrapolated.
    """

    peak_iops: float
    overhead_s: float
    drives: int = 1
    sharpness: float = 1.0
    settled_depth: float = math.inf

    def __post_init__(self) -> None:
        for name in ("peak_iops", "overhead_s", "drives", "sharpness", "settled_depth"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be positive (got {getattr(self, name)})")

    def iops(self, accesses: float) -> float:
        """Predict accesses per second, over all drives, when ``accesses`` overlap."""
        x = accesses / self.drives / (self.peak_iops * self.overhead_s)
        return float(self.drives * self.peak_iops * x / (1 + x**self.sharpness) ** (1 / self.sharpness))

    def accesses_for(self, efficiency: float) -> float:
        """Overlapping accesses that reach the share ``efficiency`` of the peak.

        A soft bend puts the peak far beyond what was measured, and its last percents at a hundred thousand accesses.
        So they are bounded by what the settled depth needs, whatever the bend: a queue of that depth stands idle at the
        ends of a group for no longer than one filling takes, which is ``1 - efficiency`` of the time when the group has
        ``settled_depth / (1 - efficiency)`` accesses.
        """
        if not 0 <= efficiency < 1:
            raise ConfigError(f"efficiency must be in [0, 1) (got {efficiency})")
        share = efficiency**self.sharpness
        one = self.peak_iops * self.overhead_s * (share / (1 - share)) ** (1 / self.sharpness)
        return float(min(one, self.settled_depth / (1 - efficiency)) * self.drives)

    @classmethod
    def from_curve(cls, curve: DeviceCurve, drives: int = 1) -> AccessModel:
        """Fit to what ``gids probe`` measured, or to the defaults that :func:`gids.storage.load_curve` gives."""
        return cls.fit(curve.depths, curve.iops_at_depth, drives)

    @classmethod
    def fit(cls, depths: Sequence[float], iops: Sequence[float], drives: int = 1) -> AccessModel:
        """Find the model that is nearest to measured points, by the largest relative error.

        Parameters
        ----------
        depths : sequence of float
            Overlapping accesses, at least two different ones; with fewer than four the sharpness stays 1.
        iops : sequence of float
            Accesses per second that were measured with them.
        drives : int
            Drives behind the measurement.
        """
        x, y = np.asarray(depths, float) / drives, np.asarray(iops, float) / drives
        if x.shape != y.shape or len(set(x.tolist())) < 2 or not (x > 0).all() or not (y > 0).all():
            raise ConfigError(f"depths and iops must be at least two pairs of positive numbers (got {depths}, {iops})")
        tried = SHARPNESS if len(set(x.tolist())) > 3 else (1.0,)
        fits = [(*_fit_line(x, y, sharpness), sharpness) for sharpness in tried]
        _, peak, overhead, sharpness = min(fits, key=lambda fit: fit[0])
        return cls(peak, overhead, drives, sharpness, float(x[y >= SETTLED * y.max()].min()))


def _fit_line(x: NDArray[np.float64], y: NDArray[np.float64], sharpness: float) -> tuple[float, float, float]:
    """Return (largest relative error, peak, overhead) of the best model of one sharpness."""
    # iops**-s = peak**-s + (overhead / depth)**s is linear. Weights turn least squares on (y / iops(x))**s - 1 into the
    # smallest largest error (Lawson's iteration).
    scale = y.max()
    columns = np.stack([np.ones_like(x), x**-sharpness], axis=1) * ((y / scale) ** sharpness)[:, None]
    weights = np.full(len(x), 1 / len(x))
    best = (math.inf, 0.0, 0.0)
    for _ in range(60):
        weighted = columns * weights[:, None]
        normal, (e, f) = weighted.T @ columns, weighted.sum(axis=0)
        a, b, d = normal[0, 0], normal[0, 1], normal[1, 1]
        slope = max((e * d - f * b) / (a * d - b * b), 1e-9)
        overhead = max((f * a - e * b) / (a * d - b * b), 1e-9)
        errors = np.abs((columns @ [slope, overhead]) ** (-1 / sharpness) - 1)
        if errors.max() < best[0]:
            best = (float(errors.max()), float(slope), float(overhead))
        if errors.max() < 1e-9:
            break
        weights = weights * (errors + 1e-6 * errors.max())
        weights /= weights.sum()
    error, slope, overhead = best
    return error, float(slope ** (-1 / sharpness) * scale), float(overhead ** (1 / sharpness) / scale)


class Accumulator:
    """Decides how many of the batches that wait are read as one group.

    A group has enough requests that the drives reach the wanted share of their peak, and no more rows than its memory
    holds. What becomes of requests is
    learned from every group, so the group follows the cache as it fills. May be used from several threads.

    Parameters
    ----------
    model : AccessModel
        The drives.
    limits : mapping of table key to (row bytes, bytes or None)
        For each table, the size of a row in the group's buffer, and the memory for one group if it has a limit.
    efficiency : float
        Share of the drives' peak to aim for.
    accesses : float, optional
        Accesses to aim for, whatever the model says.
    max_batches : int
        Most batches in a group.
    """

    #: Weight of the newest group in the running shares.
    NEWEST = 0.5
    #: Room for groups that need more than those before them, once something was learned.
    HEADROOM = 0.9

    def __init__(
        self,
        model: AccessModel,
        limits: Mapping[TableKey, tuple[int, int | None]],
        *,
        efficiency: float = 0.95,
        accesses: float | None = None,
        max_batches: int = 64,
    ):
        if max_batches < 1:
            raise ConfigError(f"max_batches must be at least 1 (got {max_batches})")
        if any(row_bytes < 1 for row_bytes, _ in limits.values()):
            raise ConfigError(
                f"row_bytes must be at least 1 (got {min(row_bytes for row_bytes, _ in limits.values())})"
            )
        self.model = model
        self.max_batches = max_batches
        self.accesses = model.accesses_for(efficiency) if accesses is None else accesses
        self._lock = threading.Lock()
        self._limits = dict(limits)
        self._tables = {key: _Table(*limit) for key, limit in limits.items()}  # guarded by _lock

    def forget(self, key: TableKey) -> None:
        """Expect of a table what was expected at first: its cache was emptied."""
        with self._lock:
            self._tables[key] = _Table(*self._limits[key])

    def access_share(self, key: TableKey) -> float:
        """Share of a table's requests that become accesses, after cache, host buffer, duplicates and merging."""
        with self._lock:
            return self._tables[key].access_share

    def learn(self, key: TableKey, counters: Counters, accesses: int | None = None) -> None:
        """Take note of a group.

        Parameters
        ----------
        key : hashable
            Which table.
        counters : Counters
            Of the whole group.
        accesses : int, optional
            Reads that its disk rows became, where neighbours were merged; by default one each.
        """
        if counters.requests == 0:
            return
        reads = counters.disk if accesses is None else accesses
        with self._lock:
            table = self._tables[key]
            for name, share in (("access_share", reads), ("disk_share", counters.disk)):
                before = getattr(table, name)
                setattr(table, name, before + self.NEWEST * (share / counters.requests - before))
            table.learned = True

    def batches(self, waiting: Sequence[Mapping[TableKey, int]]) -> int:
        """Say how many of the waiting batches make the next group; at least one where any waits.

        Parameters
        ----------
        waiting : sequence of mappings of table key to int
            Rows that each waiting batch asks of each table, in order.
        """
        with self._lock:
            accesses = 0.0
            held = dict.fromkeys(self._tables, 0.0)
            for number, sizes in enumerate(waiting):
                for key, size in sizes.items():
                    table = self._tables[key]
                    accesses += size * table.access_share
                    held[key] += size * table.disk_share * table.row_bytes
                    if number and held[key] > table.room(self.HEADROOM):
                        return number
                if accesses >= self.accesses or number + 1 == self.max_batches:
                    return number + 1
            return len(waiting)


@dataclass
class _Table:
    row_bytes: int
    max_bytes: int | None
    access_share: float = 1.0  # of the requests, those that become accesses; nothing is redirected at first
    disk_share: float = 1.0  # of the requests, those whose rows are read: what fills the buffer
    learned: bool = False

    def room(self, headroom: float) -> float:
        if self.max_bytes is None:
            return math.inf
        return self.max_bytes * (headroom if self.learned else 1.0)
