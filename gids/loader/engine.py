"""What a loader holds open between epochs: the graph, the stores of every table, threads and memory, for one process."""

from __future__ import annotations

import functools
import os
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gids._native import ThreadPool, give_back_memory, sampling_memory
from gids.dataset import Dataset
from gids.errors import ConfigError
from gids.loader.batch import Batch, sample_bytes
from gids.loader.dividing import Asked, Division, divide
from gids.loader.host_rank import RANDOM, Scores, host_scores
from gids.loader.memory import BATCHES_IN_HANDS, Fixed, TableDemand, default_budget, local_processes
from gids.loader.options import LoaderOptions, names_by_type
from gids.loader.pipeline import SAMPLED_AHEAD, Fetched, Pipeline, Work
from gids.loader.seeds import SeedBatch, SeedOrder
from gids.loader.stores import TableSet, open_tables
from gids.loader.trace import Trace
from gids.sampling import EdgeSeeds, EdgeType, Sample, SampleKey, Topology
from gids.sampling.topology import share_topology
from gids.storage import StorageOptions, load_curve
from gids.table import RowTable
from gids.tiers import EdgeScores, HotRows, RowScores, parse_policy
from gids.tiers.budget import LEAST_STAGING_BYTES
from gids.tiers.policies import Window

T = TypeVar("T")

#: Batches sampled before the first epoch, to learn what batches need and what of it they share: so many, or as many as
#: ask for so many rows together. Row ids are kept while they take less than this part of the budget.
PROFILED_BATCHES = 64
PROFILED_ROWS = 8 << 20
PROFILED_SHARE = 1 / 8
#: Memory that the device writes to, for each array of a graph that stays on disk.
TOPOLOGY_STAGING_BYTES = 4 << 20
#: Batches differ; the profile's largest is taken for this much more.
PROFILE_MARGIN = 1.1
#: The epoch that is sampled to count accesses: the last number that a key can have, so no run trains on it.
COUNTED_EPOCH = (1 << 32) - 1


class Sampler(Protocol):
    """Any sampler of :mod:`gids.sampling`, or one of the user's own."""

    def sample(
        self, topology: Topology, seeds: dict[str, Tensor] | EdgeSeeds, key: SampleKey, pool: ThreadPool | None = None
    ) -> Sample:
        """Sample the batch of ``seeds``; a pure function of its arguments."""


@dataclass(frozen=True)
class Sampled:
    """A sampled batch on its way to its rows."""

    seeds: SeedBatch
    sample: Sample
    edge_rows: dict[EdgeType, Tensor] = field(default_factory=dict)  # unique edge ids over all blocks
    edge_places: dict[EdgeType, list[Tensor]] = field(default_factory=dict)  # per block: edge -> place in edge_rows


@dataclass(frozen=True)
class SamplingNeeds:
    """Memory of one sampled batch, and of the work that makes it, at most."""

    sample_bytes: int
    scratch_bytes: int


