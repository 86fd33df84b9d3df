"""Paper 003, section IV-B, measured: training curves with and without historical embeddings."""

from __future__ import annotations

import statistics
from itertools import product
from typing import Any

from matplotlib.figure import Figure

import gids
from experiments import debian_packages, graphs
from experiments.words import sentence
from gids import generate
from gids.bench.partition_history import MODELS, SHARE, Outcome, Training, train

TITLE = "Paper 003: training with and without historical embeddings, measured here"
CLAIM = (
    "OUTRE reuses embeddings of a bounded number of batches ago, so that whole subtrees need not be read, and trains GraphSAGE, GCN and GAT; what that does to "
    "a training curve is not printed."
)
DIFFERS = (
    "The demo's task (a generated graph whose features say little and whose neighbours say more) and Debian's packages with all relations in one, instead of OGB's graphs. Embeddings of "
    "20 % of the nodes, at most 16 batches old; testing is exact, after every epoch."
)
CONFIG: dict[str, dict[str, Any]] = {
    "full": {
        "nodes": 200_000,
        "packages": None,
        "models": list(MODELS),
        "epochs": 8,
        "seeds": 1,
        "hidden": 64,
        "batch": 1024,
    },
    "tiny": {"nodes": 2000, "packages": 400, "models": ["GCN"], "epochs": 2, "seeds": 1, "hidden": 8, "batch": 64},
}
SECONDS = 300
WAYS = ("exact", "history")


def datasets(config: dict[str, Any]) -> dict[str, gids.Dataset]:
    """The two tasks, made on first use."""
    graphs.DATA.mkdir(parents=True, exist_ok=True)
    nodes, packages = config["nodes"], config["packages"]
    demo, debian = graphs.DATA / f"demo-{nodes}", graphs.DATA / f"debian-{packages or 'all'}"
    if not demo.exists():
        task: dict[str, Any] = {"degree": 8.0, "dim": 128, "homophily": 0.6, "signal": 1.5}
        generate.communities(demo, num_nodes=nodes, num_classes=16, train=0.1, **task)
    if not debian.exists():
        found = debian_packages.parse_index(debian_packages.read_index(), packages)
        debian_packages.write_dataset(found, debian, one_relation=True)
    return {"the demo's task": gids.open(demo), "Debian": gids.open(debian)}


def run(config: dict[str, Any]) -> dict[str, Any]:
    return {
        f"{model} on {name}": curves(dataset, model, config)
        for (name, dataset), model in product(datasets(config).items(), config["models"])
    }


def curves(dataset: gids.Dataset, model: str, config: dict[str, Any]) -> dict[str, Any]:
    """Mean loss and test accuracy after every epoch, for every seed, both ways, and what was asked for."""
    training = Training(model=model, batch=config["batch"], epochs=config["epochs"], hidden=config["hidden"])
    history = gids.HistoryOptions(dim=training.hidden, max_age=training.max_age, nodes=SHARE)
    found: dict[str, list[Outcome]] = {way: [] for way in WAYS}
    for seed in range(config["seeds"]):
        for way, chosen in zip(WAYS, (None, history), strict=True):
            found[way].append(train(dataset, training, seed, history=chosen, test_every_epoch=True))
    return {
        way: {
            "rows": statistics.mean(outcome.rows for outcome in outcomes),
            "losses": [outcome.losses for outcome in outcomes],
            "accuracies": [outcome.accuracies for outcome in outcomes],
        }
        for way, outcomes in found.items()
    }


def last(found: dict[str, Any], way: str) -> float:
    """Test accuracy after the last epoch in percent, mean over seeds."""
    return 100 * statistics.mean(curve[-1] for curve in found[way]["accuracies"])


def less(found: dict[str, Any]) -> float:
    """Share of the rows that history does not ask for."""
    return 1 - found["history"]["rows"] / found["exact"]["rows"]


def here(results: dict[str, Any]) -> str:
    return sentence(
        *(
            f"{name} asks for {less(found):.1%} fewer rows and puts {last(found, 'history'):.2f} % of the test nodes into their class (exact: {last(found, 'exact'):.2f} %)"
            for name, found in results.items()
        )
    )


def table(results: dict[str, Any]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """One line for every model and graph."""
    heads = ("training", "rows, with history", "last loss, exact", "with history", "accuracy, exact", "with history")
    lines = []
    for name, found in results.items():
        losses = [f"{statistics.mean(curve[-1] for curve in found[way]['losses']):.4f}" for way in WAYS]
        accuracies = [f"{last(found, way):.2f} %" for way in WAYS]
        lines.append((name, f"{-less(found):+.1%}", *losses, *accuracies))
    return heads, lines


def draw(results: dict[str, Any], figure: Figure) -> None:
    axes = figure.subplots(2, len(results), squeeze=False, sharex=True)
    for column, (name, found) in enumerate(results.items()):
        for row, (key, label) in enumerate((("losses", "loss"), ("accuracies", "test accuracy"))):
            axis = axes[row][column]
            for number, way in enumerate(WAYS):
                for seed, curve in enumerate(found[way][key]):
                    style = {"color": f"C{number}", "linestyle": "-" if way == "exact" else "--", "linewidth": 1}
                    axis.plot(range(1, len(curve) + 1), curve, label=None if seed else way, **style)
            if column == 0:
                axis.set_ylabel(label)
            axis.tick_params(labelsize=6)
        axes[0][column].set_title(name, fontsize=6)
        axes[1][column].set_xlabel("epoch", fontsize=7)
    axes[0][0].legend(fontsize=7)
