"""Graph attention (Velickovic et al.) on sampled blocks, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from gids.errors import ConfigError
from gids.models.stack import BlockModel


class GATLayer(nn.Module):
    """Neighbours averaged with weights that attention gives them, in several heads.

    The same as DGL's ``GATConv(allow_zero_in_degree=True)``; with ``self_loops`` on the block with a loop at every
    destination, which a sampled block lacks.

    Parameters
    ----------
    in_dim, out_dim : int
        Widths of the input and of one head.
    heads : int
        Heads.
    concat : bool
        Whether the heads stand side by side, ``[destinations, heads * out_dim]``, or are averaged.
    negative_slope : float
        Of the leaky rectifier over attention.
    self_loops : bool
        Count every destination among its own neighbours.
    """

    def __init__(
        self,
        in_dim: int,
        out_dim: int,
        heads: int = 4,
        concat: bool = True,
        negative_slope: float = 0.2,
        self_loops: bool = True,
    ):
        super().__init__()
        if heads < 1:
            raise ConfigError(f"heads must be at least 1 (got {heads})")
        self.heads, self.out_dim, self.concat = heads, out_dim, concat
        self.negative_slope, self.self_loops = negative_slope, self_loops
        self.linear = nn.Linear(in_dim, heads * out_dim, bias=False)
        self.attention_src = nn.Parameter(torch.empty(heads, out_dim))
        self.attention_dst = nn.Parameter(torch.empty(heads, out_dim))
        self.bias = nn.Parameter(torch.zeros(heads * out_dim))
        for weight in (self.linear.weight, self.attention_src, self.attention_dst):
            nn.init.xavier_normal_(weight, gain=nn.init.calculate_gain("relu"))

    def forward(self, x: Tensor, indptr: Tensor, src: Tensor) -> Tensor:
        """Return float ``[destinations, heads * out_dim or out_dim]``; destinations are the first rows of ``x``."""
        num_dst, edges = len(indptr) - 1, len(src)
        projected = self.linear(x).view(-1, self.heads, self.out_dim)
        sends = (projected * self.attention_src).sum(-1)
        receives = (projected[:num_dst] * self.attention_dst).sum(-1)
        dst = torch.repeat_interleave(torch.arange(num_dst, device=src.device), indptr.diff(), output_size=edges)
        # Embeddings and their bags add gradients in a fixed order; indexing would not.
        scores = functional.leaky_relu(
            functional.embedding(src, sends) + functional.embedding(dst, receives), self.negative_slope
        )
        own = functional.leaky_relu(sends[:num_dst] + receives, self.negative_slope)
        highest = own.detach() if self.self_loops else torch.full_like(own, float("-inf")).detach()
        highest = highest.scatter_reduce(0, dst.unsqueeze(1).expand(-1, self.heads), scores.detach(), "amax")
        weights = (scores - highest[dst]).exp()
        every = torch.arange(edges, device=src.device)
        total = functional.embedding_bag(every, weights, indptr, mode="sum", include_last_offset=True)
        rows = [
            functional.embedding_bag(
                src, projected[:, head], indptr, mode="sum", include_last_offset=True,
                per_sample_weights=weights[:, head].contiguous(),
            )
            for head in range(self.heads)
        ]  # fmt: skip
        out = torch.stack(rows, 1)
        if self.self_loops:
            alone = (own - highest).exp()
            total = total + alone
            out = out + projected[:num_dst] * alone.unsqueeze(-1)
        # Only where there is nothing to average is the sum of weights zero.
        out = out / total.clamp(min=torch.finfo(total.dtype).tiny).unsqueeze(-1)
        out = out + self.bias.view(self.heads, self.out_dim)
        return out.flatten(1) if self.concat else out.mean(1)


class GAT(BlockModel):
    """Stacked :class:`GATLayer` with exponential linear units and dropout between them; the last one averages heads.

    Parameters
    ----------
    in_dim, hidden_dim, out_dim : int
        Widths of the features, of every hidden layer (all heads together), and of the output.
    num_layers : int
        Layers, as many as a batch has blocks.
    dropout : float
        Share of hidden values that training drops.
    heads : int
        Heads; must divide ``hidden_dim``.
    self_loops : bool
        As in :class:`GATLayer`.
    """

    def __init__(
        self,
        in_dim: int,
        hidden_dim: int,
        out_dim: int,
        num_layers: int = 3,
        dropout: float = 0.0,
        heads: int = 4,
        self_loops: bool = True,
    ):
        if heads < 1 or hidden_dim % heads:
            raise ConfigError(f"hidden_dim must be a multiple of heads >= 1 (got {hidden_dim} and {heads})")
        layers = []
        for number in range(num_layers):
            last = number == num_layers - 1
            here, there = hidden_dim if number else in_dim, out_dim if last else hidden_dim // heads
            layers.append(GATLayer(here, there, heads, concat=not last, self_loops=self_loops))
        super().__init__(layers, functional.elu, dropout)