class Engine:
    """Opens what a loader needs and makes the batches; knows nothing of epochs.

    Parameters
    ----------
    dataset : Dataset
        The graph.
    sampler : Sampler
        Makes samples.
    options : LoaderOptions
        The rest.
    seeds : mapping of str to Tensor[int64], or EdgeSeeds
        All seeds: the host buffer's ranking begins at them.
    profile : SeedOrder
        Batches to learn the demand from; the same on all ranks, so that they choose the same rows for what they share.
    trace : Trace
        Where spans go.
    """

    profiled_batches = PROFILED_BATCHES

    def __init__(
        self,
        dataset: Dataset,
        sampler: Sampler,
        options: LoaderOptions,
        seeds: Mapping[str, Tensor] | EdgeSeeds,
        profile: SeedOrder,
        trace: Trace,
    ) -> None:
        self.pid = os.getpid()
        self.dataset, self.sampler, self.options, self.trace = dataset, sampler, options, trace
        self.pool = ThreadPool(options.threads, "gids-pool")
        stored = {ntype: dataset.feature_names(ntype) for ntype in dataset.node_types}
        self.node_tables = names_by_type(options.features, stored, "features")
        stored_edges = {etype: dataset.edge_feature_names(etype) for etype in dataset.edge_types}
        self.edge_tables = names_by_type(options.edge_features, stored_edges, "edge_features")
        self.tables: dict[Hashable, RowTable] = {}
        self.tables |= {pair: dataset.feature_table(*pair) for pair in self.node_tables}
        self.tables |= {pair: dataset.edge_feature_table(*pair) for pair in self.edge_tables}
        self.hetero = len(dataset.node_types) > 1
        self.labels = self._load_labels() if options.with_labels else {}
        self.topology = self._open_topology()
        try:
            self._open_rest(seeds, profile)
        except BaseException:
            self._close_topology()
            raise

    def _open_rest(self, seeds: Mapping[str, Tensor] | EdgeSeeds, profile: SeedOrder) -> None:
        options = self.options
        self.host_budget = default_budget() if options.budget is None else options.budget
        self.storage = self._storage()
        self.demand, self.profiled, sampling = self._profile(profile)
        self._seeds = seeds
        self.division = self._divide(sampling)
        self.allotment = self.division.allotment
        self.table_set = self._open()
        self.profiled = {}  # has served, like the rankings
        self.__dict__.pop("rankings", None)
        give_back_memory()  # profile and rankings took more than a run has free at once
        ahead = replace(
            options.pipeline,
            window=self.division.window,
            max_group=self.division.max_group,
            rotation=self.division.rotation,
        )
        self.pipeline = Pipeline(self.table_set.stores, ahead, self.table_set.grouping, self.trace)

    def _open_topology(self) -> Topology:
        options = self.options
        if options.topology == "memory":
            return share_topology(self.dataset)
        given = options.storage
        storage = replace(
            given,
            engine="auto" if given.engine in ("gds", "nvme") else given.engine,
            staging_bytes=min(given.staging_bytes, TOPOLOGY_STAGING_BYTES),
        )
        return Topology.from_dataset(self.dataset, on_disk=True, budget=options.topology_bytes, storage=storage)

    def _storage(self) -> StorageOptions:
        given = self.options.storage
        if self.options.staging_fixed:
            return given
        return replace(given, staging_bytes=min(given.staging_bytes, max(LEAST_STAGING_BYTES, self.host_budget // 16)))

    def _load_labels(self) -> dict[str, Tensor]:
        found = {ntype: self.dataset.labels(ntype) for ntype in self.dataset.node_types}
        return {ntype: labels for ntype, labels in found.items() if labels is not None}

    def _topology_bytes(self) -> int:
        return self.topology.resident_bytes()

    def _profile(
        self, order: SeedOrder
    ) -> tuple[dict[Hashable, TableDemand], dict[Hashable, list[Tensor]], SamplingNeeds]:
        """Sample some batches: what a batch needs at most, the rows of every batch, and what sampling takes."""
        rows = dict.fromkeys(self.tables, 1)
        taken: dict[Hashable, list[Tensor]] = {key: [] for key in self.tables}
        most = scratch = total = 0
        kept = int(self.host_budget * PROFILED_SHARE) // torch.int64.itemsize
        for index in range(min(self.profiled_batches, len(order))):
            held, _, _ = sampling_memory(mark=True)
            tables = self.topology.native.table_bytes
            work = self.sample(order[index], epoch=0)
            grown = self.topology.native.table_bytes - tables  # counted with the topology, which keeps them
            scratch = max(scratch, sampling_memory()[1] - held - grown - work.size_bytes)
            most = max(most, work.size_bytes)
            for key, wanted in work.rows.items():
                if total < kept or index <= 2:
                    taken[key].append(wanted)
                rows[key] = max(rows[key], min(int(len(wanted) * PROFILE_MARGIN) + 1, self.tables[key].num_rows))
            total += sum(map(len, work.rows.values()))
            if total > PROFILED_ROWS and index >= 2:
                break
        demand = {}
        for key, table in self.tables.items():
            widened = self.options.dtype is not None and table.torch_dtype.is_floating_point
            item_bytes = self.options.dtype.itemsize if self.options.dtype and widened else table.item_bytes
            demand[key] = TableDemand(rows[key], table.row_bytes, table.dim * item_bytes, table.num_rows)
        return demand, taken, SamplingNeeds(int(most * PROFILE_MARGIN), int(scratch * PROFILE_MARGIN))

    def _divide(self, sampling: SamplingNeeds) -> Division:
        options, pipeline = self.options, self.options.pipeline
        fixed = Fixed(
            topology_bytes=self._topology_bytes(),
            labels_bytes=sum(labels.nbytes for labels in self.labels.values()),
            staging_bytes=self.storage.staging_bytes if self.tables else 0,
            sample_bytes=sampling.sample_bytes,
            scratch_bytes=sampling.scratch_bytes * pipeline.sample_workers,
        )
        asked = Asked(
            cache=options.cache_bytes,
            # Shared by the processes of this machine: each accounts for its part.
            host=None if options.host_bytes is None else options.host_bytes // local_processes(),
            groups=options.group_bytes,
            staging=self.storage.staging_bytes if options.staging_fixed else None,
            window=pipeline.window if options.window_fixed else None,
            max_group=pipeline.max_group if options.group_fixed else None,
        )
        path = next((table.stripes[0].path for table in self.tables.values()), None)
        return divide(
            self.host_budget,
            fixed,
            self.demand,
            self.tables,
            self.profiled,
            lambda: self.rankings,
            None if path is None else load_curve(path),
            asked,
            window=pipeline.window,
            max_group=pipeline.max_group,
            prefetch=pipeline.prefetch,
            groups_in_flight=pipeline.groups_in_flight,
            on_the_way=SAMPLED_AHEAD + pipeline.sample_workers + pipeline.prefetch + BATCHES_IN_HANDS,
            merge_gap_bytes=self.storage.merge_gap_bytes,
            popularity=self._wanted_popularity(),
        )

    def _wanted_popularity(self) -> dict[Hashable, bool | None]:
        """Say of each table whether its cache is to know how popular rows are; None where memory decides."""
        wanted = self.options.popularity
        if not isinstance(parse_policy(self.options.policy), Window):
            wanted = False
        if wanted is None and isinstance(self.options.host_rank, str) and self.options.host_rank == RANDOM:
            wanted = False
        unranked = [pair for pair in self.edge_tables if not self._is_ranked(pair[0])]
        return {key: False if key in unranked else wanted for key in self.tables}

    def _is_ranked(self, etype: EdgeType) -> bool:
        """Whether the rows of an edge type's features are the positions of its edges."""
        return self.dataset.edge_ids_table(etype) is None

    def _popularity(self) -> dict[Hashable, NDArray[np.uint8]]:
        return {key: self.rankings[key].levels() for key, share in self.division.shares.items() if share.popular}

    def _host_rows(self) -> dict[Hashable, Tensor]:
        """Choose the rows of the host buffer. Its memory is shared, so every process adds its part."""
        counts = {key: share.host_rows * local_processes() for key, share in self.division.shares.items()}
        ranked = self.rankings if any(counts.values()) else {}
        return {key: ranked[key].top(min(n, self.tables[key].num_rows)) for key, n in counts.items() if key in ranked}

    @functools.cached_property
    def rankings(self) -> dict[Hashable, HotRows]:
        """Rank the rows of every table: nodes by their scores, edges by those of the nodes they lead to."""
        scores = host_scores(
            self.dataset,
            self.options.host_rank,
            starting_nodes(self.dataset, self._seeds),
            self.sampler,
            seed=self.options.seed,
            pool=self.pool,
            count=self._count_accesses,
        )
        ranked: dict[Hashable, HotRows] = {pair: RowScores(scores[pair[0]]) for pair in self.node_tables}
        for etype, name in self.edge_tables:
            if self._is_ranked(etype):
                ranked[etype, name] = EdgeScores(scores[etype[2]], self.dataset.indptr(etype))
        return ranked

    def _count_accesses(self) -> dict[str, Scores]:
        """Count how many batches of an epoch that is never trained on ask for each node.

        All ranks count the same epoch, so that they choose the same rows and can share them.
        """
        options = self.options
        counts = {ntype: np.zeros(self.dataset.num_nodes(ntype), np.uint32) for ntype in self.dataset.node_types}
        order = SeedOrder(
            self._seeds, batch_size=options.batch_size, seed=options.seed, epoch=COUNTED_EPOCH, shuffle=options.shuffle
        )
        for index in range(len(order)):
            key = SampleKey(options.seed, COUNTED_EPOCH, index)
            sample = self.sampler.sample(self.topology, order[index].seeds, key, self.pool)
            for ntype, nodes in sample.input_nodes.items():
                counts[ntype][nodes.numpy()] += 1
        return counts

    def _open(self) -> TableSet:
        options, division = self.options, self.division
        return open_tables(
            self.tables,
            self.demand,
            division.shares,
            storage=replace(self.storage, staging_bytes=max(1, division.allotment.staging)),
            policy=options.policy,
            window=division.window,
            max_group=division.max_group,
            rotation=division.rotation,
            keep_outputs=options.pipeline.prefetch + BATCHES_IN_HANDS,
            seed=options.seed,
            pool=self.pool,
            dtype=options.dtype,
            host_rows=self._host_rows(),
            popularity=self._popularity(),
            profiled=self.profiled,
            record=options.record,
        )

    def sample(self, seeds: SeedBatch, epoch: int) -> Work:
        """Sample one batch and say which rows of which table it needs."""
        key = SampleKey(self.options.seed, epoch, seeds.global_index)
        sample = self.sampler.sample(self.topology, seeds.seeds, key, self.pool)
        edge_rows, edge_places = self._edge_rows(sample)
        sampled = Sampled(seeds, sample, edge_rows, edge_places)
        rows: dict[Hashable, Tensor] = {pair: sample.input_nodes[pair[0]] for pair in self.node_tables}
        rows |= {pair: edge_rows[pair[0]] for pair in self.edge_tables}
        return Work(sampled, rows, sample_bytes(sampled))

    def _edge_rows(self, sample: Sample) -> tuple[dict[EdgeType, Tensor], dict[EdgeType, list[Tensor]]]:
        rows, places = {}, {}
        for etype in {etype for etype, _ in self.edge_tables}:
            per_block = [edge_ids(block.edge_ids, etype) for block in sample.blocks]
            rows[etype], inverse = torch.unique(torch.cat(per_block), return_inverse=True)
            places[etype] = list(inverse.split([len(ids) for ids in per_block]))
        return rows, places

    def make_batch(self, fetched: Fetched, epoch: int) -> Batch:
        """Put blocks, rows and labels together."""
        sampled: Sampled = fetched.work.payload
        sample = sampled.sample
        features = {pair: fetched.rows[pair] for pair in self.node_tables}
        x: dict[str, Tensor] = {}
        for (ntype, _), rows in features.items():
            x.setdefault(ntype, rows)
        wanted = {} if sample.edges is not None else sample.seeds
        y = {ntype: self.labels[ntype][ids] for ntype, ids in wanted.items() if ntype in self.labels and len(ids)}
        edge_features = [
            {
                (etype, name): fetched.rows[etype, name][sampled.edge_places[etype][layer]]
                for etype, name in self.edge_tables
            }
            for layer in range(len(sample.blocks))
        ]
        batch = Batch(
            blocks=sample.blocks,
            x=x if self.hetero else _only(x),
            y=self._labels(sample, y),
            seeds=sample.seeds if self.hetero else _only(sample.seeds),
            input_nodes=sample.input_nodes if self.hetero else _only(sample.input_nodes),
            features=features,
            edge_features=edge_features if self.edge_tables else [],
            sample=sample,
            epoch=epoch,
            index=sampled.seeds.index,
            padding=sampled.seeds.padding,
        )
        if self.options.pin_memory:
            batch = batch.pin_memory()
        return batch if self.options.device is None else batch.to(self.options.device, self.options.pin_memory)

    def _labels(self, sample: Sample, by_type: dict[str, Tensor]) -> dict[str, Tensor] | Tensor | None:
        if sample.edges is not None:
            return sample.edges.labels
        return by_type if self.hetero and self.labels else _only(by_type)

    def deliver(self, batch: Batch) -> Batch:
        """Finish a batch in the thread that takes it; a device hands over on that thread's stream here."""
        return batch

    def close(self) -> None:
        """Give files, threads and memory back."""
        self._close_topology()
        self.table_set.close()
        give_back_memory()

    def _close_topology(self) -> None:
        if self.options.topology == "disk":  # one in memory may serve others
            self.topology.close()


def starting_nodes(dataset: Dataset, seeds: Mapping[str, Tensor] | EdgeSeeds) -> dict[str, Tensor]:
    """Give the nodes that sampling starts from, by type: the seeds, or the ends of the seed edges."""
    if not isinstance(seeds, EdgeSeeds):
        return dict(seeds)
    source, _, destination = seeds.etype or dataset.edge_types[0]
    if source == destination:
        return {source: _distinct(torch.cat([seeds.src, seeds.dst]))}
    return {source: _distinct(seeds.src), destination: _distinct(seeds.dst)}


def _distinct(ids: Tensor) -> Tensor:
    return torch.from_numpy(np.unique(ids.numpy()))


def edge_ids(by_type: Mapping[EdgeType, T] | None, etype: EdgeType) -> T:
    """Give the ids of a block's edges; refuses a sampler that returned none."""
    if by_type is None:
        raise ConfigError("edge_features need a sampler that returns edge ids (got one with edge_ids=False)")
    return by_type[etype]


def _only(by_type: dict[str, Tensor]) -> Tensor | None:
    return next(iter(by_type.values()), None)
