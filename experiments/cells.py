"""Every cell that `gids bench epoch` and `gids bench train` measured, and what `gids bench cuda` estimated, as tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from experiments import records
from experiments.records import Record

#: What is named as close: cells under this ratio.
CLOSE = 1.5
REGIMES = ("dense", "sparse")
MAPPED = "dgl-mmap-random"
#: The papers' baseline, which has nothing to be tuned by.
LABELS = {MAPPED: "DGL's sampler, then rows from the mapped file with `MADV_RANDOM`, one batch after the other"}


def number(value: float) -> str:
    """Two decimals, one from 10 on, three below 0.1; millions by that name."""
    if value >= 1e6:
        return f"{value / 1e6:.1f} M"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


def times(value: float) -> str:
    """Return how many times as fast; a cell in which gids is slower stands in bold."""
    return number(value) if value >= 1 else f"**{number(value)}**"


def newest_with(name: str, *keys: str) -> Iterator[Record]:
    """Yield, for each machine, its newest record of a benchmark whose results have these keys."""
    seen = set()
    for record in records.kept(name):
        if record.machine not in seen and all(record.content["results"].get(key) for key in keys):
            seen.add(record.machine)
            yield record


def tables(name: str) -> list[str]:
    """Return the tables of a benchmark, newest machine first; none where it has no cells."""
    lines = []
    if name == "epoch":
        for regime in REGIMES:
            for record in newest_with("epoch", regime):
                lines += regime_table(regime, record)
    if name == "train":
        for record in newest_with("train", "seconds_per_epoch"):
            lines += train_table(record)
    if name == "cuda":
        for record in records.newest("cuda")[:1]:  # counted, whatever machine it ran on
            lines += cuda_table(record)
    return lines


def origin(record: Record) -> str:
    """Say where a table is from."""
    return f"{record.machine}, {record.when}, {record.commit}"


def regime_table(regime: str, record: Record) -> list[str]:
    """Return one regime: what its batches ask for and what was read for them, then a line for each peer."""
    found = record.content["results"][regime]
    cells: dict[str, float] = found["times_peer"]
    lines = [
        "",
        f"*{regime.capitalize()}* batches, every peer at its best; {origin(record)}. A batch asks for "
        f"{100 * found['density']:.3g} % of the rows, {100 * found['served_without_disk']:.0f} % of them came without the disk; "
        f"{number(found['rows_per_read'])} rows a read; reads/s over the probed limit {number(found['reads_over_limit'])}; "
        f"bytes read over bytes needed {number(found['bytes_read_over_needed'])}.",
        "",
        "| peer | at its best | rows/s of gids over it | measured |",
        "| --- | --- | --- | --- |",
    ]
    for peer in sorted(cells, key=lambda peer: cells[peer]):
        tuned = found["peers"].get(peer)
        setting = "–" if tuned is None else tuned["in_words"]
        how = "in turns with gids" if tuned is None or tuned["alternated"] else "one turn, while tuned"
        lines.append(f"| {LABELS.get(peer, peer)} | {setting} | {times(cells[peer])} | {how} |")
    lines += ["", close({LABELS.get(peer, peer): value for peer, value in cells.items()})]
    if found["left_out"]:
        lines += ["", not_run(found["left_out"])]
    return lines


def cuda_table(record: Record) -> list[str]:
    """Return what a batch asks of a GPU: a line for each setting and machine, counted on the left, estimated on the right."""
    lines = [
        "",
        f"What a batch asks for, counted, and how long it would take, **estimated, not measured**; {origin(record)}.",
        "",
        "| batch, machine | launches | host waits | functions of the host | copies to / from the device | GB over the link | "
        "sample, ms | plan, ms | gather, ms | copies, ms | slowest |",
        "| --- |" + " --- |" * 10,
    ]
    for name, found in record.content["results"].items():
        if "time by stage, us" not in found:
            continue
        copies = {way: sum(n for kind, n in found["copies by kind"].items() if way in kind) for way in ("h2d", "d2h")}
        device = {stage: us["device"] / 1e3 for stage, us in found["time by stage, us"].items()}
        stages = " | ".join(f"{device.get(stage, 0.0):.2f}" for stage in ("sample", "plan", "gather", "storage"))
        slowest, us = found["slowest resource"].partition(";")[0], max(found["time by resource, us"].values())
        lines.append(
            f"| {name.removesuffix(' (estimated, not measured)')} | {found['launches']:.1f} | {found['host waits']:.1f} | "
            f"{found['functions of the host in streams']:.1f} | {copies['h2d']:.1f} / {copies['d2h']:.1f} | "
            f"{found['bytes over the link'] / 1e9:.2f} | {stages} | {slowest}: {us / 1e3:.1f} ms |"
        )
    return lines


def not_run(left_out: dict[str, str]) -> str:
    """Name the peers that could not run, and why."""
    return f"Not run: {'; '.join(f'{peer} ({why})' for peer, why in left_out.items())}."


def close(cells: dict[str, float]) -> str:
    """Name the cells under :data:`CLOSE`."""
    under = [f"{cell} ({times(value)})" for cell, value in cells.items() if value < CLOSE]
    return f"Under {CLOSE}: {', '.join(under)}." if under else f"No cell is under {CLOSE}."


def train_table(record: Record) -> list[str]:
    """Return whole iterations: a line for each door, model and width; and the time to an accuracy."""
    found = record.content["results"]
    seconds: dict[str, dict[str, float]] = found["seconds_per_epoch"]
    over_peer = {cell: one["best peer"] / one["gids"] for cell, one in seconds.items()}
    lines = [
        "",
        f"Seconds of an epoch by door, model and width; {origin(record)}.",
        "",
        "| cell | gids | best peer | all in memory | best peer over gids | gids over memory | the best peer |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for cell, one in seconds.items():
        lines.append(
            f"| {cell} | {number(one['gids'])} | {number(one['best peer'])} | {number(one['in memory'])} | "
            f"{times(over_peer[cell])} | {number(found['over_memory'][cell])} | {found['best_peer'][cell]} |"
        )
    lines += ["", close(over_peer)]
    failed = {
        f"{cell}: {peer}": why for cell, peers in found.get("left_out", {}).items() for peer, why in peers.items()
    }
    if failed:
        lines += ["", not_run(failed)]
    reached: dict[str, dict[str, Any]] = found.get("to_accuracy", {})
    if reached:
        share = 100 * record.content["provenance"]["settings"]["accuracy"]
        parts = [
            f"{who} {number(one['seconds'])} s" + ("" if one["reached"] else " and **not reached**")
            for who, one in reached.items()
        ]
        lines += ["", f"Until {share:.0f} % of new seeds are told right, once: {', '.join(parts)}."]
    return lines
