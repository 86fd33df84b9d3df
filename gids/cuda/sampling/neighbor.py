"""Neighbour sampling on a device, and the subgraphs that ShaDow takes from it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gids import _native
from gids.cuda.sampling.hop import LaborWords
from gids.cuda.sampling.sampler import CudaSampler, Layer, Part, Walk
from gids.cuda.sampling.seeds import NEIGHBORS, random_key
from gids.errors import ConfigError
from gids.sampling.labor import LaborSampler
from gids.sampling.neighbor import NeighborSampler
from gids.sampling.sample import EdgeType
from gids.sampling.sampler import Fanout, expand_fanouts
from gids.sampling.topology import Topology


class CudaNeighborSampler(CudaSampler):
    """Samples on a device what :class:`gids.sampling.NeighborSampler` samples on the CPU, bit for bit.

    Parameters
    ----------
    sampler : NeighborSampler
        Fanouts and options.
    lanes : int, optional
        Lanes that choose the edges of one node: 1, 8 or 32. Default: by fanout.
    """

    def __init__(self, sampler: NeighborSampler, lanes: int | None = None):
        if lanes not in (None, 1, 8, 32):
            raise ConfigError(f"lanes must be 1, 8 or 32 (got {lanes})")
        if sampler.disjoint:
            raise ConfigError("disjoint sampling is not supported on a device: sample on the CPU")
        self.fanouts: Sequence[Fanout] = sampler.fanouts
        self.replace = sampler.replace
        self.edge_ids = sampler.edge_ids
        self.weighted = sampler.weights
        self.first_hop = sampler.first_hop
        self.lanes = lanes

    def _labor(self, walk: Walk, layer: int, source: str) -> LaborWords | None:
        return None

    def _layers(self, walk: Walk) -> list[Layer]:
        numbers, layers = walk.numbers, []
        for number, fanouts in enumerate(reversed(expand_fanouts(self.fanouts, walk.graph))):
            num_dst = walk.sizes()
            parts: dict[EdgeType, Part] = {}
            for r, (etype, hop) in enumerate(walk.hops.items()):
                edges, src = hop.choose(
                    numbers[etype[2]].nodes, num_dst[etype[2]], fanouts[r], replace=self.replace,
                    weighted=self.weighted, key=random_key(walk.key, self.first_hop + number, r, NEIGHBORS),
                    labor=self._labor(walk, number, etype[0]), lanes=self.lanes, numbers=numbers[etype[0]],
                )  # fmt: skip
                assert src is not None
                parts[etype] = self._part(hop, edges, src)
            layers.append(Layer(walk.sizes(), num_dst, parts))
        return layers[::-1]

    def _most_nodes(self, graph: Topology, seeds: dict[str, int], uncounted_edges: int) -> dict[str, int]:
        known = dict(seeds)
        for fanouts in reversed(expand_fanouts(self.fanouts, graph)):
            before = dict(known)
            for (src, _, dst), fanout in zip(graph.relations, fanouts, strict=True):
                edges = before.get(dst, 0) * fanout
                if fanout >= 0 and edges <= uncounted_edges:  # others are counted first
                    known[src] = min(known.get(src, 0) + edges, graph.num_nodes[src])
        return known


class CudaLaborSampler(CudaNeighborSampler):
    """Samples on a device what :class:`gids.sampling.LaborSampler` samples on the CPU, without importance sampling.

    Parameters
    ----------
    sampler : LaborSampler
        Fanouts and options.
    """

    def __init__(self, sampler: LaborSampler):
        if sampler.importance:
            raise ConfigError(f"importance must be 0 on a device (got {sampler.importance}): sample on the CPU")
        plain = NeighborSampler(sampler.fanouts, edge_ids=sampler.edge_ids, weights=sampler.weights)
        super().__init__(plain)
        self.layer_dependency, self.batch_dependency = sampler.layer_dependency, sampler.batch_dependency

    def _labor(self, walk: Walk, layer: int, source: str) -> LaborWords | None:
        key, number = walk.key, walk.graph.node_types.index(source)
        period, depth = self.batch_dependency, 0 if self.layer_dependency else layer
        *words, threshold = _native.labor_key(key.seed, key.epoch, key.batch, period, depth, number)
        a, b, c, d, e, f = (np.uint32(word) for word in words)
        origins = walk.origins.get(source)
        return a, b, c, d, e, f, np.uint64(threshold), None if origins is None else origins.array


class CudaShadowSampler(CudaNeighborSampler):
    """A sampled neighbourhood with every edge of the graph between its nodes."""

    def _layers(self, walk: Walk) -> list[Layer]:
        super()._layers(walk)  # numbers the neighbourhood
        session, num_dst = walk.session, walk.sizes()
        parts: dict[EdgeType, Part] = {}
        for etype, hop in walk.hops.items():
            edges, _ = hop.choose(walk.numbers[etype[2]].nodes, num_dst[etype[2]], -1)
            count = edges.count.bound  # what is looked for beyond the edges is not kept
            found, flags = walk.numbers[etype[0]].find(edges.src, count), session.empty(count, np.int64)
            if count:
                session.launch("flag_numbered", count, found, np.int64(count), flags)
            kept, _ = hop.keep(edges, flags, found)
            parts[etype] = self._part(hop, kept, kept.src)
        return [Layer(num_dst, num_dst, parts)]
