"""What a batch begins with: nodes, or edges with negatives for link prediction."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gids import _native
from gids.errors import ConfigError
from gids.sampling.sample import EdgeType, SampleKey, SeedEdges
from gids.sampling.times import draw_causal
from gids.sampling.topology import Topology

Ids = npt.NDArray[np.int64]


class Exclude(enum.Enum):
    """Which edges of the graph must not appear in blocks, so that a model cannot see what it is to predict."""

    NOTHING = "nothing"
    SEEDS = "seeds"
    SEEDS_AND_REVERSE = "seeds and reverse"


@dataclass(frozen=True)
class EdgeSeeds:
    """Edges as seeds.

    Attributes
    ----------
    src, dst : Tensor[int64]
        Node ids of the positive pairs.
    etype : EdgeType, optional
        Their edge type; may be left out where the graph has only one.
    negatives : int
        Pairs per positive one that keep its source and take a destination uniformly at random.
    exclude : Exclude
        Edges between the positive pairs (all of them, where there are several) that blocks leave out.
    reverse_etype : EdgeType, optional
        Edge type of the reverse edges; by default ``etype``.
    times : Tensor[int64], optional
        When each pair is asked about, for a :class:`TemporalSampler`. Negatives of a pair existed at its time, where the
        graph has times of nodes.
    """

    src: Tensor
    dst: Tensor
    etype: EdgeType | None = None
    negatives: int = 0
    exclude: Exclude = Exclude.NOTHING
    reverse_etype: EdgeType | None = None
    times: Tensor | None = None

    def __post_init__(self) -> None:
        if len(self.src) != len(self.dst):
            raise ConfigError(f"src and dst must be equally long (got {len(self.src)} and {len(self.dst)})")
        if self.negatives < 0:
            raise ConfigError(f"negatives must not be negative (got {self.negatives})")
        if self.times is not None and len(self.times) != len(self.src):
            raise ConfigError(f"times must be as many as pairs = {len(self.src)} (got {len(self.times)})")


@dataclass(frozen=True)
class TimedSeeds:
    """Nodes as seeds, each at a time of its own.

    Attributes
    ----------
    nodes, times : Tensor[int64], or mapping of str to Tensor[int64]
        Node ids and when each is asked about; by type where the graph has several.
    """

    nodes: Tensor | Ids | Sequence[int] | Mapping[str, Tensor]
    times: Tensor | Ids | Sequence[int] | Mapping[str, Tensor]


Seeds = Tensor | Ids | Sequence[int] | Mapping[str, Tensor] | EdgeSeeds | TimedSeeds


_NONE = np.empty(0, np.int64)


@dataclass(slots=True)
class SeedPlan:
    """Seeds as the native samplers take them.

    Attributes
    ----------
    nodes : list of int64 arrays
        By node type.
    excluded : list of (src, dst) arrays
        By relation; empty where nothing is excluded.
    edges : EdgeSeeds, optional
        What the nodes came from.
    times : int64 array
        Of all nodes, type after type; empty where they have none.
    timed : bool
        Whether seeds have times.
    """

    nodes: list[Ids]
    excluded: list[tuple[Ids, Ids]]
    edges: EdgeSeeds | None = None
    times: Ids = field(default_factory=lambda: _NONE)
    timed: bool = False


def plan_seeds(topology: Topology, seeds: Seeds, key: SampleKey) -> SeedPlan:
    """Check seeds and bring them into the topology's order of types."""
    if isinstance(seeds, EdgeSeeds):
        return _plan_edges(topology, seeds, key)
    if isinstance(seeds, TimedSeeds):
        nodes = plan_seeds(topology, seeds.nodes, key).nodes
        times = plan_seeds(topology, seeds.times, key).nodes
        if [len(part) for part in nodes] != [len(part) for part in times]:
            raise ConfigError(
                f"times must be as many as nodes of each type (got {[len(part) for part in times]} for "
                f"{[len(part) for part in nodes]})"
            )
        return SeedPlan(nodes, [], None, np.concatenate(times), True)
    types = topology.node_types
    if not isinstance(seeds, Mapping):
        if len(types) != 1:
            raise ConfigError(f"seeds must be given by node type where a graph has several (has {types})")
        return SeedPlan([as_ids(seeds)], [])
    unknown = set(seeds) - set(types)
    if unknown:
        raise ConfigError(f"node types of seeds must be among {types} (got {sorted(unknown)})")
    return SeedPlan([as_ids(seeds[ntype]) if ntype in seeds else np.empty(0, np.int64) for ntype in types], [])


