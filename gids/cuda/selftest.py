"""What a user with a GPU runs first: every kernel against the CPU's result, the storage engines, a training."""

from __future__ import annotations

import ctypes
import importlib.util
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

import gids
from gids._native import DType, NvmeFileMap, NvmeStubDrive, ThreadPool, damp_ranks, gather_rows, push_ranks
from gids.cuda.compile import compile_kernels
from gids.cuda.nvme import GroupCommands, TablePlan
from gids.cuda.nvme_queues import OUTCOME_WORDS, READ, zeros
from gids.cuda.pages import RegisteredPages
from gids.cuda.passes import exclusive_scan, full, sort_pairs
from gids.cuda.pinned import host_array
from gids.cuda.planner import CudaPlanner, plan_to_host
from gids.cuda.sampling import (
    CudaLaborSampler,
    CudaNeighborSampler,
    CudaSampler,
    PinnedTopology,
    as_numpy,
    device_sampler,
)
from gids.cuda.sampling.topology import DeviceMemory, lists_bytes_of
from gids.cuda.session import Argument, CudaDevice, CudaSession, Session, open_device
from gids.cuda.store import CudaTableStore
from gids.errors import GidsError
from gids.generate import communities
from gids.runtime import MemoryOptions, OrderOptions, PipelineOptions
from gids.runtime.batch import Batch, map_tensors
from gids.sampling import (
    EdgeSeeds,
    Exclude,
    LaborSampler,
    LadiesSampler,
    NeighborSampler,
    Relation,
    SampleKey,
    ShadowSampler,
    Topology,
)
from gids.sampling.sampler import Sampler
from gids.storage.options import StorageOptions
from gids.storage.reader import engine_availability
from gids.table import DTYPES, RowTable, Stripe
from gids.tiers.host_buffer import HostRows
from gids.tiers.plan import Planner
from gids.tiers.policies import POLICIES

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Result:
    """One check.

    ``kernels`` are the entry points that it launched; ``detail`` says what was compared, or what went wrong.
    """

    name: str
    passed: bool | None  # None: not run
    detail: str
    kernels: tuple[str, ...] = ()
    seconds: float = 0.0


class NotRun(Exception):
    """A check cannot be made on this machine."""


class Recording:
    """A session that remembers which entry points were launched."""

    def __init__(self, inner: Session):
        self._inner = inner
        self.launched: set[str] = set()

    def launch(self, kernel: str, items: int, *arguments: Argument, lanes: int = 1, blocks: int | None = None) -> None:
        """Launch and remember."""
        self.launched.add(kernel)
        self._inner.launch(kernel, items, *arguments, lanes=lanes, blocks=blocks)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _same(got: Array, expected: Array, what: str) -> None:
    if got.shape != expected.shape or not np.array_equal(got, expected):
        raise GidsError(f"{what} differs from the CPU's")


def _philox_blocks(key: tuple[int, int], first: int, count: int) -> Array:
    """Philox4x32-10 as its paper states it, over counters (node, 0, 0), independent of kernels/philox.cuh."""
    nodes = np.arange(first, first + count, dtype=np.uint64)
    low = np.uint64(0xFFFFFFFF)
    c0, c1, c2, c3 = nodes & low, nodes >> np.uint64(32), np.zeros_like(nodes), np.zeros_like(nodes)
    k0, k1 = key
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0, c1 = (p1 >> np.uint64(32)) ^ c1 ^ np.uint64(k0), p1 & low
        c2, c3 = (p0 >> np.uint64(32)) ^ c3 ^ np.uint64(k1), p0 & low
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=1).astype(np.uint32)


def check_random(session: Session) -> str:
    """Random numbers are the published algorithm's."""
    out = session.empty((500, 4), np.uint32)
    session.launch("random_blocks", 500, np.uint32(7), np.uint32(9), np.int64(2**32 - 250), np.int64(500), out)
    _same(session.download(out), _philox_blocks((7, 9), 2**32 - 250, 500), "Philox4x32-10")
    return "500 blocks"


