"""Where batches are made: what a backend owes the runtime, and the CPU's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gids._native import ThreadPool, piece_bytes
from gids.budget import Memory, Pace, TableShare, default_budget
from gids.errors import ConfigError
from gids.ledger import Account, Ledger
from gids.runtime.batch import map_tensors, tensor_sizes
from gids.runtime.options import RuntimeOptions, optional_bytes
from gids.runtime.peers import Peers
from gids.runtime.work import Fetched
from gids.sampling import Block, EdgeSeeds, Sample, SampleKey, TimedSeeds, Topology
from gids.storage import RowReader, StorageOptions
from gids.table import RowTable
from gids.tiers import HostBuffer, Policy, TableStore
from gids.tiers.contract import Store
from gids.tiers.spill import RowSpill, SpillSetup
from gids.types import EdgeType

T = TypeVar("T")


class Sampler(Protocol):
    """Any sampler of :mod:`gids.sampling`, or one of the user's own."""

    def sample(
        self,
        topology: Topology,
        seeds: dict[str, Tensor] | TimedSeeds | EdgeSeeds,
        key: SampleKey,
        pool: ThreadPool | None = None,
    ) -> Sample:
        """Sample the batch of ``seeds``; a pure function of its arguments."""


@dataclass(frozen=True)
class SampledRows:
    """A sampled batch and the rows it needs, where the backend keeps them.

    Attributes
    ----------
    sample : Sample, or the device's own form of one
        What the sampler made.
    input_nodes : mapping of str to row ids
        Distinct nodes by type.
    edge_rows : mapping of EdgeType to row ids
        Distinct edges over all blocks, of the types that were asked for.
    edge_places : mapping of EdgeType to list
        For each block, where its edges are among ``edge_rows``.
    size_bytes : int
        Memory of all of it.
    node_places : mapping of str to Tensor
        Where each of the sample's input nodes is among ``input_nodes``, by type, if the sample has some more than once.
    """

    sample: Any
    input_nodes: Mapping[str, Any]
    edge_rows: Mapping[EdgeType, Any]
    edge_places: Mapping[EdgeType, list[Any]]
    size_bytes: int
    node_places: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class StoreSetup:
    """How a table's store is opened.

    Attributes
    ----------
    share : TableShare
        Memory of its tiers.
    staging_bytes : int
        Memory that the device writes to.
    window, sweep_groups, groups_in_flight, keep_outputs : int
        As the budget's division says.
    policy : str or Policy
        Of the cache.
    host : HostBuffer, optional
        Constant rows.
    popularity : uint8[rows], optional
        See :class:`gids.tiers.Planner`.
    peers : Peers, optional
        Who holds the rows that this machine does not.
    spill : SpillSetup, optional
        How rows are spilled.
    """

    share: TableShare
    staging_bytes: int
    window: int
    sweep_groups: int
    groups_in_flight: int
    keep_outputs: int
    policy: str | Policy = "window"
    host: HostBuffer | None = None
    popularity: NDArray[np.uint8] | None = None
    spill: SpillSetup | None = None
    peers: Peers | None = None


