"""The edges of one relation and layer, on a device: choosing, resolving, leaving out, naming."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gids.cuda.array import DeviceArray
from gids.cuda.passes import exclusive_scan, full
from gids.cuda.sampling.topology import PinnedTopology
from gids.cuda.session import Session
from gids.errors import DatasetError
from gids.sampling.sample import EdgeType


@dataclass(frozen=True)
class DeviceEdges:
    """In-edges of a layer's destinations: those of destination ``i`` are ``begins[i]`` to ``begins[i + 1]``."""

    begins: DeviceArray
    positions: DeviceArray
    src: DeviceArray  # node ids


class Hop:
    """The edges of one relation and layer: choosing, resolving, naming."""

    def __init__(
        self,
        session: Session,
        topology: PinnedTopology,
        etype: EdgeType,
        bad: DeviceArray,
        excluded: DeviceArray | None = None,
    ):
        self._session, self._etype, self._bad, self._excluded = session, etype, bad, excluded
        self._relation = topology.relations[etype]
        self._num_src = topology.topology.num_nodes[etype[0]]

    def choose(
        self,
        nodes: DeviceArray,
        num_dst: int,
        fanout: int,
        *,
        replace: bool = False,
        weighted: bool = False,
        key: tuple[np.uint32, np.uint32] = (np.uint32(0), np.uint32(0)),
        lanes: int | None = None,
    ) -> DeviceEdges:
        """Choose up to ``fanout`` in-edges of the first ``num_dst`` nodes (−1: all), then drop the excluded. Waits."""
        session, relation, count = self._session, self._relation, np.int64(num_dst)
        if num_dst == 0:
            return DeviceEdges(full(session, 1, 0), session.empty(0, np.int64), session.empty(0, np.int64))
        replacing = np.int32(replace and fanout >= 0)
        first, degree, positive, counts = (session.empty(num_dst, np.int64) for _ in range(4))
        offsets = relation.indptr.array
        if weighted:
            assert relation.weights is not None
            factors = relation.weights.array
            session.launch(
                "count_weighted", num_dst, offsets, factors, nodes, count, np.int64(fanout), replacing, first, degree,
                positive, counts, lanes=8,
            )  # fmt: skip
        else:
            session.launch(
                "count_edges", num_dst, offsets, nodes, count, np.int64(fanout), replacing, first, degree, counts
            )
        begins = exclusive_scan(session, counts, full(session, 1, num_dst), num_dst)
        edges = int(session.download(begins[num_dst : num_dst + 1])[0])
        positions = session.empty(edges, np.int64)
        if edges and weighted:
            times = session.empty(edges, np.float64)
            session.launch(
                "choose_weighted_edges", num_dst, *key, factors, nodes, count, first,
                degree, positive, begins, replacing, times, positions, lanes=8,
            )  # fmt: skip
        elif edges:
            lanes = lanes or (32 if fanout < 0 or fanout > 32 else 8 if fanout > 2 else 1)
            session.launch(
                f"choose_edges_{lanes}", num_dst, *key, nodes, count, first, degree,
                begins, replacing, positions, lanes=lanes,
            )  # fmt: skip
        return self._drop_excluded(nodes, DeviceEdges(begins, positions, self._resolve(positions)))

    def _resolve(self, positions: DeviceArray) -> DeviceArray:
        session, edges = self._session, len(positions)
        src = session.empty(edges, np.int64)
        if edges:
            indices, limit = self._relation.indices.array, np.int64(self._num_src)
            kernel = f"gather_neighbors_{8 * indices.dtype.itemsize}"
            session.launch(kernel, edges, indices, positions, np.int64(edges), limit, src, self._bad)
            if session.download(self._bad)[0]:
                raise DatasetError(f"indices of {self._etype[1]} must be in [0, {limit}): a sampled neighbour is not")
        return src

    def _drop_excluded(self, nodes: DeviceArray, edges: DeviceEdges) -> DeviceEdges:
        if self._excluded is None or not len(edges.src):
            return edges
        flags, num_dst = self._session.empty(len(edges.src), np.int64), len(edges.begins) - 1
        self._session.launch(
            "exclude_edges", num_dst, self._excluded, np.int64(len(self._excluded)), nodes, edges.begins,
            np.int64(num_dst), edges.src, flags, lanes=8,
        )  # fmt: skip
        return self.keep(edges, flags, edges.src)[0]

    def keep(self, edges: DeviceEdges, flags: DeviceArray, values: DeviceArray) -> tuple[DeviceEdges, DeviceArray]:
        """Keep the flagged edges, with ``values`` as their sources; gives the prefix sum of the flags too. Waits."""
        session, count = self._session, len(edges.positions)
        before = exclusive_scan(session, flags, full(session, 1, count), count)
        total = int(session.download(before[count : count + 1])[0])
        src, positions = session.empty(total, np.int64), session.empty(total, np.int64)
        begins = session.empty(len(edges.begins), np.int64)
        session.launch("take_values", len(begins), before, edges.begins, np.int64(len(begins)), begins)
        if count:
            session.launch("keep_pairs", count, flags, before, np.int64(count), values, edges.positions, src, positions)
        return DeviceEdges(begins, positions, src), before

    def name(self, positions: DeviceArray) -> DeviceArray:
        """Give the ids of edges by their positions."""
        if self._relation.edge_ids is None or not len(positions):
            return positions
        ids = self._session.empty(len(positions), np.int64)
        from_ids, count = self._relation.edge_ids.array, np.int64(len(positions))
        self._session.launch("take_values", len(positions), from_ids, positions, count, ids)
        return ids

    def weights(self, edges: DeviceEdges) -> tuple[DeviceArray, DeviceArray | None]:
        """Give weights of all in-edges of nodes, and by which positions they are found; None: one for each edge."""
        assert self._relation.weights is not None
        factors = self._relation.weights.array
        if self._excluded is None:
            return factors, edges.positions
        own = self._session.empty(len(edges.positions), np.float32)
        if len(own):
            count = np.int64(len(own))
            self._session.launch("take_weights", len(own), factors, edges.positions, count, own)
        return own, None
