"""DGL with features on disk.

Two changed lines: import ``DataLoader`` from here, and tell it where the features are.

>>> from gids.dgl import DataLoader
>>> loader = DataLoader(graph, train_nodes, sampler, batch_size=1024, shuffle=True, gids="my-graph")
>>> for input_nodes, output_nodes, blocks in loader:
...     train_on(blocks, blocks[0].srcdata["feat"], blocks[-1].dstdata["label"])

For those who come from the research code there are :class:`GIDS` and :class:`GIDS_DGLDataLoader`.
"""

try:
    import dgl as _dgl  # noqa: F401 - says what to install, before anything else fails
except ImportError as error:
    raise ImportError("gids.dgl needs DGL (Python 3.10 and 3.11: pip install 'gids[dgl]')") from error

from gids.dgl.blocks import to_dgl_blocks
from gids.dgl.dataloader import DataLoader
from gids.dgl.research import GIDS, GIDS_DGLDataLoader
from gids.dgl.sampler import NeighborSampler, Sampler
from gids.external import Options

__all__ = ["GIDS", "DataLoader", "GIDS_DGLDataLoader", "NeighborSampler", "Options", "Sampler", "to_dgl_blocks"]
