"""``gids bench sample``: sampled edges per second against DGL, from memory and from disk, and latency of one node."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gids import _native
from gids.bench.harness import Bar, Contender, Measurement, Report, alternate
from gids.bench.power_law import power_law_graph
from gids.bench.sample_disk import disk_budget, disk_section, probe_once, workers_section, write_graph
from gids.bench.sample_limits import LIMITS_MIB, limits_section
from gids.bench.sample_more import labor_section, serve_section
from gids.bench.sample_open import open_section
from gids.bench.sample_ring import RING_MIB, RING_THREADS, ring_section
from gids.errors import ConfigError, GidsError
from gids.sampling import NeighborSampler, SampleKey, Topology

Array = npt.NDArray[Any]

PARTS = ("memory", "latency", "labor", "serve", "disk", "limits", "workers", "ring", "open")
ON_DISK = ("disk", "limits", "workers", "ring", "open")
BATCH = 1024
FANOUTS = ([10, 10, 10], [20, 15, 10])

# Floors of the issue. DGL: both build blocks with the same number of threads from arrays on huge pages, and DGL's rate is
# the better one of its 32-bit and 64-bit graphs. Scaling: the part that must run in order (numbering) is about a third
# of the work, so two threads could reach 2.
FLOOR_DGL = 3.0
FLOOR_SCALING = 1.7


@dataclass(frozen=True)
class Sizes:
    """How much a run does.

    Attributes
    ----------
    batches : int
        Batches of a round in memory.
    disk_batches : int
        Batches of a round from disk, where one takes about a second.
    limits_mib : tuple of (int, float)
        Memory limits for a graph on disk, and what gids must reach beside a mapped file under each.
    ring_mib, ring_threads : tuple of int
        Limits and threads beside RingSampler.
    fio_s : float
        Seconds of one run of fio.
    """

    nodes: int
    edges: int
    disk_nodes: int
    disk_edges: int
    batches: int
    disk_batches: int
    rounds: int
    requests: int
    rmat_nodes: int
    limits_mib: tuple[tuple[int, float], ...] = LIMITS_MIB
    ring_mib: tuple[int, ...] = RING_MIB
    ring_threads: tuple[int, ...] = RING_THREADS
    fio_s: float = 3.0


FULL = Sizes(
    4_000_000,
    60_000_000,
    4_000_000,
    240_000_000,
    batches=4,
    disk_batches=2,
    rounds=5,
    requests=2000,
    rmat_nodes=1_000_000,
)
# Every part, every kind of contender: what is left out is more of the same, in processes that take seconds to start.
QUICK = Sizes(
    *(20_000, 300_000, 20_000, 600_000, 1, 1, 2, 50, 20_000),
    limits_mib=LIMITS_MIB[:1],
    ring_mib=RING_MIB[:1],
    ring_threads=RING_THREADS[1:],
    fio_s=0.2,
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--rounds", type=int, help="repeats of every contender (default 5)")
    parser.add_argument("--directory", type=Path, help="where the graph of the disk part is written (default: $TMPDIR)")
    parser.add_argument(
        "--keep", action="store_true", help="leave that graph in --directory, or use the one left there"
    )
    parser.add_argument("--only", choices=PARTS, nargs="+", default=PARTS, help="run these parts")


def say(part: str) -> None:
    """Say on standard error what is measured now: a whole run takes minutes."""
    print(f"{time.strftime('%H:%M:%S')} bench sample: {part}", file=sys.stderr, flush=True)


def run(args: argparse.Namespace) -> Report:
    """Measure, and compare with the floors."""
    sizes = QUICK if args.quick else FULL
    rounds = args.rounds or sizes.rounds
    report = Report("sample", settings={"batch": BATCH, "fanouts": FANOUTS, **vars(sizes), "rounds": rounds})
    if args.keep and args.directory is None:
        raise ConfigError("--keep needs a --directory to keep the graph in")
    parts = set(args.only)
    if parts - set(ON_DISK):
        small_pages = power_law_graph(sizes.nodes, sizes.edges)
        indptr, indices = (on_huge_pages(array) for array in small_pages)
        topology = Topology.from_arrays(indptr, indices, validate=False)
        if "memory" in parts:
            say("memory")
            memory_section(report, topology, small_pages, sizes, rounds)
        if "latency" in parts:
            say("latency")
            report.extra["latency_us"] = latency_section(topology, sizes.requests)
        if "labor" in parts:
            say("labor")
            labor_section(report, args.directory, sizes.rmat_nodes, sizes.batches, rounds)
        if "serve" in parts:
            say("serve")
            serve_section(report, topology, "memory", sizes.requests, rounds)
        del topology, indptr, indices, small_pages
    if parts & {"serve", *ON_DISK}:
        with graph_directory(args.directory, args.keep, sizes) as directory:
            say("graph on disk")
            graph = write_graph(directory, sizes.disk_nodes, sizes.disk_edges)
            report.extra["curve"] = probe_once(directory, quick=args.quick)
            if "open" in parts:
                say("open")
                open_section(report, graph, rounds, sizes.fio_s)
            if "disk" in parts:
                say("disk")
                disk_section(report, graph, sizes.disk_batches, rounds, sizes.fio_s)
            if "limits" in parts:
                say("limits")
                limits_section(report, directory, sizes.limits_mib, sizes.disk_batches, rounds)
            if "workers" in parts:
                say("workers")
                workers_section(report, graph, sizes.disk_batches, rounds, sizes.fio_s)
            if "ring" in parts:
                say("ring")
                shapes = [(limit, threads) for limit in sizes.ring_mib for threads in sizes.ring_threads]
                ring_section(report, directory, shapes, max(sizes.disk_batches // 2, 1), rounds)
            if "serve" in parts:
                say("serve, disk")
                with Topology.from_dataset(graph, on_disk=True, budget=disk_budget(graph)) as topology:
                    serve_section(report, topology, "disk", max(sizes.requests // 2, 8), rounds)
    return report


@contextlib.contextmanager
def graph_directory(parent: Path | None, keep: bool, sizes: Sizes) -> Iterator[Path]:
    """Yield a directory that is gone afterwards, or one that is kept and named after the graph."""
    if keep and parent is not None:
        directory = parent / f"gids-sample-{sizes.disk_nodes}-{sizes.disk_edges}"
        directory.mkdir(parents=True, exist_ok=True)
        yield directory
        return
    with tempfile.TemporaryDirectory(prefix="gids-sample-", dir=parent) as temporary:
        yield Path(temporary)


def on_huge_pages(array: Array) -> Array:
    """Copy an array to where :meth:`Topology.from_dataset` would put it."""
    copy: Array = _native.huge_bytes(array.nbytes).view(array.dtype)
    copy[:] = array
    return copy


def batches_of_seeds(nodes: int, count: int) -> list[torch.Tensor]:
    """Distinct seeds, in batches; the same ones for every contender."""
    size = min(BATCH, nodes // 4)
    order = torch.from_numpy(np.random.default_rng(1).permutation(nodes))
    return [order[i * size % (nodes - size) :][:size] for i in range(count)]


def memory_section(
    report: Report, topology: Topology, small_pages: tuple[Array, Array], sizes: Sizes, rounds: int
) -> None:
    """Alternate gids and DGL with one and two threads.

    Both get the same arrays. On huge pages: gids, gids with the edge ids that DGL's blocks always carry, DGL with 32-bit
    and with 64-bit ids. On 4 KiB pages: gids, and DGL with 32-bit ids. All must sample as many edges as the others.
    """
    seeds = batches_of_seeds(topology.num_nodes["_N"], sizes.batches)
    pools = {threads: _native.ThreadPool(threads) for threads in (1, 2)}
    on_small = Topology.from_arrays(*small_pages, validate=False)
    graphs = dgl_graphs(*small_pages)
    if not graphs:
        report.extra["dgl"] = "not installed: no comparison"
    beside: dict[str, float] = {}
    for fanouts in FANOUTS:
        label = ",".join(map(str, fanouts))
        sampler, with_ids = NeighborSampler(fanouts), NeighborSampler(fanouts, edge_ids=True)
        contenders = []
        for threads, pool in pools.items():
            runs = {
                "gids": gids_run(sampler, topology, seeds, pool),
                "gids, edge ids": gids_run(with_ids, topology, seeds, pool),
                "gids, 4 KiB pages": gids_run(sampler, on_small, seeds, pool),
            }
            runs |= {name: dgl_run(graph, fanouts, threads, seeds) for name, graph in graphs.items()}
            contenders += [Contender(f"{name} {label} threads={threads}", work) for name, work in runs.items()]
        contenders.append(Contender(f"gids {label} 2 batches at once", batches_at_once(sampler, topology, seeds)))
        edges = {contender.name: contender.run() for contender in contenders}
        if max(edges.values()) > 1.05 * min(edges.values()):
            raise GidsError(f"contenders must sample equally many edges, but for chance (got {edges})")
        rates = alternate(contenders, unit="edges", rounds=rounds)
        report.measurements += rates.values()

        def over(mine: str, *theirs: str, at: str, rates: dict[str, Measurement] = rates) -> float:
            return min(ratio(rates, f"{mine} {at}", f"{their} {at}") for their in theirs)

        for threads in pools if graphs else ():
            at = f"{label} threads={threads}"
            report.bars.append(
                Bar(
                    f"{label}: times DGL, {threads} thread(s)",
                    over("gids", "dgl int32", "dgl int64", at=at),
                    FLOOR_DGL,
                )
            )
            beside[f"{at}, edge ids"] = over("gids, edge ids", "dgl int32", "dgl int64", at=at)
            beside[f"{at}, 4 KiB pages"] = over("gids, 4 KiB pages", "dgl int32, 4 KiB pages", at=at)
        report.bars.append(
            Bar(f"{label}: 2 threads over 1", scaling(report, sampler, topology, seeds, pools, rounds), FLOOR_SCALING)
        )
    report.extra["times_dgl"] = beside


def scaling(
    report: Report,
    sampler: NeighborSampler,
    topology: Topology,
    seeds: Sequence[torch.Tensor],
    pools: dict[int, _native.ThreadPool],
    rounds: int,
) -> float:
    """Measure two threads over one in a contest of their own: one right after the other, and for longer than above."""
    label = ",".join(map(str, sampler.fanouts))
    contenders = [
        Contender(f"gids {label} scaling, threads={threads}", gids_run(sampler, topology, [*seeds] * 4, pool))
        for threads, pool in pools.items()
    ]
    rates = alternate(contenders, unit="edges", rounds=2 * rounds)
    report.measurements += rates.values()
    return ratio(rates, contenders[1].name, contenders[0].name)


def ratio(rates: dict[str, Measurement], over: str, under: str) -> float:
    """Median over rounds of the ratio within a round, so that drift of the machine cancels."""
    return float(np.median([a / b for a, b in zip(rates[over].rates, rates[under].rates, strict=True)]))


def gids_run(
    sampler: NeighborSampler, topology: Topology, seeds: Sequence[torch.Tensor], pool: _native.ThreadPool | None
) -> Callable[[], float]:
    """Return a round of batches, one after the other."""

    def work() -> float:
        return sum(sampler.sample(topology, s, SampleKey(batch=i), pool).num_edges for i, s in enumerate(seeds))

    return work


def batches_at_once(sampler: NeighborSampler, topology: Topology, seeds: Sequence[torch.Tensor]) -> Callable[[], float]:
    """Return a round in which two Python threads sample different batches."""

    def work() -> float:
        with ThreadPoolExecutor(2) as threads:
            jobs = threads.map(
                lambda i: sampler.sample(topology, seeds[i], SampleKey(batch=i)).num_edges, range(len(seeds))
            )
            return sum(jobs)

    return work


def dgl_graphs(indptr: Array, indices: Array) -> dict[str, Any]:
    """Return the graph as DGL holds it, by kind of ids and pages; nothing where DGL is not installed."""
    if importlib.util.find_spec("dgl") is None:
        return {}
    import dgl

    def graph(dtype: type[np.signedinteger[Any]], place: Callable[[Array], Array]) -> Any:
        offsets, sources = (torch.from_numpy(place(array.astype(dtype, copy=False))) for array in (indptr, indices))
        made = dgl.graph(("csc", (offsets, sources, torch.tensor([], dtype=offsets.dtype))))
        assert made.adj_tensors("csc")[1].data_ptr() == sources.data_ptr(), "DGL copied the array to other pages"
        return made

    return {
        "dgl int32": graph(np.int32, on_huge_pages),
        "dgl int64": graph(np.int64, on_huge_pages),
        "dgl int32, 4 KiB pages": graph(np.int32, lambda array: array),
    }


def dgl_run(graph: Any, fanouts: list[int], threads: int, seeds: Sequence[torch.Tensor]) -> Callable[[], float]:
    """Return a round of DGL's batches."""
    import dgl

    # The fused sampler of DGL 1.1.3 carries ids from batch to batch on 32-bit graphs and loses nodes.
    sampler = dgl.dataloading.NeighborSampler(fanouts, fused=graph.idtype == torch.int64)
    typed = [nodes.to(graph.idtype) for nodes in seeds]

    def work() -> float:
        torch.set_num_threads(threads)
        dgl.utils.set_num_threads(threads)
        return sum(sum(block.num_edges() for block in sampler.sample_blocks(graph, nodes)[2]) for nodes in typed)

    return work


def latency_section(topology: Topology, requests: int) -> dict[str, dict[str, float]]:
    """Time single-node samples as a server would take them: by one thread, and by four, each with the next request."""
    sampler = NeighborSampler([10, 10])
    nodes = np.random.default_rng(2).integers(0, topology.num_nodes["_N"], requests)

    def one(i: int) -> float:
        start = time.perf_counter()
        sampler.sample(topology, nodes[i : i + 1], SampleKey(batch=i))
        return (time.perf_counter() - start) * 1e6

    results = {}
    for threads in (1, 4):

        def serve(first: int, threads: int = threads) -> list[float]:
            return [one(i) for i in range(first, requests, threads)]

        with ThreadPoolExecutor(threads) as executor:
            list(executor.map(one, range(min(requests, 50))))
            times = np.concatenate(list(executor.map(serve, range(threads))))
        results[f"{threads} thread(s)"] = {"p50": float(np.median(times)), "p99": float(np.quantile(times, 0.99))}
    return results
