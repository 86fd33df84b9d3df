"""The process that ``gids bench kg`` measures in: its memory is limited from outside, its answer is one line of JSON."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

import gids
from gids import MemoryOptions, PipelineOptions
from gids.bench.kg_contenders import EqualSlices, equal_loader, hit_ratios
from gids.bench.page_cache import forget_pages
from gids.errors import GidsError
from gids.kg import Batch, Graph, Loader, Slices
from gids.kg.slices import describe
from gids.report.growth import peak_resident_bytes
from gids.units import parse_bytes


def main() -> None:
    """Measure and print."""
    spec = json.loads(sys.argv[1])
    dataset = gids.open(spec["data"])
    work = Path(spec["work"])
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        print(json.dumps(measure(dataset, work, spec)), flush=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def choose_queries(graph: Graph, spec: dict[str, Any]) -> NDArray[np.int32]:
    """Take a triple of each of some entities of some neighbourhoods as queries, in an order by lot.

    Training asks for every triple of every neighbourhood, and slices are shared by those; a few queries strewn over the
    whole graph would have nothing in common. Here a neighbourhood (2 hops) gives ``region`` queries, far fewer than that.
    """
    generator, wanted = np.random.default_rng(0), spec["batches"] * spec["batch"]
    queries: list[NDArray[np.int32]] = []
    while sum(map(len, queries)) < wanted:
        root = generator.integers(graph.num_entities, size=1).astype(np.int32)
        near = graph.extract(root, hops=2).entities.numpy()
        heads = generator.permutation(near)[: spec["region"]]
        found = graph.extract(heads, hops=1)
        chosen = (found.edge_ptr[:-1] + found.edge_ptr.diff() // 2).numpy()  # one of each: atoms are never empty here
        columns = (heads, found.relations[chosen], found.entities[found.tails[chosen].long()])
        queries.append(np.column_stack([np.asarray(column) for column in columns]).astype(np.int32))
    return np.ascontiguousarray(generator.permutation(np.concatenate(queries)[:wanted]))


def measure(dataset: gids.Dataset, work: Path, spec: dict[str, Any]) -> dict[str, Any]:
    """Run every contender, alternated, and check that all give the same subgraphs."""
    hops = spec["hops"]
    # One graph for all: a second one would take as much memory for its offsets as the slices' caches.
    with Graph(dataset, on_disk=True) as graph:
        queries = choose_queries(graph, spec)
        heads = np.ascontiguousarray(queries[:, 0])
        equal = EqualSlices(graph, work / "equal", hops, spec["slice_bytes"] // 8)
        slicing = time_slicing(graph, equal, heads, work / "slices", spec)
        with Slices(graph, work / "slices", hops=hops, slice_bytes=spec["slice_bytes"]) as slices:
            common: dict[str, Any] = {
                "batch_size": spec["batch"],
                "order": gids.OrderOptions(shuffle=False),
                "budget": spec["budget"],
            }
            common |= {"pipeline": PipelineOptions(prefetch=1, window=spec["batches"])}
            cached = common | {"memory": MemoryOptions(topology="disk", cache=spec["cache"], policy="belady")}
            makers: dict[str, Callable[[], Loader]] = {
                "basic": lambda: Loader(graph, queries, hops=hops, through="graph", **common),
                "equal slices": lambda: equal_loader(equal, queries, **cached),
                "slices": lambda: Loader(graph, queries, hops=hops, slices=slices, **cached),
            }
            extraction: dict[str, list[float]] = {name: [] for name in makers}
            digests, found = set(), Epoch(0, 0.0, None, {})
            hit_ratio = 0.0
            order = list(makers.items())
            for number in range(spec["rounds"]):
                for name, make in order if number % 2 == 0 else order[::-1]:
                    for file in (work / "slices" / "slices.bin", work / "equal" / "triples.bin"):
                        forget_pages(file)
                    found = run_epoch(make, check=number == 0)
                    extraction[name].append(found.triples / found.seconds)
                    digests |= set() if found.digest is None else {found.digest}
                    hit_ratio = found.hit_ratios.get("slices", hit_ratio)
            if len(digests) != 1:
                raise GidsError("contenders must give the same subgraphs (they differ)")
            figures = describe(slices.figures())
            batches = [heads[i : i + spec["batch"]] for i in range(0, len(heads), spec["batch"])]
            cache_bytes = parse_bytes(spec["cache"])
            ratios = hit_ratios(slices, batches, cache_bytes, ("belady", "window(4)", "lru"))
            sizes = slices.of(np.unique(heads))[2]
            memory = slices.memory_bytes
    sliced_triples = int(str(figures["triples"]))
    return {
        "extraction": extraction,
        "slicing": {name: [sliced_triples / seconds for seconds in values] for name, values in slicing.items()},
        "graph": {"triples": dataset.knowledge.num_triples, "bytes": dataset.knowledge.triples_table.total_bytes},
        "subgraph_triples": {f"p{p}": int(np.percentile(sizes, p)) for p in (0, 50, 90, 100)},
        "epoch_triples": found.triples,
        "slices": figures,
        "equal_bytes": equal.disk_bytes,
        "hit_ratio": ratios | {"loader": hit_ratio},
        "slicing_memory_bytes": memory,
        "peak_rss_bytes": peak_resident_bytes(),
        "same_subgraphs": True,
    }


def time_slicing(
    graph: Graph, equal: EqualSlices, heads: NDArray[np.int32], path: Path, spec: dict[str, Any]
) -> dict[str, list[float]]:
    """Make slices and whole copies, alternated; return the seconds of both."""

    def make_slices() -> None:
        shutil.rmtree(path, ignore_errors=True)
        with Slices(graph, path, hops=spec["hops"], slice_bytes=spec["slice_bytes"]) as slices:
            slices.ensure(heads)

    makers: list[tuple[str, Callable[[], None]]] = [
        ("make slices", make_slices),
        ("make equal slices", lambda: equal.prepare(heads)),
    ]
    seconds: dict[str, list[float]] = {name: [] for name, _ in makers}
    for number in range(spec["rounds"]):
        for name, make in makers if number % 2 == 0 else makers[::-1]:
            begin = time.perf_counter()
            make()
            seconds[name].append(time.perf_counter() - begin)
    return seconds


class Epoch(NamedTuple):
    """What one epoch of a loader gave: triples, seconds (checking is not counted), a digest of all bits, hit ratios."""

    triples: int
    seconds: float
    digest: str | None
    hit_ratios: dict[str, float]


def run_epoch(make: Callable[[], Loader], check: bool) -> Epoch:
    """Open a loader, take an epoch, close it; opening it, with its first batch, is counted."""
    digest, triples = xxhash.xxh3_128(), 0
    begin = time.perf_counter()
    with make() as loader:
        epoch = iter(loader)
        seconds = time.perf_counter() - begin
        while True:
            begin = time.perf_counter()
            batch: Batch | None = next(epoch, None)
            seconds += time.perf_counter() - begin
            if batch is None:
                break
            triples += batch.subgraphs.num_triples
            if check:
                for tensor in (*batch.subgraphs.tensors(), batch.tail_positions):
                    digest.update(tensor.numpy().data)
        ratios = {name: table.hit_ratio for name, table in loader.stats().tables.items()}
    return Epoch(triples, seconds, digest.hexdigest() if check else None, ratios)


if __name__ == "__main__":
    main()
