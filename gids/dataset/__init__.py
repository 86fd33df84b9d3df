"""Datasets on disk: open one, write one, check one."""

from gids.dataset.dataset import Dataset, open_dataset
from gids.dataset.in_place import RowFile, npy_header, raw_rows
from gids.dataset.knowledge import Knowledge
from gids.dataset.knowledge_writer import KnowledgeWriter
from gids.dataset.table_writer import TableWriter
from gids.dataset.verifier import Problem, verify
from gids.dataset.writer import DatasetWriter
from gids.types import EDGE, NODE, EdgeType

__all__ = [
    "EDGE",
    "NODE",
    "Dataset",
    "DatasetWriter",
    "EdgeType",
    "Knowledge",
    "KnowledgeWriter",
    "Problem",
    "RowFile",
    "TableWriter",
    "npy_header",
    "open_dataset",
    "raw_rows",
    "verify",
]
