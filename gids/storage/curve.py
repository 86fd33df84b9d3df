"""What a device can do, by depth and block size: measured by ``gids probe``, or defaults of a common NVMe drive."""

from __future__ import annotations

import contextlib
import json
import math
import os
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gids.errors import ConfigError

CURVE_VERSION = 2
SECTOR_BYTES = 512


class ReadCost(NamedTuple):
    """What reads cost a busy device: so much for each, and so much for each of their bytes."""

    per_read_s: float
    per_byte_s: float

    def seconds(self, reads: float, read_bytes: float) -> float:
        """Time for so many reads of so many bytes together, with the queue kept full."""
        return reads * self.per_read_s + read_bytes * self.per_byte_s


@dataclass(frozen=True)
class DeviceCurve:
    """Speed of a device.

    Attributes
    ----------
    depths : tuple of int
        Ascending depths at which random reads of ``block_bytes`` were measured.
    iops_at_depth : tuple of float
        Random reads per second at those depths.
    block_bytes : int
        Size of those reads.
    blocks : tuple of int
        Ascending sizes at which random reads were measured at the best depth.
    iops_at_block : tuple of float
        Random reads per second at those sizes.
    bandwidth : float
        Bytes per second of large reads.
    latency_us : float
        Time of one read alone.
    source : str
        Where the figures come from: ``"probe"`` or ``"defaults"``.
    threads : int
        I/O threads that it takes to reach them.
    write_bandwidth, read_back_bandwidth : float or None
        Bytes per second of large writes, and of reading for the first time what was just written; None: not measured.
    """

    depths: tuple[int, ...]
    iops_at_depth: tuple[float, ...]
    block_bytes: int
    blocks: tuple[int, ...]
    iops_at_block: tuple[float, ...]
    bandwidth: float
    latency_us: float
    source: str
    threads: int = 1
    write_bandwidth: float | None = None
    read_back_bandwidth: float | None = None

    def __post_init__(self) -> None:
        for name, points, rates in (
            ("depths", self.depths, self.iops_at_depth),
            ("blocks", self.blocks, self.iops_at_block),
        ):
            if not points or len(points) != len(rates) or list(points) != sorted(set(points)) or points[0] < 1:
                raise ConfigError(f"{name} must be ascending, positive and as many as their rates (got {points})")
        figures = (
            *(*self.iops_at_depth, *self.iops_at_block),
            *(self.bandwidth, self.latency_us, self.block_bytes, self.threads),
            *(rate for rate in (self.write_bandwidth, self.read_back_bandwidth) if rate is not None),
        )
        if not all(np.isfinite(figure) and figure > 0 for figure in figures):
            raise ConfigError(f"rates, bandwidth, latency and threads must be positive (got {figures})")

    @property
    def peak_iops(self) -> float:
        """Most random reads per second at any depth."""
        return max(self.iops_at_depth)

    @property
    def best_depth(self) -> int:
        """Smallest depth that reaches 95 % of the peak: more would only add latency."""
        return next(d for d, i in zip(self.depths, self.iops_at_depth, strict=True) if i >= 0.95 * self.peak_iops)

    @cached_property
    def cost(self) -> ReadCost:
        """The straight line through the time per read against its size: least squares of the relative error."""
        rates, sizes = np.asarray(self.iops_at_block), np.asarray(self.blocks, float)
        # Every row says: (per_read + per_byte * size) * rate = 1.
        (per_read, per_byte), *_ = np.linalg.lstsq(
            np.stack([rates, rates * sizes], axis=1), np.ones(len(sizes)), rcond=None
        )
        # One size only, or noise that turns the line over: no byte is much cheaper than in the fastest read of all.
        if per_byte < 0.5 / self.bandwidth or per_read < 0 or len(sizes) < 2:
            per_byte = 1 / self.bandwidth
            per_read = max(1 / self.peak_iops - self.block_bytes * per_byte, 0.0)
        return ReadCost(float(per_read), float(per_byte))

    @property
    def merge_gap_bytes(self) -> int:
        """Bytes that take as long to read as one more request, in whole sectors.

        Reads and bytes add up on a busy device, so a gap is worth bridging or not whatever lies elsewhere: the same gap
        is best for every density of rows, and a plan has nothing to choose. ``gids bench disk`` shows rows per second
        by gap beside this model.
        """
        return round(self.cost.per_read_s / self.cost.per_byte_s) // SECTOR_BYTES * SECTOR_BYTES

    def rows_per_second(
        self,
        row_bytes: int,
        coverage: float,
        *,
        merge_gap_bytes: int | None = None,
        max_io_bytes: int = 128 << 10,
        block_bytes: int = SECTOR_BYTES,
    ) -> float:
        """Expect so many distinct rows per second from a group that covers a share of a table, spread at random.

        Parameters
        ----------
        row_bytes : int
            Bytes of a row; rows lie one after the other.
        coverage : float
            Share of the table's rows that the group reads, in (0, 1].
        merge_gap_bytes : int, optional
            Largest gap that a read spans; by default what this curve advises.
        max_io_bytes, block_bytes : int
            Longest read, and the block that reads are aligned to.
        """
        if not 0 < coverage <= 1:
            raise ConfigError(f"coverage must be in (0, 1] (got {coverage})")
        if row_bytes < 1:
            raise ConfigError(f"row_bytes must be positive (got {row_bytes})")
        reads, read_bytes = expected_reads(
            row_bytes,
            coverage,
            merge_gap_bytes=self.merge_gap_bytes if merge_gap_bytes is None else merge_gap_bytes,
            max_io_bytes=max_io_bytes,
            block_bytes=block_bytes,
        )
        return 1 / self.cost.seconds(reads, read_bytes)

    def iops(self, depth: int, block: int | None = None) -> float:
        """Random reads per second at a depth, and optionally at another block size, between measured points."""
        rate = float(np.interp(np.log2(max(depth, 1)), np.log2(self.depths), self.iops_at_depth))
        if block is not None and block != self.block_bytes:
            at = np.interp(np.log2([max(block, 1), self.block_bytes]), np.log2(self.blocks), self.iops_at_block)
            rate *= float(at[0] / at[1])
        return rate


