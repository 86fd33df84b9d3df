"""Neighbour sampling: the same batch on any backend and thread count, from memory or from disk."""

from gids.sampling.cluster import ClusterSampler
from gids.sampling.disk_memory import DiskMemory
from gids.sampling.history import HistorySample, HistorySampler, HistoryStep
from gids.sampling.labor import LaborSampler
from gids.sampling.ladies import LadiesSampler
from gids.sampling.neighbor import NeighborSampler, ShadowSampler
from gids.sampling.order import SeedBatch, SeedOrder
from gids.sampling.sample import Block, EdgeType, Sample, SampleKey, SeedEdges
from gids.sampling.sampler import Sampler
from gids.sampling.seeds import EdgeSeeds, Exclude, TimedSeeds
from gids.sampling.serve import SampleClient, SampleFuture, SampleServer, serve, stream_samples
from gids.sampling.temporal import TemporalSampler
from gids.sampling.topology import Relation, Topology

__all__ = [
    "Block",
    "ClusterSampler",
    "DiskMemory",
    "EdgeSeeds",
    "EdgeType",
    "Exclude",
    "HistorySample",
    "HistorySampler",
    "HistoryStep",
    "LaborSampler",
    "LadiesSampler",
    "NeighborSampler",
    "Relation",
    "Sample",
    "SampleClient",
    "SampleFuture",
    "SampleKey",
    "SampleServer",
    "Sampler",
    "SeedBatch",
    "SeedEdges",
    "SeedOrder",
    "ShadowSampler",
    "TemporalSampler",
    "TimedSeeds",
    "Topology",
    "serve",
    "stream_samples",
]
