"""Train graph neural networks on features larger than memory.

>>> dataset = gids.open("my-graph")
>>> loader = gids.Loader(dataset, "train", fanouts=[10, 10], batch_size=1024, budget="2GiB")
>>> for batch in loader:
...     train_on(batch.blocks, batch.x, batch.y)
"""

from typing import TYPE_CHECKING, Any

from gids.dataset import Dataset, DatasetWriter
from gids.dataset import open_dataset as open
from gids.dataset.packed import Packed
from gids.errors import ConfigError, DatasetError, DeviceError, GidsError, StorageError
from gids.loader import Loader
from gids.runtime import Batch, HistoryOptions, LoaderStats, MemoryOptions, OrderOptions, OutputOptions, PipelineOptions
from gids.sampling import (
    EdgeSeeds,
    LaborSampler,
    LadiesSampler,
    NeighborSampler,
    ShadowSampler,
    TemporalSampler,
    TimedSeeds,
)
from gids.storage import StorageOptions
from gids.table import RowTable, Stripe

if TYPE_CHECKING:
    from gids import convert, infer, pack

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "ConfigError",
    "Dataset",
    "DatasetError",
    "DatasetWriter",
    "DeviceError",
    "EdgeSeeds",
    "GidsError",
    "HistoryOptions",
    "LaborSampler",
    "LadiesSampler",
    "Loader",
    "LoaderStats",
    "MemoryOptions",
    "NeighborSampler",
    "OrderOptions",
    "OutputOptions",
    "Packed",
    "PipelineOptions",
    "RowTable",
    "ShadowSampler",
    "StorageError",
    "StorageOptions",
    "Stripe",
    "TemporalSampler",
    "TimedSeeds",
    "__version__",
    "convert",
    "infer",
    "open",
    "pack",
]


def __getattr__(name: str) -> Any:
    # Converters, packing and inference import much that training does not need: they come when they are first named.
    if name in ("convert", "infer", "pack"):
        import importlib

        return importlib.import_module(f"gids.{name}")
    raise AttributeError(f"module 'gids' has no attribute {name!r}")