def check_passes(session: Session) -> str:
    """Prefix sums and the stable sort."""
    rng = np.random.default_rng(1)
    values, keys = rng.integers(0, 9, 3000), rng.integers(0, 1 << 33, 3000)
    scan = exclusive_scan(session, session.upload(values), full(session, 1, 3000), 3000)
    _same(session.download(scan), np.concatenate([[0], np.cumsum(values)]), "prefix sum")
    order = np.argsort(keys, kind="stable")
    sorted_keys, sorted_values = sort_pairs(
        session, session.upload(keys), session.upload(np.arange(3000)), full(session, 1, 3000), 3000, 1 << 33
    )
    _same(session.download(sorted_keys), keys[order], "sorted keys")
    _same(session.download(sorted_values), order, "sorted values")
    return "3,000 values"


def _random_topology() -> Topology:
    rng = np.random.default_rng(2)
    sizes = {"paper": 400, "author": 200}
    relations = {}
    for i, (src, dst) in enumerate([("author", "paper"), ("paper", "author"), ("paper", "paper")]):
        degrees = rng.integers(0, 15, sizes[dst])
        degrees[:2] = (0, 120)
        indptr = np.concatenate([[0], np.cumsum(degrees)])
        indices = rng.integers(0, sizes[src], indptr[-1]).astype(np.int32 if i else np.int64)
        ids = rng.permutation(indptr[-1]) if i == 2 else None
        weights = (rng.random(indptr[-1]) * rng.integers(0, 3, indptr[-1])).astype(np.float32)
        relations[(src, f"r{i}", dst)] = Relation(indptr, indices, ids, weights)
    return Topology(sizes, relations)


def _compare_samples(
    session: Session,
    samplers: list[tuple[Sampler, CudaSampler]],
    pairs: EdgeSeeds | None = None,
    held_lists: float | None = None,
) -> int:
    """Sample with the CPU and the device, from nodes or from pairs; returns the number of edges compared.

    Of neighbour lists the device holds the share ``held_lists``; None: neither lists nor offsets.
    """
    topology = _random_topology()
    pinned = read = PinnedTopology(topology, session)
    if held_lists is not None:
        read = pinned.held_by(cast(DeviceMemory, session), int(held_lists * lists_bytes_of(topology)))
    nodes, key = torch.tensor([3, 1, 0, 77, 3, 399]), SampleKey(5, 1, 2)
    edges = 0
    try:
        for sampler, device in samplers:
            placed = {"paper": session.upload(nodes.numpy())} if pairs is None else pairs
            got = as_numpy(session, device.sample(session, read, placed, key))
            cpu = sampler.sample(topology, {"paper": nodes} if pairs is None else pairs, key)
            if cpu.edges is not None:
                for field, expected in vars(cpu.edges).items():
                    _same(got["edges"][field], expected.numpy(), f"{field} of the pairs")
            for name in ("input_nodes", "seeds", "seed_rows"):
                for ntype, expected in getattr(cpu, name).items():
                    _same(got[name][ntype], expected.numpy(), f"{name} of {ntype}")
            for mine, theirs in zip(got["blocks"], cpu.blocks, strict=True):
                for field in ("indptr", "src", "edge_ids", "weights"):
                    for etype, expected in (getattr(theirs, field) or {}).items():
                        _same(mine[field][etype], expected.numpy(), f"{field} of {etype}")
                edges += theirs.num_edges()
    finally:
        session.download(full(session, 1, 0))  # nothing reads the pinned arrays any more
        pinned.close()
    return edges


def check_sampling(session: Session) -> str:
    """Neighbour sampling with every group size, with and without replacement."""
    samplers: list[tuple[Sampler, CudaSampler]] = []
    for lanes in (None, 1, 8, 32):
        for fanouts, replace in (([4, 5], False), ([6, -1], False), ([3, 3], True)):
            sampler = NeighborSampler(fanouts, replace=replace, edge_ids=True)
            samplers.append((sampler, CudaNeighborSampler(sampler, lanes)))
    edges = _compare_samples(session, samplers)
    plain, labor = NeighborSampler([4, -1]), LaborSampler([3, 4])
    few: list[tuple[Sampler, CudaSampler]] = [(plain, CudaNeighborSampler(plain)), (labor, CudaLaborSampler(labor))]
    for share in (0.5, 1.0):
        edges += _compare_samples(session, few, held_lists=share)
    return f"{edges:,} edges in {len(samplers) + 2 * len(few)} samples of a heterograph"


