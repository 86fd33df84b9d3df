"""The CUDA backend: sampling, planning and gathering on a device, batches handed over by DLPack."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from gids._native import ThreadPool
from gids.budget import Memory, Pace, default_budget
from gids.budget.parts import MOST_STAGING_BYTES
from gids.cuda.array import DeviceArray
from gids.cuda.choice import choose_engine, choose_submit
from gids.cuda.cufile import gds_availability
from gids.cuda.device_reader import DeviceReader
from gids.cuda.gds import GdsReader
from gids.cuda.interop import packed_to_torch, to_torch, torch_device, torch_memory, torch_ordinal
from gids.cuda.nvme import PARTS, NvmeDeviceReader
from gids.cuda.nvme_queues import host_atomics_refusal
from gids.cuda.sampling import (
    CudaSampler,
    DeviceSample,
    PinnedTopology,
    device_sampler,
    pin_topology,
    unpin_topology,
)
from gids.cuda.sampling.hop import UNCOUNTED_EDGES
from gids.cuda.sampling.topology import lists_bytes_of
from gids.cuda.session import CudaDevice, CudaSession, DeviceBudget, open_device
from gids.cuda.store import CudaTableStore
from gids.cuda.transfer import PAGE_BYTES, Pinned, StagingMemory
from gids.ledger import Ledger
from gids.runtime.backend import SampledRows, Sampler, StoreSetup, sample_on_host
from gids.runtime.batch import map_tensors
from gids.runtime.options import PipelineOptions, RuntimeOptions, optional_bytes
from gids.runtime.work import Fetched
from gids.sampling import Block, EdgeSeeds, Sample, SampleKey, SeedEdges, TimedSeeds, Topology
from gids.storage import RowReader, StorageOptions
from gids.table import RowTable
from gids.types import EdgeType
from gids.units import format_bytes

T = TypeVar("T")

#: Of the device's free memory, where the user gives no budget: activations and gradients of the model need the rest ...
DEFAULT_SHARE = 0.8
#: ... and the model itself, with its optimiser, where torch has not allocated anything on the device yet.
SHARE_BEFORE_THE_MODEL = 0.6
#: Scratch for one row of a group: sort buffers, flags, ranks and locations of the planner, its place, a piece to unpack.
PLAN_ROW_BYTES = 240
#: Scratch that does not grow: class counts of the policies, small arrays.
FIXED_SCRATCH_BYTES = 4 << 20
#: Of the device's memory in bytes, one in so many is the most edges that memory is taken for before they are counted.
UNCOUNTED_SHARE = 2048
#: Offsets of neighbour lists are kept on the device where they take at most one in so many bytes of its memory: half of
#: what sampling reads over the link is offsets.
OFFSETS_SHARE = 16
#: Where they are, one in so many bytes holds neighbour lists too, the hottest where not all fit. A row of features that
#: the cache holds saves its bytes on the link and a read of the drive, a neighbour one sector of the link.
LISTS_SHARE = 16
#: Of pinned memory that drives write to at a kernel's word, for each of two rounds: what a round begins and ends with,
#: launches and the last answers, is then a small part of it.
ROUND_BYTES = 256 << 20
#: Sampling works in about as much memory as so many samples.
SCRATCH_SAMPLES = 4


def default_device_budget(device: CudaDevice) -> int:
    """Return the share of a device's free memory that a loader takes: less, while the model is still to come."""
    free, _ = device.memory_bytes()
    return int(free * (DEFAULT_SHARE if torch_memory(device.ordinal) else SHARE_BEFORE_THE_MODEL))


@dataclass(frozen=True)
class HeldBytes:
    """What of a topology a device holds, in bytes: offsets of neighbour lists, and lists."""

    offsets: int = 0
    lists: int = 0

    @property
    def total(self) -> int:
        """Both."""
        return self.offsets + self.lists


