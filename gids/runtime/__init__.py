"""The five verbs on threads: a feed that samples, a backend that keeps rows, a budget, and the pipeline between them."""

from gids.runtime.backend import Backend, CpuBackend
from gids.runtime.batch import Batch
from gids.runtime.feed import Feed
from gids.runtime.options import (
    HistoryOptions,
    MemoryOptions,
    OrderOptions,
    OutputOptions,
    PipelineOptions,
    RuntimeOptions,
    SpillOptions,
)
from gids.runtime.pipeline import Pipeline, PipelineRun
from gids.runtime.runtime import Runtime
from gids.runtime.stats import LoaderStats, StageStats, TableStats
from gids.runtime.tiers import Tiers
from gids.runtime.trace import Trace
from gids.runtime.work import Fetched, Work

__all__ = [
    "Backend",
    "Batch",
    "CpuBackend",
    "Feed",
    "Fetched",
    "HistoryOptions",
    "LoaderStats",
    "MemoryOptions",
    "OrderOptions",
    "OutputOptions",
    "Pipeline",
    "PipelineOptions",
    "PipelineRun",
    "Runtime",
    "RuntimeOptions",
    "SpillOptions",
    "StageStats",
    "TableStats",
    "Tiers",
    "Trace",
    "Work",
]
