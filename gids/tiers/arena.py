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

#: Address space for groups that turn out larger than expected; costs nothing until it is touched.
RESERVE = 2
_MAP_NORESERVE = 0x4000  # Linux; the mmap module has no name for it


class RowArena:
    """Memory for rows, handed out slot by slot. May be used from several threads.

    Two buffers that take turns hold half a group each while the other is read. Here a row's slot is free as soon as its
    last batch has it, so while one group is used up the next one fills the same memory: groups are twice as large.

    Parameters
    ----------
    rows : int
        Slots that are meant to be in use at once. :attr:`reserve` can be, at the cost of that much more memory.
    dim : int
        Values in a row.
    dtype : torch.dtype
        Their type.
    """

    def __init__(self, rows: int, dim: int, dtype: torch.dtype):
        if rows < 1:
            raise ConfigError(f"rows of an arena must be at least 1 (got {rows})")
        self.rows = rows
        self.reserve = min(RESERVE * rows, np.iinfo(np.int32).max)
        size = max(self.reserve * dim * dtype.itemsize, 1)
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
        memory.madvise(mmap.MADV_HUGEPAGE)
        array = np.frombuffer(memory, np.uint8, count=self.reserve * dim * dtype.itemsize)
        self.values: Tensor = torch.from_numpy(array).view(dtype).view(self.reserve, dim)  # [reserve, dim]
        self._lock = threading.Lock()
        self._returned = np.empty(self.reserve, np.int32)  # guarded by _lock; the first _count are free
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
        """Give ``count`` free slots, used ones first."""
        slots = np.empty(count, np.int32)
        with self._lock:
            again = min(count, self._count)
            fresh = count - again
            if self._touched + fresh > self.reserve:
                free = self.reserve - self._touched + self._count
                raise GidsError(f"an arena of {self.reserve} rows must have {count} free (has {free})")
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