def check_layers(session: Session) -> str:
    """Weighted sampling, LABOR, LADIES and ShaDow."""
    samplers: list[Sampler] = [
        NeighborSampler([3, 4], weights=True),
        NeighborSampler([3, 4], weights=True, replace=True),
        LaborSampler([3, 4]),
        LadiesSampler([40, 20]),
        LadiesSampler([40, 20], weights=True, edge_ids=True),
        ShadowSampler([3, 3], edge_ids=True),
    ]
    pairs = [(sampler, device) for sampler in samplers if (device := device_sampler(sampler)) is not None]
    return f"{_compare_samples(session, pairs):,} edges in {len(pairs)} samples of a heterograph"


def check_edge_seeds(session: Session) -> str:
    """Edges as seeds: negatives, and edges that blocks leave out."""
    samplers: list[Sampler] = [NeighborSampler([4, 5]), LadiesSampler([40, 20], weights=True), ShadowSampler([3, 3])]
    both = [(sampler, device) for sampler in samplers if (device := device_sampler(sampler)) is not None]
    src, dst = torch.arange(0, 200, 7), torch.arange(0, 200, 7) + 1
    reverse = ("paper", "r1", "author")
    pairs = EdgeSeeds(src, dst, ("author", "r0", "paper"), 3, Exclude.SEEDS_AND_REVERSE, reverse)
    return f"{_compare_samples(session, both, pairs):,} edges around {len(src)} pairs and {3 * len(src)} negatives"


def check_planning(session: Session) -> str:
    """Lookup, next use, duplicates, victims and slots, for every policy."""
    rng = np.random.default_rng(3)
    num_rows = 600
    rows = [np.unique((num_rows * rng.random(80) ** 2).astype(np.int64)) for _ in range(9)]
    host = HostRows(torch.from_numpy(rng.permutation(num_rows)[:40]))
    for policy in POLICIES:
        cpu, device = Planner(num_rows, 50, policy, host=host), CudaPlanner(session, num_rows, 50, policy, host=host)
        tensors, arrays = [torch.from_numpy(r) for r in rows], [session.upload(r) for r in rows]
        for begin in range(0, 9, 3):
            expected = cpu.plan_group(tensors[begin : begin + 3], tensors[begin + 3 :])
            got = plan_to_host(session, device.plan_group(arrays[begin : begin + 3], arrays[begin + 3 :]))
            _same(got["disk_rows"], expected.disk_rows.numpy(), f"rows to read under {policy}")
            for mine, theirs in zip(got["batches"], expected.batches, strict=True):
                for name in ("location", "admit_positions", "admit_slots"):
                    _same(mine[name], getattr(theirs, name).numpy(), f"{name} under {policy}")
                if mine["counters"] != theirs.counters:
                    raise GidsError(f"counters under {policy} differ from the CPU's")
        device.close()
    return f"{len(POLICIES)} policies, 3 groups of 3 batches each"


def check_gather(session: Session) -> str:
    """Gather with conversion between all types, admission, widening."""
    rng = np.random.default_rng(4)
    dim, location = 9, rng.integers(0, 34, 70)
    checked = 0
    for number, (source, source_dtype) in enumerate(DTYPES.items()):
        row_bytes = dim * source_dtype.itemsize
        parts = [rng.integers(0, 256, rows * row_bytes, dtype=np.uint8) for rows in (9, 5, 20)]
        for to_number, (to, to_dtype) in enumerate(DTYPES.items()):
            if to != source and not to_dtype.is_floating_point:
                continue
            expected = np.zeros(70 * dim * to_dtype.itemsize, np.uint8)
            cache, host, read = parts
            types = (DType[to], DType[source])
            gather_rows(ThreadPool(1), cache, host, read, location, expected, *types, dim, row_bytes)
            for lanes in (8, 32):
                out, bad = session.empty(len(expected), np.uint8), session.upload(np.zeros(1, np.uint32))
                sizes = (np.int64(9), np.int64(5), np.int64(20), np.int64(row_bytes))
                session.launch(
                    f"gather_rows_{lanes}", 70, *(session.upload(part) for part in parts), *sizes,
                    session.upload(location), np.int64(70), np.int64(dim), np.int32(to_number), np.int32(number), out,
                    bad, lanes=lanes,
                )  # fmt: skip
                _same(session.download(out), expected, f"rows of {source} as {to}")
                checked += 1
    _check_admission(session, rng)
    _check_unpacking(session, rng)
    halves = np.arange(0, 65536, 3, dtype=np.uint16)
    for conversion, dtype in ((1, torch.float16), (2, torch.bfloat16)):
        wide = session.empty(len(halves), np.uint32)
        session.launch(
            "widen_rows", len(halves), np.int32(conversion), session.upload(halves), np.int64(2), np.int64(len(halves)),
            np.int64(1), wide, lanes=32,
        )  # fmt: skip
        expected = torch.from_numpy(halves.view(np.int16)).view(dtype).float().numpy()
        if not np.array_equal(session.download(wide).view(np.float32), expected, equal_nan=True):
            raise GidsError(f"widened {dtype} differs from torch's")
    return f"{checked} pairs of types and group sizes"