class Backend(Protocol):
    """Samples, keeps rows, and delivers batches on one kind of processor. Composed by the runtime, never inherited."""

    @property
    def name(self) -> str:
        """What it is, for messages and stored results."""

    @property
    def memory(self) -> Memory:
        """What there is to divide."""

    @property
    def pace(self) -> Pace:
        """How its pipeline runs, and what its way of reading holds."""

    @property
    def ledger(self) -> Ledger:
        """What its stores draw their memory from."""

    @property
    def notes(self) -> Mapping[str, str]:
        """Which storage engine each table got and why, and why a stage is not on the device."""

    def expect(self, topology: Topology, sampler: Sampler) -> None:
        """Take note of what will be sampled, before :attr:`memory` is divided: a device may hold a part of it."""

    def sample(
        self,
        topology: Topology,
        sampler: Sampler,
        seeds: dict[str, Tensor] | TimedSeeds | EdgeSeeds,
        key: SampleKey,
        edge_types: list[EdgeType],
    ) -> SampledRows:
        """Sample one batch, and number the edges of ``edge_types``."""

    def place(self, rows: Tensor) -> Any:
        """Bring row ids that a framework's sampler made to where the stores take them."""

    def row_ids(self, rows: Any) -> Tensor:
        """Return row ids in host memory, for records."""

    def open_store(self, table: RowTable, setup: StoreSetup) -> Store[Any, Any, Any]:
        """Open a table."""

    def read_host_rows(self, table: RowTable, rows: Tensor, values: Tensor) -> None:
        """Read rows to host memory."""

    def deliver(self, fetched: Fetched) -> Fetched:
        """Return rows as tensors for the calling thread; waits for nothing but the batch."""

    def deliver_sample(self, sampled: SampledRows) -> tuple[Sample, Mapping[EdgeType, list[Tensor]]]:
        """Return a sample and the places of its edges as tensors for the calling thread."""

    def deliver_tensors(self, value: T) -> T:
        """Return ``value`` with every tensor where batches are delivered."""

    def close(self) -> None:
        """Release memory and threads; all stores are closed."""


