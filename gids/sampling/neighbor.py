"""Node-wise neighbour sampling (GraphSAGE) and the subgraphs that ShaDow takes from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from gids import _native
from gids.errors import ConfigError
from gids.sampling.sample import Sample, SampleKey
from gids.sampling.sampler import Fanout, Sampler, build_sample, check_fanouts, expand_fanouts
from gids.sampling.seeds import as_ids
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
    first_hop : int
        What the layer nearest the seeds counts as in random keys: above 0 where it goes on from layers that another
        sampler has sampled.
    disjoint : bool
        Whether every seed has a tree of its own (``Sample.trees``) that shares no node with others; without weights.
    """

    def __init__(
        self,
        fanouts: Sequence[Fanout],
        *,
        replace: bool = False,
        edge_ids: bool = False,
        weights: bool | None = None,
        first_hop: int = 0,
        disjoint: bool = False,
    ) -> None:
        self.fanouts = check_fanouts(fanouts)
        if disjoint and weights:
            raise ConfigError("disjoint sampling with weights is not supported: give one of disjoint and weights")
        self.disjoint = disjoint
        self.replace = replace
        self.edge_ids = edge_ids
        self.weights = bool(weights)
        self.first_hop = first_hop

    def function(self, topology: Topology) -> _native.SampleFunction:
        """Return the native sampler of ``topology``."""
        fanouts = expand_fanouts(self.fanouts, topology)
        if self.disjoint:
            return _native.SampleFunction.disjoint(
                fanouts, self.replace, self.edge_ids, "nothing", False, -1, self.first_hop
            )
        return _native.SampleFunction.neighbor(fanouts, self.replace, self.edge_ids, self.weights, self.first_hop)

    def expand(
        self,
        topology: Topology,
        nodes: Mapping[str, Tensor],
        places: Mapping[str, Tensor],
        key: SampleKey,
        pool: _native.ThreadPool | None = None,
    ) -> Sample:
        """Sample one more layer, with edge ids, of some of the nodes that a batch has: PyG's way from hop to hop.

        The sample's ``input_nodes`` are ``nodes`` and then those that are new; the destinations of its block are the nodes
        at ``places``, not the first ones.

        Parameters
        ----------
        topology : Topology
            The graph.
        nodes : mapping of str to Tensor[int64]
            Distinct nodes of every type.
        places : mapping of str to Tensor[int64]
            Which of them, of every type, are expanded; none that was before with this key.
        key : SampleKey
            Names the batch.
        pool : ThreadPool, optional
            Threads to share the work with.
        """
        self.check(topology)
        (fanouts,) = expand_fanouts(self.fanouts, topology)
        known, chosen = ([as_ids(by_type[ntype]) for ntype in topology.node_types] for by_type in (nodes, places))
        native = topology.native.expand(
            fanouts, self.replace, self.weights, key.seed, key.epoch, key.batch, known, chosen, pool
        )
        return build_sample(topology, native)


class ShadowSampler(NeighborSampler):
    """Samples a bounded neighbourhood and gives every edge of the graph between its nodes (ShaDow-GNN).

    The sample has one block whose sources are its destinations: a model of any depth runs on it, and the first rows of
    the result belong to the seeds.

    Parameters
    ----------
    fanouts, replace, edge_ids, weights
        As in :class:`NeighborSampler`, for the neighbourhood.
    """

    def __init__(
        self, fanouts: Sequence[Fanout], *, replace: bool = False, edge_ids: bool = False, weights: bool | None = None
    ) -> None:
        super().__init__(fanouts, replace=replace, edge_ids=edge_ids, weights=weights)

    def function(self, topology: Topology) -> _native.SampleFunction:
        """Return the native sampler of ``topology``."""
        fanouts = expand_fanouts(self.fanouts, topology)
        return _native.SampleFunction.shadow(fanouts, self.replace, self.edge_ids, self.weights)
