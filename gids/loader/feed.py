"""The feed of gids.Loader: our seed order, our samplers, batches of plain tensors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from gids._native import ThreadPool, thread_sampling_memory
from gids.dataset import Dataset
from gids.loader.epochs import describe_sampler
from gids.loader.graph import open_topology, starting_nodes
from gids.runtime.backend import Backend, SampledRows, Sampler, sample_on_host
from gids.runtime.batch import Batch
from gids.runtime.options import RuntimeOptions
from gids.runtime.ranking import Ranker, Scores
from gids.runtime.work import Fetched, Work
from gids.sampling import (
    EdgeSeeds,
    HistorySampler,
    NeighborSampler,
    Sample,
    SampleKey,
    SeedBatch,
    SeedOrder,
    TimedSeeds,
    Topology,
)
from gids.sampling.history import seeds_of_orders
from gids.sampling.lists import ListMemory
from gids.table import RowTable
from gids.tiers import HotRows
from gids.types import EdgeType, TableKey

#: The epoch that is sampled to count accesses: the last number that a key can have, so no run trains on it.
COUNTED_EPOCH = (1 << 32) - 1


@dataclass(frozen=True)
class SeedsOfEpoch:
    """One piece of the order: the seeds of a batch, the epoch it belongs to, and who samples where that is up to the order."""

    seeds: SeedBatch
    epoch: int
    sampler: Any = None

    @property
    def num_seeds(self) -> int:
        """Seeds of the batch: nodes over all types, or edges."""
        return self.seeds.num_seeds


class Piece(Protocol):
    """What a batch remembers of the piece of the order that it was made from."""

    @property
    def seeds(self) -> SeedBatch:
        """Which batch."""

    @property
    def epoch(self) -> int:
        """Of which epoch."""


@dataclass(frozen=True)
class _Sampled:
    piece: Piece
    rows: SampledRows


class BatchBuilder:
    """Puts blocks, rows and labels together.

    Parameters
    ----------
    dataset : Dataset
        Whose labels.
    node_tables, edge_tables : list of TableKey
        What was fetched.
    backend : Backend
        Where batches are delivered.
    labels : bool
        Whether batches carry labels.
    """

    def __init__(
        self,
        dataset: Dataset,
        node_tables: list[TableKey],
        edge_tables: list[TableKey],
        backend: Backend,
        labels: bool,
    ):
        self._node_tables, self._edge_tables, self._backend = node_tables, edge_tables, backend
        self._hetero = len(dataset.node_types) > 1
        self._labels = backend.deliver_tensors(load_labels(dataset)) if labels else {}

    @property
    def labels_bytes(self) -> int:
        """Memory of the labels."""
        return sum(labels.nbytes for labels in self._labels.values())

    def payload(self, piece: Piece, rows: SampledRows) -> object:
        """Return what :meth:`build` needs of a sampled batch."""
        return _Sampled(piece, rows)

    def build(self, fetched: Fetched) -> Batch:
        """Return the batch of fetched rows."""
        sampled: _Sampled = fetched.work.payload
        sample, edge_places = self._backend.deliver_sample(sampled.rows)
        places = self._backend.deliver_tensors(dict(sampled.rows.node_places))
        features = {key: fetched.rows[key] for key in self._node_tables}
        if places:  # trees have nodes in common, and each was fetched once
            features = {key: rows[places[_node_type(key)]] for key, rows in features.items()}
        x: dict[str, Tensor] = {}
        for key, rows in features.items():
            x.setdefault(_node_type(key), rows)
        edge_features = [
            {key: fetched.rows[key][edge_places[_edge_type(key)][layer]] for key in self._edge_tables}
            for layer in range(len(sample.blocks))
        ]
        return Batch(
            blocks=sample.blocks,
            x=x if self._hetero else _only(x),
            y=self._labels_of(sample),
            seeds=sample.seeds if self._hetero else _only(sample.seeds),
            input_nodes=sample.input_nodes if self._hetero else _only(sample.input_nodes),
            features=features,
            edge_features=edge_features if self._edge_tables else [],
            sample=sample,
            epoch=sampled.piece.epoch,
            index=sampled.piece.seeds.index,
            padding=sampled.piece.seeds.padding,
        )

    def _labels_of(self, sample: Sample) -> dict[str, Tensor] | Tensor | None:
        if sample.edges is not None:
            return sample.edges.labels
        wanted = sample.seeds
        found = {ntype: self._labels[ntype][ids] for ntype, ids in wanted.items() if ntype in self._labels and len(ids)}
        return found if self._hetero and self._labels else _only(found)


class SamplerFeed:
    """Samples with gids from a dataset's graph and builds :class:`gids.Batch`; see :class:`gids.runtime.feed.Feed`.

    Parameters
    ----------
    dataset : Dataset
        The graph, its tables and labels.
    sampler : Sampler
        Makes samples.
    seeds : mapping of str to Tensor[int64], TimedSeeds, or EdgeSeeds
        All seeds: the ranking begins at them.
    node_tables, edge_tables : list of TableKey
        What to fetch.
    profile : SeedOrder
        Batches to learn the demand from; the same on all ranks, so that they choose the same rows for what they share.
    options : RuntimeOptions
        What the user chose.
    backend : Backend
        Where batches are sampled.
    pool : ThreadPool
        Threads for sampling and ranking.
    topology : Topology, optional
        The graph to sample from, where that is not the dataset's own.
    """

    samples_on_consumer = False
    replays = True

    def __init__(
        self,
        dataset: Dataset,
        sampler: Sampler,
        seeds: Mapping[str, Tensor] | TimedSeeds | EdgeSeeds,
        node_tables: list[TableKey],
        edge_tables: list[TableKey],
        profile: SeedOrder,
        options: RuntimeOptions,
        backend: Backend,
        pool: ThreadPool,
        topology: Topology | None = None,
    ):
        self.dataset, self.sampler, self.seeds = dataset, sampler, seeds
        self.node_tables, self.edge_tables = node_tables, edge_tables
        self._profile, self._options, self._backend, self._pool = profile, options, backend, pool
        self.tables: dict[TableKey, RowTable] = {
            key: dataset.feature_table(_node_type(key), key.name) for key in node_tables
        }
        self.tables |= {key: dataset.edge_feature_table(_edge_type(key), key.name) for key in edge_tables}
        self._edge_types = list(dict.fromkeys(_edge_type(key) for key in edge_tables))
        self._builder = BatchBuilder(dataset, node_tables, edge_tables, backend, options.output.labels)
        self._ranker = Ranker(
            dataset,
            options.memory.host_rank,
            lambda: starting_nodes(dataset, seeds),
            sampler.fanouts if isinstance(sampler, NeighborSampler | HistorySampler) else None,
            seed=options.seed,
            pool=pool,
            count=self._count_accesses,
        )
        self._profiler = followed(sampler, profile.for_epoch)
        self._opened = topology is None
        time_attr: str | None = getattr(sampler, "time_attr", None)
        self.topology = open_topology(dataset, options, time_attr) if topology is None else topology
        if not isinstance(seeds, TimedSeeds):
            backend.expect(self.topology, sampler)

    @property
    def standing_bytes(self) -> tuple[int, int]:
        """Memory of the graph, and of the labels."""
        return self.topology.resident_bytes(), self._builder.labels_bytes

    @property
    def lists(self) -> ListMemory | None:
        """Neighbour lists of a graph on disk that are left to the budget."""
        return self.topology.lists if self._options.memory.topology_budget is None else None

    @property
    def num_batches(self) -> int:
        """Batches of an epoch."""
        return len(self._profile)

    def first(self) -> tuple[Work, int] | None:
        """Sample the first batch of the profile, in host memory; returns also the memory that sampling worked in."""
        return measured_sample(self.topology, lambda: self._sample_on_host(0, None)) if len(self._profile) else None

    def profile(self) -> Iterator[Work]:
        """Yield the first batches of epoch 0, sampled in host memory."""
        for index in range(len(self._profile)):
            yield self._sample_on_host(index, self._pool)

    def _sample_on_host(self, index: int, pool: ThreadPool | None) -> Work:
        piece = self._profile[index]
        key = SampleKey(self._options.seed, 0, piece.global_index)
        sampled = sample_on_host(self.topology, self._profiler, piece.seeds, key, self._edge_types, pool)
        if self.topology.lists is not None:
            sample: Sample = sampled.sample
            self.topology.lists.visits_per_batch = sum(sum(block.num_dst.values()) for block in sample.blocks)
        return self._work(sampled)

    def sample(self, piece: SeedsOfEpoch) -> Work:
        """Sample one batch and say which rows of which table it needs."""
        key = SampleKey(self._options.seed, piece.epoch, piece.seeds.global_index)
        sampler = self.sampler if piece.sampler is None else piece.sampler
        sampled = self._backend.sample(self.topology, sampler, piece.seeds.seeds, key, self._edge_types)
        return self._work(sampled, piece)

    def _work(self, sampled: SampledRows, piece: SeedsOfEpoch | None = None) -> Work:
        rows: dict[TableKey, Any] = {key: sampled.input_nodes[_node_type(key)] for key in self.node_tables}
        rows |= {key: sampled.edge_rows[_edge_type(key)] for key in self.edge_tables}
        seeds = 0 if piece is None else piece.num_seeds
        inputs = sum(map(len, sampled.input_nodes.values()))
        payload = None if piece is None else self._builder.payload(piece, sampled)
        return Work(payload, rows, sampled.size_bytes, seeds, inputs)

    def finish(self, fetched: Fetched) -> Batch:
        """Put blocks, rows and labels together."""
        return self._builder.build(fetched)

    def is_ranked(self, key: TableKey) -> bool:
        """Whether the rows of a table have scores."""
        return self._ranker.is_ranked(key)

    def rankings(self) -> Mapping[TableKey, HotRows]:
        """Rank the rows of every table."""
        return self._ranker.rankings(list(self.tables))

    def _count_accesses(self) -> dict[str, Scores]:
        """Count how many batches of an epoch that is never trained on ask for each node.

        All ranks count the same epoch, so that they choose the same rows and can share them.
        """
        order = self._profile.for_epoch(COUNTED_EPOCH)

        def nodes(index: int) -> Mapping[str, Tensor]:
            key = SampleKey(self._options.seed, COUNTED_EPOCH, index)
            found: Sample = self._profiler.sample(self.topology, order[index].seeds, key, self._pool)
            return found.input_nodes

        return count_nodes(self.dataset, map(nodes, range(len(order))))

    @property
    def identity(self) -> str | None:
        """What profile and rankings are a function of; None with a sampler or scores of the user's own."""
        ranks = self._ranker.identity
        if ranks is None or not type(self.sampler).__module__.startswith("gids."):
            return None
        order = self._profile.identity
        return json.dumps([ranks, describe_sampler(self.sampler), order, self._options.memory.topology])

    @property
    def scratch_dir(self) -> Path | None:
        """Where what was found out about the dataset is kept."""
        return self.dataset.scratch_dir

    def close(self) -> None:
        """Close a graph on disk; one in memory, which may serve others, has nothing to close."""
        if self._opened:
            self.topology.close()
        self.__dict__.pop("_ranker", None)  # it counts with us: a cycle that would keep the graph in memory
        self.__dict__.pop("topology", None)  # whoever still refers to the feed keeps no graph


