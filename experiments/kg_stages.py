"""Knowledge graphs that paper 003's figures measure on, and the stages of an epoch: slicing, extraction, computation."""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash

import gids
from experiments import graphs
from gids import MemoryOptions, PipelineOptions
from gids.bench.kg_contenders import EqualSlices, equal_loader
from gids.bench.page_cache import forget_pages
from gids.convert.kg import KgOptions, convert_kg
from gids.errors import GidsError
from gids.generate import knowledge
from gids.kg import Batch, Graph, Loader, Slices, with_reverse
from gids.models import NbfNet, RedGnn, ranking_loss

WORDNET = Path("/usr/share/wordnet")
MODELS = {"RED-GNN": RedGnn, "NBFNet": NbfNet}
BOTH_WAYS = {"reverse": True, "identity": True}
#: Paper 003's names; Ginex there is whole subgraphs in slices of equal length, without reuse.
CONTENDERS = ("Basic", "Atom", "Ginex", "TIGER")


def dataset_of(name: str, config: dict[str, Any]) -> gids.Dataset:
    """Return a graph with reverses and identities, made on first use: WordNet as Debian installs it, or a generated one."""
    graphs.DATA.mkdir(parents=True, exist_ok=True)
    if name == "WordNet":
        path = graphs.DATA / "wordnet"
        if not path.exists():
            if not WORDNET.exists():
                raise GidsError(f"{WORDNET} must hold WordNet's database: apt install wordnet-base")
            convert_kg(WORDNET, path, options=KgOptions(**BOTH_WAYS))
        return gids.open(path)
    entities, communities = config["entities"], config["communities"]
    path = graphs.DATA / f"kg-{entities}-{communities}"
    if not path.exists():
        options = KgOptions(train=min(1.0, 50 * config["batches"] / entities), **BOTH_WAYS)
        knowledge(path, num_entities=entities, communities=communities, degree=9.0, options=options)
    return gids.open(path)


