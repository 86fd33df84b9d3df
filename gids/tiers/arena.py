"""Row slots that groups share: what one group has used up, the next one is read into."""

from __future__ import annotations

import mmap
import threading

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gids.errors import ConfigError, GidsError

Slots = NDArray[np.int32]

_MAP_NORESERVE = 0x4000  # Linux; the mmap module has no name for it


class RowArena:
    """Memory for rows, handed out slot by slot. May be used from several threads.

    Groups that share reads began at different places of the sweep over the table, so each holds only a part of its rows;
    a slot comes back with the last group that waits for its row, and whichever group is read next fills it. Memory is
    taken as slots are first given.

    Parameters
    ----------
    rows : int
        Slots.
    dim : int
        Values in a row.
    dtype : torch.dtype
        Their type.
    """

    def __init__(self, rows: int, dim: int, dtype: torch.dtype):
        if rows < 1:
            raise ConfigError(f"rows of an arena must be at least 1 (got {rows})")
        self.rows = rows = min(rows, np.iinfo(np.int32).max)
        size = max(rows * dim * dtype.itemsize, 1)
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
        memory.madvise(mmap.MADV_HUGEPAGE)
        array = np.frombuffer(memory, np.uint8, count=rows * dim * dtype.itemsize)
        self.values: Tensor = torch.from_numpy(array).view(dtype).view(rows, dim)  # [rows, dim]
        self._lock = threading.Lock()
        self._returned = np.empty(rows, np.int32)  # guarded by _lock; the first _count are free
        self._count = 0  # guarded by _lock
        self._touched = 0  # guarded by _lock; slots from here on were never given

    @property
    def nbytes(self) -> int:
        """Bytes that were in use at some time."""
        return self._touched * self.values.stride(0) * self.values.itemsize

    @property
    def in_use(self) -> int:
        """Slots that were taken and not given back."""
        with self._lock:
            return self._touched - self._count

    def take(self, count: int) -> Slots:
        """Return ``count`` free slots, used ones first."""
        slots = np.empty(count, np.int32)
        with self._lock:
            again = min(count, self._count)
            fresh = count - again
            if self._touched + fresh > self.rows:
                free = self.rows - self._touched + self._count
                raise GidsError(f"an arena of {self.rows} rows must have {count} free (has {free})")
            slots[:again] = self._returned[self._count - again : self._count]
            slots[again:] = np.arange(self._touched, self._touched + fresh, dtype=np.int32)
            self._count -= again
            self._touched += fresh
        return slots

    def give(self, slots: Slots) -> None:
        """Take slots back; nobody reads or writes their rows any more."""
        with self._lock:
            self._returned[self._count : self._count + len(slots)] = slots
            self._count += len(slots)

    def reset(self) -> None:
        """Take every slot back."""
        with self._lock:
            self._returned[: self._touched] = np.arange(self._touched, dtype=np.int32)
            self._count = self._touched
