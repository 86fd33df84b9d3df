"""Layer-dependent importance sampling."""

from __future__ import annotations

from collections.abc import Sequence

from gids import _native
from gids.errors import ConfigError
from gids.sampling.sampler import Sampler
from gids.sampling.topology import Topology


class LadiesSampler(Sampler):
    """Keeps a fixed number of source nodes per layer (LADIES, Zou et al. 2019).

    Every in-edge of a layer's destinations competes. A source is chosen with a chance proportional to the sum of its
    edges' squared shares, where an edge's share is its weight over all weights of its destination. Blocks carry
    importance weights: share / (chosen · probability), normalised so that the edges of a destination sum to 1.

    Parameters
    ----------
    sizes : sequence of int
        Nodes to choose per source type, one entry per layer, outermost first. Destinations are kept in any case.
    edge_ids : bool
        Whether blocks carry the ids of their edges.
    weights : bool
        Whether edges count by the topology's weights instead of equally.
    """

    def __init__(self, sizes: Sequence[int], *, edge_ids: bool = False, weights: bool | None = None) -> None:
        if not sizes or any(not isinstance(size, int) or size < 1 for size in sizes):
            raise ConfigError(f"sizes must be positive numbers of nodes, one per layer (got {list(sizes)})")
        self.sizes = list(sizes)
        self.edge_ids = edge_ids
        self.weights = bool(weights)

    def function(self, topology: Topology) -> _native.SampleFunction:
        """Return the native sampler of ``topology``."""
        return _native.SampleFunction.ladies(self.sizes, self.edge_ids, self.weights)
