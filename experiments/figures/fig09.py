"""Paper 004, figure 9, measured: rows/s without and with the accumulator at small batches."""

from __future__ import annotations

from matplotlib.figure import Figure

from experiments.baselines import Job
from experiments.baselines.race import Turn, race
from experiments.graphs import power_law
from experiments.words import faster
from gids.units import parse_bytes

TITLE = "Figure 9: the accumulator at small batches, measured here"
CLAIM = "BaM gains 1.25x and GIDS 1.95x from the accumulator at batch 32, 1.05x and 1.31x at batch 128 (fan-out 5,5)."
DIFFERS = (
    "Rows/s of a CPU with one disk instead of PCIe ingress of an A100 with two Optanes; rows of 1 KiB. The host buffer and the window are on "
    "for GIDS, off for BaM, as in the paper. Rows are read one by one, as there; only rows that touch share a read."
)
CONFIG = {
    "full": {"nodes": 1_000_000, "batch_sizes": [32, 64, 128], "batches": 64, "rounds": 5, "budget": "192MiB"},
    "tiny": {"nodes": 20_000, "batch_sizes": [32], "batches": 6, "rounds": 1, "budget": "64MiB"},
}
SECONDS = 25


def run(config: dict) -> dict:
    dataset = power_law(config["nodes"])
    results = {}
    for batch_size in config["batch_sizes"]:
        turns = []
        for system in ("BaM", "GIDS"):
            for mode, group in (("alone", 1), ("with accumulator", 16)):
                job = Job(
                    str(dataset.path),
                    batch_size,
                    config["batches"],
                    [5, 5],
                    budget=parse_bytes(config["budget"]),
                    options={"max_group": group},
                )
                turns.append(Turn(system, job, config["batches"], name=f"{system} {mode}"))
        results[str(batch_size)] = race(turns, rounds=config["rounds"], isolated=False)
    return results


def here(results: dict) -> str:
    gains = {
        system: "/".join(faster(r, f"{system} with accumulator", f"{system} alone") for r in results.values())
        for system in ("BaM", "GIDS")
    }
    sizes = "/".join(results)
    return f"At batch {sizes} BaM gains {gains['BaM']} and GIDS {gains['GIDS']} from the accumulator."


def draw(results: dict, figure: Figure) -> None:
    axis = figure.subplots()
    names = list(next(iter(results.values())))
    for i, name in enumerate(names):
        at = [j + 0.2 * i for j in range(len(results))]
        axis.bar(
            at,
            [r[name]["rows_per_s"] / 1e3 for r in results.values()],
            0.18,
            yerr=[r[name]["mad"] / 1e3 for r in results.values()],
            label=name,
            capsize=2,
        )
    axis.set_xticks([j + 0.3 for j in range(len(results))], list(results))
    axis.set(xlabel="batch size", ylabel="thousand rows/s")
    axis.legend(fontsize=8)