def queries_of(dataset: gids.Dataset, count: int) -> np.ndarray:
    """Choose training queries by lot, in both directions, in an order by lot."""
    queries = dataset.knowledge.queries("train")
    generator = np.random.default_rng(0)
    chosen = queries[np.sort(generator.permutation(len(queries))[: count // 2])]
    return np.ascontiguousarray(generator.permutation(with_reverse(dataset.knowledge, chosen)))


def options_of(config: dict[str, Any]) -> dict[str, Any]:
    """Return what all loaders have in common: nothing is made ahead but the next batch."""
    pipeline = PipelineOptions(prefetch=1, window=config["batches"])
    order = gids.OrderOptions(shuffle=False)
    return {"batch_size": config["batch_size"], "order": order, "budget": config["budget"], "pipeline": pipeline}


def drain(make: Callable[[], Loader], check: bool = False) -> tuple[float, str]:
    """Take an epoch and do nothing with it: its seconds, opening included, and a digest of all bits where asked for."""
    digest, seconds = xxhash.xxh3_128(), 0.0
    begin = time.perf_counter()
    with make() as loader:
        for batch in loader:
            seconds += time.perf_counter() - begin
            if check:
                for tensor in batch.subgraphs.tensors():
                    digest.update(tensor.numpy().data)
            begin = time.perf_counter()
    return seconds, digest.hexdigest()


def train(batches: Iterator[Batch], model: torch.nn.Module, candidates: int) -> tuple[float, list[float]]:
    """Train on batches; return the seconds that the model took, and every loss."""
    optimizer, losses, seconds = torch.optim.Adam(model.parameters(), lr=3e-3), [], 0.0
    for batch in batches:
        begin = time.perf_counter()
        scores = model(batch.subgraphs, batch.relations)
        loss = ranking_loss(scores, batch.subgraphs.node_ptr, batch.tail_positions, candidates) / len(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seconds += time.perf_counter() - begin
        losses.append(loss.item())
    return seconds, losses


def model_of(name: str, dataset: gids.Dataset, config: dict[str, Any]) -> torch.nn.Module:
    """Return a model as the paper sizes it, from the same random numbers every time."""
    torch.manual_seed(0)
    return MODELS[name](dataset.knowledge.num_relations, config["dim"], layers=config["hops"])


def stages(dataset: gids.Dataset, config: dict[str, Any]) -> dict[str, Any]:
    """Measure slicing and extraction of every contender, alternated, and the computation of every model, once."""
    hops, queries = config["hops"], queries_of(dataset, config["batches"] * config["batch_size"])
    heads, common = np.ascontiguousarray(queries[:, 0]), options_of(config)
    cached = common | {"memory": MemoryOptions(topology="disk", cache=config["cache"], policy="belady")}
    home = graphs.DATA / "kg-slices"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    seconds: dict[str, dict[str, list[float]]] = {name: {"slicing": [], "extraction": []} for name in CONTENDERS}
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        graph = stack.enter_context(Graph(dataset, on_disk=True))
        atoms = stack.enter_context(Graph(dataset, on_disk=True, atom_cache=config["cache"]))
        equal = EqualSlices(graph, home / "equal", hops, config["slice_bytes"] // 8)

        def make_slices() -> Slices:
            return Slices(atoms, home / "slices", hops=hops, slice_bytes=config["slice_bytes"])

        for _ in range(config["rounds"]):
            shutil.rmtree(home / "slices", ignore_errors=True)
            begin = time.perf_counter()
            with make_slices() as slices:
                slices.ensure(heads)
            seconds["TIGER"]["slicing"].append(time.perf_counter() - begin)
            begin = time.perf_counter()
            equal.prepare(heads)
            seconds["Ginex"]["slicing"].append(time.perf_counter() - begin)
        slices = stack.enter_context(make_slices())
        makers: dict[str, Callable[[], Loader]] = {
            "Basic": lambda: Loader(graph, queries, hops=hops, through="graph", **common),
            "Atom": lambda: Loader(atoms, queries, hops=hops, through="graph", **common),
            "Ginex": lambda: equal_loader(equal, queries, **cached),
            "TIGER": lambda: Loader(atoms, queries, hops=hops, slices=slices, **cached),
        }
        digests = set()
        for number in range(config["rounds"]):
            for name, make in makers.items() if number % 2 == 0 else reversed(makers.items()):
                for file in (home / "slices" / "slices.bin", home / "equal" / "triples.bin"):
                    forget_pages(file)
                taken, digest = drain(make, check=number == 0)
                seconds[name]["extraction"].append(taken)
                digests |= {digest} if number == 0 else set()
        if len(digests) != 1:
            raise GidsError("contenders must give the same subgraphs (they differ)")
        computation, losses = {}, {}
        for name in config["models"]:
            for contender in ("Basic", "TIGER"):
                with makers[contender]() as loader:
                    model, number = model_of(name, dataset, config), dataset.knowledge.num_entities
                    computation[name], losses[contender] = train(iter(loader), model, number)
            if losses["Basic"] != losses["TIGER"]:
                raise GidsError(f"{name} must have the same losses through slices and through basic extraction")
        sizes, figures = slices.of(heads)[2], slices.figures()
    medians = {
        name: {stage: statistics.median(values) if values else 0.0 for stage, values in found.items()}
        for name, found in seconds.items()
    }
    return {
        "triples": dataset.knowledge.num_triples,
        "entities": dataset.knowledge.num_entities,
        "queries": len(queries),
        "subgraph_triples": {f"p{p}": int(np.percentile(sizes, p)) for p in (50, 90, 100)},
        "seconds": medians,
        "all_seconds": seconds,
        "computation": computation,
        "losses_equal_to_the_bit": True,
        "slices": {"score": figures.score, "redundancy": figures.redundancy, "utilization": figures.utilization},
        "disk_bytes": {"Ginex": equal.disk_bytes, "TIGER": figures.disk_bytes},
    }
