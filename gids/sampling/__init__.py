"""Neighbour sampling: the same batch on any backend and thread count, from memory or from disk."""

from gids.sampling.ladies import LadiesSampler
from gids.sampling.neighbor import NeighborSampler, ShadowSampler
from gids.sampling.sample import Block, EdgeType, Sample, SampleKey, SeedEdges
from gids.sampling.sampler import Sampler
from gids.sampling.seeds import EdgeSeeds, Exclude
from gids.sampling.topology import Relation, Topology

__all__ = [
    "Block",
    "EdgeSeeds",
    "EdgeType",
    "Exclude",
    "LadiesSampler",
    "NeighborSampler",
    "Relation",
    "Sample",
    "SampleKey",
    "Sampler",
    "SeedEdges",
    "ShadowSampler",
    "Topology",
]
