"""Paper 003, figure 1, measured: what extraction takes of a training epoch, and how large 3-hop subgraphs are."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from experiments.kg_stages import dataset_of, drain, model_of, options_of, queries_of, train
from experiments.words import listed
from gids.kg import Graph, Loader

TITLE = "Paper 003, figure 1: extraction in a training epoch, and sizes of subgraphs, measured here"
CLAIM = (
    "Subgraph extraction takes 75 % to 90 % of training time on three large knowledge graphs; 3-hop subgraphs grow with the degree of the entity in the "
    "middle, up to a million triples."
)
DIFFERS = (
    "WordNet and a generated graph instead of the paper's three; extraction is this library's basic one, in C++ with two threads and the triples on disk, not a framework's; two cores compute "
    "what a GPU does there. The computation of a GPU would be a small part of what stands here, so extraction's share is the least it can be."
)
CONFIG = {
    "full": {
        "datasets": ["WordNet", "generated"],
        "models": ["RED-GNN", "NBFNet"],
        "entities": 1_500_000,
        "communities": 1500,
        "hops": 3,
        "dim": 32,
        "batch_size": 16,
        "batches": 16,
        "entities_by_degree": 200,
        "budget": "512MiB",
    },
    "tiny": {
        "datasets": ["generated"],
        "models": ["RED-GNN"],
        "entities": 2000,
        "communities": 20,
        "hops": 2,
        "dim": 8,
        "batch_size": 8,
        "batches": 2,
        "entities_by_degree": 10,
        "budget": "64MiB",
    },
}
SECONDS = 120


def run(config: dict) -> dict:
    return {name: _one(dataset_of(name, config), config) for name in config["datasets"]}


def _one(dataset, config: dict) -> dict:
    queries, common = queries_of(dataset, config["batches"] * config["batch_size"]), options_of(config)
    computation = {}
    with Graph(dataset, on_disk=True) as graph:

        def loader() -> Loader:
            return Loader(graph, queries, hops=config["hops"], through="graph", **common)

        extraction = float(np.median([drain(loader)[0] for _ in range(3)]))
        for name in config["models"]:
            with loader() as batches:
                model = model_of(name, dataset, config)
                computation[name], _ = train(iter(batches), model, dataset.knowledge.num_entities)
        sizes = _sizes_by_degree(graph, config)
    return {
        "triples": dataset.knowledge.num_triples,
        "extraction": extraction,
        "computation": computation,
        "sizes_by_degree": sizes,
    }


def _sizes_by_degree(graph: Graph, config: dict) -> list[dict[str, float]]:
    """Triples of subgraphs of entities chosen by lot, for degrees between powers of two."""
    degrees = np.diff(graph.indptr)
    found = []
    for low in 2 ** np.arange(int(np.log2(max(2, degrees.max()))) + 1):
        entities = np.flatnonzero((degrees >= low) & (degrees < 2 * low))
        if not len(entities):
            continue
        chosen = np.random.default_rng(int(low)).permutation(entities)[: config["entities_by_degree"]]
        sizes: list[int] = []
        for begin in range(0, len(chosen), 16):
            extracted = graph.extract(chosen[begin : begin + 16].astype(np.int32), hops=config["hops"])
            sizes += extracted.edge_ptr.diff().tolist()
        found.append({"degree": int(low)} | {f"p{p}": float(np.percentile(sizes, p)) for p in (50, 90, 100)})
    return found


def here(results: dict) -> str:
    said = []
    for name, found in results.items():
        shares = [
            f"{found['extraction'] / (found['extraction'] + seconds):.0%} with {model}"
            for model, seconds in found["computation"].items()
        ]
        sizes = found["sizes_by_degree"]
        said.append(
            f"on {name} ({found['triples']:,} triples) extraction takes {listed(shares)} of extraction and computation, and the subgraph of an entity has "
            f"{sizes[0]['p50']:,.0f} triples in the median at degree {sizes[0]['degree']}, {sizes[-1]['p50']:,.0f} at degree {sizes[-1]['degree']}, "
            f"{max(size['p100'] for size in sizes):,.0f} at most"
        )
    text = "; ".join(said)
    return f"{text[0].upper()}{text[1:]}."


def table(results: dict) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Sizes of subgraphs by degree."""
    heads = ("graph / degree at least", "triples, median", "90 %", "largest")
    lines = [
        (f"{name} / {size['degree']}", *(f"{size[p]:,.0f}" for p in ("p50", "p90", "p100")))
        for name, found in results.items()
        for size in found["sizes_by_degree"]
    ]
    return heads, lines


def draw(results: dict, figure: Figure) -> None:
    left, right = figure.subplots(1, 2)
    labels: list[str] = []
    for name, found in results.items():
        for model, seconds in found["computation"].items():
            whole, first = found["extraction"] + seconds, not labels
            share = found["extraction"] / whole
            left.bar(len(labels), share, color="C1", label="extraction" if first else None)
            left.bar(len(labels), 1 - share, bottom=share, color="C0", label="computation" if first else None)
            labels.append(f"{name}, {model}")
    left.set_xticks(range(len(labels)), labels, rotation=30, ha="right", fontsize=7)
    left.set_ylabel("share of an epoch")
    left.legend(fontsize=8)
    for number, (name, found) in enumerate(results.items()):
        degrees = [size["degree"] for size in found["sizes_by_degree"]]
        right.plot(degrees, [size["p50"] for size in found["sizes_by_degree"]], "o-", color=f"C{number}", label=name)
        right.plot(degrees, [size["p100"] for size in found["sizes_by_degree"]], ":", color=f"C{number}")
    right.set(
        xscale="log", yscale="log", xlabel="degree of the entity", ylabel="triples of its subgraph (largest dotted)"
    )
    right.legend(fontsize=8)
