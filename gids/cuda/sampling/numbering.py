"""Numbers of nodes by first occurrence, on a device."""

from __future__ import annotations

import numpy as np

from gids.cuda.array import DeviceArray
from gids.cuda.passes import exclusive_scan, full
from gids.cuda.session import Session


class NodeNumbers:
    """Distinct nodes of one type, numbered by first occurrence (kernels/unique.cuh)."""

    def __init__(self, session: Session):
        self._session = session
        self.size = 0
        self.nodes = session.empty(0, np.int64)
        self._log2 = 0
        self._table: tuple[DeviceArray, DeviceArray] = (session.empty(0, np.uint64), session.empty(0, np.uint64))

    def add(self, ids: DeviceArray) -> DeviceArray:
        """Give every occurrence the number of its node; new nodes are numbered in order."""
        session, count = self._session, len(ids)
        numbers = session.empty(count, np.int64)
        if count == 0:
            return numbers
        self._reserve(self.size + count)
        table, base = (*self._table, np.int32(self._log2)), np.int64(self.size)
        slots, flags = session.empty(count, np.int64), session.empty(count, np.int64)
        session.launch("unique_insert_nodes", count, *table, ids, np.int64(count), base, slots)
        session.launch("unique_flag_firsts", count, *table, slots, np.int64(count), base, flags)
        before = exclusive_scan(session, flags, full(session, 1, count), count)
        session.launch("unique_assign_ids", count, *table, ids, slots, np.int64(count), base, flags, before, self.nodes)
        session.launch("unique_read_ids", count, *table, slots, np.int64(count), numbers)
        self.size += int(session.download(before[count : count + 1])[0])
        return numbers

    def find(self, ids: DeviceArray) -> DeviceArray:
        """Give the number of every node, −1 where it has none."""
        out = self._session.empty(len(ids), np.int64)
        if len(ids):
            self._reserve(max(self.size, 1))
            table = (*self._table, np.int32(self._log2))
            self._session.launch("unique_find_ids", len(ids), *table, ids, np.int64(len(ids)), out)
        return out

    def _reserve(self, bound: int) -> None:
        session = self._session
        if len(self.nodes) < bound:
            grown = session.empty(max(bound, 2 * len(self.nodes)), np.int64)
            session.copy(grown[: self.size], self.nodes[: self.size])
            self.nodes = grown
        log2 = max((2 * bound - 1).bit_length(), 4)
        if log2 <= self._log2:
            return
        self._log2 = log2
        self._table = (session.empty(1 << log2, np.uint64), session.empty(1 << log2, np.uint64))
        table = (*self._table, np.int32(log2))
        session.launch("unique_clear_slots", 1 << log2, *table)
        if self.size:
            slots = session.empty(self.size, np.int64)
            session.launch(
                "unique_insert_nodes", self.size, *table, self.nodes, np.int64(self.size), np.int64(0), slots
            )


def sizes(numbers: dict[str, NodeNumbers]) -> dict[str, int]:
    """Give the number of nodes of each type."""
    return {ntype: numbering.size for ntype, numbering in numbers.items()}
