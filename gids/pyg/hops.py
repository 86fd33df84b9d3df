"""Neighbourhoods as PyG samples them: hop by hop outwards, every node expanded once, at the hop that found it.

DGL's blocks sample all nodes of a layer anew; here only the nodes that are new. That is what ``num_sampled_nodes`` and
``trim_to_layer`` of PyG stand on.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from gids._native import ThreadPool
from gids.errors import ConfigError
from gids.sampling import (
    EdgeType,
    HistoryStep,
    NeighborSampler,
    SampleKey,
    Sampler,
    ShadowSampler,
    TemporalSampler,
    TimedSeeds,
    Topology,
)
from gids.sampling.history import Candidates, HistoryWindow, SeedsOf

#: Which edges a subgraph has, see :class:`HopSampler`.
Subgraph = Literal["directional", "induced", "bidirectional"]
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
    num_sampled_nodes, num_sampled_edges : dict to list of int, or None
        Nodes new at every hop (hop 0: the seeds), and edges of every hop; none where edges belong to no hop.
    history : HistoryStep or None
        Which nodes were not expanded because their embeddings are stored.
    batch : dict of str to Tensor, or None
        Where seeds share no nodes: the seed, in order and type after type, that each node belongs to.
    """

    node: dict[str, Tensor]
    row: dict[EdgeType, Tensor]
    col: dict[EdgeType, Tensor]
    edge: dict[EdgeType, Tensor]
    num_sampled_nodes: dict[str, list[int]] | None
    num_sampled_edges: dict[EdgeType, list[int]] | None
    history: HistoryStep | None = None
    batch: dict[str, Tensor] | None = None


@dataclass(frozen=True)
class ByTime:
    """What sampling by time looks at.

    Attributes
    ----------
    time_attr : str
        Name of the tables of times.
    by : "edge" or "node"
        Whose times they are.
    strategy : "uniform" or "last"
        Any of the edges that existed, or the latest ones.
    """

    time_attr: str
    by: Literal["edge", "node"]
    strategy: Literal["uniform", "last"] = "uniform"


