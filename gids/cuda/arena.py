"""Row slots in device memory that the cache and the groups in flight share: a row stays where it was read to."""

from __future__ import annotations

import heapq
import threading

import numpy as np

from gids.cuda.array import DeviceArray
from gids.cuda.device_reader import Ints, Prepared
from gids.cuda.session import CudaSession

#: Where the arena begins; rows of whole pages are then on pages, which is what GPUDirect Storage asks for.
PAGE_BYTES = 4096


class SlotAllocator:
    """Lends slots, adjacent ones where asked. May be used from several threads.

    Parameters
    ----------
    rows : int
        Slots; all are free.
    """

    def __init__(self, rows: int):
        self._lock = threading.Lock()
        self._free = np.ones(rows, np.bool_)  # guarded by _lock

    def take(self, count: int, run_begin: Ints, run_length: Ints, unit: int = 1) -> Ints:
        """Return ``count`` slots, -1 for those that there is no slot for.

        Parameters
        ----------
        count : int
            Slots wanted.
        run_begin, run_length : int64[runs]
            Slots ``begin`` to ``begin + length`` of the answer are adjacent where that is possible.
        unit : int
            Runs begin at multiples of it; their lengths are multiples of it.
        """
        places = np.full(count, -1, np.int64)
        with self._lock:
            starts = self._fit(run_length // unit, unit)
            fits = np.flatnonzero(starts >= 0)
            length = run_length[fits]
            run = np.repeat(fits, length)
            within = np.arange(len(run)) - np.repeat(np.cumsum(length) - length, length)
            places[run_begin[run] + within] = starts[run] + within
            self._free[starts[run] + within] = False
            rest = np.flatnonzero(places < 0)
            slots = self._scattered(unit)[: len(rest)]
            places[rest[: len(slots)]] = slots
            self._free[slots] = False
        return places

    def give(self, slots: Ints) -> None:
        """Take slots back; nothing that is not queued yet may use them."""
        with self._lock:
            self._free[slots] = True

    def keep(self, count: int) -> None:
        """Take every slot back except the first ``count``."""
        with self._lock:
            self._free[:count] = False
            self._free[count:] = True

    @property
    def num_free(self) -> int:
        """Slots that can be taken."""
        with self._lock:
            return int(self._free.sum())

    def _whole(self, unit: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Blocks of ``unit`` slots that are free."""
        return np.asarray(self._free[: len(self._free) // unit * unit].reshape(-1, unit).all(axis=1))

    def _fit(self, blocks: Ints, unit: int) -> Ints:
        """Return the slot at which each run of so many blocks begins, or -1: long runs first, each in the widest gap."""
        starts = np.full(len(blocks), -1, np.int64)
        if not len(blocks):
            return starts
        edges = np.flatnonzero(np.diff(self._whole(unit).astype(np.int8), prepend=0, append=0))
        begins, sizes = edges[::2], np.diff(edges)[::2]
        long = np.flatnonzero(blocks > 1)
        wide = sizes > 1
        gaps = list(zip((-sizes[wide]).tolist(), begins[wide].tolist(), strict=True)) if len(long) else []
        heapq.heapify(gaps)
        for run in long[np.argsort(-blocks[long], kind="stable")].tolist():
            wanted = int(blocks[run])
            if gaps and -gaps[0][0] >= wanted:
                size, begin = gaps[0]
                starts[run] = begin * unit
                self._free[begin * unit : (begin + wanted) * unit] = False
                heapq.heapreplace(gaps, (size + wanted, begin + wanted))
        short = np.flatnonzero(blocks == 1)
        if len(short):
            left = np.flatnonzero(self._whole(unit))[: len(short)]
            starts[short[: len(left)]] = left * unit
        return starts

    def _scattered(self, unit: int) -> Ints:
        """Free slots; those come first that are of no use to runs."""
        free = np.flatnonzero(self._free)
        if unit == 1:
            return free
        whole = np.zeros(len(self._free), np.bool_)
        blocks = self._whole(unit)
        whole[: len(blocks) * unit] = np.repeat(blocks, unit)
        return free[np.argsort(whole[free], kind="stable")]


class SlotArena:
    """Slots for the rows of the cache and of the groups in flight, and where in it each cache slot is.

    The cache owns ``cache_rows`` slots at all times: what it admits, it takes over with the row in it, and gives the
    slot of the evicted row for it. Planners do not know; their cache slots are numbers, ``place`` tells where they are.

    Parameters
    ----------
    session : CudaSession
        Memory, and the stream on which rows are gathered.
    cache_rows, group_rows : int
        Slots of the cache, and of all groups in flight.
    row_bytes : int
        Bytes of a slot.
    """

    def __init__(self, session: CudaSession, cache_rows: int, group_rows: int, row_bytes: int):
        self.rows = cache_rows + group_rows
        self.row_bytes = row_bytes
        self.values = session.reserve(self.rows * row_bytes, PAGE_BYTES)
        self._session = session
        self._cache_rows = cache_rows
        self._slots = SlotAllocator(self.rows)
        self.reset()

    def reset(self) -> None:
        """Take every slot back: the cache is empty and nothing is in flight."""
        self._slots.keep(self._cache_rows)
        self._place = np.arange(self._cache_rows)
        self.place: DeviceArray = self._session.upload(self._place)  # int64[cache_rows], in order with the gathers

    def take(self, prepared: Prepared) -> Ints:
        """Return a slot for each of the rows asked for, -1 where none is left; runs get adjacent ones if there are."""
        plan, places = prepared.plan, np.empty(prepared.plan.num_rows, np.int64)
        places[plan.positions] = self._slots.take(plan.num_rows, prepared.run_begin, prepared.run_length, prepared.unit)
        return places

    def take_over(self, cache_slots: Ints, places: Ints) -> None:
        """Let the cache have rows where they are; for those in the arena, its own slots become free."""
        inside = places < self.rows
        self._slots.give(self._place[cache_slots[inside]])
        self._place[cache_slots[inside]] = places[inside]

    def place_of(self, cache_slots: Ints) -> Ints:
        """Tell where cache slots are, once everything queued is done."""
        return self._place[cache_slots]

    def give(self, places: Ints) -> None:
        """Take back the slots of rows that nobody took over."""
        self._slots.give(places[places < self.rows])

    @property
    def num_free(self) -> int:
        """Slots that can be taken."""
        return self._slots.num_free
