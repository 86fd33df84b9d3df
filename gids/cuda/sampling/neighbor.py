"""Neighbour sampling on a device, and the subgraphs that ShaDow takes from it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gids.cuda.sampling.numbering import sizes
from gids.cuda.sampling.sampler import CudaSampler, DeviceBlock, Part, Walk
from gids.cuda.sampling.seeds import NEIGHBORS, random_key
from gids.errors import ConfigError
from gids.sampling.neighbor import NeighborSampler
from gids.sampling.sample import EdgeType
from gids.sampling.sampler import Fanout, expand_fanouts


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
        self.fanouts: Sequence[Fanout] = sampler.fanouts
        self.replace = sampler.replace
        self.edge_ids = sampler.edge_ids
        self.weighted = sampler.weights
        self.lanes = lanes

    def _blocks(self, walk: Walk) -> list[DeviceBlock]:
        numbers, blocks = walk.numbers, []
        for number, layer in enumerate(reversed(expand_fanouts(self.fanouts, walk.graph))):
            num_dst = sizes(numbers)
            parts: dict[EdgeType, Part] = {}
            for r, (etype, hop) in enumerate(walk.hops.items()):
                edges = hop.choose(
                    numbers[etype[2]].nodes, num_dst[etype[2]], layer[r], replace=self.replace,
                    weighted=self.weighted, key=random_key(walk.key, number, r, NEIGHBORS), lanes=self.lanes,
                )  # fmt: skip
                parts[etype] = self._part(hop, edges, numbers[etype[0]].add(edges.src))
            blocks.append(self._block(walk, num_dst, parts))
        return blocks[::-1]


class CudaShadowSampler(CudaNeighborSampler):
    """A sampled neighbourhood with every edge of the graph between its nodes."""

    def _blocks(self, walk: Walk) -> list[DeviceBlock]:
        super()._blocks(walk)  # numbers the neighbourhood
        session, num_dst = walk.session, sizes(walk.numbers)
        parts: dict[EdgeType, Part] = {}
        for etype, hop in walk.hops.items():
            edges = hop.choose(walk.numbers[etype[2]].nodes, num_dst[etype[2]], -1)
            found, count = walk.numbers[etype[0]].find(edges.src), len(edges.src)
            flags = session.empty(count, np.int64)
            if count:
                session.launch("flag_numbered", count, found, np.int64(count), flags)
            kept, _ = hop.keep(edges, flags, found)
            parts[etype] = self._part(hop, kept, kept.src)
        return [self._block(walk, num_dst, parts)]
