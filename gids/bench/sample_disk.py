"""The disk part of ``gids bench sample``: edges per second past the page cache, and memory, against fio and memory."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from gids.bench.fio import best_shape, run_fio
from gids.bench.harness import Bar, Contender, Report, alternate
from gids.bench.power_law import power_law_graph
from gids.sampling import EdgeType, NeighborSampler, SampleKey, Topology, stream_samples
from gids.sampling.topology import topology_bytes
from gids.storage import load_curve
from gids.storage.curve import save_curve
from gids.storage.probe import probe
from gids.table import RowTable, Stripe

FANOUTS = [20, 15, 10]
BATCH = 1024
LEAST_BUDGET = 8 << 20  # offsets, staging and reads of a small graph need most of it
SECTOR = 512  # the least that a direct read can be
PAGE = 4096
EDGE: EdgeType = ("_N", "_E", "_N")

# Floors of the issue. A read per sampled edge could at best deliver fio's random reads per second; sorting, merging and
# hot lists must give ten times that. Memory counts everything that the process adds, batches included.
FLOOR_OVER_FIO = 10.0
CEILING_MEMORY = 0.25
CEILING_ADDED = 1.0
FLOOR_FILE_OVER_MEMORY = 4.0
# A second worker must nearly double the rate, unless the disk gives no more: what that is, fio finds out in the same run.
FLOOR_WORKERS = 1.7
FLOOR_OF_FIO = 0.95


@dataclass(frozen=True)
class StoredGraph:
    """A graph in two files, as much of a dataset as a topology needs."""

    directory: Path

    node_types = ("_N",)
    edge_types = (EDGE,)

    @property
    def scratch_dir(self) -> Path:
        """Where the hotness of nodes is remembered."""
        return self.directory

    def num_nodes(self, ntype: str | None = None) -> int:
        """Count the nodes."""
        return len(self.indptr(EDGE)) - 1

    def indptr(self, etype: EdgeType) -> np.ndarray:
        """Return the offsets."""
        offsets: np.ndarray = np.load(self.directory / "indptr.npy", mmap_mode="r")
        return offsets

    def indices_table(self, etype: EdgeType) -> RowTable:
        """Say where the neighbours are."""
        path = self.directory / "indices.bin"
        rows = path.stat().st_size // 4
        return RowTable("indices", "int32", 1, rows, 4, (Stripe(path, 0, rows),), max(rows, 1))

    def edge_ids_table(self, etype: EdgeType) -> RowTable | None:
        """Positions are the ids."""
        return None

    def edge_weight_table(self, etype: EdgeType) -> RowTable | None:
        """There are no weights."""
        return None


def write_graph(directory: Path, num_nodes: int, num_edges: int) -> StoredGraph:
    """Make the graph and put it on disk; one that is there is used again."""
    if (directory / "indices.bin").exists():
        return StoredGraph(directory)
    indptr, indices = power_law_graph(num_nodes, num_edges, seed=1)
    np.save(directory / "indptr.npy", indptr)
    indices.tofile(directory / "indices.part")
    (directory / "indices.part").rename(directory / "indices.bin")
    return StoredGraph(directory)


def disk_budget(graph: StoredGraph) -> int:
    """Return a tenth of the edges' bytes."""
    return max(graph.indices_table(EDGE).total_bytes // 10, LEAST_BUDGET)


def probe_once(directory: Path, *, quick: bool) -> str:
    """Measure the device unless ``gids probe`` has, and keep what was found as it does; returns where it came from.

    A graph on disk is read by what a read and a byte cost here: without figures it takes those of a common drive.
    """
    if load_curve(directory).source == "defaults" and not quick:
        save_curve(directory, probe(directory / "indices.bin"))
    curve = load_curve(directory)
    return f"{curve.source}: {1 / curve.cost.per_read_s:,.0f} reads/s, {1e-9 / curve.cost.per_byte_s:.1f} GB/s"


def disk_section(report: Report, graph: StoredGraph, batches: int, rounds: int, fio_s: float) -> None:
    """Alternate fio's random reads with sampling from disk; measure memory in processes of their own."""
    directory, num_nodes = graph.directory, graph.num_nodes()
    edge_bytes, budget = graph.indices_table(EDGE).total_bytes, disk_budget(graph)
    contenders = []
    if shutil.which("fio"):
        fio = FioReads(directory / "indices.bin", fio_s, quick=edge_bytes < 1 << 28)
        contenders.append(Contender("fio, one direct read per edge", fio.run))
    else:
        report.extra["fio"] = "not installed: no comparison"
    with Topology.from_dataset(graph, on_disk=True, budget=budget) as topology:
        sampler = NeighborSampler(FANOUTS)
        seeds = torch.from_numpy(np.random.default_rng(3).permutation(num_nodes))
        turn = iter(range(1 << 30))

        def sample() -> float:
            edges = 0
            for _ in range(batches):
                batch = next(turn)
                start = batch * BATCH % max(num_nodes - BATCH, 1)
                edges += sampler.sample(topology, seeds[start : start + BATCH], SampleKey(batch=batch)).num_edges
            return edges

        sample()
        contenders.append(Contender("gids from disk", sample))
        rates = alternate(contenders, unit="edges", rounds=rounds)
        stats = topology.disk_stats()[EDGE]
    report.measurements += rates.values()
    if len(rates) == 2:
        # fio's best round: the bar is what the device could do, not what it did in a bad moment
        best = max(rates["fio, one direct read per edge"].rates)
        report.bars.append(
            Bar("disk: edges/s over fio's best IOPS", rates["gids from disk"].median / best, FLOOR_OVER_FIO)
        )
    memory = {kind: peak_memory(directory, kind, budget) for kind in ("disk", "memory")}
    report.bars += [
        Bar("disk: memory over that of the graph in memory", memory["disk"] / memory["memory"], CEILING_MEMORY, True),
        Bar("disk: edge file over the sampler's memory", edge_bytes / memory["disk"], FLOOR_FILE_OVER_MEMORY),
    ]
    # What the same batches take beside a graph in memory is theirs, not the topology's.
    added = memory["disk"] - (memory["memory"] - topology_bytes(graph))
    report.bars.append(Bar("disk: memory that the topology adds over its figure", added / budget, CEILING_ADDED, True))
    report.extra["disk"] = {
        "edge_file_bytes": edge_bytes,
        "topology_budget_bytes": budget,
        "peak_bytes_disk": memory["disk"],
        "peak_bytes_memory": memory["memory"],
        **stats,
    }


def workers_section(report: Report, graph: StoredGraph, batches: int, rounds: int, fio_s: float) -> None:
    """Alternate one worker and two over the same batches, and fio's reads of the size that theirs have.

    Where the disk is the limit, it counts how much of what fio gets from it in the same round two workers do.
    """
    sampler, nodes = NeighborSampler(FANOUTS), graph.num_nodes()
    seeds = torch.from_numpy(np.random.default_rng(3).permutation(nodes))
    reads_per_s: list[float] = []  # of two workers, round after round
    with Topology.from_dataset(graph, on_disk=True, budget=disk_budget(graph)) as topology:
        turn = iter(range(1 << 30))

        def sample(workers: int) -> float:
            numbers = [next(turn) for _ in range(2 * batches)]
            starts = [number * BATCH % max(nodes - BATCH, 1) for number in numbers]
            work = [
                (seeds[at : at + BATCH], SampleKey(batch=number)) for at, number in zip(starts, numbers, strict=True)
            ]
            before, began = topology.disk_stats()[EDGE]["reads"], time.perf_counter()
            edges = sum(s.num_edges for s in stream_samples(sampler, topology, work, in_flight=workers))
            if workers == 2:
                reads = topology.disk_stats()[EDGE]["reads"] - before
                reads_per_s.append(reads / (time.perf_counter() - began))
            return edges

        sample(2)
        stats = topology.disk_stats()[EDGE]
        mean_bytes = stats["bytes_read"] / max(stats["reads"], 1)
        names = {workers: f"gids from disk, {workers} worker(s)" for workers in (1, 2)}
        contenders = [Contender(name, lambda w=workers: sample(w)) for workers, name in names.items()]  # type: ignore[misc]
        if shutil.which("fio"):
            block = max(round(mean_bytes / PAGE), 1) * PAGE
            fio = FioReads(
                graph.directory / "indices.bin",
                fio_s,
                quick=graph.indices_table(EDGE).total_bytes < 1 << 28,
                block=block,
            )
            contenders.append(Contender(f"fio, reads of {block >> 10} KiB", fio.run))
        rates = alternate(contenders, unit="edges", rounds=rounds)
    report.measurements += rates.values()
    pairs = zip(rates[names[2]].rates, rates[names[1]].rates, strict=True)
    over = float(np.median([two / one for two, one in pairs]))
    share = 0.0
    if len(contenders) > len(names):
        share = float(np.median(np.array(reads_per_s[1:]) / np.array(rates[contenders[-1].name].rates)))
    report.extra["workers"] = {"two_over_one": over, "mean_read_bytes": mean_bytes, "reads_over_fio": share}
    report.bars.append(
        Bar(
            "disk: 2 workers over 1 (of 1.7), or their reads/s over fio's of that size (of 0.95)",
            max(over / FLOOR_WORKERS, share / FLOOR_OF_FIO),
            1.0,
        )
    )


class FioReads:
    """Random direct reads by a tuned fio, with the depth and jobs at which it is fastest here."""

    def __init__(self, path: Path, seconds: float, *, quick: bool, block: int = SECTOR) -> None:
        self.path, self.seconds, self.block = path, seconds, block
        self.depth, self.jobs = best_shape(path, "randread", block, 1, quick=quick)

    def run(self) -> float:
        """Return as many reads as make the harness's clock show the rate of fio's own."""
        start = time.perf_counter()
        iops = run_fio(self.path, "randread", self.block, self.depth, self.jobs, self.seconds).iops
        return iops * (time.perf_counter() - start)


_CHILD = """
import sys
from pathlib import Path
import numpy as np, torch
from gids.bench.sample_disk import BATCH, FANOUTS, StoredGraph
from gids.report.growth import peak_resident_bytes as peak
from gids.sampling import NeighborSampler, SampleKey, Topology

graph = StoredGraph(Path(sys.argv[1]))
NeighborSampler([2]).sample(Topology.from_arrays([0, 1], [0]), [0], SampleKey())
before = peak()
with Topology.from_dataset(graph, on_disk=sys.argv[2] == "disk", budget=int(sys.argv[3])) as topology:
    nodes = graph.num_nodes()
    for batch in range(3):
        seeds = torch.arange(batch * BATCH, (batch + 1) * BATCH) % nodes
        NeighborSampler(FANOUTS).sample(topology, seeds, SampleKey(batch=batch))
print(peak() - before)
"""


def peak_memory(directory: Path, kind: str, budget: int) -> int:
    """Bytes by which a fresh process grows while it opens the graph and samples three batches."""
    command = [sys.executable, "-c", _CHILD, str(directory), kind, str(budget)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(result.stdout)
