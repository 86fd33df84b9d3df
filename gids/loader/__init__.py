"""The loader: seeds → sample → plan → fetch → batch, run ahead of training on named threads."""

from gids.loader.pipeline import Fetched, FixedGroups, Grouping, Pipeline, PipelineOptions, PipelineRun, Store, Work
from gids.loader.seeds import SeedBatch, SeedOrder
from gids.loader.trace import Trace

__all__ = [
    "Fetched",
    "FixedGroups",
    "Grouping",
    "Pipeline",
    "PipelineOptions",
    "PipelineRun",
    "SeedBatch",
    "SeedOrder",
    "Store",
    "Trace",
    "Work",
]
