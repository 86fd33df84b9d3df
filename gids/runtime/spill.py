"""Sampled batches on disk: what a long window (a superbatch) holds beyond the next few batches, until it is their turn."""

from __future__ import annotations

import os
import tempfile
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gids.errors import StorageError
from gids.runtime.batch import map_tensors


@dataclass(frozen=True)
class Spilled:
    """A payload on disk.

    Attributes
    ----------
    payload : object
        As it was, with meta tensors (no memory) in the place of those on disk.
    places : dict of int to (int, Tensor)
        By the id of a meta tensor, where the bytes are, and the meta tensor, so that its id stays its own.
    offset, length : int
        The bytes of all of them.
    """

    payload: Any
    places: dict[int, tuple[int, Tensor]]
    offset: int
    length: int


class SpillFile:
    """A file without a name, in which payloads wait; its space is used again and goes with the process.

    Payloads must be loaded in the order in which they were stored.

    Parameters
    ----------
    directory : Path
        Where the file is.
    """

    def __init__(self, directory: Path):
        self.directory = directory
        self.written_bytes = 0
        try:
            self._file = tempfile.TemporaryFile(dir=directory, buffering=0, prefix=".gids-spill-")  # noqa: SIM115 # closed by close()
        except OSError as error:
            raise StorageError(
                "opening a file to spill to failed", os.fspath(directory), 0, 0, error.errno or 0
            ) from error
        self._outstanding: deque[tuple[int, int]] = deque()  # (offset, length), oldest first; they do not overlap
        self._cursor = 0  # end of the newest

    def store(self, payload: Any, keep: set[int]) -> Spilled:
        """Write the tensors of a payload, but for those with an id in ``keep``, and let go of them."""
        tensors: dict[int, Tensor] = {}

        def note(tensor: Tensor) -> Tensor:
            if id(tensor) not in keep and tensor.device.type == "cpu" and tensor.numel():
                tensors[id(tensor)] = tensor
            return tensor

        map_tensors(payload, note)
        length = sum(tensor.nbytes for tensor in tensors.values())
        offset = position = self._room(length)
        metas: dict[int, Tensor] = {}
        places: dict[int, tuple[int, Tensor]] = {}
        for name, tensor in tensors.items():
            self._write(position, _bytes_of(tensor))
            meta = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
            metas[name], places[id(meta)] = meta, (position, meta)
            position += tensor.nbytes
        emptied = map_tensors(payload, lambda tensor: metas.get(id(tensor), tensor))
        self._outstanding.append((offset, length))
        self._cursor = offset + length
        self.written_bytes += length
        return Spilled(emptied, places, offset, length)

    def load(self, spilled: Spilled) -> Any:
        """Read a payload back; its place is free afterwards."""
        loaded: dict[int, Tensor] = {}
        for name, (position, meta) in spilled.places.items():
            tensor = torch.empty(meta.shape, dtype=meta.dtype)
            self._read(position, _bytes_of(tensor))
            loaded[name] = tensor
        first = self._outstanding.popleft()
        assert first == (spilled.offset, spilled.length), "payloads are loaded in the order they were stored in"
        return map_tensors(spilled.payload, lambda tensor: loaded.get(id(tensor), tensor))

    def _room(self, length: int) -> int:
        """Return where ``length`` bytes have a place: at the beginning or behind the newest, else behind all."""
        for begin in (0, self._cursor):
            if all(offset >= begin + length or offset + size <= begin for offset, size in self._outstanding):
                return begin
        return max(offset + size for offset, size in self._outstanding)

    def _write(self, offset: int, data: np.ndarray) -> None:
        view, done = memoryview(data.data), 0
        while done < len(view):
            try:
                done += os.pwrite(self._file.fileno(), view[done:], offset + done)
            except OSError as error:
                where = os.fspath(self.directory)
                raise StorageError(
                    "spilling failed", where, offset + done, len(view) - done, error.errno or 0
                ) from error

    def _read(self, offset: int, data: np.ndarray) -> None:
        view, done = memoryview(data.data), 0
        while done < len(view):
            where = os.fspath(self.directory)
            try:
                count = os.preadv(self._file.fileno(), [view[done:]], offset + done)
            except OSError as error:
                raise StorageError("read failed", where, offset + done, len(view) - done, error.errno or 0) from error
            if count == 0:
                raise StorageError("spilled batch ends early", where, offset + done, len(view) - done)
            done += count

    def close(self) -> None:
        """Release the space."""
        self._file.close()
        self._outstanding.clear()


def _bytes_of(tensor: Tensor) -> np.ndarray:
    """Return a tensor's bytes, in place where it is contiguous."""
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
