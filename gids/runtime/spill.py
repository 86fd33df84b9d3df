"""Sampled batches on disk: what a long window (a superbatch) holds beyond the next few batches, until it is their turn."""

from __future__ import annotations

import os
import tempfile
from collections import deque
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gids.errors import StorageError
from gids.runtime.batch import map_tensors

#: Most pieces of one read or write: what Linux takes.
MOST_PIECES = 1024


@dataclass(frozen=True)
class Spilled:
    """A payload on disk.

    Attributes
    ----------
    payload : object
        As it was, with meta tensors (no memory) in the place of those on disk.
    metas : tuple of Tensor
        The meta tensors, in the order of their bytes.
    offset, length : int
        The bytes of all of them.
    """

    payload: Any
    metas: tuple[Tensor, ...]
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
        # Where payloads are, oldest first, those that follow each other as one [begin, end): a thousand are a few runs.
        self._runs: deque[list[int]] = deque()
        self._cursor = 0  # end of the newest

    def store(self, payload: Any, keep: set[int]) -> Spilled:
        """Write the tensors of a payload, but for those with an id in ``keep``, and let go of them."""
        tensors: list[Tensor] = []
        metas: dict[int, Tensor] = {}  # by the id of the tensor that they stand for
        length = 0

        def empty(tensor: Tensor) -> Tensor:
            nonlocal length
            if id(tensor) in keep or tensor.device.type != "cpu" or not tensor.numel():
                return tensor
            meta = metas.get(id(tensor))
            if meta is None:
                meta = metas[id(tensor)] = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
                tensors.append(tensor)
                length += tensor.nbytes
            return meta

        emptied = map_tensors(payload, empty)
        offset = self._room(length)
        self._write(offset, length, [memoryview(_bytes_of(tensor).data) for tensor in tensors])
        self._cursor = offset + length
        if self._runs and self._runs[-1][1] == offset:
            self._runs[-1][1] = self._cursor
        elif length:
            self._runs.append([offset, self._cursor])
        self.written_bytes += length
        return Spilled(emptied, tuple(metas.values()), offset, length)

    def load(self, spilled: Spilled) -> Any:
        """Read a payload back; its place is free afterwards."""
        loaded = {id(meta): torch.empty(meta.shape, dtype=meta.dtype) for meta in spilled.metas}
        self._read(spilled.offset, spilled.length, [memoryview(_bytes_of(tensor).data) for tensor in loaded.values()])
        if spilled.length:
            assert self._runs[0][0] == spilled.offset, "payloads are loaded in the order they were stored in"
            self._runs[0][0] += spilled.length
            if self._runs[0][0] == self._runs[0][1]:
                self._runs.popleft()
        return map_tensors(spilled.payload, lambda tensor: loaded.get(id(tensor), tensor))

    def _room(self, length: int) -> int:
        """Return where ``length`` bytes have a place: at the beginning or behind the newest, else behind all."""
        for begin in (0, self._cursor):
            if all(run[0] >= begin + length or run[1] <= begin for run in self._runs):
                return begin
        return max(end for _, end in self._runs)

    def _write(self, offset: int, length: int, views: list[memoryview]) -> None:
        left = deque(views)
        while length:
            try:
                count = os.pwritev(self._file.fileno(), list(islice(left, MOST_PIECES)), offset)
            except OSError as error:
                where = os.fspath(self.directory)
                raise StorageError("spilling failed", where, offset, length, error.errno or 0) from error
            offset, length = offset + count, length - count
            _drop(left, count)

    def _read(self, offset: int, length: int, views: list[memoryview]) -> None:
        left, where = deque(views), os.fspath(self.directory)
        while length:
            try:
                count = os.preadv(self._file.fileno(), list(islice(left, MOST_PIECES)), offset)
            except OSError as error:
                raise StorageError("read failed", where, offset, length, error.errno or 0) from error
            if count == 0:
                raise StorageError("spilled batch ends early", where, offset, length)
            offset, length = offset + count, length - count
            _drop(left, count)

    def close(self) -> None:
        """Release the space."""
        self._file.close()
        self._runs.clear()


def _drop(views: deque[memoryview], count: int) -> None:
    """Take the first bytes away."""
    while count:
        first = views.popleft()
        if count < len(first):
            views.appendleft(first[count:])
        count -= min(count, len(first))


def _bytes_of(tensor: Tensor) -> np.ndarray:
    """Return a tensor's bytes, in place where it is contiguous."""
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
