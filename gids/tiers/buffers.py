"""Memory that batches are delivered in, used again once nobody holds a batch: fresh pages cost more than the copy."""

from __future__ import annotations

import mmap
import threading
import weakref

import numpy as np
import torch

from gids.ledger import Account

_HUGE_PAGE = 2 << 20


class BufferPool:
    """Lends buffers for tensors; a buffer comes back when the last tensor over it, views included, is gone.

    Parameters
    ----------
    keep : int
        Buffers, lent and free together, up to which returned ones are kept. Asking for more always works: a user may
        hold as many batches as fit.
    account : Account, optional
        Takes note of what is lent and kept.
    """

    def __init__(self, keep: int, account: Account | None = None):
        self._keep = keep
        self._account = Account("outputs", 0) if account is None else account
        self._free: list[mmap.mmap] = []  # guarded by _lock
        self._lock = threading.RLock()  # reentrant: the collector may give a buffer back inside _take
        self._lent = 0  # guarded by _lock

    def empty(self, rows: int, dim: int, dtype: torch.dtype) -> torch.Tensor:
        """Return an uninitialised ``[rows, dim]`` tensor."""
        size = rows * dim * dtype.itemsize
        if size < _HUGE_PAGE:  # malloc serves these without asking the kernel
            return torch.empty(rows, dim, dtype=dtype)
        buffer = self._take(size)
        array = np.frombuffer(buffer, dtype=np.uint8, count=size)
        weakref.finalize(array, self._give_back, buffer).atexit = False
        return torch.from_numpy(array).view(dtype).view(rows, dim)

    # The account is changed outside of the lock: the collector may give a buffer back inside the account's own.

    def _take(self, size: int) -> mmap.mmap:
        dropped = 0
        with self._lock:
            fitting = [buffer for buffer in self._free if len(buffer) >= size]
            buffer = min(fitting, key=len) if fitting else None
            if buffer is not None:
                self._free.remove(buffer)
            elif self._free:  # too small for what batches have become: make room for a larger one
                smallest = min(self._free, key=len)
                dropped = len(smallest)
                self._free.remove(smallest)
            self._lent += 1
        self._account.give(dropped)
        if buffer is None:
            # A sixteenth more than asked: batches differ by a few per cent, and one that does not fit is mapped anew. A
            # budget allots a tenth more than the largest batch that was seen (gids.budget.parts.DEMAND_MARGIN).
            pages = -(-(size + size // 16) // _HUGE_PAGE)
            buffer = mmap.mmap(-1, pages * _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            buffer.madvise(mmap.MADV_HUGEPAGE)
            self._account.take(len(buffer))
        return buffer

    def _give_back(self, buffer: mmap.mmap) -> None:
        with self._lock:
            self._lent -= 1
            kept = len(self._free) + self._lent < self._keep
            if kept:
                self._free.append(buffer)
        if not kept:
            self._account.give(len(buffer))

    def clear(self) -> None:
        """Return the free buffers to the system, and those that are lent when they return."""
        with self._lock:
            self._keep = 0
            free, self._free = self._free, []
        self._account.give(sum(map(len, free)))
