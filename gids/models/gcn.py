"""Graph convolution (Kipf and Welling) on sampled blocks, in plain torch."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional

from gids.models.stack import BlockModel


class GCNLayer(nn.Module):
    """``W sum_j x_j / sqrt(out_j in_i) + b`` for every destination ``i``, with the degrees that the block has.

    The same as DGL's ``GraphConv(norm="both", allow_zero_in_degree=True)``; with ``self_loops`` on the block with a loop
    at every destination, which a sampled block lacks.

    Parameters
    ----------
    in_dim, out_dim : int
        Widths.
    self_loops : bool
        Count every destination among its own neighbours.
    """

    def __init__(self, in_dim: int, out_dim: int, self_loops: bool = True):
        super().__init__()
        self.linear = nn.Linear(in_dim, out_dim, bias=False)
        self.bias = nn.Parameter(torch.zeros(out_dim))
        self.self_loops = self_loops

    def forward(self, x: Tensor, indptr: Tensor, src: Tensor, sent: Tensor | None = None) -> Tensor:
        """Return float ``[destinations, out_dim]``; destinations are the first rows of ``x``.

        ``sent`` are the out-degrees of the sources in the whole graph, where every node is a destination too.
        """
        num_dst = len(indptr) - 1
        received = indptr.diff()
        if sent is not None:
            sent = sent + int(self.self_loops)
        else:
            sent = torch.bincount(src, minlength=len(x))
            sent[:num_dst] += int(self.self_loops)
        if self.self_loops:
            received = received + 1
        if self.linear.in_features > self.linear.out_features:  # the narrower side is what is gathered
            x = self.linear(x)
        scaled = x * sent.clamp(min=1).to(x.dtype).rsqrt().unsqueeze(1)
        # An embedding bag adds gradients in a fixed order: training on a CPU is reproducible to the last bit.
        total = functional.embedding_bag(src, scaled, indptr, mode="sum", include_last_offset=True)
        if self.self_loops:
            total = total + scaled[:num_dst]
        total = total * received.clamp(min=1).to(x.dtype).rsqrt().unsqueeze(1)
        if self.linear.in_features <= self.linear.out_features:
            total = self.linear(total)
        return total + self.bias


class GCN(BlockModel):
    """Stacked :class:`GCNLayer` with rectified linear units and dropout between them.

    Parameters
    ----------
    in_dim, hidden_dim, out_dim : int
        Widths of the features, of every hidden layer, and of the output.
    num_layers : int
        Layers, as many as a batch has blocks.
    dropout : float
        Share of hidden values that training drops.
    self_loops : bool
        As in :class:`GCNLayer`.
    """

    def __init__(
        self,
        in_dim: int,
        hidden_dim: int,
        out_dim: int,
        num_layers: int = 3,
        dropout: float = 0.0,
        self_loops: bool = True,
    ):
        widths = [in_dim, *[hidden_dim] * (num_layers - 1), out_dim]
        layers = [GCNLayer(here, there, self_loops) for here, there in itertools.pairwise(widths)]
        super().__init__(layers, torch.relu, dropout)
