"""Node-wise neighbour sampling (GraphSAGE) and the subgraphs that ShaDow takes from it."""

from __future__ import annotations

from collections.abc import Sequence

from gids import _native
from gids.sampling.sample import SampleKey
from gids.sampling.sampler import Fanout, NativeSample, Sampler, check_fanouts, expand_fanouts
from gids.sampling.seeds import SeedPlan
from gids.sampling.topology import Topology


class NeighborSampler(Sampler):
    """Samples up to ``fanout`` in-edges of every node, layer by layer from the seeds outwards.

    Parameters
    ----------
    fanouts : sequence of int or mapping of EdgeType to int
        One entry per layer, outermost first, as in DGL: ``fanouts[i]`` makes ``blocks[i]``, so the last one applies to
        the seeds. −1 takes all in-edges, 0 none. A mapping gives each edge type its own; types not named get 0.
    replace : bool
        Whether an edge can be drawn more than once.
    edge_ids : bool
        Whether blocks carry the ids of their edges.
    weights : bool
        Whether edges are chosen in proportion to the topology's weights. Edges of weight 0 are never chosen.
    """

    def __init__(
        self, fanouts: Sequence[Fanout], *, replace: bool = False, edge_ids: bool = False, weights: bool | None = None
    ) -> None:
        self.fanouts = check_fanouts(fanouts)
        self.replace = replace
        self.edge_ids = edge_ids
        self.weights = bool(weights)

    def _run(self, topology: Topology, plan: SeedPlan, key: SampleKey, pool: _native.ThreadPool | None) -> NativeSample:
        return topology.native.sample_neighbors(
            expand_fanouts(self.fanouts, topology),
            self.replace,
            self.edge_ids,
            self.weights,
            plan.excluded,
            key.seed,
            key.epoch,
            key.batch,
            plan.nodes,
            pool,
        )


class ShadowSampler(NeighborSampler):
    """Samples a bounded neighbourhood and gives every edge of the graph between its nodes (ShaDow-GNN).

    The sample has one block whose sources are its destinations: a model of any depth runs on it, and the first rows of
    the result belong to the seeds. Parameters are those of :class:`NeighborSampler`.
    """

    def _run(self, topology: Topology, plan: SeedPlan, key: SampleKey, pool: _native.ThreadPool | None) -> NativeSample:
        return topology.native.sample_shadow(
            expand_fanouts(self.fanouts, topology),
            self.replace,
            self.edge_ids,
            self.weights,
            plan.excluded,
            key.seed,
            key.epoch,
            key.batch,
            plan.nodes,
            pool,
        )
