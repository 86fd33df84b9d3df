"""Datasets on disk: open one, write one, check one."""

from gids.dataset.dataset import EDGE, NODE, Dataset, open_dataset
from gids.dataset.in_place import RowFile, npy_header, raw_rows
from gids.dataset.manifest import EdgeType
from gids.dataset.table_writer import TableWriter
from gids.dataset.verifier import Problem, verify
from gids.dataset.writer import DatasetWriter

__all__ = [
    "EDGE",
    "NODE",
    "Dataset",
    "DatasetWriter",
    "EdgeType",
    "Problem",
    "RowFile",
    "TableWriter",
    "npy_header",
    "open_dataset",
    "raw_rows",
    "verify",
]