def _check_unpacking(session: Session, rng: np.random.Generator) -> None:
    staging, sizes = rng.integers(0, 256, 4000, np.uint8), rng.integers(1, 60, 50)
    begins, places = rng.integers(0, 3900, 50), np.cumsum(sizes) - sizes
    out = session.empty(int(sizes.sum()), np.uint8)
    arrays = (session.upload(part) for part in (begins, places, sizes))
    session.launch("unpack_pieces", 50, session.upload(staging), *arrays, np.int64(50), out, lanes=32)
    expected = np.concatenate([staging[at : at + size] for at, size in zip(begins, sizes, strict=True)])
    _same(session.download(out), expected, "unpacked pieces")


def _check_admission(session: Session, rng: np.random.Generator) -> None:
    for lanes in (8, 32):
        cache, read = rng.integers(0, 256, (10, 24), np.uint8), rng.integers(0, 256, (30, 24), np.uint8)
        slots, positions = rng.permutation(10)[:8], rng.permutation(30)[:8]
        device = session.upload(cache)
        session.launch(
            f"admit_rows_{lanes}", 8, device, session.upload(slots), session.upload(read), session.upload(positions),
            np.int64(0), np.int64(8), np.int64(24), lanes=lanes,
        )  # fmt: skip
        cache[slots] = read[positions]
        _same(session.download(device), cache, "cache after admission")
    place, places = rng.permutation(16)[:10], np.concatenate([np.arange(10, 16), np.arange(21, 25)])  # A = 16, H = 5
    admitted, slots = rng.permutation(10)[:6], rng.permutation(10)[:6]
    on_device, on_group = session.upload(place), session.upload(places)
    session.launch(
        "admit_places", 6, session.upload(slots), session.upload(admitted), np.int64(0), np.int64(6), on_group,
        np.int64(16), on_device,
    )  # fmt: skip
    inside = places[admitted] < 16
    place[slots[inside]] = places[admitted[inside]]
    _same(session.download(on_device), place, "places after admission")
    location = rng.integers(-1, 27, 90)  # C = 10, H = 5, 10 rows of a group; the rest does not exist
    resolved = session.empty(90, np.int64)
    session.launch(
        "resolve_places", 90, session.upload(location), np.int64(90), np.int64(10), np.int64(5), np.int64(10),
        on_device, on_group, np.int64(16), resolved,
    )  # fmt: skip
    every = np.concatenate([place, np.arange(16, 21), places, [-1, -1, -1]])
    _same(session.download(resolved), every[location], "places of a batch")