def as_ids(seeds: object) -> Ids:
    """Return node ids as a contiguous int64 array."""
    array = seeds.numpy() if isinstance(seeds, Tensor) else np.asarray(seeds)
    if array.size and array.dtype.kind not in "iu":
        raise ConfigError(f"seeds must be integers (got {array.dtype})")
    if array.ndim != 1:
        raise ConfigError(f"seeds must have one dimension (got {array.ndim})")
    return np.ascontiguousarray(array, dtype=np.int64)


def check_ids(ids: Ids, count: int, ntype: str) -> Ids:
    """Return ids of nodes, all of which must exist."""
    if len(ids) and not 0 <= ids.min() <= ids.max() < count:
        raise ConfigError(f"seeds of {ntype} must be in [0, {count}) (got {ids.min()} to {ids.max()})")
    return ids


def _plan_edges(topology: Topology, seeds: EdgeSeeds, key: SampleKey) -> SeedPlan:
    etype = topology.only(seeds.etype)
    source, _, destination = etype
    src, dst = as_ids(seeds.src), as_ids(seeds.dst)
    available = topology.num_nodes[destination]
    negative = np.empty(0, np.int64)
    moments = None if seeds.times is None else as_ids(seeds.times)
    if moments is not None and seeds.negatives and destination in topology.node_times:
        negative = draw_causal(topology.node_times[destination], moments, seeds.negatives, key)
    elif seeds.negatives and len(src):
        negative = _native.draw_negatives(len(src), seeds.negatives, available, key.seed, key.epoch, key.batch)
        now = topology.renamed(destination)
        negative = negative if now is None else now[negative]
    nodes = {ntype: np.empty(0, np.int64) for ntype in topology.node_types}
    nodes[source] = src
    nodes[destination] = np.concatenate([nodes[destination], dst, negative])
    excluded = list(excluded_pairs(topology, seeds).values())
    in_order = [nodes[ntype] for ntype in topology.node_types]
    if moments is None:
        return SeedPlan(in_order, excluded, seeds)
    when = {ntype: np.empty(0, np.int64) for ntype in topology.node_types}
    when[source] = moments
    when[destination] = np.concatenate([when[destination], moments, np.repeat(moments, seeds.negatives)])
    return SeedPlan(in_order, excluded, seeds, np.concatenate([when[ntype] for ntype in topology.node_types]), True)


def excluded_pairs(topology: Topology, seeds: EdgeSeeds) -> dict[EdgeType, tuple[Ids, Ids]]:
    """Return sources and destinations of the edges that blocks leave out, by edge type; nothing where there are none."""
    if seeds.exclude is Exclude.NOTHING:
        return {}
    etype = topology.only(seeds.etype)
    source, _, destination = etype
    src, dst = as_ids(seeds.src), as_ids(seeds.dst)
    pairs: dict[EdgeType, list[tuple[Ids, Ids]]] = {relation: [] for relation in topology.relations}
    pairs[etype].append((src, dst))
    if seeds.exclude is Exclude.SEEDS_AND_REVERSE:
        reverse = topology.only(seeds.reverse_etype or etype)
        if (reverse[0], reverse[2]) != (destination, source):
            raise ConfigError(f"reverse_etype must lead from {destination!r} to {source!r} (got {reverse})")
        pairs[reverse].append((dst, src))
    none = np.empty(0, np.int64)
    return {
        relation: (np.concatenate([none, *(s for s, _ in lists)]), np.concatenate([none, *(d for _, d in lists)]))
        for relation, lists in pairs.items()
    }


def pair_rows(topology: Topology, edges: EdgeSeeds, rows: dict[str, Tensor]) -> SeedEdges:
    """Say which rows of the seed nodes each positive and negative pair connects."""
    source, _, destination = topology.only(edges.etype)
    count, drawn = len(edges.src), len(edges.src) * edges.negatives
    src = rows[source][:count]
    others = rows[destination][count:] if source == destination else rows[destination]
    return SeedEdges(
        src=torch.cat([src, src.repeat_interleave(edges.negatives)]),
        dst=others,
        labels=torch.cat([torch.ones(count), torch.zeros(drawn)]),
    )