def followed(sampler: Any, order_of: Callable[[int], SeedOrder]) -> Any:
    """Return a sampler that knows the order of the batches it samples, where it needs to."""
    if not isinstance(sampler, HistorySampler):
        return sampler
    return sampler.following(seeds_of_orders(order_of), order_of(0).world_size)


def load_labels(dataset: Dataset) -> dict[str, Tensor]:
    """Read the labels of every node type that has some."""
    found = {ntype: dataset.labels(ntype) for ntype in dataset.node_types}
    return {ntype: labels for ntype, labels in found.items() if labels is not None}


def measured_sample(topology: Topology, sample: Callable[[], Work]) -> tuple[Work, int]:
    """Sample a batch; returns also the memory that sampling worked in beyond the batch and the topology's tables.

    ``sample`` must use the calling thread alone, so that neither another loader nor chance decides what a budget must hold.
    """
    for _ in range(2):  # the first sample from a topology makes tables that it keeps, and that are counted with it
        tables = topology.native.table_bytes
        held, _ = thread_sampling_memory(mark=True)
        work = sample()
        grown, peak = topology.native.table_bytes - tables, thread_sampling_memory()[1]
        if grown == 0:
            break
    return work, max(0, peak - held - grown - work.size_bytes)


def count_nodes(dataset: Dataset, batches: Iterable[Mapping[str, Tensor]]) -> dict[str, Scores]:
    """Count how many batches ask for each node, by node type."""
    counts = {ntype: np.zeros(dataset.num_nodes(ntype), np.uint32) for ntype in dataset.node_types}
    for nodes_of_batch in batches:
        for ntype, nodes in nodes_of_batch.items():
            counts[ntype][nodes.numpy()] += 1
    return counts


def _node_type(key: TableKey) -> str:
    assert isinstance(key.type, str)
    return key.type


def _edge_type(key: TableKey) -> EdgeType:
    assert not isinstance(key.type, str)
    return key.type


def _only(by_type: Mapping[str, Tensor]) -> Tensor | None:
    return next(iter(by_type.values()), None)
