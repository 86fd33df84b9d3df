"""Paper 004, figure 5, measured: where the time of an iteration goes."""

from __future__ import annotations

from matplotlib.figure import Figure

from experiments.baselines import Job
from experiments.baselines.race import PROCESS_BYTES, Turn, race
from experiments.graphs import power_law
from experiments.words import listed
from gids.units import parse_bytes

TITLE = "Figure 5: time of an iteration by stage, measured here"
CLAIM = (
    "With DGL over a mapped file, feature aggregation takes nearly all of an iteration on graphs that do not fit in memory (IGB-Full, "
    "IGBH-Full: training is barely visible); on graphs that fit, sampling and aggregation still lead."
)
DIFFERS = (
    "The paper trains on an A100; here two cores sample, gather and train, so training weighs more in every iteration. "
    "MADV_RANDOM instead of a plain mapping. gids prepares batches while the model trains: what is left to see of it is waiting."
)
CONFIG = {
    "full": {
        "graphs": {"fits in memory": 200_000, "does not fit in memory": 1_000_000},
        "fanouts": [10, 10],
        "batch_size": 1024,
        "batches": 16,
        "mapped_batches": 2,
        "mapped_warm": 6,
        "rounds": 3,
        "limit": "768MiB",
        "beside": "128MiB",
    },
    "tiny": {
        "graphs": {"fits in memory": 20_000},
        "fanouts": [5, 5],
        "batch_size": 64,
        "batches": 2,
        "mapped_batches": 1,
        "mapped_warm": 1,
        "rounds": 1,
        "limit": None,
        "beside": "0",
    },
}
SECONDS = 55
STAGES = ("sampling", "features", "waiting", "training")


def run(config: dict) -> dict:
    limit = parse_bytes(config["limit"]) if config["limit"] else None
    results = {}
    for graph, nodes in config["graphs"].items():
        dataset = power_law(nodes)
        budget = limit - PROCESS_BYTES - parse_bytes(config["beside"]) if limit else 64 << 20
        job = Job(str(dataset.path), config["batch_size"], config["batches"], config["fanouts"], budget=budget)
        turns = [
            Turn("DGL mmap, MADV_RANDOM", job, config["mapped_batches"], warm_batches=config["mapped_warm"]),
            Turn("gids", job, config["batches"]),
            Turn("DGL in memory", job, config["batches"]),
        ]
        results[graph] = race(
            turns, rounds=config["rounds"], limit_bytes=limit, isolated=limit is not None, train=True
        ) | {"table_bytes": dataset.feature_table().total_bytes}
    return results


def here(results: dict) -> str:
    sentences = []
    for graph, contenders in results.items():
        parts = []
        for name, result in contenders.items():
            if not isinstance(result, dict) or "stages_per_batch" not in result:
                continue
            stages = result["stages_per_batch"]
            total = sum(stages.values())
            shares = [f"{stage} {stages[stage] / total:.0%}" for stage in STAGES if stage in stages]
            parts.append(f"{name} {1e3 * total:.0f} ms an iteration ({', '.join(shares)})")
        sentences.append(f"Where the table {graph}: {listed(parts)}.")
    return " ".join(sentences)


def draw(results: dict, figure: Figure) -> None:
    axes = figure.subplots(1, len(results), squeeze=False)[0]
    for axis, (graph, contenders) in zip(axes, results.items(), strict=True):
        table = contenders["table_bytes"]
        shown = {name: r for name, r in contenders.items() if isinstance(r, dict) and "stages_per_batch" in r}
        for place, result in enumerate(shown.values()):
            bottom = 0.0
            for stage, colour in zip(STAGES, ("C0", "C3", "C7", "C2"), strict=True):
                value = result["stages_per_batch"].get(stage, 0.0)
                axis.bar(
                    place, value, 0.6, bottom, color=colour, label=stage if place == 0 or stage == "waiting" else None
                )
                bottom += value
            axis.text(place, bottom, f"{bottom:.2f} s", ha="center", va="bottom", fontsize=8)
        axis.set_xticks(range(len(shown)), [name.replace(", ", "\n") for name in shown], fontsize=8)
        axis.set_title(f"{graph} (table {table / 2**20:.0f} MiB)", fontsize=9)
    axes[0].set_ylabel("seconds an iteration")
    handles = {label: h for h, label in zip(*axes[0].get_legend_handles_labels(), strict=True)}
    axes[0].legend(handles.values(), handles.keys(), fontsize=8)
