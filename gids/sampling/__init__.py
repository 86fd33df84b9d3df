"""Neighbour sampling: the same batch on any backend and thread count, from memory or from disk."""

from gids.sampling.neighbor import NeighborSampler
from gids.sampling.sample import Block, EdgeType, Sample, SampleKey
from gids.sampling.topology import Relation, Topology

__all__ = [
    "Block",
    "EdgeType",
    "NeighborSampler",
    "Relation",
    "Sample",
    "SampleKey",
    "Topology",
]
