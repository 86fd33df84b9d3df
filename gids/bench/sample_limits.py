"""The part of ``gids bench sample`` under memory limits: a graph on disk as gids opens it beside a mapped file."""

from __future__ import annotations

import json
import mmap
import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gids.bench.cgroup import MemoryCgroup
from gids.bench.epoch import MALLOC
from gids.bench.harness import Bar, Contender, Measurement, Report, alternate
from gids.bench.page_cache import forget_pages
from gids.bench.sample_disk import BATCH, EDGE, FANOUTS, StoredGraph
from gids.errors import GidsError
from gids.sampling import NeighborSampler, SampleKey, Topology, stream_samples
from gids.sampling.disk_memory import default_topology_bytes

MIB = 1 << 20
# Whatever the limit, memory that a mapped file would use must be used as well, and where there is little of it a page for
# every neighbour is what the mapped file pays.
#: Limits, and the floors of the issue over a mapped file: page cache, interpreter and batches are in them. The smallest
#: holds a part of the graph, the largest all of it.
LIMITS_MIB = ((448, 4.0), (640, 1.0), (1536, 1.0))
#: What a batch under way takes, about, with one that is finished; and what a topology gets at least.
BATCH_MIB, LEAST_TOPOLOGY_MIB = 160, 16
#: A way to map that takes this many times as long as the other is not measured further.
FAR_BEHIND = 3.0
GIDS, MAPPED, MAPPED_RANDOM = "gids", "mapped file", "mapped file, MADV_RANDOM"


class ChildEndedError(GidsError):
    """A contender's process ended: as a rule, it needed more memory than the limit."""

    def __init__(self, child: Child, status: int):
        super().__init__(f"the process of {child.name} ended (status {status})")
        self.kind = child.kind


class Child:
    """A process of its own under a limit, which samples batches when told to and answers with a line of JSON.

    Parameters
    ----------
    name : str
        What it is.
    command : sequence of str
        How to start it.
    limit_mib : int
        Memory of the process, page cache included.
    """

    def __init__(self, name: str, command: Sequence[str], limit_mib: int):
        self.cgroup = MemoryCgroup(f"gids-sample-{name.split()[0]}-{time.monotonic_ns()}", limit_mib * MIB)
        self.kind, self.name = name, f"{name}, {limit_mib} MiB"
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | MALLOC,
            preexec_fn=self.cgroup.enter,
        )

    def ask(self, batches: int, within_s: float | None = None) -> dict[str, Any]:
        """Let it sample so many batches; returns what it says of them, or nothing if that takes longer than it may."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            print(batches, file=self.process.stdin, flush=True)
            if not select.select([self.process.stdout], [], [], within_s)[0]:
                return {}
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise ChildEndedError(self, self.process.wait())
        said = json.loads(answer)
        return said if isinstance(said, dict) else {"edges": said}

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()
        self.cgroup.remove()


def sampling_child(directory: Path, kind: str, limit_mib: int, in_flight: int = 0) -> Child:
    """Start a process that samples with gids; ``in_flight`` batches at once, or one after the other."""
    command = [sys.executable, "-m", "gids.bench.sample_limits", str(directory), kind, str(in_flight)]
    return Child(kind if not in_flight else f"{kind}, {in_flight} thread(s)", command, limit_mib)


def limits_section(
    report: Report, directory: Path, limits_mib: Sequence[tuple[int, float]], batches: int, rounds: int
) -> None:
    """Alternate gids and the mapped file under each limit; the mapped file's rate is the better one of two ways to map."""
    details: dict[str, Any] = {}
    for limit, floor in limits_mib:
        forget_pages(directory / "indices.bin")
        children: list[Child] = []
        try:
            for kind in (GIDS, MAPPED_RANDOM, MAPPED):
                children.append(sampling_child(directory, kind, limit))
            for asked in (1, batches):  # to open, and fill what it keeps; then pages come with use
                longest = None
                for child in list(children):
                    began = time.perf_counter()
                    details[child.name] = child.ask(asked, longest)
                    if child.kind == MAPPED_RANDOM:
                        # The other way to map is often so much slower that it could not be the better one in any round.
                        longest = FAR_BEHIND * (time.perf_counter() - began)
                    elif not details[child.name]:
                        left_out = f"{asked} batch(es) took more than {FAR_BEHIND} times what they took the other"
                        details[child.name] = {"left_out": left_out}
                        children.remove(child)
                        child.close()
            contenders = [
                Contender(child.name, lambda child=child: child.ask(batches)["edges"])  # type: ignore[misc]
                for child in children
            ]
            rates = alternate(contenders, unit="edges", rounds=rounds)
            report.measurements += rates.values()
            over: float | None = _over(rates, children)
        except ChildEndedError as error:
            details[f"{limit} MiB"] = str(error)
            over = times_where_one_ended(error)
        finally:
            for child in children:
                child.close()
        if over is not None:
            report.bars.append(Bar(f"disk: over a mapped file at {limit} MiB", over, floor))
    report.extra["limits"] = details


def times_where_one_ended(error: ChildEndedError) -> float | None:
    """Return what a ratio is where one of the two had not enough memory: 0 where that is gids, else there is none."""
    return 0.0 if error.kind.startswith(GIDS) else None


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


def main(directory: str, kind: str, in_flight: str = "0") -> None:
    """Sample as many batches as each line of the input says."""
    graph = StoredGraph(Path(directory))
    if kind == GIDS:
        # Every batch under way beyond the first takes memory of its own, which the topology must leave.
        budget = default_topology_bytes() - max(int(in_flight) - 1, 0) * BATCH_MIB * MIB
        topology = Topology.from_dataset(graph, on_disk="auto", budget=max(budget, LEAST_TOPOLOGY_MIB * MIB))
    else:
        topology = open_mapped(graph, kind == MAPPED_RANDOM)
    sampler, nodes = NeighborSampler(FANOUTS), graph.num_nodes()
    seeds = torch.from_numpy(np.random.default_rng(3).permutation(nodes))
    batch = 0
    for line in sys.stdin:
        numbers = range(batch, batch + int(line))
        batch = numbers.stop
        starts = [number * BATCH % max(nodes - BATCH, 1) for number in numbers]
        work = [(seeds[at : at + BATCH], SampleKey(batch=number)) for at, number in zip(starts, numbers, strict=True)]
        if int(in_flight):
            samples = stream_samples(sampler, topology, work, in_flight=int(in_flight))
            edges = sum(sample.num_edges for sample in samples)
        else:
            edges = sum(sampler.sample(topology, *one).num_edges for one in work)
        about = {} if topology.disk_memory is None else {**vars(topology.disk_memory), **topology.disk_stats()[EDGE]}
        print(json.dumps({"edges": edges, "resident_bytes": topology.resident_bytes(), **about}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
