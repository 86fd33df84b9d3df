"""Layer-neighbour sampling: fewer input nodes for the same quality, because destinations agree on sources."""

from __future__ import annotations

from collections.abc import Sequence

from gids import _native
from gids.errors import ConfigError
from gids.sampling.sampler import Fanout, Sampler, check_fanouts, expand_fanouts
from gids.sampling.topology import Topology


class LaborSampler(Sampler):
    """Samples up to ``fanout`` in-edges of every node, chosen by variates of their sources (LABOR, Balin et al. 2023).

    Every source node has one random number per layer, a function of (seed, epoch, batch, layer, node), and each node
    takes the edges whose sources have the smallest ones. A node alone sees what :class:`NeighborSampler` would give it;
    together, nodes of a batch choose the same sources more often, so that the batch needs fewer input nodes.

    Parameters
    ----------
    fanouts : sequence of int or mapping of EdgeType to int
        As for :class:`NeighborSampler`.
    importance : int
        Rounds of importance sampling. With 1 or more, edges are kept independently with chances that favour sources
        which serve many destinations, so that their number varies around the fan-out, and blocks carry ``weights`` that
        sum to 1 per destination.
    layer_dependency : bool
        Whether all layers use the same variates, which lowers the number of input nodes further.
    batch_dependency : int
        Batches until every node has a new variate. In each of them a share of the nodes changes, so that a batch
        resembles the one before, and what was cached serves again; each batch alone is as random as with 1.
    edge_ids : bool
        Whether blocks carry the ids of their edges.
    weights : bool
        Whether edges are chosen in proportion to the topology's weights. Not together with ``importance``.
    """

    def __init__(
        self,
        fanouts: Sequence[Fanout],
        *,
        importance: int = 0,
        layer_dependency: bool = False,
        batch_dependency: int = 1,
        edge_ids: bool = False,
        weights: bool | None = None,
    ) -> None:
        self.fanouts = check_fanouts(fanouts)
        if importance < 0:
            raise ConfigError(f"importance must be a number of rounds, 0 or more (got {importance})")
        if batch_dependency < 1:
            raise ConfigError(f"batch_dependency must be at least 1 (got {batch_dependency})")
        if importance and weights:
            raise ConfigError("importance sampling with weights is not supported: give one of importance and weights")
        self.importance = importance
        self.layer_dependency = layer_dependency
        self.batch_dependency = batch_dependency
        self.edge_ids = edge_ids
        self.weights = bool(weights)

    def function(self, topology: Topology) -> _native.SampleFunction:
        """Return the native sampler of ``topology``."""
        return _native.SampleFunction.labor(
            expand_fanouts(self.fanouts, topology),
            self.edge_ids,
            self.weights,
            self.importance,
            self.layer_dependency,
            self.batch_dependency,
        )
