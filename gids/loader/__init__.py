"""The loader: seeds → sample → plan → fetch → batch, run ahead of training on named threads."""

from gids.loader.batch import Batch
from gids.loader.loader import Loader, LoaderIterator
from gids.loader.memory import Allotment
from gids.loader.pipeline import Fetched, FixedGroups, Grouping, Pipeline, PipelineOptions, PipelineRun, Store, Work
from gids.loader.seeds import SeedBatch, SeedOrder
from gids.loader.stats import LoaderStats, StageStats, TableStats
from gids.loader.stores import TableSet, TableStore, open_tables
from gids.loader.trace import Trace

__all__ = [
    "Allotment",
    "Batch",
    "Fetched",
    "FixedGroups",
    "Grouping",
    "Loader",
    "LoaderIterator",
    "LoaderStats",
    "Pipeline",
    "PipelineOptions",
    "PipelineRun",
    "SeedBatch",
    "SeedOrder",
    "StageStats",
    "Store",
    "TableSet",
    "TableStats",
    "TableStore",
    "Trace",
    "Work",
    "open_tables",
]