def expected_reads(
    row_bytes: int, coverage: float, *, merge_gap_bytes: int, max_io_bytes: int, block_bytes: int
) -> tuple[float, float]:
    """Return reads and bytes per useful row when every row is wanted with the same probability, whatever the others are.

    The rows between two wanted ones then number k with probability ``coverage * (1 - coverage)**k``.
    """
    unit = math.gcd(row_bytes, block_bytes)
    # Gaps are counted in whole blocks between blocks that are read anyway; over all positions of a row in its block,
    # that bridges on average so many bytes.
    reach = merge_gap_bytes // block_bytes * block_bytes + (3 * block_bytes - unit) / 2
    rest, bridged = 1 - coverage, math.ceil(reach / row_bytes) - 1
    reads = rest ** (bridged + 1)  # the gap behind this row is too wide to be read over
    gap_rows = rest * (1 - (bridged + 1) * rest**bridged + bridged * rest ** (bridged + 1)) / coverage
    read_bytes = row_bytes * (1 + gap_rows)
    if reads * max_io_bytes > read_bytes * 1e-6:
        reads /= -math.expm1(-reads * max_io_bytes / read_bytes)  # runs end at random; cut at the longest read
    else:
        reads = read_bytes / max_io_bytes
    return reads, read_bytes + reads * (block_bytes - unit)


def modelled_curve(cost: ReadCost, latency_us: float) -> DeviceCurve:
    """Return the curve of a device that keeps exactly to a cost, for use where nothing was measured."""
    depths, blocks, block = (1, 2, 4, 8, 16, 32, 64, 128), (512, 4096, 16384, 65536, 262144, 1 << 20), 4096
    return DeviceCurve(
        depths=depths,
        iops_at_depth=tuple(1 / (cost.seconds(1, block) + latency_us * 1e-6 / depth) for depth in depths),
        block_bytes=block,
        blocks=blocks,
        iops_at_block=tuple(1 / cost.seconds(1, size) for size in blocks),
        bandwidth=1 / cost.per_byte_s,
        latency_us=latency_us,
        source="defaults",
    )


# Between common drives, whose data sheets give IOPS and bandwidth: one read more costs as much as 3 KiB on a fast NVMe
# drive, 5 KiB on an older one, 11 to 14 KiB on cloud volumes. With 6 KiB none of them loses more than 15 % to its own
# best gap, and no group of 1 KiB rows reads more than 2.7 times what it needs, which matters where others use the drive.
DEFAULT_CURVE = modelled_curve(ReadCost(per_read_s=1.95e-6, per_byte_s=1 / 3.2e9), latency_us=80.0)


def cache_directory() -> Path:
    """Where curves are kept: ``$XDG_CACHE_HOME/gids/curves``, or the same under ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "gids" / "curves"


def device_key(path: str | Path) -> str:
    """Name the device that holds ``path`` (its nearest existing parent), stable over reboots where the kernel can tell.

    The filesystem's identifier serves best; device numbers may change at boot and are only added to it.
    """
    place = Path(path).absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    info, system = place.stat(), os.statvfs(place)
    return f"{system.f_fsid:x}-{os.major(info.st_dev)}-{os.minor(info.st_dev)}"


def curve_path(path: str | Path) -> Path:
    """Where the curve of the device that holds ``path`` is, or would be, stored."""
    return cache_directory() / f"{device_key(path)}.json"


def save_curve(path: str | Path, curve: DeviceCurve, directory: Path | None = None) -> Path:
    """Keep a measured curve for later runs, in ``directory`` instead of the cache if given; gives the file."""
    target = curve_path(path) if directory is None else directory / curve_path(path).name
    temporary = target.with_suffix(f".{os.getpid()}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps({"version": CURVE_VERSION, "curve": asdict(curve)}, indent=2))
        temporary.replace(target)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise ConfigError(
            f"{target.parent} must be writable to keep the curve ({error.strerror}): set XDG_CACHE_HOME to a directory "
            "that is, or do without it (gids probe --no-save)"
        ) from error
    return target


def load_curve(path: str | Path) -> DeviceCurve:
    """Return the curve of the device that holds ``path``; defaults where none was measured or it cannot be read.

    A missing, damaged or foreign file is never an error: it costs speed, not correctness.
    """
    try:
        stored = json.loads(curve_path(path).read_text())
        if stored["version"] != CURVE_VERSION:
            return DEFAULT_CURVE
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in stored["curve"].items()
        }
        return DeviceCurve(**fields)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RuntimeError):
        return DEFAULT_CURVE
