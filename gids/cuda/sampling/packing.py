"""Arrays copied together to one piece of memory, with one launch."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from gids.cuda.array import DeviceArray
from gids.cuda.session import Session

ALIGN_BYTES = 256  # of each array, as CUDA's allocations have it
#: What one warp copies: small enough that the largest array keeps a whole device busy.
PIECE_BYTES = 32 << 10


class Packing:
    """Arrays to be copied, by name; see :meth:`copy`."""

    def __init__(self, session: Session):
        self._session = session
        self._parts: dict[Hashable, tuple[DeviceArray, int]] = {}

    def add(self, name: Hashable, array: DeviceArray, count: int) -> None:
        """Take the first ``count`` values of an array."""
        self._parts[name] = (array, count)

    def copy(self) -> dict[Hashable, DeviceArray]:
        """Queue the copy of all; returns views of the one piece of memory that it goes to."""
        sizes = np.array([count * array.dtype.itemsize for array, count in self._parts.values()], np.int64)
        ends = np.cumsum(-(-sizes // ALIGN_BYTES) * ALIGN_BYTES)
        begins = ends - (-(-sizes // ALIGN_BYTES) * ALIGN_BYTES)
        memory = self._session.empty(int(ends[-1]) if len(ends) else 0, np.uint8)
        sources = np.array([array.pointer for array, _ in self._parts.values()], np.int64) - memory.pointer
        pieces = -(-sizes // PIECE_BYTES)
        number = np.repeat(np.arange(len(sizes)), pieces)
        at = PIECE_BYTES * (np.arange(len(number)) - np.repeat(np.cumsum(pieces) - pieces, pieces))
        if len(number):
            count = np.minimum(sizes[number] - at, PIECE_BYTES)
            table = self._session.upload(np.concatenate([sources[number] + at, begins[number] + at, count]))
            total = len(number)
            columns = (table[part * total : (part + 1) * total] for part in range(3))
            # From where the memory begins, so that every address is an offset from an argument.
            self._session.launch("unpack_pieces", total, memory, *columns, np.int64(total), memory, lanes=32)
        return {
            name: memory[int(begin) : int(begin) + count * array.dtype.itemsize].view((count,), array.dtype)
            for (name, (array, count)), begin in zip(self._parts.items(), begins, strict=True)
        }
