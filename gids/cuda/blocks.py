"""Device memory that is used again: blocks of a stream, given out in its order, and never before their users are done."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from gids.errors import DeviceError
from gids.units import format_bytes

#: Blocks are of few sizes, so that a batch finds those of the batch before: this many between two powers of two.
SIZES_PER_OCTAVE = 8
SMALLEST_BYTES = 256


def block_bytes(count: int) -> int:
    """Return the size of the block that serves ``count`` bytes: at most an eighth more, beyond the smallest."""
    step = max(SMALLEST_BYTES, 1 << max(count - 1, 0).bit_length() >> (SIZES_PER_OCTAVE.bit_length()))
    return max(-(-count // step) * step, SMALLEST_BYTES)


class DeviceBudget:
    """Counts the bytes that sessions of one loader take; refuses more than the budget.

    Invariant: ``0 <= used`` and ``used + kept <= limit``: ``used`` is in arrays, ``kept`` waits to be used again.
    """

    def __init__(self, limit: int, name: str = "device budget"):
        self.limit = limit
        self.name = name
        self.used = 0  # guarded by _lock
        self.kept = 0  # guarded by _lock
        self.peak = 0  # guarded by _lock
        self._lock = threading.RLock()  # an array may be dropped by the collector on a thread that is in here
        self._pools: weakref.WeakSet[BlockPool] = weakref.WeakSet()  # guarded by _lock

    def take(self, count: int) -> None:
        """Account for an allocation, or refuse it, after what is kept was given back."""
        if not self._try(count):
            with self._lock:
                pools = list(self._pools)
            for wait in (False, True):
                for pool in pools:
                    pool.trim(wait=wait)
                if self._try(count):
                    return
            raise DeviceError(
                f"{self.name} must have room for {format_bytes(count)} more "
                f"({format_bytes(self.used)} of {format_bytes(self.limit)} are in use)"
            )

    def _try(self, count: int) -> bool:
        with self._lock:
            if self.used + self.kept + count > self.limit:
                return False
            self.used += count
            self.peak = max(self.peak, self.used + self.kept)
            return True

    def give(self, count: int) -> None:
        """Account for freed bytes."""
        with self._lock:
            self.used -= count

    def keep(self, count: int) -> None:
        """Account for bytes that an array gave back, and that stay allocated; negative: that an array has again."""
        with self._lock:
            self.used -= count
            self.kept += count

    def drop(self, count: int) -> None:
        """Account for kept bytes that were freed."""
        with self._lock:
            self.kept -= count

    def join(self, pool: BlockPool) -> None:
        """Take note of a pool whose kept blocks may be given back when memory is short."""
        with self._lock:
            self._pools.add(pool)


def wait_for(event: Any, what: str) -> None:
    """Wait for an event on the host; what went wrong before it on its stream is a DeviceError."""
    try:
        event.sync()
    except Exception as error:  # cuda.core has no public base class of its errors
        raise DeviceError(f"{what} failed ({error})") from error


class BlockDevice(Protocol):
    """A device as a pool uses it; :class:`gids.cuda.session.CudaDevice` is one."""

    def current(self) -> AbstractContextManager[None]:
        """Make the device current on the calling thread."""

    def allocate(self, count: int, stream: Any) -> Any:
        """Return a buffer that work of ``stream`` may use from now on, or raise DeviceError."""


@dataclass(frozen=True)
class Block:
    """Memory of the driver's, and its bytes."""

    buffer: Any
    count: int


class BlockPool:
    """Blocks of one stream.

    A block that comes back is for the same stream's later work at once: that follows all earlier work. What other
    streams have queued on it has events, and the block waits for those, not the stream. Blocks may come back on any
    thread, from destructors.

    Parameters
    ----------
    device : BlockDevice
        Where.
    stream : cuda.core.Stream
        Whose work the blocks are for.
    budget : DeviceBudget
        What blocks count against.
    """

    #: Whether blocks are kept. Without, each goes back to the driver at once, in order with the stream, which then waits
    #: for consumers: slower, and every use of freed memory is the driver's to see.
    keeps = True

    def __init__(self, device: BlockDevice, stream: Any, budget: DeviceBudget):
        self._device, self._stream, self._budget = device, stream, budget
        self._returned: deque[tuple[Block, list[Any]]] = deque()  # appended by any thread; events that it waits for
        self._busy: list[tuple[Block, list[Any]]] = []  # guarded by _lock
        self._ready: dict[int, list[Block]] = {}  # by size; guarded by _lock
        self._lock = threading.RLock()
        self._open = True
        budget.join(self)

    def take(self, count: int) -> Block:
        """Return a block of at least ``count`` bytes: one that was used before, at most twice too large, or a new one."""
        size = block_bytes(count) if self.keeps else count
        with self._lock:
            self._sort_returned()
            fitting = [known for known, ready in self._ready.items() if ready and size <= known <= 2 * size]
            if fitting:
                block = self._ready[min(fitting)].pop()
                self._budget.keep(-block.count)
                return block
        try:
            self._budget.take(size)
        except DeviceError:
            if size == count:
                raise
            self._budget.take(size := count)
        try:
            try:
                return Block(self._device.allocate(size, self._stream), size)
            except DeviceError:
                if not self.trim(wait=True):
                    raise
                return Block(self._device.allocate(size, self._stream), size)
        except BaseException:
            self._budget.give(size)
            raise

    def give(self, block: Block, events: list[Any]) -> None:
        """Take a block back; it is used again after ``events`` of other streams."""
        if self._open and self.keeps:
            self._budget.keep(block.count)
            self._returned.append((block, events))
            return
        with self._device.current():
            self._budget.give(block.count)
            for event in events:
                self._stream.wait(event)
            self._release(block)

    def trim(self, *, wait: bool = False) -> int:
        """Free the blocks that nobody uses; with ``wait``, also those that other streams still work on.

        Returns how many.
        """
        with self._lock, self._device.current():
            self._sort_returned()
            if wait:
                for block, events in self._busy:
                    for event in events:
                        wait_for(event, "a consumer's work on a batch")
                    self._ready.setdefault(block.count, []).append(block)
                self._busy = []
            blocks = [block for ready in self._ready.values() for block in ready]
            self._ready = {}
            for block in blocks:
                self._budget.drop(block.count)
                self._release(block)
        return len(blocks)

    def _release(self, block: Block) -> None:
        try:
            block.buffer.close(self._stream)
        except Exception as error:  # cuda.core has no public base class of its errors
            raise DeviceError(f"freeing {format_bytes(block.count)} of device memory failed ({error})") from error

    def close(self) -> None:
        """Free all blocks that came back, and from now on each one that does."""
        self._open = False
        self.trim(wait=True)

    def _sort_returned(self) -> None:
        """Find out which blocks can be used again."""
        while self._returned:
            self._busy.append(self._returned.popleft())
        busy = []
        for block, events in self._busy:
            if all(event.is_done for event in events):
                self._ready.setdefault(block.count, []).append(block)
            else:
                busy.append((block, events))
        self._busy = busy
