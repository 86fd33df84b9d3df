"""Paper 003, figure 13, measured: an epoch of inductive reasoning by stage, with basic extraction, atoms, Ginex, and slices."""

from __future__ import annotations

from matplotlib.figure import Figure

from experiments.kg_stages import CONTENDERS, dataset_of, stages
from experiments.words import listed

TITLE = "Paper 003, figure 13: an epoch of reasoning on knowledge graphs by stage, measured here"
CLAIM = (
    "TIGER without slicing, as every epoch after the first is, is 1.9x to 7.9x as fast as the Basic pipeline; Atom is between them; slicing takes less "
    "than 65 % of the time that Ginex's slices of equal length take."
)
DIFFERS = (
    "WordNet and a generated graph instead of OgblKG2, FB5M and ConceptNet; RED-GNN and NBFNet of six models; two cores compute what a GPU does there, so that computation "
    "weighs more in every epoch. Stages are measured one by one and added up, as the paper does; the loader overlaps them. All four give the same "
    "subgraphs to the bit, on one runtime and one disk, read past the page cache."
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
        "rounds": 3,
        "slice_bytes": 4096,
        "cache": "32MiB",
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
        "rounds": 1,
        "slice_bytes": 1024,
        "cache": "256KiB",
        "budget": "64MiB",
    },
}
SECONDS = 240


def run(config: dict) -> dict:
    return {name: stages(dataset_of(name, config), config) for name in config["datasets"]}


def epoch(found: dict, contender: str, model: str, slicing: bool = False) -> float:
    """Seconds of an epoch: extraction and computation, and slicing where it is the first one."""
    seconds = found["seconds"][contender]
    return seconds["extraction"] + found["computation"][model] + (seconds["slicing"] if slicing else 0.0)


def here(results: dict) -> str:
    said = []
    for name, found in results.items():
        basic, tiger, ginex, atom = (found["seconds"][c] for c in ("Basic", "TIGER", "Ginex", "Atom"))
        times = [f"{epoch(found, 'Basic', m) / epoch(found, 'TIGER', m):.2f}x with {m}" for m in found["computation"]]
        said.append(
            f"on {name} ({found['triples']:,} triples, subgraphs of {found['subgraph_triples']['p50']:,} in the median) an epoch through slices "
            f"takes as long as Basic's divided by {listed(times)}, extraction alone {basic['extraction'] / tiger['extraction']:.2f} times "
            f"(atoms cached: {basic['extraction'] / atom['extraction']:.2f}, equal slices: {basic['extraction'] / ginex['extraction']:.2f}); "
            f"slicing takes {tiger['slicing'] / ginex['slicing']:.0%} of what equal slices take"
        )
    text = "; ".join(said)
    return f"{text[0].upper()}{text[1:]}. Every loss through slices is that through basic extraction, to the bit."


def table(results: dict) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """One line for every graph and contender."""
    models = list(next(iter(results.values()))["computation"])
    heads = ("graph / contender", "slicing, once (s)", "extraction (s)", *(f"computation, {m} (s)" for m in models))
    lines = [
        (
            f"{name} / {contender}",
            f"{found['seconds'][contender]['slicing']:.2f}" if found["seconds"][contender]["slicing"] else "-",
            f"{found['seconds'][contender]['extraction']:.2f}",
            *(f"{found['computation'][m]:.2f}" for m in models),
        )
        for name, found in results.items()
        for contender in CONTENDERS
    ]
    return heads, lines


def draw(results: dict, figure: Figure) -> None:
    axes = figure.subplots(1, len(results), squeeze=False)[0]
    for axis, (name, found) in zip(axes, results.items(), strict=True):
        places, labels = [], []
        for group, model in enumerate(found["computation"]):
            for number, contender in enumerate(CONTENDERS):
                place, bottom = group * (len(CONTENDERS) + 1) + number, 0.0
                seconds = found["seconds"][contender] | {"computation": found["computation"][model]}
                for stage, color in (("computation", "C0"), ("extraction", "C1"), ("slicing", "C2")):
                    label = stage if not places else None
                    axis.bar(place, seconds[stage], bottom=bottom, color=color, label=label)
                    bottom += seconds[stage]
                places.append(place)
                labels.append(f"{contender}, {model}")
        axis.set_xticks(places, labels, rotation=90, fontsize=7)
        axis.set_title(name, fontsize=9)
    axes[0].set_ylabel("seconds of the first epoch")
    axes[0].legend(fontsize=8)
