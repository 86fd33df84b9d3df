"""Neighbour lists of a dataset in order of nodes, a piece at a time: the topology stays on disk."""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gids import _native
from gids.dataset import Dataset, EdgeType
from gids.dataset.rows import as_tensor, read_rows

#: Edges that are in memory at a time, and as many again that are being read.
PIECE_EDGES = 1 << 21


@dataclass(frozen=True)
class NodeNumbers:
    """Numbers for nodes of all types in one row, type after type.

    Attributes
    ----------
    first : dict of str to int
        Number of the first node of each type.
    counts : dict of str to int
        Nodes of each type.
    """

    first: dict[str, int]
    counts: dict[str, int]

    @classmethod
    def of(cls, dataset: Dataset) -> NodeNumbers:
        """Return the numbers for the nodes of a dataset."""
        counts = {ntype: dataset.num_nodes(ntype) for ntype in dataset.node_types}
        first, total = {}, 0
        for ntype, count in counts.items():
            first[ntype] = total
            total += count
        return cls(first, counts)

    @property
    def total(self) -> int:
        """Nodes of all types."""
        return sum(self.counts.values())

    def split(self, values: npt.NDArray[np.int32]) -> dict[str, npt.NDArray[np.int32]]:
        """Return the values of one array for all nodes by node type, as views."""
        return {ntype: values[begin : begin + self.counts[ntype]] for ntype, begin in self.first.items()}


def list_pieces(dataset: Dataset, piece_edges: int = PIECE_EDGES) -> Iterator[tuple[_native.ListPiece, int]]:
    """Yield the in-edges of all nodes that have any, with the bytes that were read for them; reads one piece ahead."""
    numbers = NodeNumbers.of(dataset)
    ranges = [
        (ntype, begin, end) for ntype in dataset.node_types for begin, end in node_ranges(dataset, ntype, piece_edges)
    ]

    def load(ntype: str, begin: int, end: int) -> tuple[_native.ListPiece, int]:
        piece = _native.ListPiece(numbers.first[ntype] + begin, end - begin)
        loaded_bytes = 0
        for etype in relations_into(dataset, ntype):
            offsets = dataset.stored_offsets(etype)[begin : end + 1]
            table = dataset.indices_table(etype)
            sources = as_tensor(table, read_rows(table, int(offsets[0]), int(offsets[-1]))).numpy()
            piece.add_relation(offsets, sources, numbers.first[etype[0]], numbers.counts[etype[0]])
            loaded_bytes += sources.nbytes
        return piece, loaded_bytes

    with ThreadPoolExecutor(1, "gids-lists") as reader:
        coming = [reader.submit(load, *ranges[0])] if ranges else []
        for number in range(len(ranges)):
            ready = coming.pop().result()
            if number + 1 < len(ranges):
                coming.append(reader.submit(load, *ranges[number + 1]))
            yield ready


def relations_into(dataset: Dataset, ntype: str) -> list[EdgeType]:
    """Return the edge types whose destinations are of a node type, in stored order."""
    return [etype for etype in dataset.edge_types if etype[2] == ntype]


def node_ranges(dataset: Dataset, ntype: str, piece_edges: int) -> Iterator[tuple[int, int]]:
    """Yield consecutive ranges of nodes with about ``piece_edges`` in-edges each; a node's edges are never divided."""
    offsets = [dataset.stored_offsets(etype) for etype in relations_into(dataset, ntype)]
    if not offsets:
        return
    count = dataset.num_nodes(ntype)

    def edges_before(node: int) -> int:
        return sum(int(array[node]) for array in offsets)

    begin = 0
    while begin < count:
        bound = edges_before(begin) + piece_edges
        end = bisect.bisect_right(range(count + 1), bound, key=edges_before) - 1
        end = min(max(end, begin + 1), count)
        yield begin, end
        begin = end
