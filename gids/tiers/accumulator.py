"""How many batches to read together: enough accesses to keep the drives busy, no more than the budget holds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gids.errors import ConfigError
from gids.tiers.plan import Counters


@dataclass(frozen=True)
class AccessModel:
    """GIDS's model of a drive (paper equations 2 and 3).

    ``n`` accesses that overlap take ``overhead_s + n / peak_iops``: for the first part the drive delivers nothing, in
    the second it runs at its peak. So it achieves ``peak_iops * n / (n + peak_iops * overhead_s)``, and the share ``p``
    of the peak takes ``n = peak_iops * overhead_s * p / (1 - p)``.

    Attributes
    ----------
    peak_iops : float
        Accesses per second of one drive in steady state.
    overhead_s : float
        T_i + T_t: from the start to the first row, and from the last access to the end.
    drives : int
        Drives that share the accesses.
    """

    peak_iops: float
    overhead_s: float
    drives: int = 1

    def __post_init__(self) -> None:
        for name in ("peak_iops", "overhead_s", "drives"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be positive (got {getattr(self, name)})")

    def iops(self, accesses: float) -> float:
        """Predict accesses per second, over all drives, when ``accesses`` overlap."""
        each = accesses / self.drives
        return self.drives * self.peak_iops * each / (each + self.peak_iops * self.overhead_s)

    def accesses_for(self, efficiency: float) -> float:
        """Overlapping accesses that reach the share ``efficiency`` of the peak."""
        if not 0 <= efficiency < 1:
            raise ConfigError(f"efficiency must be in [0, 1) (got {efficiency})")
        return self.peak_iops * self.overhead_s * efficiency / (1 - efficiency) * self.drives

    @classmethod
    def fit(cls, depths: Sequence[float], iops: Sequence[float], drives: int = 1) -> AccessModel:
        """Find the model that is nearest to measured points, by the largest relative error.

        Parameters
        ----------
        depths : sequence of float
            Overlapping accesses, at least two different ones.
        iops : sequence of float
            Accesses per second that were measured with them.
        drives : int
            Drives behind the measurement.
        """
        x, y = np.asarray(depths, float) / drives, np.asarray(iops, float) / drives
        if x.shape != y.shape or len(set(x.tolist())) < 2 or not (x > 0).all() or not (y > 0).all():
            raise ConfigError(f"depths and iops must be at least two pairs of positive numbers (got {depths}, {iops})")
        # 1 / iops = 1 / peak + overhead / depth is linear. Weights turn least squares on y / iops(x) - 1 into the
        # smallest largest error (Lawson's iteration).
        columns = np.stack([np.ones_like(x), 1 / x], axis=1) * y[:, None]
        weights = np.full(len(x), 1 / len(x))
        best = (math.inf, 0.0, 0.0)
        for _ in range(300):
            root = np.sqrt(weights)
            (slope, overhead), *_ = np.linalg.lstsq(columns * root[:, None], root, rcond=None)
            slope, overhead = max(slope, 1e-12), max(overhead, 1e-12)
            errors = np.abs(1 / (columns @ [slope, overhead]) - 1)
            if errors.max() < best[0]:
                best = (float(errors.max()), float(slope), float(overhead))
            if errors.max() < 1e-12:
                break
            weights = weights * (errors + 1e-6 * errors.max())
            weights /= weights.sum()
        return cls(1 / best[1], best[2], drives)


class Accumulator:
    """Decides how many of the batches that wait are read as one group.

    Parameters
    ----------
    model : AccessModel
        The drives.
    row_bytes : int
        Bytes of a row in the group's buffer.
    efficiency : float
        Share of the drives' peak to aim for.
    max_bytes : int, optional
        Memory for the rows of one group.
    max_batches : int
        Most batches in a group.
    """

    #: Weight of the newest group in the running share of requests that become accesses.
    NEWEST = 0.5

    def __init__(
        self,
        model: AccessModel,
        *,
        row_bytes: int,
        efficiency: float = 0.95,
        max_bytes: int | None = None,
        max_batches: int = 64,
    ):
        if max_batches < 1:
            raise ConfigError(f"max_batches must be at least 1 (got {max_batches})")
        if row_bytes < 1:
            raise ConfigError(f"row_bytes must be at least 1 (got {row_bytes})")
        self.model = model
        self.row_bytes = row_bytes
        self.max_bytes = max_bytes
        self.max_batches = max_batches
        self.accesses = model.accesses_for(efficiency)
        self._access_share = 1.0  # of the requests, those that become accesses; nothing is redirected at first
        self._disk_share = 1.0  # of the requests, those whose rows are read: what fills the buffer

    @property
    def threshold(self) -> float:
        """Requests that a group needs so that enough accesses remain after cache, host buffer and duplicates."""
        return self.accesses / self._access_share

    def learn(self, counters: Counters, accesses: int | None = None) -> None:
        """Take note of a group.

        Parameters
        ----------
        counters : Counters
            Of the whole group.
        accesses : int, optional
            Reads that its disk rows became, where neighbours were merged; by default one each.
        """
        if counters.requests == 0:
            return
        reads = counters.disk if accesses is None else accesses
        least = 1 / (1 << 20)  # everything was redirected: no finite number of requests would do
        for name, share in (("_access_share", reads), ("_disk_share", counters.disk)):
            before = getattr(self, name)
            now = before + self.NEWEST * (share / counters.requests - before)
            setattr(self, name, max(now, least))

    def batches(self, sizes: Sequence[int]) -> int:
        """Say how many of the waiting batches make the next group; at least one where any waits.

        Parameters
        ----------
        sizes : sequence of int
            Rows of each waiting batch, in order.
        """
        requests = 0.0
        for number, size in enumerate(sizes):
            held = (requests + size) * self._disk_share * self.row_bytes
            if number and self.max_bytes is not None and held > self.max_bytes:
                return number
            requests += size
            if requests >= self.threshold or number + 1 == self.max_batches:
                return number + 1
        return len(sizes)
