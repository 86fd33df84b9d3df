"""Relational graph convolution (Schlichtkrull et al.) on sampled blocks of a graph with several edge types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from gids.errors import ConfigError
from gids.models.sage import mean_of_neighbours
from gids.sampling import Block
from gids.types import EDGE, NODE, EdgeType

Rows = Tensor | dict[str, Tensor]


class RGCNLayer(nn.Module):
    """``W_own x_i + sum_r W_r mean_{j in N_r(i)} x_j + b`` for every destination ``i``, ``r`` over edge types.

    Parameters
    ----------
    in_dims : int or mapping of str to int
        Width of the rows, by node type where they differ.
    out_dim : int
        Width of the result.
    edge_types : sequence of EdgeType
        Of the graph.
    bases : int, optional
        Make every ``W_r`` a mixture of so many matrices, for graphs with many edge types; rows must then be equally wide.
    """

    def __init__(
        self,
        in_dims: int | Mapping[str, int],
        out_dim: int,
        edge_types: Sequence[EdgeType] = (EDGE,),
        bases: int | None = None,
    ):
        super().__init__()
        self.edge_types, self.out_dim = list(edge_types), out_dim
        self.node_types = list(dict.fromkeys(ntype for etype in edge_types for ntype in (etype[0], etype[2])))
        dims = dict.fromkeys(self.node_types, in_dims) if isinstance(in_dims, int) else dict(in_dims)
        self.own = nn.ModuleList(nn.Linear(dims[ntype], out_dim) for ntype in self.node_types)
        self.mixture: nn.Parameter | None = None
        if bases is None:
            self.relations = nn.ModuleList(nn.Linear(dims[etype[0]], out_dim, bias=False) for etype in self.edge_types)
            return
        widths = {dims[etype[0]] for etype in self.edge_types}
        if bases < 1 or len(widths) != 1:
            raise ConfigError(f"bases must be at least 1, of rows of one width (got {bases} and {sorted(widths)})")
        self.bases = nn.Parameter(torch.empty(bases, out_dim, widths.pop()))
        self.mixture = nn.Parameter(torch.empty(len(self.edge_types), bases))
        for weight in (self.bases, self.mixture):
            nn.init.xavier_uniform_(weight)

    def forward(self, block: Block, x: Rows) -> Rows:
        """Return float ``[destinations, out_dim]``, by node type where ``x`` is; destinations are the first rows."""
        rows = x if isinstance(x, dict) else {NODE: x}
        out: dict[str, Tensor] = {}
        for linear, ntype in zip(self.own, self.node_types, strict=True):
            if ntype in rows and block.num_dst[ntype]:
                out[ntype] = linear(rows[ntype][: block.num_dst[ntype]])
        for number, etype in enumerate(self.edge_types):
            if etype[2] in out and len(block.src[etype]):
                mean = mean_of_neighbours(rows[etype[0]], block.indptr[etype], block.src[etype])
                out[etype[2]] = out[etype[2]] + self._project(number, mean)
        return out if isinstance(x, dict) else out[NODE]

    def _project(self, relation: int, mean: Tensor) -> Tensor:
        if self.mixture is None:
            projected: Tensor = self.relations[relation](mean)
            return projected
        weight = torch.einsum("b,boi->oi", self.mixture[relation], self.bases)
        return functional.linear(mean, weight)


class RGCN(nn.Module):
    """Stacked :class:`RGCNLayer` with rectified linear units and dropout between them.

    Parameters
    ----------
    in_dims : int or mapping of str to int
        Width of the features, by node type where they differ.
    hidden_dim, out_dim : int
        Widths of every hidden layer and of the output.
    edge_types : sequence of EdgeType
        Of the graph.
    num_layers : int
        Layers, as many as a batch has blocks.
    dropout : float
        Share of hidden values that training drops.
    bases : int, optional
        As in :class:`RGCNLayer`, of all layers but the first.
    """

    def __init__(
        self,
        in_dims: int | Mapping[str, int],
        hidden_dim: int,
        out_dim: int,
        edge_types: Sequence[EdgeType] = (EDGE,),
        num_layers: int = 2,
        dropout: float = 0.0,
        bases: int | None = None,
    ):
        super().__init__()
        layers = []
        for number in range(num_layers):
            here = hidden_dim if number else in_dims
            there = out_dim if number == num_layers - 1 else hidden_dim
            layers.append(RGCNLayer(here, there, edge_types, bases if number else None))
        self.layers = nn.ModuleList(layers)
        self.activation, self.dropout = torch.relu, dropout

    def forward(self, blocks: Sequence[Block], x: Rows) -> Any:
        """Return float ``[seeds, out_dim]``, by node type where ``x`` is, for the blocks of a batch, outermost first."""
        for number, (layer, block) in enumerate(zip(self.layers, blocks, strict=True)):
            x = layer(block, x)
            if number < len(self.layers) - 1:
                x = {t: self._between(rows) for t, rows in x.items()} if isinstance(x, dict) else self._between(x)
        return x

    def _between(self, rows: Tensor) -> Tensor:
        return functional.dropout(self.activation(rows), self.dropout, self.training)
