"""What a device can do, by depth and block size: measured by ``gids probe``, or defaults of a common NVMe drive."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gids.errors import ConfigError

CURVE_VERSION = 1


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
    """

    depths: tuple[int, ...]
    iops_at_depth: tuple[float, ...]
    block_bytes: int
    blocks: tuple[int, ...]
    iops_at_block: tuple[float, ...]
    bandwidth: float
    latency_us: float
    source: str

    def __post_init__(self) -> None:
        for name, points, rates in (
            ("depths", self.depths, self.iops_at_depth),
            ("blocks", self.blocks, self.iops_at_block),
        ):
            if not points or len(points) != len(rates) or list(points) != sorted(set(points)) or points[0] < 1:
                raise ConfigError(f"{name} must be ascending, positive and as many as their rates (got {points})")
        figures = (*self.iops_at_depth, *self.iops_at_block, self.bandwidth, self.latency_us, self.block_bytes)
        if not all(np.isfinite(figure) and figure > 0 for figure in figures):
            raise ConfigError(f"rates, bandwidth and latency must be positive (got {figures})")

    @property
    def peak_iops(self) -> float:
        """Most random reads per second at any depth."""
        return max(self.iops_at_depth)

    @property
    def best_depth(self) -> int:
        """Smallest depth that reaches 95 % of the peak: more would only add latency."""
        return next(d for d, i in zip(self.depths, self.iops_at_depth, strict=True) if i >= 0.95 * self.peak_iops)

    @property
    def merge_gap_bytes(self) -> int:
        """Bytes that take as long to read as one more request, in whole sectors."""
        return int(self.bandwidth / self.peak_iops) // 512 * 512

    def iops(self, depth: int, block: int | None = None) -> float:
        """Random reads per second at a depth, and optionally at another block size, between measured points."""
        rate = float(np.interp(np.log2(max(depth, 1)), np.log2(self.depths), self.iops_at_depth))
        if block is not None and block != self.block_bytes:
            at = np.interp(np.log2([max(block, 1), self.block_bytes]), np.log2(self.blocks), self.iops_at_block)
            rate *= float(at[0] / at[1])
        return rate


# A cloud NVMe volume as measured on the project's machine; good enough for any flash drive until it is probed.
DEFAULT_CURVE = DeviceCurve(
    depths=(1, 2, 4, 8, 16, 32, 64, 128, 256),
    iops_at_depth=(15e3, 30e3, 55e3, 80e3, 110e3, 145e3, 180e3, 205e3, 205e3),
    block_bytes=4096,
    blocks=(512, 4096, 16384, 65536, 262144, 1 << 20),
    iops_at_block=(205e3, 205e3, 115e3, 50e3, 13e3, 3.3e3),
    bandwidth=3.4e9,
    latency_us=65.0,
    source="defaults",
)


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


def save_curve(path: str | Path, curve: DeviceCurve) -> Path:
    """Keep a measured curve for later runs; gives the file."""
    target = curve_path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(json.dumps({"version": CURVE_VERSION, "curve": asdict(curve)}, indent=2))
    temporary.replace(target)
    return target


def load_curve(path: str | Path) -> DeviceCurve:
    """Give the curve of the device that holds ``path``; defaults where none was measured or it cannot be read.

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
