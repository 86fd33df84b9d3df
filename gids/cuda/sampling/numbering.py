"""Numbers of nodes by first occurrence, on a device: how many there are, only the device knows."""

from __future__ import annotations

import numpy as np

from gids.cuda.array import DeviceArray
from gids.cuda.passes import empty_prefix, turnstile
from gids.cuda.sampling.counts import Count, Counts
from gids.cuda.session import Argument, Session


class NodeNumbers:
    """Distinct nodes of one type, numbered by first occurrence (kernels/unique.cuh).

    A table finds nodes by id. Occurrences have positions that grow from pass to pass; what a node's slot holds is its
    number, or for nodes that came with the last pass the position of their first occurrence, until the next pass
    settles it.

    Parameters
    ----------
    session : Session
        Where.
    counts : Counts
        Where the number of nodes is kept.
    limit : int, optional
        Nodes that there are in all; ids are in ``[0, limit)``. Default: no limit.
    """

    def __init__(self, session: Session, counts: Counts, limit: int | None = None):
        self._session, self._counts = session, counts
        self._limit = 1 << 62 if limit is None else limit
        self.count = counts.new(0)  # nodes so far
        self.nodes = session.empty(0, np.int64)
        self._slot_of_id = self.nodes
        self._settle: tuple[Count, Count] | None = None  # numbers that the table does not have yet
        self._position = 0  # of the next occurrence
        self._log2 = 0
        self._table: tuple[DeviceArray, DeviceArray] = (session.empty(0, np.uint64), session.empty(0, np.uint64))

    @property
    def size(self) -> int:
        """How many nodes there are. Waits, if the host does not know it yet."""
        return self._counts.read(self.count)

    @property
    def table(self) -> tuple[DeviceArray, DeviceArray, np.int32]:
        """Slots of the table, as kernels take them."""
        return (*self._table, np.int32(self._log2))

    def reserve(self, more: int) -> None:
        """Make room for ``more`` occurrences: nodes, and twice as many slots, in memory that does not grow before then."""
        session, bound = self._session, min(self.count.bound + more, self._limit)
        if len(self.nodes) < bound:
            before, slots = self.nodes, self._slot_of_id
            known = min(self.count.bound, len(before))
            self.nodes, self._slot_of_id = session.empty(bound, np.int64), session.empty(bound, np.int64)
            session.copy(self.nodes[:known], before[:known])
            session.copy(self._slot_of_id[:known], slots[:known])
        log2 = max((2 * bound - 1).bit_length(), 4)
        if log2 <= self._log2:
            return
        self._log2, size = log2, 1 << log2
        slots = session.empty(2 * size, np.uint64)
        session.fill(slots, 0xFF)  # no node, and the greatest position
        self._table = (slots[:size], slots[size:])
        if self.count.bound:
            self._insert(self.nodes, self.count, 0, self._slot_of_id)
        self._settle = None

    def insertion(self, count: Count) -> tuple[tuple[Argument, ...], DeviceArray]:
        """Return what a kernel needs to insert ``count`` occurrences, and where it writes the slot of each."""
        self.reserve(count.bound)
        slots = self._session.empty(count.bound, np.int64)
        settle = (None, None) if self._settle is None else (self._settle[0].array, self._settle[1].array)
        return (*self.table, np.int64(self._position), slots, self._slot_of_id, *settle), slots

    def add(self, ids: DeviceArray, count: Count, bad: DeviceArray | None = None) -> DeviceArray:
        """Return the number of every occurrence's node; new nodes are numbered in order.

        Parameters
        ----------
        ids : DeviceArray
            int64[at least ``count.bound``], of which the first ``count`` are there.
        count : Count
            How many.
        bad : DeviceArray, optional
            uint32[1] that an id outside the limit sets; without it, ids are not checked.
        """
        if count.bound == 0:
            return self._session.empty(0, np.int64)
        self.reserve(count.bound)
        slots = self._session.empty(count.bound, np.int64)
        self._insert(ids, count, self._position, slots, bad)
        return self.number(count, slots)

    def _insert(
        self, ids: DeviceArray, count: Count, position: int, slots: DeviceArray, bad: DeviceArray | None = None
    ) -> None:
        settle = (None, None) if self._settle is None or position == 0 else (s.array for s in self._settle)
        self._session.launch(
            "unique_insert_nodes", count.bound, *self.table, ids, count.array, np.int64(position),
            np.int64(self._limit), bad, slots, self._slot_of_id, *settle,
        )  # fmt: skip

    def number(self, count: Count, slots: DeviceArray) -> DeviceArray:
        """Return the number of every occurrence that was inserted last."""
        session, position = self._session, np.int64(self._position)
        out = session.empty(count.bound, np.int64)
        firsts = empty_prefix(session, count.bound, self._counts.new(count.bound).array)
        size, after = self.count, self._counts.new(min(self.count.bound + count.bound, self._limit))
        session.launch(
            "unique_flag_firsts", count.bound, *self.table, slots, count.array, position, *firsts, turnstile(session)
        )
        session.launch(
            "unique_number_nodes", count.bound, *self.table, slots, count.array, position, *firsts, size.array,
            after.array, self.nodes, self._slot_of_id, out,
        )  # fmt: skip
        self.count, self._settle = after, (size, after)
        self._position += count.bound
        return out

    def find(self, ids: DeviceArray, count: int) -> DeviceArray:
        """Return the number of every one of the first ``count`` nodes, −1 where it has none."""
        out = self._session.empty(count, np.int64)
        if count:
            self.reserve(1)
            nothing = self._counts.new(0)
            if self._settle is not None:
                self._insert(ids, nothing, self._position, out)
                self._settle = None
            self._session.launch("unique_find_ids", count, *self.table, ids, np.int64(count), out)
        return out


def sizes(numbers: dict[str, NodeNumbers]) -> dict[str, int]:
    """Return the number of nodes of each type. Waits, if the host does not know it yet."""
    return {ntype: numbering.size for ntype, numbering in numbers.items()}
