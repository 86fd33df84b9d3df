"""What a device can do, by depth and block size: measured by ``gids probe``, or defaults of a common NVMe drive."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np


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

    @property
    def peak_iops(self) -> float:
        """Most random reads per second at any depth."""
        return max(self.iops_at_depth)

    @property
    def best_depth(self) -> int:
        """Smallest depth that reaches 98 % of the peak."""
        return next(d for d, i in zip(self.depths, self.iops_at_depth, strict=True) if i >= 0.98 * self.peak_iops)

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


DEFAULT_CURVE = DeviceCurve(
    depths=(1, 2, 4, 8, 16, 32, 64, 128, 256),
    iops_at_depth=(15e3, 30e3, 55e3, 90e3, 130e3, 165e3, 190e3, 200e3, 200e3),
    block_bytes=4096,
    blocks=(512, 4096, 65536, 1 << 20),
    iops_at_block=(200e3, 200e3, 50e3, 3.3e3),
    bandwidth=3.3e9,
    latency_us=65.0,
    source="defaults",
)


def load_curve(path: str | Path) -> DeviceCurve:
    """Give the curve of the device that holds ``path``; defaults where none was measured."""
    return DEFAULT_CURVE
