"""Train graph neural networks on features larger than memory.

>>> dataset = gids.open("my-graph")
>>> loader = gids.Loader(dataset, "train", fanouts=[10, 10], batch_size=1024, budget="2GiB")
>>> for batch in loader:
...     train_on(batch.blocks, batch.x, batch.y)
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what type checkers and editors read; _HOMES says the same to the interpreter
    from gids import convert, infer, pack
    from gids.cluster import Shards
    from gids.dataset import Dataset, DatasetWriter
    from gids.dataset import open_dataset as open
    from gids.dataset.packed import Packed
    from gids.errors import ConfigError, DatasetError, DeviceError, GidsError, PeerError, StorageError
    from gids.loader import Loader
    from gids.runtime import (
        Batch,
        HistoryOptions,
        LoaderStats,
        MemoryOptions,
        OrderOptions,
        OutputOptions,
        PipelineOptions,
        SpillOptions,
    )
    from gids.sampling import (
        ClusterSampler,
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
    from gids.types import EDGE, NODE

__version__ = "0.2.0"

#: Module -> public names that it has. Nothing is imported before it is asked for: `gids --help` is quick, and Ctrl-C while
#: torch is imported meets code that knows what to say.
_HOMES = {
    "gids.cluster": "Shards",
    "gids.dataset": "Dataset DatasetWriter",
    "gids.dataset.packed": "Packed",
    "gids.errors": "ConfigError DatasetError DeviceError GidsError PeerError StorageError",
    "gids.loader": "Loader",
    "gids.runtime": (
        "Batch HistoryOptions LoaderStats MemoryOptions OrderOptions OutputOptions PipelineOptions SpillOptions"
    ),
    "gids.sampling": (
        "ClusterSampler EdgeSeeds LaborSampler LadiesSampler NeighborSampler ShadowSampler TemporalSampler TimedSeeds"
    ),
    "gids.storage": "StorageOptions",
    "gids.table": "RowTable Stripe",
    "gids.types": "EDGE NODE",
}
_HOME = {name: module for module, names in _HOMES.items() for name in names.split()}

__all__ = [
    "EDGE",
    "NODE",
    "Batch",
    "ClusterSampler",
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
    "PeerError",
    "PipelineOptions",
    "RowTable",
    "ShadowSampler",
    "Shards",
    "SpillOptions",
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
    thing: Any
    if name == "open":
        thing = importlib.import_module("gids.dataset").open_dataset
    elif name in _HOME:
        thing = getattr(importlib.import_module(_HOME[name]), name)
    elif not name.startswith("_"):
        try:
            thing = importlib.import_module(f"gids.{name}")  # `import gids` is enough for gids.pyg.NeighborLoader
        except ModuleNotFoundError as error:
            if error.name != f"gids.{name}":
                raise
            raise AttributeError(f"module 'gids' has no attribute {name!r}") from None
    else:
        raise AttributeError(f"module 'gids' has no attribute {name!r}")
    globals()[name] = thing
    return thing


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
