"""Paper 003, tables II to IV, measured: the redundancy ratio by chance, from partitions, and with historical embeddings."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from matplotlib.figure import Figure

import gids
from experiments import debian_packages, graphs
from gids import HistoryOptions, generate
from gids.loader.history import choose_candidates
from gids.partition import PartitionOrder, make, redundancy_ratio, seed_parts
from gids.sampling import HistorySampler, NeighborSampler, Sample, SampleKey, SeedOrder, Topology

TITLE = "Paper 003, tables II to IV: redundancy ratios, measured here"
CLAIM = (
    "Batches ask for 475.69 (ogbn-products) and 117.66 (ogbn-papers100M) rows for every training node; from 10,000 parts 32.41 % and 26.60 % fewer; with "
    "historical embeddings of 10 % of the nodes 23.17 % and 12.16 % fewer, of 20 % 32.18 % and 26.98 % fewer. (Table II is printed as a copy of table I; its "
    "ratios are those of the first column of tables III and IV.)"
)
DIFFERS = (
    "A generated graph of small communities, R-MAT, which has none, and Debian's packages with all relations in one, instead of OGB's; streaming partitions of about 400 "
    "nodes instead of METIS's 10,000 parts; embeddings are at most 8 batches old. Rows are counted on sampled batches of one epoch, three layers; nothing is trained."
)
CONFIG = {
    "full": {"nodes": 300_000, "packages": None, "fanouts": [10, 10, 10], "batch_size": 1000, "max_age": 8},
    "tiny": {"nodes": 3000, "packages": 400, "fanouts": [4, 4, 4], "batch_size": 50, "max_age": 4},
}
SECONDS = 120
SHARES = (0.1, 0.2)
PART_NODES = 400


def datasets(config: dict) -> dict[str, gids.Dataset]:
    """The three graphs, made on first use; features are one number a node."""
    graphs.DATA.mkdir(parents=True, exist_ok=True)
    nodes, packages = config["nodes"], config["packages"]
    blocks, rmat = graphs.DATA / f"blocks-{nodes}", graphs.DATA / f"edges-{nodes}"
    debian = graphs.DATA / f"debian-{packages or 'all'}"
    if not blocks.exists():
        generate.communities(blocks, num_nodes=nodes, degree=15.0, dim=1, blocks=max(1, nodes // 200), train=0.1)
    if not rmat.exists():
        generate.rmat(rmat, num_nodes=nodes, degree=15.0, dim=1, train=0.1)
    if not debian.exists():
        found = debian_packages.parse_index(debian_packages.read_index(), packages)
        debian_packages.write_dataset(found, debian, one_relation=True)
    return {"communities": gids.open(blocks), "R-MAT": gids.open(rmat), "Debian": gids.open(debian)}


def run(config: dict) -> dict:
    return {name: ratios(dataset, config) for name, dataset in datasets(config).items()}


def ratios(dataset: gids.Dataset, config: dict) -> dict:
    """Redundancy ratios of one epoch, by how its batches are made."""
    (ntype,) = dataset.node_types
    seeds, topology = {ntype: dataset.split("train", ntype)}, Topology.from_dataset(dataset)
    fanouts, batch = config["fanouts"], config["batch_size"]
    order = SeedOrder(seeds[ntype], batch_size=batch, seed=0, epoch=0)

    def plain(chosen: Iterator[torch.Tensor]) -> Iterator[Sample]:
        sampler = NeighborSampler(fanouts)
        for number, ids in enumerate(chosen):
            yield sampler.sample(topology, {ntype: ids}, SampleKey(0, 0, number))

    def pruned(share: float) -> Iterator[Sample]:
        options = HistoryOptions(dim=1, max_age=config["max_age"], nodes=share)
        candidates = choose_candidates(dataset, options, seeds, fanouts[-1])
        counts = {ntype: dataset.num_nodes(ntype)}
        sampler = HistorySampler(fanouts, candidates, counts, max_age=config["max_age"])

        def seeds_of(epoch: int, number: int) -> dict[str, torch.Tensor]:
            return {ntype: order[number].nodes["_N"]}

        following = sampler.following(seeds_of)
        for number in range(len(order)):
            yield following.sample(topology, seeds_of(0, number), SampleKey(0, 0, number))

    partition = make(dataset, max(1, dataset.num_nodes() // PART_NODES), store=False)
    by_parts = PartitionOrder(seed_parts(partition, seeds)).arrange(0, 0)
    batches = (seeds[ntype][torch.from_numpy(by_parts[i : i + batch])] for i in range(0, len(by_parts), batch))
    return {
        "nodes": dataset.num_nodes(),
        "cut": partition.cut,
        "by chance": redundancy_ratio(plain(order[i].nodes["_N"] for i in range(len(order)))),
        "from partitions": redundancy_ratio(plain(batches)),
        "history": {f"{share:.0%}": redundancy_ratio(pruned(share)) for share in SHARES},
    }


def here(results: dict) -> str:
    said = []
    for name, found in results.items():
        chance = found["by chance"]
        history = " and ".join(f"{1 - value / chance:.1%} with {share}" for share, value in found["history"].items())
        said.append(
            f"on {name} {chance:.1f} rows for every training node; from partitions {1 - found['from partitions'] / chance:.1%} fewer, with embeddings "
            f"of some nodes {history} fewer"
        )
    text = "; ".join(said)
    return f"{text[0].upper()}{text[1:]}."


def table(results: dict) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """One line for every graph."""
    shares = list(next(iter(results.values()))["history"])
    heads = ("graph", "by chance", "from partitions", *(f"reuse {share}" for share in shares), "edges cut")
    lines = []
    for name, found in results.items():
        less = [found["from partitions"], *found["history"].values()]
        changes = [f"{value:.2f} ({value / found['by chance'] - 1:+.1%})" for value in less]
        lines.append((name, f"{found['by chance']:.2f}", *changes, f"{found['cut']:.1%}"))
    return heads, lines


def draw(results: dict, figure: Figure) -> None:
    axis = figure.subplots()
    ways = {"by chance": lambda f: f["by chance"], "from partitions": lambda f: f["from partitions"]}
    ways |= {f"history {s}": (lambda f, s=s: f["history"][s]) for s in next(iter(results.values()))["history"]}
    for number, (label, value) in enumerate(ways.items()):
        places = [group + 0.2 * number for group in range(len(results))]
        axis.bar(places, [value(found) / found["by chance"] for found in results.values()], 0.18, label=label)
    axis.set_xticks([group + 0.3 for group in range(len(results))], list(results))
    axis.set_ylabel("redundancy ratio, over that by chance")
    axis.legend(fontsize=8)
