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

#: What blocks begin at multiples of, as CUDA's allocations do.
ALIGN_BYTES = 256
#: Blocks below this are cut from memory of their own, so that they leave no holes where the large ones go.
SMALL_BYTES = 1 << 20
#: The least that is taken from the driver for small blocks.
SMALL_SEGMENT_BYTES = 2 << 20


def block_bytes(count: int) -> int:
    """Return the size of the block that serves ``count`` bytes."""
    return max(-(-count // ALIGN_BYTES) * ALIGN_BYTES, ALIGN_BYTES)


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
        if not self.try_take(count):
            with self._lock:
                pools = list(self._pools)
            for wait in (False, True):
                for pool in pools:
                    pool.trim(wait=wait)
                if self.try_take(count):
                    return
            raise DeviceError(
                f"{self.name} must have room for {format_bytes(count)} more "
                f"({format_bytes(self.used)} of {format_bytes(self.limit)} are in use)"
            )

    def try_take(self, count: int) -> bool:
        """Account for an allocation that can be done without; returns whether there is room."""
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


class Segment:
    """Memory of the driver's that blocks are cut from. Free neighbours are one piece.

    Invariant: ``free`` and ``begin_of`` describe the same pieces, none of which touch.
    """

    def __init__(self, buffer: Any, count: int):
        self.buffer, self.count = buffer, count
        self.pointer = int(buffer.handle)
        self.free = {0: count}  # where a piece begins -> its bytes
        self._begin_of = {count: 0}  # where it ends -> where it begins

    @property
    def is_free(self) -> bool:
        """Whether no block is cut from it."""
        return self.free.get(0) == self.count

    def cut(self, begin: int, count: int) -> None:
        """Take the first bytes of a free piece."""
        piece = self.free.pop(begin)
        del self._begin_of[begin + piece]
        if piece > count:
            self.free[begin + count] = piece - count
            self._begin_of[begin + piece] = begin + count

    def join(self, begin: int, count: int) -> None:
        """Take a block back."""
        end = begin + count
        after = self.free.pop(end, 0)
        if after:
            del self._begin_of[end + after]
            end += after
        begin = self._begin_of.pop(begin, begin)
        self.free[begin] = end - begin
        self._begin_of[end] = begin


@dataclass(frozen=True, eq=False)
class Block:
    """Memory for one array: ``count`` bytes of a segment, or all of one that goes back to the driver with it."""

    segment: Segment
    begin: int
    count: int
    alone: bool = False

    @property
    def pointer(self) -> int:
        """Device address."""
        return self.segment.pointer + self.begin


class BlockPool:
    """Blocks of one stream, cut from few allocations.

    A block that comes back is for the same stream's later work at once: that follows all earlier work. What other
    streams have queued on it has events, and the block waits for those, not the stream. Blocks may come back on any
    thread, from destructors. Each new allocation is half of what there is (as large for small blocks), where the
    budget has room for it, so that after a few batches of any sizes no batch asks the driver for memory.

    Parameters
    ----------
    device : BlockDevice
        Where.
    stream : cuda.core.Stream
        Whose work the blocks are for.
    budget : DeviceBudget
        What segments count against.
    """

    #: Whether memory is kept. Without, each block is the driver's own and goes back at once, in order with the stream,
    #: which then waits for consumers: slower, and every use of freed memory is the driver's to see.
    keeps = True

    def __init__(self, device: BlockDevice, stream: Any, budget: DeviceBudget):
        self._device, self._stream, self._budget = device, stream, budget
        self._returned: deque[tuple[Block, list[Any]]] = deque()  # appended by any thread; events that it waits for
        self._busy: list[tuple[Block, list[Any]]] = []  # guarded by _lock
        self._small: list[Segment] = []  # contents guarded by _lock
        self._large: list[Segment] = []  # contents guarded by _lock
        self._lock = threading.RLock()
        self._open = True
        budget.join(self)

    def take(self, count: int) -> Block:
        """Return a block of at least ``count`` bytes."""
        if not self.keeps:
            self._budget.take(count)
            return Block(self._allocate(count), 0, count, alone=True)
        size = block_bytes(count)
        segments = self._small if size < SMALL_BYTES else self._large
        with self._lock:
            self._join_returned()
            pieces = [(piece, n, at) for n, s in enumerate(segments) for at, piece in s.free.items() if piece >= size]
            if pieces:
                _, number, begin = min(pieces)  # the smallest that does
                segments[number].cut(begin, size)
                self._budget.keep(-size)
                return Block(segments[number], begin, size)
        # Without the lock: where memory is short, the budget asks every pool to give some back.
        segment = self._new_segment(segments, size)
        with self._lock:
            segment.cut(0, size)
            segments.append(segment)
            self._budget.keep(segment.count - size)
        return Block(segment, 0, size)

    def _new_segment(self, segments: list[Segment], size: int) -> Segment:
        """Allocate memory for a block, and more where there is room: counted as in use."""
        so_far = sum(segment.count for segment in segments)
        more = max(so_far, SMALL_SEGMENT_BYTES) if segments is self._small else so_far // 2
        wanted = max(block_bytes(more), size)
        if wanted > size and self._budget.try_take(wanted):
            try:
                return Segment(self._device.allocate(wanted, self._stream), wanted)
            except DeviceError:
                self._budget.give(wanted)
        self._budget.take(size)
        return self._allocate(size)

    def _allocate(self, count: int) -> Segment:
        """Allocate what the budget has counted."""
        try:
            try:
                return Segment(self._device.allocate(count, self._stream), count)
            except DeviceError:
                if not self.trim(wait=True):
                    raise
                return Segment(self._device.allocate(count, self._stream), count)
        except BaseException:
            self._budget.give(count)
            raise

    def give(self, block: Block, events: list[Any]) -> None:
        """Take a block back; it is used again after ``events`` of other streams."""
        if self._open and not block.alone:
            self._budget.keep(block.count)
            self._returned.append((block, events))
            return
        with self._device.current():
            for event in events:
                self._stream.wait(event)
            if block.alone:
                self._budget.give(block.count)
                self._release(block.segment)
                return
            with self._lock:
                self._budget.keep(block.count)
                block.segment.join(block.begin, block.count)
                self._free_segments()

    def trim(self, *, wait: bool = False) -> int:
        """Free the segments that nobody uses; with ``wait``, also those that other streams still work on.

        Returns how many.
        """
        with self._lock, self._device.current():
            self._join_returned()
            if wait:
                for block, events in self._busy:
                    for event in events:
                        wait_for(event, "a consumer's work on a batch")
                    block.segment.join(block.begin, block.count)
                self._busy = []
            return self._free_segments()

    def _free_segments(self) -> int:
        freed = [segment for segment in (*self._small, *self._large) if segment.is_free]
        for segments in (self._small, self._large):
            segments[:] = [segment for segment in segments if not segment.is_free]
        for segment in freed:
            self._budget.drop(segment.count)
            self._release(segment)
        return len(freed)

    def _release(self, segment: Segment) -> None:
        try:
            segment.buffer.close(self._stream)
        except Exception as error:  # cuda.core has no public base class of its errors
            raise DeviceError(f"freeing {format_bytes(segment.count)} of device memory failed ({error})") from error

    def close(self) -> None:
        """Free all memory that came back, and from now on what does."""
        self._open = False
        self.trim(wait=True)

    def _join_returned(self) -> None:
        """Find out which blocks can be used again."""
        while self._returned:
            self._busy.append(self._returned.popleft())
        busy = []
        for block, events in self._busy:
            if all(event.is_done for event in events):
                block.segment.join(block.begin, block.count)
            else:
                busy.append((block, events))
        self._busy = busy