def held_bytes(topology: Topology, sampler: object, device_bytes: int) -> HeldBytes:
    """Return how much of a device's memory holds a topology; nothing where it is not sampled there."""
    if device_sampler(sampler) is None or _on_disk(topology):
        return HeldBytes()
    offsets = sum((len(relation.indptr) + 1) * np.dtype(np.int64).itemsize for relation in topology.relations.values())
    if offsets > device_bytes // OFFSETS_SHARE:
        return HeldBytes()
    return HeldBytes(offsets, min(lists_bytes_of(topology), device_bytes // LISTS_SHARE))


def _on_disk(topology: Topology) -> bool:
    return any(callable(part) for r in topology.relations.values() for part in (r.indices, r.edge_ids, r.weights))


def cuda_pace(pipeline: PipelineOptions, reading: StorageOptions, region_bytes: int = 0) -> Pace:
    """Say how a pipeline runs on a device, where ``gds`` takes ``region_bytes`` for each group in flight."""
    rounds = reading.engine == "nvme" and reading.submit != "cpu"
    return Pace(
        pipeline.prefetch,
        pipeline.groups_in_flight,
        pipeline.sample_workers or 1,
        sweeps=False,
        plan_row_bytes=PLAN_ROW_BYTES,
        scratch_bytes=FIXED_SCRATCH_BYTES + region_bytes * pipeline.groups_in_flight,
        scratch_samples=SCRATCH_SAMPLES,
        most_staging_bytes=PARTS * ROUND_BYTES if rounds else MOST_STAGING_BYTES,
    )


class CudaBackend:
    """Makes batches on a CUDA device; see :class:`gids.runtime.backend.Backend`.

    Parameters
    ----------
    options : RuntimeOptions
        What the user chose; ``options.device`` says which device.
    pool : ThreadPool
        Threads for what runs on the CPU.
    """

    def __init__(self, options: RuntimeOptions, pool: ThreadPool):
        assert options.device is not None
        self._options, self._pool = options, pool
        self._device = open_device(torch_ordinal(options.device))
        self.name = f"cuda {self._device.name}"
        host = optional_bytes(options.budget, "budget")
        device = optional_bytes(options.memory.device_budget, "device_budget")
        self.memory = Memory(
            default_budget() if host is None else host,
            default_device_budget(self._device) if device is None else device,
        )
        assert self.memory.device is not None
        self.device_budget = DeviceBudget(self.memory.device, "device_budget")
        self.ledger = Ledger(self.memory.device)
        self._sampling = CudaSession(self._device, self.device_budget)
        self._planning = CudaSession(self._device, self.device_budget)
        self._fetching = CudaSession(self._device, self.device_budget, urgent=True)  # training waits for its gathers
        self._target = torch_device(self._fetching)
        self._staging: StagingMemory | None = None
        self._uncounted_edges = min(UNCOUNTED_EDGES, self.memory.device // UNCOUNTED_SHARE)
        self._sampling_lock = threading.Lock()
        self._pinned: tuple[Topology, PinnedTopology] | None = None  # guarded by _sampling_lock
        self._sampled: PinnedTopology | None = None  # the same, with what is on the device; guarded by _sampling_lock
        self._held = HeldBytes()
        self.notes: dict[str, str] = {}
        self.pace = cuda_pace(options.pipeline, options.reading, self._region_bytes())

    def expect(self, topology: Topology, sampler: Sampler) -> None:
        """Set memory aside for what sampling reads most: offsets of neighbour lists, and the hottest lists."""
        assert self.memory.device is not None
        self._held = held_bytes(topology, sampler, self.memory.device)
        left = self.memory.device - self._held.total
        self.memory, self.ledger = replace(self.memory, device=left), Ledger(left)

    def sample(
        self,
        topology: Topology,
        sampler: Sampler,
        seeds: dict[str, Tensor] | TimedSeeds | EdgeSeeds,
        key: SampleKey,
        edge_types: list[EdgeType],
    ) -> SampledRows:
        """Sample one batch on the device, or on the CPU where :attr:`notes` says why."""
        with self._sampling_lock:
            self._sampling.enter()
            on_device = self._device_sampler(sampler, topology)
            if on_device is None or isinstance(seeds, TimedSeeds):
                found = sample_on_host(topology, sampler, seeds, key, edge_types, self._pool)
                nodes = {ntype: self._upload(ids) for ntype, ids in found.input_nodes.items()}
                rows = {etype: self._upload(ids) for etype, ids in found.edge_rows.items()}
                self._announce([*nodes.values(), *rows.values()])
                return replace(found, input_nodes=nodes, edge_rows=rows)
            placed = seeds if isinstance(seeds, EdgeSeeds) else {n: self._upload(ids) for n, ids in seeds.items()}
            sample = on_device.sample(
                self._sampling, self._pin(topology), placed, key, uncounted_edges=self._uncounted_edges,
                edge_types=edge_types,
            )  # fmt: skip
            edges = () if sample.edges is None else vars(sample.edges).values()
            self._announce([sample.packed.memory, *sample.input_nodes.values(), *sample.edge_rows.values(), *edges])
            sample.packed.memory.export()
            _ = sample.packed.others  # known before the consumer asks
            size_bytes = sample.packed.memory.nbytes + sum(array.nbytes for array in edges)
            return SampledRows(sample, sample.input_nodes, sample.edge_rows, sample.edge_places, size_bytes)

    def _announce(self, arrays: list[DeviceArray]) -> None:
        """Let other streams know when arrays of the sampling stream are complete: one event for all."""
        ready = self._sampling.record()
        for array in arrays:
            array.ready = ready

    def _device_sampler(self, sampler: Sampler, topology: Topology) -> CudaSampler | None:
        """Return the sampler for the device, or None with a note why this one runs on the CPU."""
        found, reason = device_sampler(sampler), ""
        if found is None:
            reason = f"{type(sampler).__name__} has no kernels"
        elif _on_disk(topology):
            reason = "neighbours are read from disk"
        if reason:
            self.notes["sampling"] = f"on the CPU: {reason}"
            return None
        return found

    def _pin(self, topology: Topology) -> PinnedTopology:
        if self._pinned is None or self._pinned[0] is not topology:
            self._pinned = (topology, pin_topology(topology, self._sampling))
            self._sampled = self._pinned[1]
            if self._held.total:
                self._sampled = self._sampled.held_by(self._sampling, self._held.lists)
                everything = lists_bytes_of(topology)
                if self._held.lists < everything:
                    self.notes["neighbours"] = (
                        f"{format_bytes(self._held.lists)} of {format_bytes(everything)} are in device memory, the hottest; "
                        "others are read over the link"
                    )
        assert self._sampled is not None
        return self._sampled

    def _upload(self, ids: Tensor) -> DeviceArray:
        return self._sampling.upload(ids.numpy())

    def place(self, rows: Tensor) -> DeviceArray:
        """Bring row ids of a framework's sampler to the device, from host or device memory."""
        with self._sampling_lock:
            self._sampling.enter()
            if not rows.is_cuda:
                ours = self._upload(rows.to(torch.int64))
                self._announce([ours])
                return ours
            rows = rows.to(torch.int64).contiguous()
            theirs = DeviceArray(rows.data_ptr(), tuple(rows.shape), np.int64, rows)
            ours = self._sampling.empty(len(rows), np.int64)
            self._sampling.order_after(torch.cuda.current_stream(rows.device).cuda_stream)
            self._sampling.copy(ours, theirs)
            self._sampling.synchronize()  # other streams use it from here on, and theirs may go
            return ours

    def row_ids(self, rows: DeviceArray) -> Tensor:
        """Copy row ids to host memory. Waits."""
        with self._sampling_lock:
            self._sampling.enter()
            return torch.from_numpy(self._sampling.download(rows))

    def open_store(self, table: RowTable, setup: StoreSetup) -> CudaTableStore:
        """Open a table with the engine asked for, or with ``gds`` where it works."""
        self._fetching.enter()
        storage = replace(
            self._options.reading,
            staging_bytes=max(
                4 * self._options.reading.max_io_bytes * (self._options.reading.threads or 1), setup.staging_bytes
            ),
        )
        reader, reason = self._open_reader(table, storage, setup)
        try:
            staging_bytes, pin = setup.staging_bytes, None
            if isinstance(reader, RowReader):
                staging_bytes, pin = self._staging_of(setup)
            store = CudaTableStore(
                table,
                reader,
                self._planning,
                self._fetching,
                cache_rows=setup.share.cache_rows,
                policy=setup.policy,
                window=setup.window,
                host_buffer=setup.host,
                popularity=setup.popularity,
                group_bytes=setup.share.group_bytes,
                dtype=self._options.output.dtype,
                ledger=self.ledger,
                seed=self._options.seed,
                staging_bytes=staging_bytes,
                pin=pin,
            )
        except BaseException:
            reader.close()
            raise
        found = "" if isinstance(reader, RowReader) else reader.notes
        self.notes[table.name] = "; ".join(part for part in (reason, found) if part)
        return store

    def _staging_of(self, setup: StoreSetup) -> tuple[int, Callable[[int], Pinned]]:
        """Return how much staging a table has, and where from.

        Stores are replaced while training goes on, and to free pinned memory would wait for it: all staging is pinned
        once, and a later division that has more of it for all tables divides what there is.
        """
        total = max(self.ledger.account("staging").limit, setup.staging_bytes)
        if self._staging is None:
            self._staging = StagingMemory(self._device, total)
        count = min(setup.staging_bytes, setup.staging_bytes * self._staging.count // total)
        return max(count // PAGE_BYTES * PAGE_BYTES, 1), self._staging.take

    def _open_reader(
        self, table: RowTable, storage: StorageOptions, setup: StoreSetup
    ) -> tuple[RowReader | DeviceReader | NvmeDeviceReader, str]:
        """Open a table's reader; returns the reason for its engine too."""
        table.check_held(0, table.num_rows - 1)  # rows of other nodes come to host memory, to loaders of the CPU
        groups, region_bytes = setup.groups_in_flight, self._region_bytes()
        group_bytes, reason = setup.share.group_bytes // max(groups, 1), "asked for"
        engine = storage.engine
        if engine == "auto":
            engine, reason = self._choose_engine(table, group_bytes, storage)
        if engine == "gds":
            return GdsReader(table, storage, self._fetching, region_bytes, groups), reason
        if engine == "nvme":
            submit = choose_submit(table, group_bytes, storage, host_atomics_refusal(self._device))
            if submit.name == "gpu":
                return NvmeDeviceReader(table, storage, self._fetching), submit.reason
            reason = f"threads of the CPU queue the commands: {submit.reason}"
        host = RowReader(table, storage, self._pool)
        return host, f"{reason}; {host.engine_reason}, copied through pinned staging"

    def _choose_engine(self, table: RowTable, group_bytes: int, storage: StorageOptions) -> tuple[str, str]:
        """Choose between gds and what the host would read with (uring, or pread where there is none)."""
        choice = choose_engine(table, group_bytes, storage, gds_availability())
        return "gds" if choice.name == "gds" else "auto", choice.reason

    def _region_bytes(self) -> int:
        """Device memory for each group in flight for rows that ``gds`` reads over gaps."""
        engine = self._options.reading.engine
        if engine != "gds" and (engine != "auto" or gds_availability()):
            return 0
        assert self.memory.device is not None
        return min(self._options.reading.staging_bytes, self.memory.device // 32)

    def read_host_rows(self, table: RowTable, rows: Tensor, values: Tensor) -> None:
        """Read rows to host memory, for the constant buffer that kernels read there."""
        reading = self._options.reading
        engine = "auto" if reading.engine == "gds" else reading.engine
        with RowReader(table, replace(reading, engine=engine), self._pool) as reader:
            reader.submit(rows, values).wait()

    def deliver(self, fetched: Fetched) -> Fetched:
        """Hand rows over to the calling thread's current stream."""
        return fetched._replace(rows={key: to_torch(array, self._target) for key, array in fetched.rows.items()})

    def deliver_sample(self, sampled: SampledRows) -> tuple[Sample, Mapping[EdgeType, list[Tensor]]]:
        """Hand a sample over to the calling thread's current stream."""
        if not isinstance(sampled.sample, DeviceSample):
            places: dict[EdgeType, list[Tensor]] = dict(sampled.edge_places)
            return self.deliver_tensors(sampled.sample), self.deliver_tensors(places)
        sample = sampled.sample
        tensors = packed_to_torch(sample.packed, self._target)
        shared = {
            etype: [tensors[number, etype, "places"] for number in range(len(arrays))]
            for etype, arrays in sample.edge_places.items()
        }
        return self._to_sample(sample, tensors), shared

    def _to_sample(self, sample: DeviceSample, tensors: Mapping[Any, Tensor]) -> Sample:
        def share(arrays: Mapping[Any, DeviceArray]) -> dict[Any, Tensor]:
            return {name: to_torch(array, self._target) for name, array in arrays.items()}

        def part(
            number: int, name: str, arrays: Mapping[EdgeType, DeviceArray] | None
        ) -> dict[EdgeType, Tensor] | None:
            return None if arrays is None else {etype: tensors[number, etype, name] for etype in arrays}

        nodes = {ntype: tensors["nodes", ntype] for ntype in sample.input_nodes}
        return Sample(
            {ntype: nodes[ntype][: len(ids)] for ntype, ids in sample.seeds.items()},
            nodes,
            [
                Block(
                    layer.num_src,
                    layer.num_dst,
                    {etype: tensors[number, etype, "begins"] for etype in layer.indptr},
                    {etype: tensors[number, etype, "src"] for etype in layer.src},
                    part(number, "ids", layer.edge_ids),
                    part(number, "weights", layer.weights),
                )
                for number, layer in enumerate(sample.blocks)
            ],
            {ntype: tensors["rows", ntype] for ntype in sample.seed_rows},
            edges=None if sample.edges is None else SeedEdges(**share(vars(sample.edges))),
        )

    def deliver_tensors(self, value: T) -> T:
        """Return every tensor in memory of the device."""
        if self._target.type == "cpu":
            return value
        return map_tensors(value, lambda tensor: tensor.to(self._target, non_blocking=True))

    def close(self) -> None:
        """Release memory and pinning; all stores are closed."""
        with ExitStack() as stack:
            if self._staging is not None:
                stack.callback(self._staging.close)
                self._staging = None
            for session in (self._sampling, self._planning, self._fetching):
                stack.callback(session.close)
            if self._pinned is not None:
                stack.callback(unpin_topology, self._pinned[1])
                self._pinned = self._sampled = None
            self._sampling.enter()
