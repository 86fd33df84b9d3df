"""Partitions: which nodes belong together, where they lie on disk, and seeds in that order."""

from gids.partition.methods import Method, make
from gids.partition.order import PartitionOrder, parts_per_batch, seed_parts
from gids.partition.redundancy import Redundancy, redundancy_ratio
from gids.partition.relabel import OrderBy, degree_order, partition_order, reorder, visit_order
from gids.partition.stored import Partition, load, save, stored_names

__all__ = [
    "Method",
    "OrderBy",
    "Partition",
    "PartitionOrder",
    "Redundancy",
    "degree_order",
    "load",
    "make",
    "partition_order",
    "parts_per_batch",
    "redundancy_ratio",
    "reorder",
    "save",
    "seed_parts",
    "stored_names",
    "visit_order",
]
