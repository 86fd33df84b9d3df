"""The part of ``gids bench sample`` under memory limits: a graph on disk as gids opens it beside a mapped file."""

from __future__ import annotations

import json
import mmap
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gids.bench.cgroup import MemoryCgroup
from gids.bench.harness import Bar, Contender, Measurement, Report, alternate
from gids.bench.page_cache import forget_pages
from gids.bench.sample_disk import BATCH, EDGE, FANOUTS, StoredGraph
from gids.errors import GidsError
from gids.sampling import NeighborSampler, SampleKey, Topology

MIB = 1 << 20
#: Page cache, interpreter and batches included. The smallest holds a part of the graph, the largest all of it.
LIMITS_MIB = (448, 640, 1536)
GIDS, MAPPED, MAPPED_RANDOM = "gids", "mapped file", "mapped file, MADV_RANDOM"

# Floors of the issue: whatever the limit, memory that a mapped file would use must be used as well, and where there is
# little of it a page for every neighbour is what the mapped file pays.
FLOOR_LIMITS = (4.0, 1.0, 1.0)


class Child:
    """A process of its own under a limit, which samples batches when told to.

    Parameters
    ----------
    directory : Path
        The graph.
    kind : str
        How it is opened.
    limit_mib : int
        Memory of the process.
    """

    def __init__(self, directory: Path, kind: str, limit_mib: int):
        self.cgroup = MemoryCgroup(f"gids-sample-{kind.split()[0]}-{time.monotonic_ns()}", limit_mib * MIB)
        self.name = f"{kind}, {limit_mib} MiB"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gids.bench.sample_limits", str(directory), kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=self.cgroup.enter,
        )

    def ask(self, batches: int) -> dict[str, Any]:
        """Let it sample so many batches; returns what it says of them."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            print(batches, file=self.process.stdin, flush=True)
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise GidsError(f"the process of {self.name} ended (status {self.process.wait()})")
        return dict(json.loads(answer))

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()
        self.cgroup.remove()


def limits_section(report: Report, directory: Path, batches: int, rounds: int) -> None:
    """Alternate gids and the mapped file under each limit; the mapped file's rate is the better one of two ways to map."""
    details: dict[str, Any] = {}
    for limit, floor in zip(LIMITS_MIB, FLOOR_LIMITS, strict=True):
        forget_pages(directory / "indices.bin")
        children: list[Child] = []
        try:
            for kind in (GIDS, MAPPED, MAPPED_RANDOM):
                children.append(Child(directory, kind, limit))
            for child in children:  # once to open and fill what each keeps, and again: pages come with use
                details[child.name] = child.ask(batches)
                child.ask(batches)
            contenders = [
                Contender(child.name, lambda child=child: child.ask(batches)["edges"])  # type: ignore[misc]
                for child in children
            ]
            rates = alternate(contenders, unit="edges", rounds=rounds)
        finally:
            for child in children:
                child.close()
        report.measurements += rates.values()
        report.bars.append(Bar(f"disk: over a mapped file at {limit} MiB", _over(rates, children), floor))
    report.extra["limits"] = details


def _over(rates: dict[str, Measurement], children: list[Child]) -> float:
    mine, *theirs = (rates[child.name].rates for child in children)
    return float(np.median([own / max(others) for own, *others in zip(mine, *theirs, strict=True)]))


def open_mapped(graph: StoredGraph, random: bool) -> Topology:
    """Map the neighbours, with offsets in memory."""
    path = graph.directory / "indices.bin"
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    if random:
        mapped.madvise(mmap.MADV_RANDOM)
    return Topology.from_arrays(
        np.load(graph.directory / "indptr.npy"), np.frombuffer(mapped, np.int32), validate=False
    )


def main(directory: str, kind: str) -> None:
    """Sample as many batches as each line of the input says."""
    graph = StoredGraph(Path(directory))
    if kind == GIDS:
        topology = Topology.from_dataset(graph, on_disk="auto")
    else:
        topology = open_mapped(graph, kind == MAPPED_RANDOM)
    sampler, nodes = NeighborSampler(FANOUTS), graph.num_nodes()
    seeds = torch.from_numpy(np.random.default_rng(3).permutation(nodes))
    batch = 0
    for line in sys.stdin:
        edges = 0
        for _ in range(int(line)):
            start = batch * BATCH % max(nodes - BATCH, 1)
            edges += sampler.sample(topology, seeds[start : start + BATCH], SampleKey(batch=batch)).num_edges
            batch += 1
        about = {} if topology.disk_memory is None else {**vars(topology.disk_memory), **topology.disk_stats()[EDGE]}
        print(json.dumps({"edges": edges, "resident_bytes": topology.resident_bytes(), **about}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
