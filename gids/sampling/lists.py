"""Neighbour lists of an on-disk topology that stay in memory: what they would save, and bringing them in."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gids import _native
from gids.sampling.disk import stream
from gids.sampling.sample import EdgeType
from gids.sampling.visits import Visits, load_visits
from gids.storage.curve import ReadCost
from gids.table import RowTable

#: Edges per node that hotness assumes; only the ranking depends on it.
TYPICAL_FANOUT = 10
#: Nodes whose edges a typical batch chooses, where nobody has seen one; a list that is visited more often than once in so
#: many is read by every batch, and no more than once.
TYPICAL_VISITS = 100_000


@dataclass(frozen=True)
class ListWorth:
    """What lists of one topology save when the most useful ones stay in memory.

    Attributes
    ----------
    relations : list of (float, array, array)
        By relation: its share of the memory; from the most useful list on, bytes so far and reads of a batch saved.
    file_bytes : int
        Of all lists on disk.
    """

    relations: list[tuple[float, npt.NDArray[np.float64], npt.NDArray[np.float64]]]
    file_bytes: int

    @property
    def most_bytes(self) -> int:
        """Memory beyond which there is nothing to keep."""
        return int(max((used[-1] / share for share, used, _ in self.relations if len(used) and share), default=0.0)) + 1

    def reads_left(self, list_bytes: int) -> float:
        """Return the reads of a batch that lists in so much memory leave to the disk."""
        left = 0.0
        for share, used, saved in self.relations:
            if len(used):
                left += saved[-1] - float(np.interp(list_bytes * share, np.r_[0.0, used], np.r_[0.0, saved]))
        return left

    def seconds(self, list_bytes: int, cost: ReadCost) -> float:
        """Return the disk time of a batch's lists beside so much memory.

        Reads fall anywhere in the file, and what lies between two of them is read along where that is cheaper than a read
        of its own: with gaps of an exponential length the sum is this, from one read each to one pass over the file.
        """
        reads = self.reads_left(list_bytes)
        whole = self.file_bytes * cost.per_byte_s
        return float(whole * -np.expm1(-reads * cost.per_read_s / whole)) if whole else 0.0


class ListMemory:
    """The lists of one on-disk topology. They are kept once, also while samplers run.

    Parameters
    ----------
    topology : SamplingTopology
        Who uses them.
    num_nodes : mapping of str to int
        Nodes by type.
    offsets : mapping of EdgeType to PackedOffsets
        By relation, in the topology's order.
    tables : mapping of EdgeType to RowTable
        Where the lists are on disk.
    scratch : Path, optional
        Where the hotness of nodes is remembered for the next opening.
    """

    def __init__(
        self,
        topology: _native.SamplingTopology,
        num_nodes: Mapping[str, int],
        offsets: Mapping[EdgeType, _native.PackedOffsets],
        tables: Mapping[EdgeType, RowTable],
        scratch: Path | None,
    ) -> None:
        self._topology, self._num_nodes, self._offsets = topology, num_nodes, offsets
        self._tables, self._scratch = tables, scratch
        self._visits: Visits | None = None
        self._lock = threading.Lock()
        self._total = max(sum(table.total_bytes for table in tables.values()), 1)
        self.visits_per_batch: float = TYPICAL_VISITS
        self.kept: dict[EdgeType, _native.HotLists] = {}

    @property
    def path(self) -> Path:
        """A file of the lists: on the device that they are read from."""
        return next(iter(self._tables.values())).stripes[0].path

    @property
    def bytes(self) -> int:
        """Memory of the lists that are kept."""
        return sum(lists.bytes for lists in self.kept.values())

    def worth(self) -> ListWorth:
        """Return what lists in memory would save; the first time for a dataset this is one pass over its edges."""
        visits = self._load()
        relations = []
        for etype, table in self._tables.items():
            used, saved = _native.worth_of_lists(
                self._offsets[etype],
                visits[etype[2]],
                self.visits_per_batch,
                TYPICAL_FANOUT,
                table.item_bytes,
                self._num_nodes[etype[0]],
            )
            relations.append((table.total_bytes / self._total, np.asarray(used), np.asarray(saved)))
        return ListWorth(relations, sum(table.total_bytes for table in self._tables.values()))

    def keep(self, list_bytes: int) -> None:
        """Bring the most useful lists into so much memory: one pass over the edges. Does nothing the second time."""
        with self._lock:
            if self.kept or not list_bytes:
                return
            visits = self._load()
            chosen = {}
            for etype, table in self._tables.items():
                chosen[etype] = _native.HotLists(
                    self._offsets[etype],
                    visits[etype[2]],
                    self.visits_per_batch,
                    TYPICAL_FANOUT,
                    table.item_bytes,
                    self._num_nodes[etype[0]],
                    list_bytes * table.total_bytes // self._total,
                )
            del visits
            self._visits = None  # before lists take their memory: both together may be more than was given
            for number, (etype, lists) in enumerate(chosen.items()):
                if lists.num_lists:
                    for _, values in stream(self._tables[etype]):
                        lists.fill(values)
                    self._topology.keep_hot(number, lists)
                    self.kept[etype] = lists

    def _load(self) -> Visits:
        if self._visits is None:
            self._visits = load_visits(self._scratch, self._num_nodes, self._offsets, self._tables, TYPICAL_FANOUT)
        return self._visits