class HopSampler:
    """Samples :class:`Neighborhood` objects.

    Parameters
    ----------
    num_neighbors : sequence of int, or mapping of EdgeType to sequence of int
        As in PyG's NeighborLoader: nearest hop first, −1 takes all.
    replace : bool
        Whether an edge can be drawn more than once.
    weights : bool
        Whether edges are chosen in proportion to their weights in the graph.
    disjoint : bool
        Whether every seed has a neighbourhood of its own, which shares no node with others.
    times : ByTime, optional
        Only edges that existed at the time of their seed; such neighbourhoods are disjoint.
    subgraph : "directional", "induced" or "bidirectional"
        The edges that were sampled; all edges of the graph between the nodes that were found; or those that were
        sampled, in both directions. Not the latter two with disjoint neighbourhoods.
    """

    def __init__(
        self,
        num_neighbors: NumNeighbors,
        *,
        replace: bool = False,
        weights: bool = False,
        disjoint: bool = False,
        times: ByTime | None = None,
        subgraph: Subgraph = "directional",
    ):
        if subgraph != "directional" and (disjoint or times is not None):
            raise ConfigError(
                f"subgraph_type must be 'directional' with disjoint=True or time_attr (got {subgraph!r}): edges that "
                "were not sampled belong to no seed and no time"
            )
        if times is not None and weights:
            raise ConfigError("weight_attr must be None with time_attr: sampling by time with weights is not supported")
        if disjoint and weights:
            raise ConfigError("weight_attr must be None with disjoint=True: that with weights is not supported")
        if isinstance(num_neighbors, Mapping):
            hops = {len(fanouts) for fanouts in num_neighbors.values()}
            if len(hops) != 1:
                raise ConfigError(f"num_neighbors must have as many hops for every edge type (got {sorted(hops)})")
            by_hop: list[int | dict[EdgeType, int]] = [
                {etype: fanouts[hop] for etype, fanouts in num_neighbors.items()} for hop in range(hops.pop())
            ]
        else:
            by_hop = list(num_neighbors)
        self.by_hop, self.replace, self.weights = by_hop, replace, weights
        self.disjoint, self.times = disjoint or times is not None, times
        self._samplers = [self._sampler(fanout, hop) for hop, fanout in enumerate(by_hop)]
        self.subgraph = subgraph
        self._between = ShadowSampler([0], edge_ids=True)

    def _sampler(self, fanout: int | dict[EdgeType, int], hop: int) -> Sampler:
        # No node is expanded twice, so one key for all hops draws every node's edges independently; in trees of their
        # own, nodes of other hops may have the same name.
        if self.times is not None:
            by, strategy = self.times.by, self.times.strategy
            return TemporalSampler(
                [fanout], by=by, strategy=strategy, replace=self.replace, edge_ids=True, first_hop=hop
            )
        return NeighborSampler(
            [fanout],
            replace=self.replace,
            edge_ids=True,
            weights=self.weights,
            disjoint=self.disjoint,
            first_hop=hop if self.disjoint else 0,
        )

    @property
    def num_hops(self) -> int:
        """Hops from the seeds."""
        return len(self._samplers)

    def sample(
        self,
        topology: Topology,
        seeds: Mapping[str, Tensor],
        key: SampleKey,
        pool: ThreadPool | None = None,
        times: Mapping[str, Tensor] | None = None,
    ) -> Neighborhood:
        """Sample the neighbourhood of seeds; a function of graph, seeds and key alone.

        Parameters
        ----------
        topology : Topology
            The graph.
        seeds : mapping of str to Tensor[int64]
            Nodes by type; distinct, unless neighbourhoods are disjoint.
        key : SampleKey
            Names the batch.
        pool : ThreadPool, optional
            Threads to share the work with.
        times : mapping of str to Tensor[int64], optional
            Of the seeds; by default the nodes' own.
        """
        if self.disjoint:
            return self._sample_trees(topology, seeds, key, pool, times)
        nodes = {ntype: seeds.get(ntype, torch.empty(0, dtype=torch.int64)) for ntype in topology.node_types}
        begin = dict.fromkeys(nodes, 0)  # nodes[t][begin[t]:] were found last and are expanded next
        new_nodes = {ntype: [len(ids)] for ntype, ids in nodes.items()}
        rows: dict[EdgeType, list[Tensor]] = {etype: [] for etype in topology.edge_types}
        cols: dict[EdgeType, list[Tensor]] = {etype: [] for etype in topology.edge_types}
        edges: dict[EdgeType, list[Tensor]] = {etype: [] for etype in topology.edge_types}
        step = None
        for number_of_hop, sampler in enumerate(self._samplers):
            assert isinstance(sampler, NeighborSampler)
            places = {ntype: torch.arange(begin[ntype], len(ids)) for ntype, ids in nodes.items()}
            if number_of_hop == 1:
                step = self._left_out(topology, nodes, {ntype: counts[0] for ntype, counts in new_nodes.items()}, key)
                if step is not None:
                    places = {ntype: step.fresh[ntype][step.fresh[ntype] >= begin[ntype]] for ntype in nodes}
            hop = sampler.expand(topology, nodes, places, key, pool)
            (block,) = hop.blocks
            assert block.edge_ids is not None
            for etype, src in block.src.items():
                counts = block.indptr[etype].diff()
                rows[etype].append(src)
                cols[etype].append(torch.repeat_interleave(places[etype[2]], counts, output_size=len(src)))
                edges[etype].append(block.edge_ids[etype])
            begin, nodes = {ntype: len(ids) for ntype, ids in nodes.items()}, hop.input_nodes
            for ntype, ids in nodes.items():
                new_nodes[ntype].append(len(ids) - begin[ntype])
        _count_visits(topology, new_nodes)
        if self.subgraph == "induced":
            return self._induced(topology, nodes, pool, step)
        found = Neighborhood(
            nodes,
            {etype: torch.cat(parts) for etype, parts in rows.items()},
            {etype: torch.cat(parts) for etype, parts in cols.items()},
            {etype: torch.cat(parts) for etype, parts in edges.items()},
            new_nodes,
            {etype: [len(part) for part in parts] for etype, parts in rows.items()},
            step,
        )
        return both_ways(found) if self.subgraph == "bidirectional" else found

    def _induced(
        self, topology: Topology, nodes: dict[str, Tensor], pool: ThreadPool | None, step: HistoryStep | None
    ) -> Neighborhood:
        """Return all edges of the graph between nodes."""
        (block,) = self._between.sample(topology, nodes, SampleKey(), pool).blocks
        assert block.edge_ids is not None
        cols = {etype: block.dst(etype) for etype in topology.edge_types}
        return Neighborhood(nodes, dict(block.src), cols, dict(block.edge_ids), None, None, step)

    def _sample_trees(
        self,
        topology: Topology,
        seeds: Mapping[str, Tensor],
        key: SampleKey,
        pool: ThreadPool | None,
        times: Mapping[str, Tensor] | None,
    ) -> Neighborhood:
        """Sample as above, with nodes known as (seed, node): ``seed * nodes of the type + node``."""
        types, counts = topology.node_types, {ntype: max(n, 1) for ntype, n in topology.num_nodes.items()}
        given = {ntype: seeds.get(ntype, torch.empty(0, dtype=torch.int64)) for ntype in types}
        ends = np.cumsum([len(given[ntype]) for ntype in types])
        nodes = {
            ntype: torch.arange(int(end) - len(given[ntype]), int(end)) * counts[ntype] + given[ntype]
            for ntype, end in zip(types, ends, strict=True)
        }
        moments = None if self.times is None else _seed_times(topology, self.times, given, times)
        begin = dict.fromkeys(nodes, 0)
        new_nodes = {ntype: [len(ids)] for ntype, ids in nodes.items()}
        rows: dict[EdgeType, list[Tensor]] = {etype: [] for etype in topology.edge_types}
        cols: dict[EdgeType, list[Tensor]] = {etype: [] for etype in topology.edge_types}
        edges: dict[EdgeType, list[Tensor]] = {etype: [] for etype in topology.edge_types}
        for sampler in self._samplers:
            frontier = {ntype: ids[begin[ntype] :] for ntype, ids in nodes.items()}
            trees = {ntype: ids // counts[ntype] for ntype, ids in frontier.items()}
            asked: dict[str, Tensor] = {ntype: ids % counts[ntype] for ntype, ids in frontier.items()}
            timed = None if moments is None else {ntype: moments[trees[ntype]] for ntype in types}
            hop = sampler.sample(topology, asked if timed is None else TimedSeeds(asked, timed), key, pool)
            (block,) = hop.blocks
            assert block.edge_ids is not None
            assert hop.trees is not None
            owner = torch.cat([trees[ntype] for ntype in types])
            known = {ntype: len(ids) for ntype, ids in nodes.items()}
            number = {}
            for ntype in types:
                found = owner[hop.trees[ntype]] * counts[ntype] + hop.input_nodes[ntype]
                nodes[ntype], places = _by_first_occurrence(torch.cat([nodes[ntype], found]))
                number[ntype] = places[known[ntype] :]
                new_nodes[ntype].append(len(nodes[ntype]) - known[ntype])
            for etype in topology.edge_types:
                source, _, destination = etype
                rows[etype].append(number[source][block.src[etype]])
                cols[etype].append(block.dst(etype) + begin[destination])
                edges[etype].append(block.edge_ids[etype])
            begin = known
        _count_visits(topology, new_nodes)
        return Neighborhood(
            {ntype: ids % counts[ntype] for ntype, ids in nodes.items()},
            {etype: torch.cat(parts) for etype, parts in rows.items()},
            {etype: torch.cat(parts) for etype, parts in cols.items()},
            {etype: torch.cat(parts) for etype, parts in edges.items()},
            new_nodes,
            {etype: [len(part) for part in parts] for etype, parts in rows.items()},
            batch={ntype: ids // counts[ntype] for ntype, ids in nodes.items()},
        )

    def _left_out(
        self, topology: Topology, nodes: Mapping[str, Tensor], num_seeds: Mapping[str, int], key: SampleKey
    ) -> HistoryStep | None:
        """Say which of the seeds' neighbours are not expanded: none, without a history."""
        return None


def _count_visits(topology: Topology, new_nodes: Mapping[str, list[int]]) -> None:
    if topology.lists is not None:
        topology.lists.visits_per_batch = sum(sum(new[:-1]) for new in new_nodes.values())


def reverse_type(etype: EdgeType, edge_types: Sequence[EdgeType]) -> EdgeType:
    """Return the type of the reverse edges of a type, found as PyG does.

    Raises ConfigError where there is none, or more than one and none with a name that says so.
    """
    source, name, destination = etype
    named = name[len("rev_") :] if name.startswith("rev_") else f"rev_{name}"
    if (destination, named, source) in edge_types:
        return (destination, named, source)
    if source == destination:
        return etype
    found = [other for other in edge_types if (other[0], other[2]) == (destination, source)]
    if len(found) != 1:
        raise ConfigError(
            f"subgraph_type='bidirectional' needs one reverse type of every edge type (got {found} for {etype}): "
            f"name one {(destination, named, source)}"
        )
    return found[0]


def both_ways(found: Neighborhood) -> Neighborhood:
    """Return a neighbourhood with every edge in both directions, each pair of nodes once, as in PyG.

    Ids are those of the edges that were sampled; types whose reverse edges are of another type have none.
    """
    rows, cols, ids = {}, {}, {}
    for etype in found.row:
        back = reverse_type(etype, list(found.row))
        row = torch.cat([found.row[etype], found.col[back]])
        col = torch.cat([found.col[etype], found.row[back]])
        kept = _first_of(row * max(len(found.node[etype[2]]), 1) + col)
        rows[etype], cols[etype] = row[kept], col[kept]
        if back == etype:
            ids[etype] = torch.cat([found.edge[etype], found.edge[back]])[kept]
    return replace(found, row=rows, col=cols, edge=ids, num_sampled_nodes=None, num_sampled_edges=None)


def _first_of(names: Tensor) -> Tensor:
    """Return where each name occurs first, in that order."""
    distinct, group = torch.unique(names, return_inverse=True)
    first = torch.full((len(distinct),), len(names), dtype=torch.int64)
    first.scatter_reduce_(0, group, torch.arange(len(names)), "amin")
    return first.sort().values


class HistoryHops(HopSampler):
    """A :class:`HopSampler` that does not expand neighbours of the seeds whose embeddings are stored.

    Parameters
    ----------
    hops : HopSampler
        Of two hops. With more, a node that is not expanded would be computed without its neighbours in layers before the
        last, and its neighbours in the batch would see that.
    candidates : Candidates
        Nodes whose embeddings are stored.
    max_age : int
        Batches after which an embedding is too old.
    """

    def __init__(self, hops: HopSampler, candidates: Candidates, max_age: int):
        if hops.num_hops != 2:
            raise ConfigError(
                f"num_neighbors must have two hops with history (got {hops.num_hops}): more need blocks, as gids.Loader "
                "and gids.dgl have them"
            )
        if hops.subgraph != "directional":
            raise ConfigError(f"subgraph_type must be 'directional' with history (got {hops.subgraph!r})")
        if hops.disjoint:
            raise ConfigError("disjoint and time_attr must not be given with history: trees share no embeddings")
        self.__dict__.update(hops.__dict__)
        self._window = HistoryWindow(candidates, max_age)
        self._seeds_of: SeedsOf | None = None

    def following(self, seeds_of: SeedsOf, world_size: int) -> HistoryHops:
        """Return this sampler for one order of batches; ``seeds_of(epoch, batch)`` tells where those begin."""
        found = copy.copy(self)
        found._window = HistoryWindow(self._window.candidates, self._window.max_age, world_size)
        found._seeds_of = seeds_of
        return found

    @property
    def identity(self) -> str:
        """What decides which nodes are left out."""
        return f"{self._window.candidates}, max_age={self._window.max_age}"

    def _left_out(
        self, topology: Topology, nodes: Mapping[str, Tensor], num_seeds: Mapping[str, int], key: SampleKey
    ) -> HistoryStep:
        seeds_of = self._seeds_of
        assert seeds_of is not None

        def inputs_of(other: SampleKey) -> Mapping[str, Tensor]:
            return self._samplers[0].sample(topology, seeds_of(other.epoch, other.batch), other).input_nodes

        return self._window.step(key, nodes, num_seeds, inputs_of, whole=True)


def _seed_times(
    topology: Topology, by: ByTime, seeds: Mapping[str, Tensor], times: Mapping[str, Tensor] | None
) -> Tensor:
    """Return the time of every seed, type after type: as given, or when its node came to be."""
    if times is not None:
        return torch.cat([torch.empty(0, dtype=torch.int64), *(times[n] for n, ids in seeds.items() if len(ids))])
    untimed = [ntype for ntype, ids in seeds.items() if len(ids) and ntype not in topology.node_times]
    if by.by == "edge" or untimed:
        raise ConfigError(f"times of the seeds must be given where {by.time_attr!r} is not a table of their nodes")
    own = [torch.from_numpy(topology.node_times[n])[ids] for n, ids in seeds.items() if len(ids)]
    return torch.cat([torch.empty(0, dtype=torch.int64), *own])


def _by_first_occurrence(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distinct ids in order of their first occurrence, and where each of ``ids`` is among them."""
    distinct, inverse = torch.unique(ids, return_inverse=True)
    first = torch.full((len(distinct),), len(ids)).scatter_reduce_(0, inverse, torch.arange(len(ids)), "amin")
    order = torch.argsort(first)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order))
    return distinct[order], rank[inverse]
