"""The loader's engine on a CUDA device: sampling, planning and gathering there, batches handed over by DLPack."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Hashable, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from gids._native import ThreadPool
from gids.cuda.array import DeviceArray
from gids.cuda.gds import GdsReader, gds_availability
from gids.cuda.interop import to_torch, torch_device
from gids.cuda.nvme import NvmeDeviceReader
from gids.cuda.sampling import (
    CudaSampler,
    DeviceBlock,
    DeviceSample,
    NodeNumbers,
    PinnedTopology,
    device_sampler,
    pin_topology,
    unpin_topology,
)
from gids.cuda.session import CudaSession, DeviceBudget, open_device
from gids.cuda.staged import StagedReader
from gids.cuda.store import CudaFeatureStore
from gids.dataset import Dataset
from gids.errors import ConfigError
from gids.loader.batch import Batch, map_tensors
from gids.loader.buffers import BufferPool
from gids.loader.dividing import Division, popularity_reasons, weighted_shares
from gids.loader.engine import Engine, Sampled, Sampler, SamplingNeeds, edge_ids
from gids.loader.grouping import AccumulatedGroups
from gids.loader.memory import Allotment, Fixed, allot
from gids.loader.options import LoaderOptions
from gids.loader.pipeline import Fetched, Work
from gids.loader.seeds import SeedBatch, SeedOrder
from gids.loader.shared import SharedTensor
from gids.loader.stores import TableSet, TableStore, share_rows, split_staging
from gids.loader.trace import Trace
from gids.sampling import Block, EdgeSeeds, EdgeType, Sample, SampleKey, SeedEdges
from gids.storage import RowReader, StorageOptions, load_curve
from gids.table import RowTable
from gids.tiers import AccessModel, Accumulator, HostBuffer
from gids.units import format_bytes

#: Of the device's free memory, where the user gives no budget.
DEFAULT_SHARE = 0.8
#: Scratch for one row of a group: sort buffers, flags, ranks and locations of the planner, its place, a piece to unpack.
PLAN_ROW_BYTES = 240
#: Scratch that does not grow: class counts of the policies, small arrays.
FIXED_SCRATCH_BYTES = 4 << 20


@dataclasses.dataclass(frozen=True)
class Undelivered:
    """A batch whose arrays are still the device's own; becomes tensors in the thread that takes it."""

    fetched: Fetched
    epoch: int


class LateGroup:
    """A group that was planned and may not have begun to be read."""

    def __init__(self, plan: Any):
        self.plan = plan
        self.started: Any = None  # a DevicePending; guarded by _lock until it is set
        self._cancelled = False  # guarded by _lock
        self._lock = threading.Lock()

    def start(self, store: Any) -> None:
        """Begin to read."""
        with self._lock:
            self.started = store.start(self.plan)
            if self._cancelled:
                self.started.cancel()

    def cancel(self) -> None:
        """Read no more."""
        with self._lock:
            self._cancelled = True
            if self.started is not None:
                self.started.cancel()


class CudaTableStore(TableStore):
    """Rows of one table for the pipeline, gathered on the device."""

    store: Any  # a CudaFeatureStore, with the same verbs
    _late: LateGroup | None = None  # begun, and not read

    def plan(self, batches: list[Any], lookahead: list[Any]) -> Any:
        """Plan a group; moves no bytes."""
        plan = self.store.plan_group(batches, lookahead)
        self.groups.learn(self.key, plan.counters)
        if self.recorded is not None:
            self.recorded.extend(torch.from_numpy(self.store.fetch.download(rows)) for rows in batches)
        return plan

    def fits(self, plan: Any) -> bool:
        """Whether a group may begin: every other one is read to its end."""
        return True

    def begin(self, plan: Any) -> Any:
        """Prepare to read a group; device memory is taken when it is read."""
        self._late = LateGroup(plan)
        return self._late

    def step_bytes(self) -> int:
        """Memory that the group takes: it is read in one step."""
        return 0 if self._late is None else int(self.store.bytes_of(self._late.plan))

    def step(self) -> None:
        """Begin to read the group."""
        if self._late is not None:
            self._late.start(self.store)
            self._late = None

    def underway(self, pending: Any) -> bool:
        """Whether every read of a group has begun."""
        return pending.started is not None

    def gather(self, pending: Any, batch: int) -> Any:
        """Queue the gather of one batch; waits for the disk, not for the device."""
        return self.store.gather(pending.started, batch, self.dtype)

    def freed(self, pending: Any) -> int:
        """Memory that the last batch of a group gave back."""
        return int(self.store.bytes_of(pending.plan))

    def close(self) -> None:
        """Give files and memory back."""
        with ExitStack() as stack:
            if self.shared is not None:
                stack.callback(self.shared.close)
            stack.callback(self.reader.close)
            stack.callback(self.store.close)


