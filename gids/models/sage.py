"""GraphSAGE with mean aggregation, in plain torch: no framework is needed to train on sampled blocks."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional

from gids.models.stack import BlockModel


def mean_of_neighbours(x: Tensor, indptr: Tensor, src: Tensor, weights: Tensor | None = None) -> Tensor:
    """Average the rows ``x[src]`` of every destination; zeros where it has no edge.

    Parameters
    ----------
    x : Tensor
        float ``[sources, dim]``.
    indptr, src : Tensor
        int64: edges by destination, ``[destinations + 1]`` and ``[edges]``.
    weights : Tensor, optional
        float ``[edges]``: what every row is multiplied with first.

    Returns
    -------
    Tensor
        float ``[destinations, dim]``.

    Notes
    -----
    An embedding bag gathers and reduces in one pass and adds gradients in a fixed order, so training on a CPU is
    reproducible to the last bit; ``index_add`` and ``segment_reduce`` are not, and are 4 to 5 times slower.
    """
    if weights is None:
        return functional.embedding_bag(src, x, indptr, mode="mean", include_last_offset=True)
    total = functional.embedding_bag(
        src, x, indptr, mode="sum", include_last_offset=True, per_sample_weights=weights.to(x.dtype)
    )
    return total / indptr.diff().clamp(min=1).to(x.dtype).unsqueeze(1)


class SAGELayer(nn.Module):
    """``W_self x_i + W_neighbours mean(x_j) + b`` for every destination ``i``."""

    #: What becomes of the rows of neighbours; :meth:`update` takes the result.
    reduce = "mean"

    def __init__(self, in_dim: int, out_dim: int):
        super().__init__()
        self.own = nn.Linear(in_dim, out_dim)
        self.neighbours = nn.Linear(in_dim, out_dim, bias=False)

    def forward(self, x: Tensor, indptr: Tensor, src: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return float ``[destinations, out_dim]``; destinations are the first rows of ``x``.

        ``weights`` of edges multiply the rows before their mean is taken.
        """
        return self.update(x[: len(indptr) - 1], mean_of_neighbours(x, indptr, src, weights))

    def update(self, own_rows: Tensor, mean: Tensor) -> Tensor:
        """Return float ``[destinations, out_dim]`` of their own rows and the mean of their neighbours' rows."""
        own: Tensor = self.own(own_rows)
        neighbours: Tensor = self.neighbours(mean)
        return own + neighbours


class GraphSAGE(BlockModel):
    """Stacked :class:`SAGELayer` with rectified linear units and dropout between them.

    Parameters
    ----------
    in_dim, hidden_dim, out_dim : int
        Widths of the features, of every hidden layer, and of the output.
    num_layers : int
        Layers, as many as a batch has blocks.
    dropout : float
        Share of hidden values that training drops.
    """

    def __init__(self, in_dim: int, hidden_dim: int, out_dim: int, num_layers: int = 3, dropout: float = 0.0):
        widths = [in_dim, *[hidden_dim] * (num_layers - 1), out_dim]
        layers = [SAGELayer(here, there) for here, there in itertools.pairwise(widths)]
        super().__init__(layers, torch.relu, dropout)