def check_rank(session: Session) -> str:
    """Two rounds of reverse PageRank."""
    rng = np.random.default_rng(5)
    nodes = 500
    indptr = np.concatenate([[0], np.cumsum(rng.integers(0, 20, nodes))])
    for kind, kernel in ((np.int32, "push_ranks_32"), (np.int64, "push_ranks_64")):
        sources = rng.integers(0, nodes, indptr[-1]).astype(kind)
        restart = rng.integers(0, 1 << 50, nodes).astype(np.uint64)
        rank, received = np.full(nodes, (1 << 62) // nodes, np.uint64), np.zeros(nodes, np.uint64)
        device = [session.upload(part) for part in (indptr, rank, sources, received, restart)]
        d_indptr, d_rank, d_sources, d_received, d_restart = device
        for _ in range(2):
            push_ranks(ThreadPool(1), indptr, rank, sources, 0, 1, received)
            damp_ranks(ThreadPool(1), received, restart, 55705, rank)
            session.launch(
                kernel, -(-len(sources) // 512), d_indptr, np.int64(nodes), d_rank, d_sources, np.int64(0),
                np.int64(len(sources)), np.uint64(1), d_received, lanes=32,
            )  # fmt: skip
            session.launch("damp_ranks", nodes, d_received, d_restart, np.uint32(55705), np.int64(nodes), d_rank)
        _same(session.download(d_rank), rank, "rank")
    return f"{nodes} nodes, {indptr[-1]:,} edges"


def _map_in_place(session: Any, address: int, count: int) -> RegisteredPages:
    device: CudaDevice = session.device
    return RegisteredPages(device, address, count)


def check_nvme_plan(session: Session) -> str:
    """Turn rows of a striped file into commands, and take the rows out of what such commands would bring."""
    rng = np.random.default_rng(7)
    rows, row_bytes, unit = 700, 300, 4096
    content = rng.integers(0, 256, -(-rows * row_bytes // unit) * unit, dtype=np.uint8)
    table = RowTable("rows", "uint8", row_bytes, rows, row_bytes, (Stripe(Path("rows"), 0, rows),), rows)
    columns = [(0, 0, 1), (8 * unit, 1, 1)]
    drives = [np.zeros(len(content) + 8 * unit, np.uint8) for _ in columns]
    for number, at in enumerate(range(0, len(content), unit)):
        begin = columns[number % 2][0] + number // 2 * unit
        drives[number % 2][begin : begin + unit] = content[at : at + unit]
    part_bytes = 8 * unit
    plan = TablePlan(
        session, table, [NvmeFileMap(columns, unit, len(content))], [[(1, 9)], [(1, 9)]],
        block_bytes=512, gap_bytes=1024, max_bytes=4 * 512, part_bytes=part_bytes,
    )  # fmt: skip
    wanted = np.sort(rng.permutation(rows)[:260])
    commands = GroupCommands(session, plan, session.upload(wanted), first_part=1)
    reads, ranges = session.download(commands.reads).view(READ), session.download(commands.ranges)
    out = session.empty((len(wanted), row_bytes), np.uint8)
    for number in range(commands.rounds):
        staging = np.zeros(2 * part_bytes, np.uint8)
        for read in reads[ranges[number] : ranges[number + 1]]:
            at, size = int(read["lba"]) * 512, int(read["bytes"])
            staging[int(read["offset"]) :][:size] = drives[int(read["drive"])][at : at + size]
        memory = session.upload(staging)
        commands.unpack(session, number, memory.pointer, out)
        session.download(full(session, 1, 0))  # the memory goes
    _same(session.download(out), content[: rows * row_bytes].reshape(rows, -1)[wanted], "rows out of commands")
    return f"{len(wanted)} rows by {commands.count} commands in {commands.rounds} rounds"


def check_nvme(session: Session) -> str:
    """Drive the queue pair against a drive made of host memory, which a thread plays."""
    count, block = 600, 512
    stub = NvmeStubDrive(64, 40, 1 << 20)
    mapped = []
    try:
        for address, size in stub.regions():
            mapped.append(_map_in_place(session, address, size))
            if mapped[-1].pointer != address:
                raise NotRun("the device does not use host addresses as they are")
        reads = np.zeros(count, READ)
        reads["lba"] = np.random.default_rng(6).integers(0, 1 << 40, count)
        reads["offset"], reads["blocks"], reads["bytes"] = np.arange(count) * 3 * block, 3, 3 * block
        reads["nsid"] = 1
        results, outcome, drives = zeros(session, count), zeros(session, OUTCOME_WORDS), np.uint64(stub.refs)
        arguments = (session.upload(reads.view(np.uint8)), results, None, np.uint32(count), np.uint64(60e9))
        session.launch("nvme_submit", count // 32 + 1, drives, *arguments, lanes=32)
        session.launch("nvme_poll", count // 32 + 2, drives, np.uint32(1), *arguments, outcome, lanes=32)
        settled, left = session.download(results), int(session.download(outcome)[0])
        wrong = stub.stop()
        if left or wrong or (settled != 1 << 31).any():
            raise GidsError(
                f"{left} warps gave up, {int((settled != 1 << 31).sum())} reads failed; {'; '.join(wrong[:3])}"
            )
        got = np.ctypeslib.as_array((ctypes.c_uint8 * (count * 3 * block)).from_address(stub.data))
        at = reads["lba"][:, None] * np.uint64(block) + np.arange(3 * block, dtype=np.uint64)
        expected = (at * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(56)
        _same(got.reshape(count, -1), expected.astype(np.uint8), "data of the drive")
    finally:
        stub.stop()
        for pages in mapped:
            pages.close()
    return f"{count} reads of {3 * block} bytes through a ring of 64"


#: Name -> check of kernels. Together they launch every entry point; a check of its own says so.
KERNEL_CHECKS: dict[str, Callable[[Session], str]] = {
    "random numbers": check_random,
    "prefix sum and sort": check_passes,
    "neighbour sampling": check_sampling,
    "weights, LADIES, ShaDow": check_layers,
    "edges as seeds": check_edge_seeds,
    "cache planning": check_planning,
    "gather and conversion": check_gather,
    "reverse PageRank": check_rank,
    "NVMe commands of rows": check_nvme_plan,
    "NVMe queue pair": check_nvme,
}


def _batches_equal(expected: list[Batch], got: list[Batch]) -> int:
    if len(expected) != len(got):
        raise GidsError(f"{len(got)} batches instead of {len(expected)}")
    compared = 0
    for one, other in zip(expected, got, strict=True):
        left: list[Tensor] = []
        right: list[Tensor] = []
        for batch, into in ((one, left), (other, right)):

            def note(tensor: Tensor, into: list[Tensor] = into) -> Tensor:
                into.append(tensor.cpu())
                return tensor

            map_tensors(batch, note)
        if len(left) != len(right) or not all(torch.equal(a, b) for a, b in zip(left, right, strict=True)):
            raise GidsError("a batch differs from the CPU's")
        compared += len(left)
    return compared


_OPTIONS: dict[str, Any] = {
    "seeds": "train", "fanouts": [3, 4], "batch_size": 64, "order": OrderOptions(seed=3),
    "memory": MemoryOptions(cache="16KiB", host_buffer=0), "pipeline": PipelineOptions(sweep_batches=3),
}  # fmt: skip


def check_loader(dataset: gids.Dataset, engine: str, device: str) -> str:
    """One epoch with a storage engine gives the batches of the CPU backend."""
    if engine == "gds" and importlib.util.find_spec("kvikio") is None:
        raise NotRun("kvikio is not installed (pip install 'gids[gds]')")
    if engine == "uring" and (refusal := engine_availability()["uring"]):
        raise NotRun(refusal)
    with gids.Loader(dataset, **_OPTIONS) as loader:
        expected = list(loader)
    with gids.Loader(dataset, device=device, storage=engine, **_OPTIONS) as loader:
        compared = _batches_equal(expected, list(loader))
        notes = loader.notes
    return f"{compared} tensors in {len(expected)} batches; {'; '.join(notes.values())}"


def check_slots(dataset: gids.Dataset, device: str) -> str:
    """Rows of whole pages go straight to the slots where they stay, and batches are the CPU's."""
    if importlib.util.find_spec("kvikio") is None:
        raise NotRun("kvikio is not installed (pip install 'gids[gds]')")
    with gids.Loader(dataset, **_OPTIONS) as loader:
        expected = list(loader)
    storage = StorageOptions(engine="gds", merge_gap_bytes=0)
    # Prepared, because stores are opened anew where the preparation ends, and counts of the old ones are gone.
    with gids.Loader(dataset, device=device, storage=storage, **_OPTIONS).prepare() as loader:
        _batches_equal(expected, list(loader))
        (table,) = loader.stores.values()
        assert isinstance(table, CudaTableStore)
        io, stayed, copied = table.reader.stats(), table.rows_taken_over, table.rows_copied
        notes = loader.notes
    if io["rows_staged"] or copied or not stayed:
        raise GidsError(
            f"{io['rows_staged']} of {io['rows']} rows did not go straight to their slots, {copied} were copied"
        )
    return (
        f"{io['rows']} rows in {io['reads']} reads, {stayed} of them stayed in the cache; {'; '.join(notes.values())}"
    )


def train(dataset: gids.Dataset, device: str | None, epochs: int = 2) -> list[float]:
    """Train two layers of mean aggregation; gives the mean loss of each epoch."""
    torch.manual_seed(0)
    dim, classes = dataset.feature_table("_N").dim, int(dataset.num_classes or 0)
    layers = torch.nn.ModuleList([torch.nn.Linear(2 * dim, 32), torch.nn.Linear(64, classes)])
    optimizer = torch.optim.Adam(layers.parameters(), lr=0.01)
    losses = []
    with gids.Loader(dataset, device=device, **_OPTIONS) as loader:
        for _ in range(epochs):
            total, count = 0.0, 0
            for batch in loader:
                layers.to(batch.x.device)
                x = batch.x
                for layer, block in zip(layers, batch.blocks, strict=True):
                    source, target = block.edge_index()
                    size = block.num_dst["_N"]
                    sums = torch.zeros(size, x.shape[1], device=x.device).index_add_(0, target, x[source])
                    degree = block.indptr[block.only(None)].diff().clamp(min=1).to(x.dtype)
                    x = layer(torch.cat([x[:size], sums / degree[:, None]], 1))
                    x = x if layer is layers[-1] else x.relu()
                loss = torch.nn.functional.cross_entropy(x, batch.y)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                total, count = total + float(loss.detach()), count + 1
            losses.append(total / count)
    return losses


def check_training(dataset: gids.Dataset, device: str) -> str:
    """Two epochs on the device: the loss falls, and is the CPU's as far as arithmetic allows."""
    got, expected = train(dataset, device), train(dataset, None)
    if not got[1] < got[0]:
        raise GidsError(f"loss must fall from epoch to epoch (got {got[0]:.4f}, {got[1]:.4f})")
    if not np.allclose(got, expected, rtol=1e-3):
        raise GidsError(f"loss must be the CPU's {expected} (got {got})")
    return f"loss {got[0]:.3f} to {got[1]:.3f}, on the CPU {expected[0]:.3f} to {expected[1]:.3f}"


def run_selftest(ordinal: int = 0, report: Callable[[Result], None] | None = None) -> tuple[str, list[Result]]:
    """Run every check on a device; gives the device's name and the results.

    Parameters
    ----------
    ordinal : int
        Which device.
    report : callable, optional
        Called with each result as it comes.
    """
    device, where = open_device(ordinal), f"cuda:{ordinal}"
    results: list[Result] = []

    def check(name: str, call: Callable[[], str], recording: Recording | None = None) -> None:
        begin = time.perf_counter()
        passed: bool | None
        try:
            passed, detail = True, call()
        except NotRun as reason:
            passed, detail = None, f"not run: {reason}"
        except Exception as error:  # a failed check is a result, whatever it raised
            passed, detail = False, f"{type(error).__name__}: {error}"
        kernels = () if recording is None else tuple(sorted(recording.launched))
        results.append(Result(name, passed, detail, kernels, time.perf_counter() - begin))
        if report is not None:
            report(results[-1])

    launched: set[str] = set()
    for name, call in KERNEL_CHECKS.items():
        recording = Recording(CudaSession(device))
        session: Any = _host_mapping(recording)
        check(f"kernels: {name}", lambda call=call, session=session: call(session), recording)  # type: ignore[misc]
        launched |= recording.launched

    def all_launched() -> str:
        entries = {entry.kernel for entry in compile_kernels(device.arch).resources}
        if entries - launched:
            raise GidsError(f"no check launched {', '.join(sorted(entries - launched))}")
        return f"all {len(entries)} entry points for {device.arch} were launched"

    check("kernels: coverage", all_launched)
    with tempfile.TemporaryDirectory(prefix="gids-selftest-") as directory:
        dataset = communities(Path(directory) / "graph", num_nodes=1200, degree=8, dim=24, train=0.25)
        for engine in ("uring", "pread", "gds"):
            check(f"storage: {engine}", lambda engine=engine: check_loader(dataset, engine, where))  # type: ignore[misc]
        pages = communities(Path(directory) / "pages", num_nodes=400, degree=6, dim=1024, train=0.25)
        check("storage: gds, straight to cache slots", lambda: check_slots(pages, where))
        check("training: two epochs", lambda: check_training(dataset, where))
    return device.name, results


def _host_mapping(recording: Recording) -> Any:
    """Let the recording pin host arrays through the session that it wraps."""

    def map_host(values: Array) -> Any:
        return host_array(recording._inner, values, "selftest")

    recording.map_host = map_host  # type: ignore[attr-defined]
    return recording