class CpuBackend:
    """Samples on a thread pool, keeps rows in host memory, reads with io_uring or pread.

    Parameters
    ----------
    options : RuntimeOptions
        What the user chose.
    """

    name = "cpu"

    def __init__(self, options: RuntimeOptions, pool: ThreadPool):
        self._options, self._pool = options, pool
        budget = optional_bytes(options.budget, "budget")
        self.memory = Memory(_beside_shards(default_budget() if budget is None else budget, options))
        pipeline = options.pipeline
        self.pace = Pace(pipeline.prefetch, pipeline.groups_in_flight, pipeline.sample_workers or 1)
        self.ledger = Ledger(self.memory.host)
        self.notes: dict[str, str] = {}

    def expect(self, topology: Topology, sampler: Sampler) -> None:
        """Do nothing: the topology is where it is sampled."""

    def sample(
        self,
        topology: Topology,
        sampler: Sampler,
        seeds: dict[str, Tensor] | TimedSeeds | EdgeSeeds,
        key: SampleKey,
        edge_types: list[EdgeType],
    ) -> SampledRows:
        """Sample one batch on the pool."""
        return sample_on_host(topology, sampler, seeds, key, edge_types, self._pool)

    def place(self, rows: Tensor) -> Tensor:
        """Return row ids in host memory."""
        return rows.to("cpu", torch.int64)

    def row_ids(self, rows: Tensor) -> Tensor:
        """Return the ids as they are."""
        return rows

    def open_store(self, table: RowTable, setup: StoreSetup) -> TableStore:
        """Open a table in host memory."""
        staging_bytes = setup.staging_bytes if setup.spill is None else setup.staging_bytes // 2
        reader = RowReader(table, self._reading(staging_bytes), self._pool)

        def open_spill(account: Account) -> RowSpill:
            assert setup.spill is not None
            options = replace(self._reading(staging_bytes), fault=None)  # a fault of the table is no fault of the copy
            host = None if setup.host is None else setup.host.index
            return RowSpill(
                table,
                reader,
                lambda spilled: RowReader(spilled, options, self._pool),
                setup.spill,
                host,
                lambda: account.draw(0),
            )

        try:
            store = TableStore(
                table,
                reader if setup.peers is None else setup.peers.reader(table, reader),
                cache_rows=setup.share.cache_rows,
                policy=setup.policy,
                window=setup.window,
                host_buffer=setup.host,
                popularity=setup.popularity,
                arena_rows=max(1, setup.share.group_bytes // table.row_bytes),
                regions=setup.sweep_groups,
                dtype=self._options.output.dtype,
                keep_outputs=setup.keep_outputs,
                ledger=self.ledger,
                seed=self._options.seed,
                pool=self._pool,
                spill=None if setup.spill is None else open_spill,
            )
        except BaseException:
            reader.close()
            raise
        self.notes[table.name] = "; ".join(part for part in (reader.engine_reason, reader.notes) if part)
        return store

    def _reading(self, staging_bytes: int) -> StorageOptions:
        given = self._options.reading
        return replace(given, staging_bytes=max(4 * given.max_io_bytes * (given.threads or 1), staging_bytes))

    def read_host_rows(self, table: RowTable, rows: Tensor, values: Tensor) -> None:
        """Read rows with a reader of their own."""
        with RowReader(table, self._options.reading, self._pool) as reader:
            reader.submit(rows, values).wait()

    def deliver(self, fetched: Fetched) -> Fetched:
        """Return the rows, page-locked or on another device where that was asked for."""
        return fetched._replace(rows={key: self.deliver_tensors(rows) for key, rows in fetched.rows.items()})

    def deliver_sample(self, sampled: SampledRows) -> tuple[Sample, Mapping[EdgeType, list[Tensor]]]:
        """Return the sample as it is, page-locked or moved where that was asked for."""
        places: dict[EdgeType, list[Tensor]] = dict(sampled.edge_places)
        return self.deliver_tensors(sampled.sample), self.deliver_tensors(places)

    def deliver_tensors(self, value: T) -> T:
        """Pin and move every tensor as the options say; each once."""
        output, device = self._options.output, self._options.device
        if not output.pin_memory and device is None:
            return value
        done: dict[int, Tensor] = {}

        def once(tensor: Tensor) -> Tensor:
            if id(tensor) not in done:
                pinned = tensor.pin_memory() if output.pin_memory else tensor
                done[id(tensor)] = pinned if device is None else pinned.to(device, non_blocking=output.pin_memory)
            return done[id(tensor)]

        return map_tensors(value, once)

    def close(self) -> None:
        """Nothing is held beyond the stores."""


def _beside_shards(budget: int, options: RuntimeOptions) -> int:
    """Return what is left of a budget beside rows on their way between machines."""
    taken = 0 if options.shards is None else options.shards.memory_bytes
    if budget <= taken:
        raise ConfigError(f"budget must be larger than the memory of shards, {taken} bytes (got {budget})")
    return budget - taken


def sample_on_host(
    topology: Topology,
    sampler: Sampler,
    seeds: dict[str, Tensor] | TimedSeeds | EdgeSeeds,
    key: SampleKey,
    edge_types: list[EdgeType],
    pool: ThreadPool | None,
) -> SampledRows:
    """Sample one batch into host memory."""
    sample = sampler.sample(topology, seeds, key, pool)
    rows, places = {}, {}
    for etype in edge_types:
        per_block = [block_edge_ids(block, etype) for block in sample.blocks]
        rows[etype], inverse = torch.unique(torch.cat(per_block), return_inverse=True)
        places[etype] = list(inverse.split([len(ids) for ids in per_block]))
    nodes: dict[str, Tensor] = {}
    node_places: dict[str, Tensor] = {}
    if sample.trees is not None:  # trees have nodes in common
        for ntype, ids in sample.input_nodes.items():
            nodes[ntype], node_places[ntype] = torch.unique(ids, return_inverse=True)
    size_bytes = sum(piece_bytes(size) for size in tensor_sizes((sample, rows, places, nodes, node_places)))
    return SampledRows(sample, nodes or sample.input_nodes, rows, places, size_bytes, node_places)


def block_edge_ids(block: Block, etype: EdgeType) -> Tensor:
    """Return the ids of a block's edges; refuses a sampler that returned none."""
    if block.edge_ids is None:
        raise ConfigError("features of edges need a sampler that returns edge ids (got one with edge_ids=False)")
    return block.edge_ids[etype]
