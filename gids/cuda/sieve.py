"""The queue and hand of the sieve policy, on a device."""

from __future__ import annotations

import numpy as np

from gids.cuda.array import DeviceArray
from gids.cuda.passes import compact, exclusive_scan, full
from gids.cuda.session import Session


class SieveQueue:
    """Slots from oldest to newest; the passes of kernels/policy_sieve.cuh decide whom the hand takes.

    Invariant: ``0 <= hand < size``, or both are 0.
    """

    def __init__(self, session: Session, capacity: int):
        self._session = session
        self._capacity = capacity
        self._queue = session.empty(capacity, np.int64)
        self._size = 0
        self._hand = 0

    def select(self, slots: DeviceArray, unique: int) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
        """Admit every row read, as far as the cache goes. Gives positions, slots, and how many. Waits."""
        session = self._session
        admitted = min(unique, self._capacity)
        positions, chosen = session.empty(admitted, np.int64), session.empty(admitted, np.int64)
        if admitted:
            fresh = min(self._capacity - self._size, admitted)  # never used: slots fill in order and stay full
            session.launch("count_up", admitted, np.int64(0), np.int64(admitted), positions)
            if fresh:
                session.launch("count_up", fresh, np.int64(self._size), np.int64(fresh), chosen)
            if admitted > fresh:
                self._evict(slots, admitted - fresh, chosen[fresh:])
            session.copy(self._queue[self._size : self._size + admitted], chosen)
            self._size += admitted
        return positions, chosen, full(session, 1, admitted)

    def _evict(self, slots: DeviceArray, wanted: int, out: DeviceArray) -> None:
        session, size, hand = self._session, self._size, self._hand
        sweep = (self._queue, np.int64(size), np.int64(hand))
        everything = full(session, 1, size)
        flags, first, second, kept = (session.empty(size, np.int64) for _ in range(4))
        session.launch("sieve_flag", size, *sweep, np.int64(wanted), slots, flags)
        ranks = exclusive_scan(session, flags, everything, size)
        session.launch("sieve_decide", size, *sweep, np.int64(wanted), slots, flags, ranks, first, second, kept)
        victims, last = [], -1
        for circle in (first, second):
            items, total = compact(session, circle, everything, size)
            count = int(session.download(total)[0])
            victims.append((items, count))
            if count:
                last = int(session.download(items[count - 1 : count])[0])
        survivors, total = compact(session, kept, everything, size)
        kept_before = exclusive_scan(session, kept, everything, size)
        met, wrap = last + 1, size - hand  # items the hand has met; items from `wrap` on are the oldest of the queue
        at = np.array([min(met, wrap), wrap, max(met, wrap), size], np.int64)
        found = session.empty(4, np.int64)
        session.launch("take_values", 4, kept_before, session.upload(at), None, np.int64(4), found)
        before_stop, newer, before_met, count = (int(value) for value in session.download(found))

        begin = 0
        for items, number in victims:
            if number:
                session.launch("sieve_slots", number, *sweep, items, np.int64(number), out[begin:])
            begin += number
        queue = session.empty(self._capacity, np.int64)
        older = count - newer
        if older:
            session.launch("sieve_slots", older, *sweep, survivors[newer:], np.int64(older), queue)
        if newer:
            session.launch("sieve_slots", newer, *sweep, survivors, np.int64(newer), queue[older:])
        self._queue, self._size = queue, count
        self._hand = before_met - newer if hand + met > size else older + before_stop
        if self._hand >= count:
            self._hand = 0  # past the newest: start at the oldest again
