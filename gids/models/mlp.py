"""A graph-blind model: what the features say without the graph."""

from __future__ import annotations

import itertools
from typing import cast

from torch import Tensor, nn


class MLP(nn.Module):
    """A multi-layer perceptron with rectified linear units and dropout.

    Parameters
    ----------
    in_dim, hidden_dim, out_dim : int
        Widths of the input, of every hidden layer, and of the output.
    num_layers : int
        Linear layers, at least 1.
    dropout : float
        Share of hidden values that training drops.
    """

    def __init__(self, in_dim: int, hidden_dim: int, out_dim: int, num_layers: int = 3, dropout: float = 0.0):
        super().__init__()
        widths = [in_dim, *[hidden_dim] * (num_layers - 1), out_dim]
        layers: list[nn.Module] = []
        for here, there in itertools.pairwise(widths):
            layers += [nn.Linear(here, there), nn.ReLU(), nn.Dropout(dropout)]
        self.layers = nn.Sequential(*layers[:-2])

    def forward(self, x: Tensor) -> Tensor:
        """Return float logits ``[n, out_dim]`` for float rows ``[n, in_dim]``."""
        return cast(Tensor, self.layers(x))
