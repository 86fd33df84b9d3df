"""PyG with features on disk, and without pyg-lib.

>>> from gids.pyg import NeighborLoader
>>> loader = NeighborLoader("my-graph", [10, 10], "train", batch_size=1024, shuffle=True, budget="2GiB")
>>> for data in loader:
...     train_on(model(data.x, data.edge_index)[: data.batch_size], data.y[: data.batch_size])

PyG's own loaders take :class:`FeatureStore` and :class:`GraphStore` with :class:`NeighborSampler` as their sampler.
"""

try:
    import torch_geometric as _torch_geometric  # noqa: F401 - says what to install, before anything else fails
except ImportError as error:
    raise ImportError("gids.pyg needs PyTorch Geometric (pip install 'gids[pyg]')") from error

from gids.pyg.hops import HopSampler, Neighborhood
from gids.pyg.infer import ConvLayer
from gids.pyg.loader import LinkNeighborLoader, NeighborLoader
from gids.pyg.pack import pack
from gids.pyg.sampler import NeighborSampler
from gids.pyg.stores import FeatureStore, GraphStore

__all__ = [
    "ConvLayer",
    "FeatureStore",
    "GraphStore",
    "HopSampler",
    "LinkNeighborLoader",
    "NeighborLoader",
    "NeighborSampler",
    "Neighborhood",
    "pack",
]
