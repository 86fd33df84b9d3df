"""Datasets on disk: open one, write one, check one."""

from gids.dataset.dataset import EDGE, NODE, Dataset, open_dataset
from gids.dataset.manifest import EdgeType
from gids.dataset.table_writer import TableWriter
from gids.dataset.writer import DatasetWriter

__all__ = ["EDGE", "NODE", "Dataset", "DatasetWriter", "EdgeType", "TableWriter", "open_dataset"]
