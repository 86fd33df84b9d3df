"""Copies to the host that no thread waits for in the driver: the stream itself tells when they have arrived.

A function that the driver calls in stream order (``cuLaunchHostFunc``) posts a semaphore; whoever needs the values sleeps
on that. No stream is synchronised, and the thread that queued the work goes on.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy.typing as npt

from gids._native import Signal
from gids.cuda.array import DeviceArray
from gids.cuda.blocks import BlockDevice
from gids.cuda.transfer import ALIGN_BYTES, StagingBuffer
from gids.errors import DeviceError

#: How often whoever waits looks for an error of the device, after which no stream posts anything.
LOOK_AGAIN_S = 0.1
#: The least pinned memory of a slot.
SLOT_BYTES = 64 << 10


@functools.cache
def launch_host_function() -> Callable[..., int]:
    """Return ``cuLaunchHostFunc`` of the driver: that of cuda.bindings calls by way of Python, and takes its lock."""
    call: Any = ctypes.CDLL("libcuda.so.1").cuLaunchHostFunc
    call.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    call.restype = ctypes.c_int
    return call  # type: ignore[no-any-return]


def wait_for_post(signal: Signal, event: Any, what: str) -> None:
    """Wait until a stream has posted, or raise DeviceError for what keeps it from that.

    Parameters
    ----------
    signal : Signal
        Posted once, by the function queued behind ``event``.
    event : cuda.core.Event
        What came before on the stream.
    what : str
        Of that, for the message.
    """
    try:
        posted = signal.wait(LOOK_AGAIN_S)
        while not posted:
            event.is_done  # noqa: B018 - raises, if the device failed
            posted = signal.wait(LOOK_AGAIN_S)
        event.is_done  # noqa: B018
    except Exception as error:  # cuda.core has no public base class of its errors
        raise DeviceError(f"{what} failed ({error})") from error


class Arrival(Protocol):
    """Values of the device on their way to the host."""

    def wait(self) -> list[npt.NDArray[Any]]:
        """Return them, once they are there; raise DeviceError if the device failed. May be called again."""


class Arrived:
    """Values that are there already."""

    def __init__(self, values: list[npt.NDArray[Any]]):
        self._values = values

    def wait(self) -> list[npt.NDArray[Any]]:
        """Return them."""
        return self._values


class _Slot:
    def __init__(self) -> None:
        self.signal = Signal()
        self.memory: StagingBuffer | None = None


class PinnedArrival:
    """An :class:`Arrival` by way of pinned memory. Its owner keeps it until it was waited for."""

    def __init__(self, owner: Arrivals, slot: _Slot, arrays: Sequence[DeviceArray], begins: list[int], event: Any):
        self._owner, self._slot, self._event = owner, slot, event
        self._shapes = [
            (begin, array.nbytes, array.dtype, array.shape) for begin, array in zip(begins, arrays, strict=True)
        ]
        self._values: list[npt.NDArray[Any]] | None = None  # guarded by _lock
        self._lock = threading.Lock()

    def wait(self) -> list[npt.NDArray[Any]]:
        """Return the values, once they are there."""
        with self._lock:
            if self._values is None:
                wait_for_post(self._slot.signal, self._event, "work that the host was to hear of")
                assert self._slot.memory is not None
                memory = self._slot.memory.bytes
                self._values = [
                    memory[begin : begin + count].copy().view(dtype).reshape(shape)
                    for begin, count, dtype, shape in self._shapes
                ]
                self._owner.give(self._slot)
            return self._values


class Arrivals:
    """Pinned memory of a session for values on their way, used again; grows to the largest that was asked for."""

    def __init__(self, device: BlockDevice):
        self._device = device
        self._free: list[_Slot] = []  # guarded by _lock
        self._slots: list[_Slot] = []  # guarded by _lock; all of them: streams may post to any
        self._outgrown: list[StagingBuffer] = []  # guarded by _lock; to free them now would wait for all work
        self._lock = threading.Lock()

    def begin(
        self,
        arrays: Sequence[DeviceArray],
        copy_bytes: Callable[[int, int, int], None],
        record: Callable[[], Any],
        notify: Callable[[Signal], None],
    ) -> PinnedArrival:
        """Queue copies of arrays, and behind them the post."""
        ends = [0, *itertools.accumulate(-(-array.nbytes // ALIGN_BYTES) * ALIGN_BYTES for array in arrays)]
        begins = ends[:-1]
        slot = self._take(ends[-1])
        assert slot.memory is not None
        for array, begin in zip(arrays, begins, strict=True):
            copy_bytes(slot.memory.bytes.ctypes.data + begin, array.pointer, array.nbytes)
        event = record()
        notify(slot.signal)
        return PinnedArrival(self, slot, arrays, begins, event)

    def _take(self, count: int) -> _Slot:
        with self._lock:
            if self._free:
                slot = max(self._free, key=lambda free: 0 if free.memory is None else free.memory.count)
                self._free.remove(slot)
            else:
                slot = _Slot()
                self._slots.append(slot)
        if slot.memory is None or slot.memory.count < count:
            larger = StagingBuffer(self._device, max(2 * count, SLOT_BYTES))
            if slot.memory is not None:  # less than half as large
                with self._lock:
                    self._outgrown.append(slot.memory)
            slot.memory = larger
        return slot

    def give(self, slot: _Slot) -> None:
        """Take a slot back whose values were read."""
        with self._lock:
            self._free.append(slot)

    def close(self) -> None:
        """Unpin; no copy is under way."""
        with self._lock:
            for slot in self._slots:
                if slot.memory is not None:
                    slot.memory.close()
                slot.memory = None
            while self._outgrown:
                self._outgrown.pop().close()
