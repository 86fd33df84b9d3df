"""Neighbourhoods as PyG samples them: hop by hop outwards, every node expanded once, at the hop that found it.

DGL's blocks sample all nodes of a layer anew; here only the nodes that are new. That is what ``num_sampled_nodes`` and
``trim_to_layer`` of PyG stand on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gids._native import ThreadPool
from gids.errors import ConfigError
from gids.sampling import EdgeType, NeighborSampler, SampleKey, Topology

#: Neighbours per hop, nearest hop first; by edge type where they differ.
NumNeighbors = Sequence[int] | Mapping[EdgeType, Sequence[int]]


@dataclass(frozen=True)
class Neighborhood:
    """A sampled neighbourhood.

    Attributes
    ----------
    node : dict of str to Tensor
        int64 node ids by type: seeds first, then hop by hop.
    row, col : dict of EdgeType to Tensor
        int64 source and destination of every edge, as positions in ``node``; hop by hop.
    edge : dict of EdgeType to Tensor
        int64 edge ids.
    num_sampled_nodes, num_sampled_edges : dict to list of int
        Nodes new at every hop (hop 0: the seeds), and edges of every hop.
    """

    node: dict[str, Tensor]
    row: dict[EdgeType, Tensor]
    col: dict[EdgeType, Tensor]
    edge: dict[EdgeType, Tensor]
    num_sampled_nodes: dict[str, list[int]]
    num_sampled_edges: dict[EdgeType, list[int]]


class HopSampler:
    """Samples :class:`Neighborhood` objects.

    Parameters
    ----------
    num_neighbors : sequence of int, or mapping of EdgeType to sequence of int
        As in PyG's NeighborLoader: nearest hop first, −1 takes all.
    replace : bool
        Whether an edge can be drawn more than once.
    """

    def __init__(self, num_neighbors: NumNeighbors, *, replace: bool = False):
        if isinstance(num_neighbors, Mapping):
            hops = {len(fanouts) for fanouts in num_neighbors.values()}
            if len(hops) != 1:
                raise ConfigError(f"num_neighbors must have as many hops for every edge type (got {sorted(hops)})")
            by_hop: list[int | dict[EdgeType, int]] = [
                {etype: fanouts[hop] for etype, fanouts in num_neighbors.items()} for hop in range(hops.pop())
            ]
        else:
            by_hop = list(num_neighbors)
        self._samplers = [NeighborSampler([fanout], replace=replace, edge_ids=True) for fanout in by_hop]
        self._numberer = NeighborSampler([0])

    @property
    def num_hops(self) -> int:
        """Hops from the seeds."""
        return len(self._samplers)

    def sample(
        self, topology: Topology, seeds: Mapping[str, Tensor], key: SampleKey, pool: ThreadPool | None = None
    ) -> Neighborhood:
        """Sample the neighbourhood of distinct seeds; a function of graph, seeds and key alone."""
        nodes, _ = self._distinct(topology, seeds, pool)
        if any(len(nodes[ntype]) != len(ids) for ntype, ids in seeds.items()):
            raise ConfigError("seeds of a batch must be distinct")
        begin = dict.fromkeys(nodes, 0)  # nodes[t][begin[t]:] were found last and are expanded next
        new_nodes = {ntype: [len(ids)] for ntype, ids in nodes.items()}
        rows: dict[EdgeType, list[Tensor]] = {etype: [] for etype in topology.edge_types}
        cols: dict[EdgeType, list[Tensor]] = {etype: [] for etype in topology.edge_types}
        edges: dict[EdgeType, list[Tensor]] = {etype: [] for etype in topology.edge_types}
        for sampler in self._samplers:
            frontier = {ntype: ids[begin[ntype] :] for ntype, ids in nodes.items()}
            # No node is expanded twice, so one key for all hops draws every node's edges independently.
            hop = sampler.sample(topology, frontier, key, pool)
            (block,) = hop.blocks
            assert block.edge_ids is not None
            known = {ntype: len(ids) for ntype, ids in nodes.items()}
            joined = {ntype: torch.cat([nodes[ntype], hop.input_nodes[ntype]]) for ntype in nodes}
            nodes, number = self._distinct(topology, joined, pool)
            for etype in topology.edge_types:
                source, _, destination = etype
                rows[etype].append(number[source][known[source] :][block.src[etype]])
                cols[etype].append(block.dst(etype) + begin[destination])
                edges[etype].append(block.edge_ids[etype])
            for ntype, ids in nodes.items():
                new_nodes[ntype].append(len(ids) - known[ntype])
            begin = known
        return Neighborhood(
            nodes,
            {etype: torch.cat(parts) for etype, parts in rows.items()},
            {etype: torch.cat(parts) for etype, parts in cols.items()},
            {etype: torch.cat(parts) for etype, parts in edges.items()},
            new_nodes,
            {etype: [len(part) for part in parts] for etype, parts in rows.items()},
        )

    def _distinct(
        self, topology: Topology, ids: Mapping[str, Tensor], pool: ThreadPool | None
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        # A sampler that takes no edge numbers its seeds by first occurrence and does nothing else.
        sample = self._numberer.sample(topology, ids, SampleKey(), pool)
        return dict(sample.seeds), dict(sample.seed_rows)
