"""A topology on disk gives the samples of the one in memory, and keeps within its memory."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from gids import ConfigError, DatasetError, RowTable, StorageError, Stripe, _native
from gids.sampling import (
    DiskMemory,
    EdgeSeeds,
    Exclude,
    LaborSampler,
    LadiesSampler,
    NeighborSampler,
    SampleKey,
    ShadowSampler,
    Topology,
)
from gids.sampling.disk import pack_offsets
from gids.sampling.disk_memory import divide
from gids.sampling.visits import expected_visits
from gids.storage import StorageOptions
from gids.storage.curve import ReadCost

SAMPLERS = {
    "neighbor": NeighborSampler([6, 4, 3], edge_ids=True),
    "all": NeighborSampler([-1, -1], edge_ids=True),
    "replace": NeighborSampler([6, 4], replace=True, edge_ids=True),
    "weighted": NeighborSampler([6, 4], weights=True, edge_ids=True),
    "weighted replace": NeighborSampler([6, 4], weights=True, replace=True, edge_ids=True),
    "shadow": ShadowSampler([3, 2], edge_ids=True),
    "labor": LaborSampler([6, 4, 3], edge_ids=True),
    "labor weighted": LaborSampler([6, 4], weights=True, edge_ids=True, batch_dependency=2),
    "labor importance": LaborSampler([6, 4], importance=2, edge_ids=True),
    "ladies": LadiesSampler([20, 10], weights=True, edge_ids=True),
}


@dataclass
class Stored:
    """A dataset as far as topologies care, over files written here."""

    counts: dict
    graph: dict
    tables: dict
    scratch_dir: Path
    node_types = property(lambda self: list(self.counts))
    edge_types = property(lambda self: list(self.graph))

    def num_nodes(self, ntype=None):
        return self.counts[ntype]

    def indptr(self, etype):
        return self.graph[etype][0]

    def indices_table(self, etype):
        return self.tables[etype]["indices"]

    def edge_ids_table(self, etype):
        return self.tables[etype]["ids"]

    def edge_weight_table(self, etype):
        return self.tables[etype]["weights"]


def write_table(directory, name, values, stripes=1, unit=64):
    parts = [[] for _ in range(stripes)]
    for begin in range(0, len(values), unit):
        parts[begin // unit % stripes].append(values[begin : begin + unit])
    files = []
    for number, part in enumerate(parts):
        path = directory / f"{name}.{number}".replace("/", "_")
        data = np.concatenate([values[:0], *part])
        path.write_bytes(b"\0" * 512 + data.tobytes())
        files.append(Stripe(path, 512, len(data)))
    return RowTable(name, str(values.dtype), 1, len(values), values.itemsize, tuple(files), unit)


@pytest.fixture(scope="module")
def stored(heterogeneous, tmp_path_factory):
    directory = tmp_path_factory.mktemp("graph")
    rng = np.random.default_rng(9)
    tables = {}
    for number, (etype, (_, indices)) in enumerate(heterogeneous[1].items()):
        tables[etype] = {
            "indices": write_table(directory, f"indices{number}", indices, stripes=1 + number % 2),
            "ids": write_table(directory, f"ids{number}", rng.permutation(len(indices))),
            "weights": write_table(directory, f"weights{number}", rng.random(len(indices), np.float32)),
        }
    return Stored(*heterogeneous, tables, directory)


def identical(a, b):
    for ntype in a.input_nodes:
        assert torch.equal(a.input_nodes[ntype], b.input_nodes[ntype])
    for left, right in zip(a.blocks, b.blocks, strict=True):
        for etype in left.edge_types:
            assert torch.equal(left.indptr[etype], right.indptr[etype])
            assert torch.equal(left.src[etype], right.src[etype])
            assert torch.equal(left.edge_ids[etype], right.edge_ids[etype])
            assert left.weights is None or torch.equal(left.weights[etype], right.weights[etype])


@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
@pytest.mark.parametrize(
    "budget", [0, DiskMemory(hot_bytes=16_000, cache_bytes=4096), "64MiB"], ids=["least", "some", "all"]
)
@pytest.mark.parametrize("engine", ["auto", "pread"])
def test_same_samples_as_in_memory(stored, sampler, budget, engine):
    memory = Topology.from_dataset(stored)
    seeds = {"paper": torch.arange(0, 200, 3), "author": torch.tensor([5, 0])}
    with Topology.from_dataset(stored, on_disk=True, budget=budget, storage=StorageOptions(engine=engine)) as disk:
        for batch in range(2):
            key = SampleKey(seed=3, batch=batch)
            identical(sampler.sample(memory, seeds, key), sampler.sample(disk, seeds, key))
        read = sum(stats["rows"] for stats in disk.disk_stats().values())
        hot = sum(stats["hot_lists"] for stats in disk.disk_stats().values())
        assert (read > 0) == (budget != "64MiB")
        assert (hot > 0) == (budget != 0)


def test_excluded_edges_on_disk(stored):
    etype = ("paper", "cites", "paper")
    indices = stored.graph[etype][1]
    seeds = EdgeSeeds(torch.from_numpy(indices[:5].copy()), torch.zeros(5, dtype=torch.int64), etype, 2, Exclude.SEEDS)
    sampler = NeighborSampler([-1, 5], edge_ids=True)
    with Topology.from_dataset(stored, on_disk=True, budget=0) as disk:
        identical(
            sampler.sample(Topology.from_dataset(stored), seeds, SampleKey()), sampler.sample(disk, seeds, SampleKey())
        )


def test_many_samples_at_once(stored):
    memory, sampler = Topology.from_dataset(stored), NeighborSampler([4, 4], edge_ids=True)
    with (
        Topology.from_dataset(stored, on_disk=True, budget=DiskMemory(hot_bytes=14_000, cache_bytes=4096)) as disk,
        ThreadPoolExecutor(6) as threads,
    ):
        keys = [SampleKey(batch=batch) for batch in range(60)]
        seeds = {"paper": torch.tensor([1, 2, 3])}
        for key, sample in zip(keys, threads.map(lambda key: sampler.sample(disk, seeds, key), keys), strict=True):
            identical(sampler.sample(memory, seeds, key), sample)


def test_hotness_is_remembered(stored):
    saved = stored.scratch_dir / "expected-visits.npz"
    saved.unlink(missing_ok=True)
    Topology.from_dataset(stored, on_disk=True).close()
    first = saved.stat().st_mtime_ns
    Topology.from_dataset(stored, on_disk=True).close()
    assert saved.stat().st_mtime_ns == first
    whole = saved.read_bytes()
    for damage in (b"torn", whole[: len(whole) // 2], whole[:-1], whole.replace(b"<f4", b"<f8")):
        saved.write_bytes(damage)
        Topology.from_dataset(stored, on_disk=True).close()
        assert saved.read_bytes() == whole


def test_expected_visits_by_hand(tmp_path):
    """A node with 20 in-edges gives each source half a visit at fanout 10, a node with 2 a whole one."""
    indptr, indices = np.array([0, 20, 22, 22]), np.array([1] * 20 + [2, 1], np.int32)
    table = write_table(tmp_path, "indices", indices)
    etype = ("_N", "_E", "_N")
    visits = expected_visits({"_N": 3}, {etype: pack_offsets(indptr, 3, "_E")}, {etype: table}, 10)
    assert visits["_N"].tolist() == [0, 11, 1]


def test_lists_may_come_while_samplers_run(stored):
    memory, sampler = Topology.from_dataset(stored), NeighborSampler([4, 4], edge_ids=True)
    seeds = {"paper": torch.arange(0, 200, 3)}
    with Topology.from_dataset(stored, on_disk=True, budget=DiskMemory()) as disk, ThreadPoolExecutor(3) as threads:
        keys = [SampleKey(batch=batch) for batch in range(40)]
        sampled = [threads.submit(sampler.sample, disk, seeds, key) for key in keys]
        sampled[10].result()
        worth = disk.lists.worth()
        disk.lists.keep(worth.most_bytes)
        disk.lists.keep(worth.most_bytes)  # once is enough
        for key, sample in zip(keys, sampled, strict=True):
            identical(sampler.sample(memory, seeds, key), sample.result())
        read = [stats["rows"] for stats in disk.disk_stats().values()]
        identical(sampler.sample(memory, seeds, keys[0]), sampler.sample(disk, seeds, keys[0]))
        hot = {etype: stats["hot_edges"] for etype, stats in disk.disk_stats().items()}
        assert disk.lists.bytes == sum(stats["hot_bytes"] for stats in disk.disk_stats().values())
        assert max(hot.values()) > 0
        again = [stats["rows"] for stats in disk.disk_stats().values()]
        assert sum(again) - sum(read) < 10, "only nodes that no edge leads to, and that are seeds, are still on disk"


def test_what_lists_save_per_byte(stored):
    with Topology.from_dataset(stored, on_disk=True, budget=DiskMemory()) as disk:
        worth, cost = disk.lists.worth(), ReadCost(1e-5, 3e-10)
    sizes = [0, worth.most_bytes // 4, worth.most_bytes // 2, worth.most_bytes]
    left = [worth.reads_left(size) for size in sizes]
    assert left == sorted(left, reverse=True)
    assert left[0] > 0
    assert left[-1] == pytest.approx(0, abs=1e-9)
    for _, used, saved in worth.relations:
        per_byte = np.diff(saved) / np.diff(used)
        assert (np.diff(per_byte) < 1e-12).all(), "the most useful ones come first"
    whole = worth.file_bytes * cost.per_byte_s
    assert worth.seconds(0, cost) <= min(left[0] * cost.per_read_s, whole) + 1e-12, "never more than one pass"
    assert worth.seconds(sizes[-1], cost) == pytest.approx(0, abs=1e-12)


def test_a_budget_is_divided_and_kept():
    mib = 1 << 20
    assert divide(0, 5 * mib, 2, 900 * mib) == DiskMemory(0, 0, 2 * mib, mib // 2)
    some = divide(100 * mib, 4 * mib, 1, 900 * mib)
    assert some == DiskMemory(45_875_200, 6_553_600, 32 * mib, 12 * mib)
    assert 4 * mib + some.total == 98 * mib  # the rest is for threads and rings
    assert divide(1000 * mib, 4 * mib, 1, 50 * mib) == DiskMemory(50 * mib, 0, 96 * mib, 16 * mib)
    with pytest.raises(ConfigError, match=r"must be 0 or at least 6553600 bytes \(6.2 MiB\).*got 1048576"):
        divide(mib, 5 * mib, 1, 900 * mib)


def test_auto_takes_memory_where_it_fits(stored):
    with Topology.from_dataset(stored, on_disk="auto", budget="64MiB") as topology:
        assert topology.disk_memory is None
    with Topology.from_dataset(stored, on_disk="auto", budget=0) as topology:
        assert topology.disk_memory == DiskMemory(0, 0, 9 << 20, 9 << 18)
    with Topology.from_dataset(stored, on_disk="auto") as topology:
        assert topology.disk_memory is None


def test_offsets_of_a_mapped_file_are_read(tmp_path):
    indptr = np.cumsum([0, 3, 0, 700, 2])
    np.save(tmp_path / "indptr.npy", indptr)
    packed = pack_offsets(np.load(tmp_path / "indptr.npy", mmap_mode="r"), 4, "cites")
    assert [packed.range(node) for node in range(4)] == [(0, 3), (3, 0), (3, 700), (703, 2)]
    with pytest.raises(DatasetError, match=r"indptr of cites: offsets must begin at 0 and never decrease"):
        pack_offsets(np.array([0, 2, 1]), 2, "cites")
    with pytest.raises(ConfigError, match=r"node must be in \[0, 4\) \(got 4\)"):
        packed.range(4)


def test_a_failed_read_is_an_error_and_the_topology_stays_usable(stored, tmp_path):
    sampler, seeds = NeighborSampler([-1]), {"paper": torch.arange(200)}
    etype = ("paper", "cites", "paper")
    whole = stored.tables[etype]["indices"]
    with Topology.from_dataset(stored, on_disk=True, budget=0, storage=StorageOptions(engine="pread")) as disk:
        path = whole.stripes[0].path
        content = path.read_bytes()
        try:
            path.write_bytes(content[:600])
            with pytest.raises(StorageError, match=str(path)):
                sampler.sample(disk, seeds, SampleKey())
        finally:
            path.write_bytes(content)
        assert sampler.sample(disk, seeds, SampleKey()).num_edges > 0


def test_neighbours_on_disk_are_checked(stored, tmp_path):
    etype = ("paper", "cites", "paper")
    bad = Stored(stored.counts, stored.graph, {e: dict(t) for e, t in stored.tables.items()}, tmp_path)
    wrong = stored.graph[etype][1].copy()
    wrong[:] = 10**9
    bad.tables[etype]["indices"] = write_table(tmp_path, "wrong", wrong)
    with (
        Topology.from_dataset(bad, on_disk=True, budget=0) as disk,
        pytest.raises(DatasetError, match=r"indices of cites must be in \[0, 200\)"),
    ):
        NeighborSampler([2]).sample(disk, {"paper": torch.tensor([0])}, SampleKey())
    with pytest.raises(DatasetError, match=r"must be in \[0, 200\)"):
        Topology.from_dataset(bad, on_disk=True)


def test_only_plain_columns(stored, tmp_path):
    wide = RowTable("wide", "int32", 2, 4, 8, (Stripe(tmp_path / "x", 0, 4),), 4)
    bad = Stored(stored.counts, stored.graph, {e: dict(t) for e, t in stored.tables.items()}, tmp_path)
    bad.tables[("paper", "cites", "paper")]["indices"] = wide
    with pytest.raises(ConfigError, match="dim 1"):
        Topology.from_dataset(bad, on_disk=True)


def test_resident_bytes_do_not_grow_with_edges(tmp_path):
    def resident(degree):
        indptr = np.arange(1001) * degree
        table = write_table(tmp_path, f"indices{degree}", np.zeros(1000 * degree, np.int32))
        graph = {("_N", "_E", "_N"): (indptr, None)}
        tables = {("_N", "_E", "_N"): {"indices": table, "ids": None, "weights": None}}
        with Topology.from_dataset(Stored({"_N": 1000}, graph, tables, tmp_path), on_disk=True, budget=0) as disk:
            return disk.resident_bytes()

    assert resident(300) - resident(3) < 2 * 1000  # offsets take more bits


def test_a_batch_from_disk_has_no_second_copy_of_its_positions(tmp_path):
    """Reading works in less than one more number per edge: such arrays come on top of what the topology was given."""
    nodes, degree, fanout = 1000, 2000, 500
    etype = ("_N", "_E", "_N")
    indices = np.random.default_rng(4).integers(0, nodes, nodes * degree, np.int32)
    graph = {etype: (np.arange(nodes + 1) * degree, indices)}
    tables = {etype: {"indices": write_table(tmp_path, "indices", indices), "ids": None, "weights": None}}
    sampler, peaks = NeighborSampler([fanout]), {}
    for on_disk in (True, False):
        source = Stored({"_N": nodes}, graph, tables, tmp_path)
        budget = DiskMemory(hot_bytes=300_000) if on_disk else None
        with Topology.from_dataset(source, on_disk=on_disk, budget=budget) as topology:
            for _ in range(2):  # the first sample makes tables that the topology keeps
                held, _ = _native.thread_sampling_memory(mark=True)
                edges = sampler.sample(topology, np.arange(nodes), SampleKey()).num_edges
                peaks[on_disk] = _native.thread_sampling_memory()[1] - held
            if on_disk:
                assert 0 < topology.disk_stats()[etype]["hot_lists"] < nodes
    assert edges == nodes * fanout
    assert peaks[True] - peaks[False] < 8 * edges
