"""The log of a directory of slices: records with checksums, appended after the slices they speak of are on disk."""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from gids.dataset import strict
from gids.dataset.table_writer import write_errors
from gids.errors import ConfigError, DatasetError
from gids.storage.system import read_errors

_HEADER = struct.Struct("<8sQ16s")  # magic, bytes of the payload, XXH3-128 of the payload
_MAGIC = b"gidsKG01"


@dataclass(frozen=True)
class SliceRecord:
    """Slices and entities that were added together.

    Attributes
    ----------
    atom_ptr, atoms, parts
        New slices: atoms of each, and its part (see ``cpp/kg/slice_row.hpp``).
    digests : uint64[n]
        XXH3-64 of each new slice's row.
    entities : int32[m]
        Entities whose subgraphs were sliced.
    slice_ptr, slices
        Slices of each entity.
    triples : int64[m]
        Triples of each entity's subgraph.
    """

    atom_ptr: NDArray[np.int64]
    atoms: NDArray[np.int32]
    parts: NDArray[np.int32]
    digests: NDArray[np.uint64]
    entities: NDArray[np.int32]
    slice_ptr: NDArray[np.int64]
    slices: NDArray[np.int32]
    triples: NDArray[np.int64]


_DTYPES = {
    "atom_ptr": np.int64,
    "atoms": np.int32,
    "parts": np.int32,
    "digests": np.uint64,
    "entities": np.int32,
    "slice_ptr": np.int64,
    "slices": np.int32,
    "triples": np.int64,
}


class SliceLog:
    """Appends records, and reads them back up to the first that a kill has cut."""

    def __init__(self, path: Path, read_only: bool = False):
        self.path = path
        self.cut_bytes = 0  # after the last whole record, as found by replay
        self._read_only = read_only
        flags = os.O_RDONLY if read_only else os.O_RDWR | os.O_CREAT | os.O_APPEND
        self._file = os.open(path, flags | os.O_CLOEXEC, 0o666)
        if not read_only:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(self._file)
                raise DatasetError(f"{path.parent} is being sliced by another process; wait for it to end") from error

    def replay(self) -> Iterator[SliceRecord]:
        """Yield the records; what follows the last whole one is cut off."""
        size = os.fstat(self._file).st_size
        with read_errors(self.path), self.path.open("rb") as file:
            good = 0
            while len(header := file.read(_HEADER.size)) == _HEADER.size:
                magic, length, digest = _HEADER.unpack(header)
                payload = file.read(length) if magic == _MAGIC and length <= size else b""
                if len(payload) != length or xxhash.xxh3_128_digest(payload) != digest or magic != _MAGIC:
                    break
                good += _HEADER.size + length
                with strict.damage_in(self.path):
                    record = _unpack(payload)
                yield record
        self.cut_bytes = os.fstat(self._file).st_size - good
        if self.cut_bytes and not self._read_only:
            os.ftruncate(self._file, good)

    def append(self, record: SliceRecord) -> None:
        """Append a record, durably."""
        arrays = [np.ascontiguousarray(getattr(record, name), dtype) for name, dtype in _DTYPES.items()]
        sizes = np.array([len(array) for array in arrays], np.int64)
        payload = b"".join([sizes.tobytes(), *(array.tobytes() for array in arrays)])
        data = _HEADER.pack(_MAGIC, len(payload), xxhash.xxh3_128_digest(payload)) + payload
        with write_errors(self.path, "slices"):
            done = 0
            while done < len(data):
                done += os.write(self._file, data[done:])
            os.fdatasync(self._file)

    def close(self) -> None:
        """Close the file and give up the lock."""
        os.close(self._file)


def _unpack(payload: bytes) -> SliceRecord:
    names = [field.name for field in fields(SliceRecord)]
    sizes = np.frombuffer(payload, np.int64, len(names))
    at, arrays = sizes.nbytes, {}
    for name, size in zip(names, sizes.tolist(), strict=True):
        dtype = np.dtype(_DTYPES[name])
        arrays[name] = np.frombuffer(payload, dtype, strict.as_count(size, name), at).copy()
        at += size * dtype.itemsize
    record = SliceRecord(**arrays)
    _check_lists("atom_ptr", record.atom_ptr, len(record.atoms), record.parts, record.digests)
    _check_lists("slice_ptr", record.slice_ptr, len(record.slices), record.entities, record.triples)
    return record


def _check_lists(name: str, ends: NDArray[np.int64], total: int, *each: NDArray[Any]) -> None:
    """Check that offsets rise from 0 to the end of their lists, and that there is one value for each list."""
    if not len(ends) or ends[0] != 0 or ends[-1] != total or bool((np.diff(ends) < 0).any()):
        raise ConfigError(f"{name} must rise from 0 to {total}")
    if any(len(values) != len(ends) - 1 for values in each):
        raise ConfigError(f"{name} must have as many lists as there are values for them")
