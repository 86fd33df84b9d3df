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

    #: What becomes of the contributions of neighbours; :meth:`update` takes the result.
    reduce = "sum"

    def __init__(self, in_dim: int, out_dim: int, self_loops: bool = True):
        super().__init__()
        self.linear = nn.Linear(in_dim, out_dim, bias=False)
        self.bias = nn.Parameter(torch.zeros(out_dim))
        self.self_loops = self_loops

    def contribution(self, x: Tensor, sent: Tensor) -> Tensor:
        """Return what sources with out-degrees ``sent`` in the whole graph add to each of their destinations."""
        if self.linear.in_features > self.linear.out_features:  # the narrower side is what is gathered
            x = self.linear(x)
        return x * (sent + int(self.self_loops)).clamp(min=1).to(x.dtype).rsqrt().unsqueeze(1)

    def update(self, own_rows: Tensor, total: Tensor, received: Tensor, sent: Tensor) -> Tensor:
        """Return float ``[destinations, out_dim]`` of their own rows, the sum of contributions, and their degrees."""
        return self._finished(self.contribution(own_rows, sent) if self.self_loops else None, total, received)

    def _finished(self, own: Tensor | None, total: Tensor, received: Tensor) -> Tensor:
        if own is not None:
            total = total + own
        received = received + int(self.self_loops)
        total = total * received.clamp(min=1).to(total.dtype).rsqrt().unsqueeze(1)
        if self.linear.in_features <= self.linear.out_features:
            total = self.linear(total)
        return total + self.bias

    def forward(
        self, x: Tensor, indptr: Tensor, src: Tensor, sent: Tensor | None = None, weights: Tensor | None = None
    ) -> Tensor:
        """Return float ``[destinations, out_dim]``; destinations are the first rows of ``x``.

        ``sent`` are the out-degrees of the sources in the whole graph, where every node is a destination too; ``weights``
        of edges multiply the rows (those of loops are 1), and do not change degrees.
        """
        num_dst = len(indptr) - 1
        if sent is None:
            sent = torch.bincount(src, minlength=len(x))
            sent[num_dst:] -= int(self.self_loops)  # who is no destination has no loop
        scaled = self.contribution(x, sent)
        # An embedding bag adds gradients in a fixed order: training on a CPU is reproducible to the last bit.
        each = None if weights is None else weights.to(x.dtype)
        total = functional.embedding_bag(
            src, scaled, indptr, mode="sum", include_last_offset=True, per_sample_weights=each
        )
        return self._finished(scaled[:num_dst] if self.self_loops else None, total, indptr.diff())


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
