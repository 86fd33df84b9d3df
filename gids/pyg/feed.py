"""The feed of PyG's loaders: our seed order and hop-wise neighbourhoods, mini-batches as Data or HeteroData."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from gids._native import ThreadPool, piece_bytes
from gids.dataset import Dataset
from gids.loader.feed import COUNTED_EPOCH, SeedsOfEpoch, count_nodes, measured_sample
from gids.loader.graph import open_topology
from gids.pyg.builder import DataBuilder, SampledHops, WantedRows, is_hetero
from gids.pyg.hops import HistoryHops, HopSampler, Neighborhood
from gids.pyg.sampler import from_output, hetero_output, output
from gids.pyg.seeds import Inputs, Start
from gids.runtime.backend import Backend
from gids.runtime.batch import tensor_sizes
from gids.runtime.options import RuntimeOptions
from gids.runtime.ranking import Ranker, Scores
from gids.runtime.work import Fetched, Work
from gids.sampling import SampleKey, SeedBatch, SeedOrder, Topology
from gids.sampling.history import seeds_of_orders
from gids.sampling.lists import ListMemory
from gids.table import RowTable
from gids.tiers import HotRows
from gids.types import TableKey


def _as_it_is(rows: Tensor) -> Tensor:
    return rows


class PygFeed:
    """Samples neighbourhoods hop by hop and builds PyG's mini-batches; see :class:`gids.runtime.feed.Feed`.

    Parameters
    ----------
    dataset : Dataset
        The graph, its tables and labels.
    hops : HopSampler
        Samples neighbourhoods, on the CPU.
    inputs : Inputs
        What batches begin with.
    tables : list of TableKey
        Feature tables to fetch.
    profile : SeedOrder
        Batches to learn the demand from.
    transform, transform_sampler_output : callable, optional
        Applied to every mini-batch, and to PyG's form of what was sampled.
    options : RuntimeOptions
        What the user chose.
    backend : Backend
        Where rows are kept.
    pool : ThreadPool
        Threads for sampling and ranking.
    """

    samples_on_consumer = False
    replays = True

    def __init__(
        self,
        dataset: Dataset,
        hops: HopSampler,
        inputs: Inputs,
        *,
        tables: list[TableKey],
        profile: SeedOrder,
        transform: Callable[[Any], Any] | None,
        transform_sampler_output: Callable[[Any], Any] | None,
        options: RuntimeOptions,
        backend: Backend,
        pool: ThreadPool,
    ):
        self.dataset = dataset
        self._hops, self._inputs, self._profile = hops, inputs, profile
        self._transform_output = transform_sampler_output
        self._options, self._backend, self._pool = options, backend, pool
        self._hetero = is_hetero(dataset)
        self._wanted = WantedRows(dataset, tables, hops, transform_sampler_output is not None)
        self.tables = open_tables(dataset, tables)
        self._builder = DataBuilder(dataset, self._wanted, backend, options.output.labels, transform)
        self._ranker = Ranker(
            dataset,
            options.memory.host_rank,
            lambda: inputs.nodes,
            list(reversed(hops.by_hop)),
            seed=options.seed,
            pool=pool,
            count=self._count_accesses,
        )
        self._profiler = followed_hops(hops, inputs, profile.for_epoch, options.seed)
        self.topology = open_topology(dataset, options, None if hops.times is None else hops.times.time_attr)

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
        """Sample the first batch of the profile; returns also the memory that sampling worked in."""
        if not len(self._profile):
            return None
        return measured_sample(self.topology, lambda: self._sample(self._profile[0], 0, self._profiler))

    def profile(self) -> Iterator[Work]:
        """Yield the first batches of epoch 0."""
        for index in range(len(self._profile)):
            yield self._sample(self._profile[index], 0, self._profiler)

    def sample(self, piece: SeedsOfEpoch) -> Work:
        """Sample one batch and bring its row ids to where the stores take them."""
        hops = self._hops if piece.sampler is None else piece.sampler
        work = self._sample(piece.seeds, piece.epoch, hops, self._backend.place)
        work.num_seeds = piece.num_seeds
        return work

    def _sample(
        self, batch: SeedBatch, epoch: int, hops: HopSampler, place: Callable[[Tensor], Any] = _as_it_is
    ) -> Work:
        key = SampleKey(self._options.seed, epoch, batch.global_index)
        start = self._inputs.start(batch.nodes, key)
        found = sample_hops(hops, self.topology, start, key, self._pool)
        if self._transform_output is not None:
            made = self._transform_output(hetero_output(found) if self._hetero else output(found))
            found = from_output(made, found)
        rows, places = self._wanted.of(found)
        sampled = SampledHops(start, found, places)
        size_bytes = sum(piece_bytes(size) for size in tensor_sizes((sampled.found, places, dict(rows))))
        inputs = sum(map(len, found.node.values()))
        return Work(sampled, {key: place(ids) for key, ids in rows.items()}, size_bytes, num_inputs=inputs)

    def finish(self, fetched: Fetched) -> Any:
        """Put neighbourhood, rows and labels together as PyG has them."""
        return self._builder.build(fetched)

    def is_ranked(self, key: TableKey) -> bool:
        """Whether the rows of a table have scores."""
        return self._ranker.is_ranked(key)

    def rankings(self) -> Mapping[TableKey, HotRows]:
        """Rank the rows of every table."""
        return self._ranker.rankings(list(self.tables))

    def _count_accesses(self) -> dict[str, Scores]:
        """Count how many batches of an epoch that is never trained on ask for each node."""
        order = self._profile.for_epoch(COUNTED_EPOCH)

        def nodes(index: int) -> Mapping[str, Tensor]:
            sampled: SampledHops = self._sample(order[index], COUNTED_EPOCH, self._profiler).payload
            return sampled.found.node

        return count_nodes(self.dataset, map(nodes, range(len(order))))

    @property
    def identity(self) -> str | None:
        """What profile and rankings are a function of; None with scores or a transform of the user's own."""
        ranks = self._ranker.identity
        if ranks is None or self._transform_output is not None:
            return None
        sampler = [str(self._hops.by_hop), self._hops.replace, self._hops.weights, type(self._inputs).__name__]
        sampler += [self._hops.disjoint, str(self._hops.times), self._hops.subgraph]
        sampler += [self._hops.identity] if isinstance(self._hops, HistoryHops) else []
        order = self._profile.identity
        tables = [str(key) for key in self.tables]
        return json.dumps(["pyg", ranks, sampler, order, tables, self._options.memory.topology])

    @property
    def scratch_dir(self) -> Path | None:
        """Where what was found out about the dataset is kept."""
        return self.dataset.scratch_dir

    def close(self) -> None:
        """Close a graph on disk; one in memory, which may serve others, has nothing to close."""
        self.topology.close()


