"""Memory that batches are delivered in, used again once nobody holds a batch: fresh pages cost more than the copy."""

from __future__ import annotations

import mmap
import threading
import weakref

import numpy as np
import torch

_HUGE_PAGE = 2 << 20


class BufferPool:
    """Lends buffers for tensors; a buffer comes back when the last tensor over it, views included, is gone.

    Parameters
    ----------
    keep : int
        Buffers, lent and free together, up to which returned ones are kept. Asking for more always works: a user may
        hold as many batches as fit.
    """

    def __init__(self, keep: int):
        self._keep = keep
        self._free: list[mmap.mmap] = []  # guarded by _lock
        self._lock = threading.RLock()  # reentrant: the collector may give a buffer back inside _take
        self._lent = 0  # guarded by _lock
        self.lent_bytes = 0  # guarded by _lock
        self.peak_bytes = 0  # guarded by _lock; free and lent

    def empty(self, rows: int, dim: int, dtype: torch.dtype) -> torch.Tensor:
        """Give an uninitialised ``[rows, dim]`` tensor."""
        size = rows * dim * dtype.itemsize
        if size < _HUGE_PAGE:  # malloc serves these without asking the kernel
            return torch.empty(rows, dim, dtype=dtype)
        buffer = self._take(size)
        array = np.frombuffer(buffer, dtype=np.uint8, count=size)
        weakref.finalize(array, self._give_back, buffer).atexit = False
        return torch.from_numpy(array).view(dtype).view(rows, dim)

    def _take(self, size: int) -> mmap.mmap:
        with self._lock:
            fitting = [buffer for buffer in self._free if len(buffer) >= size]
            buffer = min(fitting, key=len) if fitting else None
            if buffer is not None:
                self._free.remove(buffer)
            elif self._free:  # too small for what batches have become: make room for a larger one
                self._free.remove(min(self._free, key=len))
        if buffer is None:
            # An eighth more than asked: batches differ by a few per cent, and one that does not fit is mapped anew.
            pages = -(-(size + size // 8) // _HUGE_PAGE)
            buffer = mmap.mmap(-1, pages * _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            buffer.madvise(mmap.MADV_HUGEPAGE)
        with self._lock:
            self._lent += 1
            self.lent_bytes += len(buffer)
            self.peak_bytes = max(self.peak_bytes, self.lent_bytes + sum(map(len, self._free)))
        return buffer

    def _give_back(self, buffer: mmap.mmap) -> None:
        with self._lock:
            self._lent -= 1
            self.lent_bytes -= len(buffer)
            if len(self._free) + self._lent < self._keep:
                self._free.append(buffer)

    def clear(self) -> None:
        """Give the free buffers back to the system."""
        with self._lock:
            self._free.clear()
