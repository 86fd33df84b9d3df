"""Temporal neighbour sampling: every seed has a time, and sees nothing from after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from gids import _native
from gids.errors import ConfigError
from gids.sampling.sampler import Fanout, Sampler, check_fanouts, expand_fanouts
from gids.sampling.seeds import SeedPlan, check_ids
from gids.sampling.topology import Topology


class TemporalSampler(Sampler):
    """Samples up to ``fanout`` in-edges of every node among those that existed at the time of its seed.

    Every seed has a tree of its own (``Sample.trees``): two seeds of different times must not share what they saw. Seeds
    are :class:`TimedSeeds`, or :class:`EdgeSeeds` with times, whose negatives existed at that time too; nodes without a
    time are asked about at their own, where nodes have times.

    Parameters
    ----------
    fanouts : sequence of int or mapping of EdgeType to int
        As for :class:`NeighborSampler`.
    by : "edge" or "node"
        Whose time must not be after the seed's: the edge's, or that of its source node.
    strategy : "uniform" or "last"
        Any of these edges, or the latest ones, latest first.
    window : int, optional
        Only edges less than this much older than the seed.
    replace : bool
        Whether an edge can be drawn more than once; not with "last".
    edge_ids : bool
        Whether blocks carry the ids of their edges.
    time_attr : str
        Name of the dataset's tables of times (int64, dim 1), for loaders, which open the graph themselves.
    first_hop : int
        As for :class:`NeighborSampler`.
    """

    timed = True

    def __init__(
        self,
        fanouts: Sequence[Fanout],
        *,
        by: Literal["edge", "node"] = "edge",
        strategy: Literal["uniform", "last"] = "uniform",
        window: int | None = None,
        replace: bool = False,
        edge_ids: bool = False,
        time_attr: str = "time",
        first_hop: int = 0,
    ) -> None:
        self.fanouts = check_fanouts(fanouts)
        if by not in ("edge", "node"):
            raise ConfigError(f"by must be 'edge' or 'node' (got {by!r})")
        if strategy not in ("uniform", "last"):
            raise ConfigError(f"strategy must be 'uniform' or 'last' (got {strategy!r})")
        if window is not None and window < 1:
            raise ConfigError(f"window must be positive (got {window})")
        if replace and strategy == "last":
            raise ConfigError("replace must be False with strategy 'last': the latest edges are taken once")
        self.by, self.strategy, self.window = by, strategy, window
        self.replace, self.edge_ids = replace, edge_ids
        self.time_attr, self.first_hop = time_attr, first_hop

    def with_times(self, topology: Topology, plan: SeedPlan) -> SeedPlan:
        """Return ``plan`` with times of its seeds: those given, or the nodes' own in ``topology``."""
        known = topology.node_times
        named = zip(topology.node_types, plan.nodes, strict=True)
        if plan.timed or self.by != "node" or not all(ntype in known for ntype, ids in named if len(ids)):
            return super().with_times(topology, plan)
        own = [
            known[ntype][check_ids(ids, topology.num_nodes[ntype], ntype)] if len(ids) else ids
            for ntype, ids in zip(topology.node_types, plan.nodes, strict=True)
        ]
        return replace(plan, times=np.concatenate(own), timed=True)

    def check(self, topology: Topology) -> None:
        """Raise ConfigError where ``topology`` has no times of the kind asked for."""
        if self.by == "edge":
            missing: list[object] = [etype for etype, r in topology.relations.items() if r.times is None]
        else:
            missing = [n for n in sorted({etype[0] for etype in topology.relations}) if n not in topology.node_times]
        if missing:
            raise ConfigError(
                f"temporal sampling by {self.by} needs times of every {self.by} type (missing: {missing})"
            )

    def function(self, topology: Topology) -> _native.SampleFunction:
        """Return the native sampler of ``topology``."""
        return _native.SampleFunction.disjoint(
            expand_fanouts(self.fanouts, topology),
            self.replace,
            self.edge_ids,
            self.by,
            self.strategy == "last",
            -1 if self.window is None else self.window,
            self.first_hop,
        )
