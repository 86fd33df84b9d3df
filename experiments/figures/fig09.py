"""Paper 004, figure 9, measured: rows/s with one batch's accesses in flight, with enough of them, and with reads shared."""

from __future__ import annotations

import math
from typing import Any

from matplotlib.figure import Figure

from experiments.baselines import Job
from experiments.baselines.race import Turn, race
from experiments.graphs import power_law
from experiments.words import faster, sentence
from gids.storage import load_curve
from gids.tiers import AccessModel
from gids.units import parse_bytes

TITLE = "Figure 9: the accumulator at small batches, measured here"
CLAIM = "BaM gains 1.25x and GIDS 1.95x from the accumulator at batch 32, 1.05x and 1.31x at batch 128 (fan-out 5,5)."
DIFFERS = (
    "Rows/s of a CPU with one disk instead of PCIe ingress of an A100 with two Optanes; rows of 1 KiB. The host buffer and the window are on "
    "for GIDS, off for BaM, as in the paper. Rows are read one by one, as there. *Alone*: the accesses of one batch are in flight, and the next batch's begin when the last of them has "
    "ended. *With accumulator*: so many batches are in flight that their accesses reach 95 % of the disk's peak by the paper's equation 3, raised by the share of rows that cache and "
    "host buffer take over (counted in a round of the same loader alone), at most 32; every batch still reads its own rows, cache and memory are the same. *Sharing reads* is not in the paper: "
    "this loader's groups of up to 16 batches, whose rows are read once for all of them in a sweep over the table; an earlier version of this figure called that the accumulator. "
    "The disk takes 128 accesses at a time, so a batch of 1,000 rows fills it but for its end, and a CPU plans and copies between the batches: the gain is that of hiding both."
)
CONFIG = {
    "full": {"nodes": 1_000_000, "batch_sizes": [32, 64, 128], "batches": 64, "rounds": 5, "budget": "192MiB"},
    "tiny": {"nodes": 20_000, "batch_sizes": [32], "batches": 6, "rounds": 1, "budget": "64MiB"},
}
SECONDS = 30
SYSTEMS = ("BaM", "GIDS")
MODES = ("alone", "with accumulator", "sharing reads")
EFFICIENCY = 0.95
MOST_IN_FLIGHT = 32
ROWS_A_SEED = 31  # of fan-out 5,5 with the seed, at most


def run(config: dict) -> dict:
    dataset = power_law(config["nodes"])
    table = dataset.feature_table()
    accesses = AccessModel.from_curve(load_curve(table.stripes[0].path)).accesses_for(EFFICIENCY)
    batches, budget = config["batches"], parse_bytes(config["budget"])
    results: dict[str, Any] = {"accesses_wanted": accesses, "batch_sizes": {}, "in_flight": {}}
    for batch_size in config["batch_sizes"]:
        # The same room for rows in flight in every mode, so that cache and host buffer are the same too.
        room = min(MOST_IN_FLIGHT * batch_size * ROWS_A_SEED * table.row_bytes, budget // 4)

        def turn(system: str, mode: str, options: dict[str, int], room: int = room, size: int = batch_size) -> Turn:
            job = Job(
                str(dataset.path),
                size,
                batches,
                [5, 5],
                budget=budget,
                options={"sweep_batches": 1, "groups": room} | options,
            )
            return Turn(system, job, batches, name=f"{system} {mode}")

        turns, flights = [], {}
        for system in SYSTEMS:
            alone = turn(system, MODES[0], {"groups_in_flight": 1})
            (pilot,) = race([alone], rounds=1, isolated=False).values()
            reads = max(1.0, pilot["disk"] * pilot["rows_per_batch"])
            flights[system] = {"accesses_a_batch": reads, "batches": min(MOST_IN_FLIGHT, math.ceil(accesses / reads))}
            turns += [
                alone,
                turn(system, MODES[1], {"groups_in_flight": max(2, flights[system]["batches"])}),
                turn(system, MODES[2], {"sweep_batches": 16, "groups_in_flight": 2}),
            ]
        results["in_flight"][str(batch_size)] = flights
        results["batch_sizes"][str(batch_size)] = race(turns, rounds=config["rounds"], isolated=False)
    return results


def here(results: dict) -> str:
    sizes = results["batch_sizes"]
    parts = []
    for system in SYSTEMS:
        gains = {
            mode: "/".join(faster(r, f"{system} {mode}", f"{system} alone") for r in sizes.values()) for mode in MODES
        }
        flights = "/".join(str(f[system]["batches"]) for f in results["in_flight"].values())
        parts.append(
            f"{system} gains {gains['with accumulator']} from the accumulator (accesses of {flights} batches in flight) and {gains['sharing reads']} where "
            "batches share their reads"
        )
    return sentence(
        f"at batch {'/'.join(sizes)}, with {results['accesses_wanted']:,.0f} accesses wanted in flight, {parts[0]}",
        parts[1],
    )


def draw(results: dict, figure: Figure) -> None:
    axis = figure.subplots()
    sizes = results["batch_sizes"]
    names = [f"{system} {mode}" for system in SYSTEMS for mode in MODES]
    for i, name in enumerate(names):
        axis.bar(
            [j + 0.13 * i for j in range(len(sizes))],
            [r[name]["rows_per_s"] / 1e3 for r in sizes.values()],
            0.12,
            yerr=[r[name]["mad"] / 1e3 for r in sizes.values()],
            label=name,
            color=f"C{i // len(MODES)}",
            alpha=1 - 0.3 * (i % len(MODES)),
            capsize=2,
        )
    axis.set_xticks([j + 0.33 for j in range(len(sizes))], list(sizes))
    axis.set(xlabel="batch size", ylabel="thousand rows/s")
    axis.legend(fontsize=7, ncols=2)
