"""Arrays copied together to one piece of memory, with one launch."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

import numpy as np

from gids.cuda.array import DeviceArray
from gids.cuda.session import Session

ALIGN_BYTES = 256  # of each array, as CUDA's allocations have it
WORD_BYTES = 8  # of the memory's values
#: What one warp copies: small enough that the largest array keeps a whole device busy.
PIECE_BYTES = 32 << 10


@dataclass(frozen=True)
class Packed:
    """Arrays in one piece of memory, one behind the other.

    Attributes
    ----------
    memory : int64 array
        All of it.
    pieces : mapping of name to DeviceArray
        Views of it.
    sizes : list of int
        Values of ``memory`` that each piece takes, in order, each followed by those between it and the next.
    """

    memory: DeviceArray
    pieces: Mapping[Hashable, DeviceArray]
    sizes: list[int]

    @functools.cached_property
    def others(self) -> list[Hashable]:
        """Names of the pieces that are not int64."""
        return [name for name, piece in self.pieces.items() if piece.dtype != np.int64]


class Packing:
    """Arrays to be copied, by name; see :meth:`copy`."""

    def __init__(self, session: Session):
        self._session = session
        self._parts: dict[Hashable, tuple[DeviceArray, int]] = {}

    def add(self, name: Hashable, array: DeviceArray, count: int) -> None:
        """Take the first ``count`` values of an array."""
        self._parts[name] = (array, count)

    def copy(self) -> Packed:
        """Queue the copy of all to one piece of memory."""
        sizes = np.array([count * array.dtype.itemsize for array, count in self._parts.values()], np.int64)
        ends = np.cumsum(-(-sizes // ALIGN_BYTES) * ALIGN_BYTES)
        begins = ends - (-(-sizes // ALIGN_BYTES) * ALIGN_BYTES)
        memory = self._session.empty(int(ends[-1]) // WORD_BYTES if len(ends) else 0, np.int64)
        sources = np.array([array.pointer for array, _ in self._parts.values()], np.int64) - memory.pointer
        words, pieces = -(-sizes // WORD_BYTES), -(-sizes // PIECE_BYTES)
        number = np.repeat(np.arange(len(sizes)), pieces)
        at = PIECE_BYTES * (np.arange(len(number)) - np.repeat(np.cumsum(pieces) - pieces, pieces))
        if len(number):
            count = np.minimum(sizes[number] - at, PIECE_BYTES)
            table = self._session.upload(np.concatenate([sources[number] + at, begins[number] + at, count]))
            total = len(number)
            columns = (table[part * total : (part + 1) * total] for part in range(3))
            # From where the memory begins, so that every address is an offset from an argument.
            self._session.launch("unpack_pieces", total, memory, *columns, np.int64(total), memory, lanes=32)
        return Packed(
            memory,
            {
                name: memory[int(begin) // WORD_BYTES :].view((count,), array.dtype)
                for (name, (array, count)), begin in zip(self._parts.items(), begins, strict=True)
            },
            np.stack([words, (ends - begins) // WORD_BYTES - words], axis=1).reshape(-1).tolist(),
        )
