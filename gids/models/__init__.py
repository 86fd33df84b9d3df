"""Small models in plain torch, on sampled blocks and on subgraphs of queries, for the demo, the examples and the tests."""

from gids.loader.history import History
from gids.models.gat import GAT, GATLayer
from gids.models.gcn import GCN, GCNLayer
from gids.models.mlp import MLP
from gids.models.reasoning import NbfNet, RedGnn, ranking_loss
from gids.models.rgcn import RGCN, RGCNLayer
from gids.models.sage import GraphSAGE, SAGELayer, mean_of_neighbours
from gids.models.stack import BlockModel

__all__ = [
    "GAT",
    "GCN",
    "MLP",
    "RGCN",
    "BlockModel",
    "GATLayer",
    "GCNLayer",
    "GraphSAGE",
    "History",
    "NbfNet",
    "RGCNLayer",
    "RedGnn",
    "SAGELayer",
    "mean_of_neighbours",
    "ranking_loss",
]
