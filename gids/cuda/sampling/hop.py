"""The edges of one relation and layer, on a device: choosing, resolving, leaving out, naming."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, replace

import numpy as np

from gids.cuda.array import DeviceArray
from gids.cuda.passes import Prefix, empty_prefix, exclusive_scan, prefix_sums, turnstile
from gids.cuda.pinned import HostArray
from gids.cuda.sampling.counts import Count, Counts
from gids.cuda.sampling.numbering import NodeNumbers
from gids.cuda.sampling.topology import PinnedTopology
from gids.cuda.session import Argument, Session
from gids.errors import DatasetError
from gids.sampling.sample import EdgeType

#: Words of ``LaborKey`` in ``kernels/labor.cuh``, as the kernel takes them.
LaborWords = tuple[np.uint32, np.uint32, np.uint32, np.uint32, np.uint32, np.uint32, np.uint64, DeviceArray | None]

#: Most edges of a layer that memory is taken for before they are counted: about 100 bytes each, while it is sampled.
#: Where a layer could have more, the host waits for their number.
UNCOUNTED_EDGES = 8 << 20


@dataclass(frozen=True)
class DeviceEdges:
    """In-edges of a layer's destinations: those of destination ``i`` are ``begins[i]`` to ``begins[i + 1]``.

    Arrays have room for the bounds of their counts; what lies beyond the counts is arbitrary.
    """

    num_dst: Count
    count: Count
    begins: DeviceArray  # [num_dst + 1]
    positions: DeviceArray
    src: DeviceArray  # node ids


@dataclass(frozen=True)
class _Chosen:
    """What is known of each destination before its edges are: kernels take it in this order."""

    first: DeviceArray
    degree: DeviceArray
    positive: DeviceArray
    numbers: Prefix


def random_names(session: Session, origins: HostArray | None, nodes: DeviceArray, count: Count) -> DeviceArray:
    """Return what the random numbers of the first ``count`` nodes are drawn for: their ids, or those they had."""
    if origins is None or not count.bound:
        return nodes
    names = session.empty(count.bound, np.int64)
    session.launch("take_values", count.bound, origins.array, nodes, count.array, np.int64(0), names)
    return names


_largest_degrees: weakref.WeakKeyDictionary[PinnedTopology, dict[EdgeType, int]] = weakref.WeakKeyDictionary()


def _largest_degree(topology: PinnedTopology, etype: EdgeType) -> int:
    known = _largest_degrees.setdefault(topology, {})
    if etype not in known:
        indptr = topology.topology.relations[etype].indptr
        known[etype] = int(np.diff(indptr).max()) if len(indptr) > 1 else 0
    return known[etype]


class Hop:
    """The edges of one relation and layer: choosing, resolving, naming."""

    def __init__(
        self,
        session: Session,
        topology: PinnedTopology,
        etype: EdgeType,
        counts: Counts,
        excluded: DeviceArray | None = None,
        uncounted_edges: int = UNCOUNTED_EDGES,
    ):
        self._session, self._etype, self._counts, self._excluded = session, etype, counts, excluded
        self._uncounted_edges, self._topology = uncounted_edges, topology
        self._relation = topology.relations[etype]
        self._index_bits = 8 * self._relation.indices.array.dtype.itemsize
        self._num_src, self._num_dst = (topology.topology.num_nodes[etype[end]] for end in (0, 2))
        self._origins = topology.origins.get(etype[2])
        self._bad = counts.new(1)

    def most_edges(self, num_dst: int, fanout: int) -> int:
        """Return the most edges that so many nodes can have: by their fanout, or by the relation's largest degree."""
        if fanout >= 0:
            return num_dst * fanout
        return min(num_dst * _largest_degree(self._topology, self._etype), len(self._relation.indices.array))

    def check(self) -> None:
        """Raise DatasetError if a neighbour that was chosen does not exist. Waits, if the host does not know it yet."""
        if self._counts.read(self._bad):
            raise DatasetError(
                f"indices of {self._etype[1]} must be in [0, {self._num_src}): a sampled neighbour is not"
            )

    def choose(
        self,
        nodes: DeviceArray,
        num_dst: Count,
        fanout: int,
        *,
        replace: bool = False,
        weighted: bool = False,
        key: tuple[np.uint32, np.uint32] = (np.uint32(0), np.uint32(0)),
        labor: LaborWords | None = None,
        lanes: int | None = None,
        numbers: NodeNumbers | None = None,
    ) -> tuple[DeviceEdges, DeviceArray | None]:
        """Choose up to ``fanout`` in-edges of the first ``num_dst`` nodes (−1: all), then drop the excluded.

        With ``labor``, by the variates of their sources, see ``kernels/labor.cuh``; ``key`` is then not used. With
        ``numbers``, also returns the numbers that the sources get there. Waits only where the number of edges has no
        useful bound.
        """
        session, relation = self._session, self._relation
        bound = self.most_edges(num_dst.bound, fanout)
        total = self._counts.new(bound)
        chosen = self._count(nodes, num_dst, fanout, replace, weighted, total)
        if bound > self._uncounted_edges:
            total = self._counts.exact(total)
            bound = total.bound
        begins, positions = session.empty(num_dst.bound + 1, np.int64), session.empty(bound, np.int64)
        replacing = np.int32(replace and fanout >= 0)
        # Random numbers are drawn for what a node was called before its graph was relabelled.
        named = nodes if labor is not None else random_names(session, self._origins, nodes, num_dst)
        factors = relation.weights.array if weighted and relation.weights is not None else None
        by_node = (num_dst.array, chosen.first, chosen.degree)
        if labor is not None:
            session.launch(
                f"choose_labor_edges_{self._index_bits}", num_dst.bound, *labor, *relation.neighbors, factors, *by_node,
                chosen.positive, *chosen.numbers, begins, session.empty(bound, np.float64), positions, lanes=8,
            )  # fmt: skip
        elif weighted:
            session.launch(
                "choose_weighted_edges", num_dst.bound, *key, factors, named, *by_node, chosen.positive,
                *chosen.numbers, replacing, begins, session.empty(bound, np.float64), positions, lanes=8,
            )  # fmt: skip
        else:
            lanes = lanes or (32 if fanout < 0 or fanout > 32 else 8 if fanout > 2 else 1)
            session.launch(
                f"choose_edges_{lanes}", num_dst.bound, *key, named, *by_node, *chosen.numbers, replacing, begins,
                positions, lanes=lanes,
            )  # fmt: skip
        edges = DeviceEdges(num_dst, total, begins, positions, session.empty(bound, np.int64))
        if self._excluded is None:
            return edges, self._resolve(edges, numbers)
        self._resolve(edges, None)
        edges = self._drop_excluded(nodes, edges)
        return edges, None if numbers is None else numbers.add(edges.src, edges.count)

    def _count(
        self, nodes: DeviceArray, num_dst: Count, fanout: int, replace: bool, weighted: bool, total: Count
    ) -> _Chosen:
        session, relation, bound = self._session, self._relation, num_dst.bound
        first, degree = session.empty(bound, np.int64), session.empty(bound, np.int64)
        wanted = (np.int64(fanout), np.int32(replace and fanout >= 0))
        offsets: tuple[Argument, ...] = (relation.indptr.array, np.int64(self._num_dst))
        if not weighted:
            numbers = empty_prefix(session, bound, total.array)
            session.launch(
                "count_edges", bound, *offsets, nodes, num_dst.array, *wanted, first, degree, *numbers,
                turnstile(session),
            )  # fmt: skip
            return _Chosen(first, degree, degree, numbers)
        assert relation.weights is not None
        positive, counts = session.empty(bound, np.int64), session.empty(bound, np.int64)
        session.launch(
            "count_weighted", bound, *offsets, relation.weights.array, nodes, num_dst.array, *wanted, first, degree,
            positive, counts, lanes=8,
        )  # fmt: skip
        return _Chosen(first, degree, positive, prefix_sums(session, counts, num_dst.array, bound, total.array))

    def _resolve(self, edges: DeviceEdges, numbers: NodeNumbers | None) -> DeviceArray | None:
        """Find the sources of edges, and number them."""
        session, bound = self._session, edges.count.bound
        if bound == 0:
            return None if numbers is None else session.empty(0, np.int64)
        insertion: tuple[Argument, ...] = (None, None, np.int32(0), np.int64(0), None, None, None, None)
        if numbers is not None:
            insertion, slots = numbers.insertion(edges.count)
        session.launch(
            f"gather_neighbors_{self._index_bits}", bound, *self._relation.neighbors, edges.positions,
            edges.count.array, np.int64(self._num_src), edges.src, self._bad.flag, *insertion,
        )  # fmt: skip
        return None if numbers is None else numbers.number(edges.count, slots)

    def _drop_excluded(self, nodes: DeviceArray, edges: DeviceEdges) -> DeviceEdges:
        if not edges.count.bound:
            return edges
        assert self._excluded is not None
        flags = self._session.empty(edges.count.bound, np.int64)
        self._session.launch(
            "exclude_edges", edges.num_dst.bound, self._excluded, np.int64(len(self._excluded)), nodes, edges.begins,
            edges.num_dst.array, edges.src, flags, lanes=8,
        )  # fmt: skip
        return self.keep(edges, flags, edges.src)[0]

    def keep(self, edges: DeviceEdges, flags: DeviceArray, values: DeviceArray) -> tuple[DeviceEdges, DeviceArray]:
        """Keep the flagged edges, with ``values`` as their sources; returns the prefix sum of the flags too."""
        session, count = self._session, edges.count
        before = exclusive_scan(session, flags, count.array, count.bound)
        src, positions = session.empty(count.bound, np.int64), session.empty(count.bound, np.int64)
        begins, total = session.empty(len(edges.begins), np.int64), self._counts.new(count.bound)
        session.launch("take_values", 1, before, count.array, None, np.int64(1), total.array)
        session.launch("take_values", len(begins), before, edges.begins, edges.num_dst.array, np.int64(1), begins)
        if count.bound:
            session.launch(
                "keep_pairs", count.bound, flags, before, count.array, values, edges.positions, src, positions
            )
        return replace(edges, count=total, begins=begins, positions=positions, src=src), before

    def name(self, edges: DeviceEdges) -> DeviceArray:
        """Return the ids of edges by their positions."""
        positions, bound = edges.positions, edges.count.bound
        if self._relation.edge_ids is None or not bound:
            return positions
        ids = self._session.empty(bound, np.int64)
        self._session.launch(
            "take_values", bound, self._relation.edge_ids.array, positions, edges.count.array, np.int64(0), ids
        )
        return ids

    def weights(self, edges: DeviceEdges) -> tuple[DeviceArray, DeviceArray | None]:
        """Return weights of all in-edges of nodes, and by which positions they are found; None: one for each edge."""
        assert self._relation.weights is not None
        factors = self._relation.weights.array
        if self._excluded is None:
            return factors, edges.positions
        count = self._counts.exact(edges.count).bound
        own = self._session.empty(count, np.float32)
        if count:
            self._session.launch("take_weights", count, factors, edges.positions, np.int64(count), own)
        return own, None