def open_reader(
    table: RowTable, storage: StorageOptions, pool: ThreadPool, session: CudaSession, groups: int, region_bytes: int
) -> tuple[RowReader | StagedReader, str]:
    """Open a table with the engine asked for, or with ``gds`` where it works; gives the reason too.

    Parameters
    ----------
    table, storage, pool
        As for :class:`gids.storage.RowReader`.
    session : CudaSession
        Whose stream brings rows to the device.
    groups : int
        Groups in flight.
    region_bytes : int
        Device memory that ``gds`` may take for each of them.
    """
    if storage.engine == "gds":
        return GdsReader(table, storage, session, region_bytes, groups), "asked for"
    if storage.engine == "nvme":
        return NvmeDeviceReader(table, storage, session, groups), "asked for"
    if storage.engine == "auto":
        refusal = gds_availability()
        if not refusal:
            return GdsReader(table, storage, session, region_bytes, groups), "cuFile offers GPUDirect Storage"
        host = RowReader(table, storage, pool)
        return host, f"gds cannot be used: {refusal}; {host.engine_reason}, copied through pinned staging"
    host = RowReader(table, storage, pool)
    return host, f"{host.engine_reason}, copied through pinned staging"


class CudaEngine(Engine):
    """Opens what a loader needs on a device and makes the batches; knows nothing of epochs."""

    profiled_batches = 3  # the device's memory is divided by rule

    def __init__(
        self,
        dataset: Dataset,
        sampler: Sampler,
        options: LoaderOptions,
        seeds: Mapping[str, Tensor],
        profile: SeedOrder,
        trace: Trace,
    ) -> None:
        assert options.device is not None
        self.device = open_device(options.device.index or 0)
        free, _ = self.device.memory_bytes()
        limit = int(free * DEFAULT_SHARE) if options.device_budget is None else options.device_budget
        self.budget = DeviceBudget(limit, "device_budget")
        self.sampling = CudaSession(self.device, self.budget)
        self.planning = CudaSession(self.device, self.budget)
        self.fetching = CudaSession(self.device, self.budget)
        self.target = torch_device(self.fetching)
        self._sampling_lock = threading.Lock()
        self._pinned: PinnedTopology | None = None
        #: Why a stage is not on the device, and which storage engine each table has.
        self.notes: dict[str, str] = {}
        try:
            super().__init__(
                dataset, sampler, dataclasses.replace(options, device=None, pin_memory=False), seeds, profile, trace
            )
        except BaseException:
            self._close_sessions()
            raise
        self.labels = {ntype: labels.to(self.target) for ntype, labels in self.labels.items()}

    def _device_sampler(self) -> CudaSampler | None:
        """Give the sampler for the device, or None with a note why this one runs on the CPU."""
        sampler, reason = device_sampler(self.sampler), ""
        if sampler is None:
            reason = f"{type(self.sampler).__name__} has no kernels"
        elif any(
            callable(part) for r in self.topology.relations.values() for part in (r.indices, r.edge_ids, r.weights)
        ):
            reason = "neighbours are read from disk"
        if reason:
            self.notes["sampling"] = f"on the CPU: {reason}"
            return None
        return sampler

    def sample(self, seeds: SeedBatch, epoch: int) -> Work:
        """Sample one batch, and give its rows on the device."""
        with self._sampling_lock:
            self.sampling.enter()
            sampler = self._device_sampler()
            if sampler is None:
                work = super().sample(seeds, epoch)
                rows: dict[Hashable, Any] = {key: self.sampling.upload(ids.numpy()) for key, ids in work.rows.items()}
                return Work(work.payload, rows, work.size_bytes)
            self._pinned = self._pinned or pin_topology(self.topology, self.sampling)
            key = SampleKey(self.options.seed, epoch, seeds.global_index)
            sample: Any = sampler.sample(self.sampling, self._pinned, self._place(seeds.seeds), key)
            edge_rows, edge_places = self._number_edges(sample)
            self.sampling.synchronize()  # other streams use it from here on
            rows = {pair: sample.input_nodes[pair[0]] for pair in self.node_tables}
            rows |= {pair: edge_rows[pair[0]] for pair in self.edge_tables}
            size_bytes = _device_bytes(sample) + sum(
                array.nbytes for arrays in (edge_rows.values(), *edge_places.values()) for array in arrays
            )
            return Work(Sampled(seeds, sample, edge_rows, edge_places), rows, size_bytes)

    def _place(self, seeds: Any) -> EdgeSeeds | dict[str, DeviceArray]:
        """Bring seed nodes to the device; of edges, the sampler does."""
        if isinstance(seeds, EdgeSeeds):
            return seeds
        return {ntype: self.sampling.upload(ids.numpy()) for ntype, ids in seeds.items()}

    def _number_edges(self, sample: DeviceSample) -> tuple[dict[EdgeType, Any], dict[EdgeType, list[Any]]]:
        """Give the distinct edges of each type that has features, and for every block where its edges are there."""
        rows: dict[EdgeType, Any] = {}
        places: dict[EdgeType, list[Any]] = {}
        for etype in {etype for etype, _ in self.edge_tables}:
            numbers = NodeNumbers(self.sampling)
            places[etype] = [numbers.add(edge_ids(block.edge_ids, etype)) for block in sample.blocks]
            rows[etype] = numbers.nodes[: numbers.size]
        return rows, places

    def _divide(self, sampling: SamplingNeeds) -> Division:
        allotment, ahead = self._allot(sampling.sample_bytes), self.options.pipeline
        wanted = self._wanted_popularity()
        shares = weighted_shares(allotment, self.demand, self.tables, wanted)
        reasons = popularity_reasons(allotment, shares, self.demand, self.tables, wanted)
        return Division(allotment, shares, ahead.window, ahead.max_group, reasons=reasons)

    def _allot(self, sample_bytes: int) -> Allotment:
        options, pipeline = self.options, self.options.pipeline
        rows = sum(need.rows for need in self.demand.values()) * pipeline.max_group
        scratch = rows * PLAN_ROW_BYTES + FIXED_SCRATCH_BYTES + 4 * sample_bytes
        if self._reads_over_gaps():
            regions = pipeline.groups_in_flight * (
                self._region_bytes() + len(self.tables) * options.storage.max_io_bytes
            )
            scratch += regions
        try:
            on_device = allot(
                self.budget.limit - scratch,
                Fixed(sample_bytes=sample_bytes),
                self.demand,
                # One group waits to be planned while another waits to be gathered.
                ahead=pipeline.window + 2 * pipeline.max_group + 3,
                planned=pipeline.window + pipeline.max_group,
                held=pipeline.max_group * pipeline.groups_in_flight,
                prefetch=pipeline.prefetch,
                cache_bytes=options.cache_bytes,
                host_bytes=0,
                group_bytes=options.group_bytes,
            )
        except ConfigError as error:
            raise ConfigError(
                f"device_budget must also hold {format_bytes(scratch)} of scratch for planning: {error}"
            ) from error
        on_host = {
            "topology": self._topology_bytes(),
            "labels": sum(labels.nbytes for labels in self.labels.values()),
            "staging": options.storage.staging_bytes if self.tables else 0,
            "pinned rows": on_device.groups,
            "host buffer": options.host_bytes or 0,
        }
        if options.budget is not None and sum(on_host.values()) > options.budget:
            listed = ", ".join(f"{name} {format_bytes(value)}" for name, value in on_host.items() if value)
            raise ConfigError(
                f"budget must be at least {format_bytes(sum(on_host.values()))}: {listed} "
                f"(got {format_bytes(options.budget)})"
            )
        return dataclasses.replace(
            on_device,
            budget=self.budget.limit,
            staging=on_host["staging"],
            topology=on_host["topology"],
            labels=on_host["labels"],
            host_buffer=options.host_bytes or 0,
        )

    def _region_bytes(self) -> int:
        """Device memory per group, over all tables, for rows that ``gds`` reads over gaps."""
        return min(self.options.storage.staging_bytes, self.budget.limit // 32)

    def _reads_over_gaps(self) -> bool:
        engine = self.options.storage.engine
        return bool(self.tables) and (engine == "gds" or (engine == "auto" and not gds_availability()))

    def _open(self) -> TableSet:
        options, demand = self.options, self.demand
        in_flight = options.pipeline.groups_in_flight
        weight = {key: max(1, need.rows * need.row_bytes) for key, need in demand.items()}
        total = sum(weight.values())
        limits = {key: share.group_bytes for key, share in self.division.shares.items()}
        path = next((table.stripes[0].path for table in self.tables.values()), self.dataset.path)
        most = options.pipeline.max_group
        grouping = AccumulatedGroups(
            Accumulator(
                AccessModel.from_curve(load_curve(path)),
                {key: (self.tables[key].row_bytes, limits[key] // in_flight) for key in self.tables},
                least_batches=most,
                max_batches=most,
            )
        )
        stores: dict[Hashable, TableStore] = {}
        opened = TableSet(stores, grouping)
        hosted, popularity = self._host_rows(), self._popularity()
        try:
            for key, table in self.tables.items():
                share = weight[key] / total
                reader, reason = open_reader(
                    table,
                    split_staging(options.storage, share),
                    self.pool,
                    self.fetching,
                    in_flight,
                    int(self._region_bytes() * share),
                )
                host, shared = self._host_buffer(table, hosted.get(key))
                store: Any = CudaFeatureStore(
                    table,
                    reader,
                    self.planning,
                    self.fetching,
                    cache_rows=self.division.shares[key].cache_rows,
                    policy=options.policy,
                    window=options.pipeline.window,
                    host_buffer=host,
                    popularity=popularity.get(key),
                    group_rows=min(limits[key] // table.row_bytes, in_flight * table.num_rows),
                    seed=options.seed,
                )
                found = reader.notes if isinstance(reader, StagedReader) else ""
                self.notes[table.name] = "; ".join(part for part in (reason, found) if part)
                floating = options.dtype is not None and table.torch_dtype.is_floating_point
                dtype = options.dtype if options.dtype is not None and floating else table.torch_dtype
                any_reader: Any = reader
                stores[key] = CudaTableStore(
                    key,
                    store,
                    any_reader,
                    dtype,
                    limits[key],
                    BufferPool(0),
                    grouping,
                    [] if options.record else None,
                    shared,
                )
        except BaseException:
            opened.close()
            raise
        return opened

    def _host_buffer(self, table: RowTable, rows: Tensor | None) -> tuple[HostBuffer | None, SharedTensor | None]:
        """Read the constant rows to host memory that the processes of this machine share; kernels read it there."""
        if rows is None or not len(rows):
            return None, None
        storage = self.options.storage
        engine = "auto" if storage.engine == "gds" else storage.engine
        with RowReader(table, dataclasses.replace(storage, engine=engine), self.pool) as reader:
            return share_rows(table, reader, rows)

    def make_batch(self, fetched: Fetched, epoch: int) -> Any:
        """Keep the arrays as they are: tensors are made in the thread that takes the batch, on its stream."""
        return Undelivered(fetched, epoch)

    def deliver(self, batch: Any) -> Batch:
        """Hand a batch over to the calling thread's current stream."""
        fetched, payload = batch.fetched, batch.fetched.work.payload
        if isinstance(payload.sample, DeviceSample):
            payload = dataclasses.replace(
                payload,
                sample=self._to_sample(payload.sample),
                edge_rows={},  # `fetched.rows` has what was wanted of them
                edge_places={
                    etype: [to_torch(array, self.target) for array in arrays]
                    for etype, arrays in payload.edge_places.items()
                },
            )
        elif self.target.type != "cpu":
            payload = map_tensors(payload, lambda tensor: tensor.to(self.target, non_blocking=True))
        rows = {key: to_torch(array, self.target) for key, array in fetched.rows.items()}
        work = dataclasses.replace(fetched.work, payload=payload)
        return super().make_batch(Fetched(work, rows), batch.epoch)

    def _to_sample(self, sample: DeviceSample) -> Sample:
        def share(arrays: Mapping[Any, DeviceArray]) -> dict[Any, Tensor]:
            return {name: to_torch(array, self.target) for name, array in arrays.items()}

        def block(layer: DeviceBlock) -> Block:
            ids = None if layer.edge_ids is None else share(layer.edge_ids)
            weights = None if layer.weights is None else share(layer.weights)
            return Block(layer.num_src, layer.num_dst, share(layer.indptr), share(layer.src), ids, weights)

        return Sample(
            share(sample.seeds), share(sample.input_nodes), [block(layer) for layer in sample.blocks],
            share(sample.seed_rows), edges=None if sample.edges is None else SeedEdges(**share(vars(sample.edges))),
        )  # fmt: skip

    def close(self) -> None:
        """Give files, threads and memory back."""
        with ExitStack() as stack:
            stack.callback(self._close_sessions)
            stack.callback(super().close)

    def _close_sessions(self) -> None:
        with ExitStack() as stack:
            if self._pinned is not None:
                stack.callback(unpin_topology, self._pinned)
                self._pinned = None
            for session in (self.sampling, self.planning, self.fetching):
                stack.callback(session.close)
            self.sampling.enter()


def _device_bytes(sample: DeviceSample) -> int:
    total = sum(array.nbytes for arrays in (sample.input_nodes, sample.seed_rows) for array in arrays.values())
    for block in sample.blocks:
        for arrays in (block.indptr, block.src, block.edge_ids or {}):
            total += sum(array.nbytes for array in arrays.values())
    if sample.edges is not None:
        total += sum(array.nbytes for array in vars(sample.edges).values())
    return total
