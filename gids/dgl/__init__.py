"""DGL with features on disk.

Two changed lines: import ``DataLoader`` from here, and tell it where the features are.

>>> from gids.dgl import DataLoader
>>> loader = DataLoader(graph, train_nodes, sampler, batch_size=1024, shuffle=True, gids="my-graph", budget="2GiB")
>>> for input_nodes, output_nodes, blocks in loader:
...     train_on(blocks, blocks[0].srcdata["feat"], blocks[-1].dstdata["label"])

DGL's samplers can be imported from here too. Those that gids has itself (:class:`NeighborSampler` and its aliases) are
ours, with DGL's arguments: reproducible, and sampled on threads of their own; the others are DGL's. For those who come
from the research code there are :class:`GIDS` and :class:`GIDS_DGLDataLoader`.
"""

try:
    import dgl as _dgl  # noqa: F401 - says what to install, before anything else fails
except ImportError as error:
    raise ImportError("gids.dgl needs DGL (Python 3.10 and 3.11: pip install 'gids[dgl]')") from error

from dgl.dataloading import (
    BlockSampler,
    ClusterGCNSampler,
    LaborSampler,
    SAINTSampler,
    ShaDowKHopSampler,
    as_edge_prediction_sampler,
    negative_sampler,
)

from gids.dgl.blocks import to_dgl_blocks
from gids.dgl.dataloader import DataLoader
from gids.dgl.infer import ConvLayer
from gids.dgl.research import GIDS, GIDS_DGLDataLoader
from gids.dgl.sampler import MultiLayerFullNeighborSampler, MultiLayerNeighborSampler, NeighborSampler, Sampler

__all__ = [
    "GIDS",
    "BlockSampler",
    "ClusterGCNSampler",
    "ConvLayer",
    "DataLoader",
    "GIDS_DGLDataLoader",
    "LaborSampler",
    "MultiLayerFullNeighborSampler",
    "MultiLayerNeighborSampler",
    "NeighborSampler",
    "SAINTSampler",
    "Sampler",
    "ShaDowKHopSampler",
    "as_edge_prediction_sampler",
    "negative_sampler",
    "to_dgl_blocks",
]
