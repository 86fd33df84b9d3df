"""Small copies between host and device through pinned memory: no copy of ours is pageable, and uploads wait for nobody."""

from __future__ import annotations

import ctypes
import resource
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gids.cuda.array import DeviceArray
from gids.cuda.blocks import BlockDevice, Segment, block_bytes, wait_for
from gids.errors import DeviceError
from gids.units import format_bytes

#: Pinned memory that uploads go through, in halves: while one is filled, the copies out of the other end.
UPLOAD_BYTES = 2 << 20
ALIGN_BYTES = 64
#: What pieces of staging begin at multiples of: drives write whole pages to them.
PAGE_BYTES = 4096


class Pinned(Protocol):
    """Pinned memory, until it is closed."""

    bytes: npt.NDArray[np.uint8]

    def close(self) -> None:
        """Release the memory; nothing may read or write it any more."""


class StagingBuffer:
    """Pinned memory (``cuMemHostAlloc``) that copies and reads land in.

    To free it waits for all work of the device, training too: that is for the end of a run.

    Parameters
    ----------
    device : BlockDevice
        In whose context it is pinned.
    count : int
        Bytes.
    """

    def __init__(self, device: BlockDevice, count: int):
        from cuda.bindings import driver

        self._device = device
        with device.current():
            status, self._pointer = driver.cuMemHostAlloc(max(count, 1), 0)
        if int(status):
            limit = memlock_limit()
            raise DeviceError(
                f"staging needs {format_bytes(count)} of pinned memory: cuMemHostAlloc failed ({status.name}; "
                f"RLIMIT_MEMLOCK is {'unlimited' if limit is None else format_bytes(limit)})"
            )
        self.count = count
        memory = (ctypes.c_uint8 * max(count, 1)).from_address(int(self._pointer))
        self.bytes: npt.NDArray[np.uint8] = np.ctypeslib.as_array(memory)[:count]

    @property
    def handle(self) -> int:
        """Where it begins."""
        return int(self._pointer)

    def close(self) -> None:
        """Release the memory; nothing may read or write it any more."""
        from cuda.bindings import driver

        if self._pointer is not None:
            with self._device.current():
                driver.cuMemFreeHost(self._pointer)
            self._pointer = None


class StagingMemory:
    """Pinned memory for the staging of all tables of a run: pinned once, and cut anew for stores that replace others.

    Parameters
    ----------
    device : BlockDevice
        In whose context it is pinned.
    count : int
        Bytes, for all tables.
    """

    def __init__(self, device: BlockDevice, count: int):
        self._device = device
        self.count = -(-count // PAGE_BYTES) * PAGE_BYTES
        self._buffer = StagingBuffer(device, self.count)
        self._segment = Segment(self._buffer, self.count)  # guarded by _lock
        self._lock = threading.Lock()

    def take(self, count: int) -> Pinned:
        """Return a piece; memory of its own where no piece is free that is large enough."""
        size = -(-count // PAGE_BYTES) * PAGE_BYTES
        with self._lock:
            for begin, free in sorted(self._segment.free.items()):
                if free >= size:
                    self._segment.cut(begin, size)
                    return _Piece(self, self._buffer.bytes[begin : begin + count], begin, size)
        return StagingBuffer(self._device, count)

    def give(self, begin: int, size: int) -> None:
        """Take a piece back."""
        with self._lock:
            self._segment.join(begin, size)

    def close(self) -> None:
        """Unpin; every piece was given back."""
        self._buffer.close()


class _Piece:
    def __init__(self, memory: StagingMemory, values: npt.NDArray[np.uint8], begin: int, size: int):
        self._memory, self._begin, self._size = memory, begin, size
        self.bytes = values

    def close(self) -> None:
        """Let another store have it."""
        size, self._size = self._size, 0
        if size:
            self._memory.give(self._begin, size)


def memlock_limit() -> int | None:
    """Return the bytes that this process may lock (RLIMIT_MEMLOCK), or None for no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft


class Uploads:
    """Sources of copies to the device, until the copies are done. One thread at a time, see ``lock``."""

    def __init__(self, device: BlockDevice):
        self._device = device
        self._buffer: StagingBuffer | None = None
        self._half, self._at = 0, 0
        self._ended: list[Any] = [None, None]  # event after the last copy out of each half
        self.lock = threading.RLock()

    def place(self, values: npt.NDArray[Any], record: Callable[[], Any]) -> int | None:
        """Copy values to pinned memory; returns where, or None where they are too large for it.

        The copy to the device must be queued before the next call; ``record`` returns an event behind all copies.
        """
        half_bytes = UPLOAD_BYTES // 2
        if values.nbytes > half_bytes:
            return None
        if self._buffer is None:
            self._buffer = StagingBuffer(self._device, UPLOAD_BYTES)
        if self._at + values.nbytes > half_bytes:
            self._ended[self._half] = record()
            self._half, self._at = 1 - self._half, 0
            before, self._ended[self._half] = self._ended[self._half], None
            if before is not None and not before.is_done:
                with self._device.current():
                    wait_for(before, "a copy to the device")
        begin = self._half * half_bytes + self._at
        self._at += -(-values.nbytes // ALIGN_BYTES) * ALIGN_BYTES
        self._buffer.bytes[begin : begin + values.nbytes] = values.reshape(-1).view(np.uint8)
        return int(self._buffer.bytes.ctypes.data) + begin

    def close(self) -> None:
        """Unpin; no copy is under way."""
        buffer, self._buffer = self._buffer, None
        if buffer is not None:
            buffer.close()


class Downloads:
    """Pinned memory that copies from the device land in; grows to the largest that was asked for."""

    def __init__(self, device: BlockDevice):
        self._device = device
        self._buffer: StagingBuffer | None = None
        self._outgrown: list[StagingBuffer] = []  # no larger together than the buffer: to free them waits for all work
        self._lock = threading.RLock()

    def copy(
        self, arrays: Sequence[DeviceArray], copy_bytes: Callable[[int, int, int], None], record: Callable[[], Any]
    ) -> list[npt.NDArray[Any]]:
        """Copy arrays to the host with one wait, for an event behind them."""
        ends = np.cumsum([-(-array.nbytes // ALIGN_BYTES) * ALIGN_BYTES for array in arrays], dtype=np.int64)
        begins = [0, *ends[:-1].tolist()]
        with self._lock, self._device.current():
            buffer = self._room(int(ends[-1]) if len(ends) else 0)
            for array, begin in zip(arrays, begins, strict=True):
                copy_bytes(buffer.bytes.ctypes.data + begin, array.pointer, array.nbytes)
            wait_for(record(), "a copy to the host")
            return [
                buffer.bytes[begin : begin + array.nbytes].copy().view(array.dtype).reshape(array.shape)
                for array, begin in zip(arrays, begins, strict=True)
            ]

    def _room(self, count: int) -> StagingBuffer:
        if self._buffer is None or self._buffer.count < count:
            larger = StagingBuffer(self._device, max(block_bytes(2 * count), 64 << 10))
            if self._buffer is not None:
                self._outgrown.append(self._buffer)
            self._buffer = larger
        return self._buffer

    def close(self) -> None:
        """Unpin; no copy is under way."""
        if self._buffer is not None:
            self._outgrown.append(self._buffer)
            self._buffer = None
        while self._outgrown:
            self._outgrown.pop().close()
