"""Which node holds which rows, and which rank of it answers whom. Arithmetic only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gids.dataset.part import bounds
from gids.errors import ConfigError


@dataclass(frozen=True)
class Homes:
    """Where rows are, as seen by one rank.

    Attributes
    ----------
    nodes : sequence of int
        The node of every rank; all of ``0 .. N-1`` are named.
    rank : int
        Ours.
    """

    nodes: Sequence[int]
    rank: int

    def __post_init__(self) -> None:
        named = sorted(set(self.nodes))
        if named != list(range(len(named))):
            raise ConfigError(f"nodes of the ranks must be numbered from 0 without a gap (got {list(self.nodes)})")

    @property
    def num_nodes(self) -> int:
        """Nodes that share the tables."""
        return max(self.nodes) + 1

    @property
    def node(self) -> int:
        """Ours."""
        return self.nodes[self.rank]

    def held(self, num_rows: int) -> range:
        """Return the rows of a table that our node holds."""
        begins = bounds(num_rows, self.num_nodes)
        return range(int(begins[self.node]), int(begins[self.node + 1]))

    def nodes_of(self, rows: NDArray[np.int64], num_rows: int) -> NDArray[np.int64]:
        """Return the node that holds each row."""
        return np.searchsorted(bounds(num_rows, self.num_nodes)[1:-1], rows, side="right").astype(np.int64)

    def answers(self, node: int) -> int:
        """Return the rank of a node that answers us: the ranks of a node share out those of the others."""
        ours = [rank for rank, of in enumerate(self.nodes) if of == self.node].index(self.rank)
        theirs = [rank for rank, of in enumerate(self.nodes) if of == node]
        return theirs[ours % len(theirs)]