def every_table(dataset: Dataset) -> list[TableKey]:
    """Return the tables of all node types, then of all edge types."""
    nodes = [TableKey(ntype, name) for ntype in dataset.node_types for name in dataset.feature_names(ntype)]
    return nodes + [TableKey(etype, name) for etype in dataset.edge_types for name in dataset.edge_feature_names(etype)]


def followed_hops(hops: HopSampler, inputs: Inputs, order_of: Callable[[int], SeedOrder], seed: int) -> HopSampler:
    """Return a sampler that knows the order of the batches it samples, where it needs to."""
    if not isinstance(hops, HistoryHops):
        return hops
    positions_of = seeds_of_orders(order_of)

    def seeds_of(epoch: int, batch: int) -> Mapping[str, Tensor]:
        return inputs.start(positions_of(epoch, batch), SampleKey(seed, epoch, batch)).nodes

    return hops.following(seeds_of, order_of(0).world_size)


def sample_hops(
    hops: HopSampler, topology: Topology, start: Start, key: SampleKey, pool: ThreadPool | None
) -> Neighborhood:
    """Return the neighbourhood of one batch."""
    found = hops.sample(topology, start.nodes, key, pool, start.times)
    if found.batch is not None and start.trees:
        # Both ends of an edge and of its negatives make one example.
        found = replace(found, batch={t: trees % start.trees for t, trees in found.batch.items()})
    return found


def open_tables(dataset: Dataset, tables: list[TableKey]) -> dict[TableKey, RowTable]:
    """Return the tables of these names."""
    return {
        key: dataset.feature_table(key.type, key.name)
        if isinstance(key.type, str)
        else dataset.edge_feature_table(key.type, key.name)
        for key in tables
    }
