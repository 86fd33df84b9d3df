"""Train graph neural networks on features larger than memory.

>>> dataset = gids.open("my-graph")
>>> loader = gids.Loader(dataset, split="train", fanouts=[10, 10], batch_size=1024, budget="2GiB")
>>> for batch in loader:
...     train_on(batch.blocks, batch.x, batch.y)
"""

from gids.dataset import Dataset, DatasetWriter
from gids.dataset import open_dataset as open
from gids.errors import ConfigError, DatasetError, DeviceError, GidsError, StorageError
from gids.loader import Batch, Loader
from gids.table import RowTable, Stripe

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "ConfigError",
    "Dataset",
    "DatasetError",
    "DatasetWriter",
    "DeviceError",
    "GidsError",
    "Loader",
    "RowTable",
    "StorageError",
    "Stripe",
    "__version__",
    "open",
]
