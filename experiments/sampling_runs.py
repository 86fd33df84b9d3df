"""Sampling alone, contender after contender in this process: what figures 4, 7 and 8 of paper 000 are made of."""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

import gids
from gids.bench.sample_ring import built_stand_in, what_is_missing
from gids.sampling import NeighborSampler, SampleKey, Topology, stream_samples

DISK, MEMORY, RING, DGL = "gids, edges on disk", "gids, edges in memory", "RingSampler (stand-in)", "DGL, in memory"
ABOUT = {
    DISK: "edges past the page cache, lists in a quarter of the edge file's bytes",
    MEMORY: "all edges loaded",
    RING: "a stand-in after the paper, one io_uring read for each edge; the page cache holds the edge file",
    DGL: "DGL's sampler, all edges loaded",
}
#: ``run(number, batches)`` samples so many batches that no other round has; returns their edges.
Run = Callable[[int, int], int]


class Contenders:
    """Ways to sample one graph.

    Parameters
    ----------
    dataset : Dataset
        The graph.
    batch_size : int
        Seeds of a batch.
    """

    def __init__(self, dataset: gids.Dataset, batch_size: int):
        self.dataset, self.batch_size = dataset, batch_size
        self._stack = ExitStack()
        self.seeds = dataset.split("train")
        budget = max(dataset.indices_table().total_bytes // 4, 8 << 20)
        disk = Topology.from_dataset(dataset, on_disk=True, budget=budget)
        self._stack.callback(disk.close)
        self._topologies = {DISK: disk, MEMORY: Topology.from_dataset(dataset)}

    def close(self) -> None:
        """End processes and close files."""
        self._stack.close()

    def seeds_of(self, number: int, index: int) -> torch.Tensor:
        """Return the seeds of a batch."""
        place = (number * 1000 + index) * self.batch_size % max(len(self.seeds) - self.batch_size, 1)
        return self.seeds[place : place + self.batch_size]

    def gids(self, kind: str, fanouts: list[int], threads: int) -> Run:
        """Return our sampler with so many batches at once."""
        sampler = NeighborSampler(fanouts)

        def run(number: int, batches: int) -> int:
            work = [(self.seeds_of(number, i), SampleKey(0, number, i)) for i in range(batches)]
            samples = stream_samples(sampler, self._topologies[kind], work, in_flight=threads)
            return sum(sample.num_edges for sample in samples)

        return run

    def ring(self, fanouts: list[int], threads: int) -> Run | None:
        """Return the stand-in with so many threads; None where it cannot be built."""
        if what_is_missing():
            return None
        program = self._stack.enter_context(built_stand_in())
        files = self._stack.enter_context(plain_files(self.dataset))
        command = [str(program), *map(str, files), str(threads), str(self.batch_size), *map(str, reversed(fanouts))]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)

        def run(number: int, batches: int) -> int:
            assert process.stdin is not None
            assert process.stdout is not None
            print(batches, file=process.stdin, flush=True)
            return int(process.stdout.readline())

        return run

    def dgl(self, fanouts: list[int]) -> Run | None:
        """Return DGL's sampler; None where DGL is not installed."""
        try:
            import dgl
        except ImportError:
            return None
        topology = self._topologies[MEMORY]
        (relation,) = topology.relations.values()
        indices = torch.from_numpy(np.asarray(relation.indices))
        offsets = torch.from_numpy(np.asarray(relation.indptr)).to(indices.dtype)
        graph = dgl.graph(("csc", (offsets, indices, torch.empty(0, dtype=indices.dtype))))
        sampler = dgl.dataloading.NeighborSampler(fanouts, fused=False)  # fused is wrong on int32 in DGL 1.1.3

        def run(number: int, batches: int) -> int:
            seeds = [self.seeds_of(number, i).to(graph.idtype) for i in range(batches)]
            return sum(sum(block.num_edges() for block in sampler.sample_blocks(graph, nodes)[2]) for nodes in seeds)

        return run


@contextmanager
def plain_files(dataset: gids.Dataset) -> Iterator[tuple[Path, Path]]:
    """Return offsets and neighbours as the stand-in reads them: files beside the dataset, made once."""
    offsets, indices = (dataset.scratch_dir / name for name in ("ring-indptr.npy", "ring-indices.bin"))
    if not indices.exists():
        np.save(offsets, np.array(dataset.indptr()))
        (relation,) = Topology.from_dataset(dataset).relations.values()
        np.asarray(relation.indices).astype(np.int32).tofile(indices)
    yield offsets, indices


def in_turn(runs: Mapping[str, Run | None], batches: Mapping[str, int], rounds: int) -> dict[str, dict[str, float]]:
    """Run contenders in turn, once before the clock runs; returns rates and seconds for 100 batches."""
    present = {name: run for name, run in runs.items() if run is not None}
    rates: dict[str, list[float]] = {name: [] for name in present}
    seconds: dict[str, list[float]] = {name: [] for name in present}
    for number in range(rounds + 1):
        for name, run in present.items() if number % 2 == 0 else reversed(present.items()):
            begin = time.perf_counter()
            edges = run(number, batches[name])
            took = time.perf_counter() - begin
            if number:
                rates[name].append(edges / took)
                seconds[name].append(100 * took / batches[name])
    results: dict[str, Any] = {}
    for name, of_rounds in rates.items():
        median = statistics.median(of_rounds)
        mad = statistics.median(abs(rate - median) for rate in of_rounds)
        results[name] = {
            "edges_per_s": median,
            "mad": mad,
            "seconds_per_100_batches": statistics.median(seconds[name]),
        }
    return results
