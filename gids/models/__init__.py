"""Small models in plain torch on sampled blocks, for the demo, the examples and the tests."""

from gids.models.mlp import MLP
from gids.models.sage import GraphSAGE, mean_of_neighbours

__all__ = ["MLP", "GraphSAGE", "mean_of_neighbours"]
