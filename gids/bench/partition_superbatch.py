"""``gids bench partition``: a superbatch of a thousand batches, whose samples wait on disk, beside a window of 16."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import gids
from gids.bench.epoch import Worker
from gids.bench.harness import Bar, Measurement, Report
from gids.report.growth import growth_allowed
from gids.units import parse_bytes

#: Ginex's policy sees a superbatch; what it sees must be worth what its lists take of the same budget.
FLOOR_HITS = FLOOR_ROWS = 1.0


@dataclass(frozen=True)
class Superbatch:
    """Sizes of the comparison: small batches, so that a thousand of them are the better part of an epoch."""

    window: int = 1000
    batch: int = 80
    fanouts: tuple[int, ...] = (5, 5)
    budget: str = "256MiB"


def superbatch_section(report: Report, path: Path, sizes: Superbatch, rounds: int) -> None:
    """Alternate epochs with ``belady`` over a superbatch on disk and with ``window(16)``, each in a process of its own."""
    budget = parse_bytes(sizes.budget)
    whole_epoch = -(-len(gids.open(path).split("train")) // sizes.batch)
    common: dict[str, Any] = {
        "data": str(path),
        "contender": "gids",
        "fanouts": list(sizes.fanouts),
        "batch_size": sizes.batch,
        "torch_threads": 1,
        "hidden": 16,
        "budget": budget,
    }
    contenders: dict[str, dict[str, Any]] = {
        "window(16)": {"policy": "window", "window": 16},
        f"belady, S={sizes.window}": {"policy": "belady", "window": sizes.window, "spill_samples": True},
    }
    answers: dict[str, list[dict[str, Any]]] = {name: [] for name in contenders}
    with ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for name, options in contenders.items():
            workers[name] = Worker(common | {"name": f"superbatch-{len(workers)}", "options": options}, None)
            stack.callback(workers[name].close)
        for worker in workers.values():
            worker.ask("round", 0, whole_epoch)  # what a first epoch finds out, and fills
        for number in range(1, rounds + 1):
            turns = list(workers.items())
            for name, worker in turns if number % 2 else turns[::-1]:
                answers[name].append(worker.ask("round", number, whole_epoch))
    rates = [
        Measurement(name, "rows", tuple(a["rows"] / a["seconds"] for a in found)) for name, found in answers.items()
    ]
    report.measurements += rates
    hits = {name: float(np.median([a["table"]["hit_ratio"] for a in found])) for name, found in answers.items()}
    window, belady = contenders
    grown = {name: max(a["growth_bytes"] for a in found) for name, found in answers.items()}
    report.extra["superbatch: hit ratio"] = {name: round(value, 4) for name, value in hits.items()}
    report.extra["superbatch: growth of the process in MiB"] = {name: value >> 20 for name, value in grown.items()}
    report.extra["superbatch: memory"] = {name: found[-1]["memory"] for name, found in answers.items()}
    times = float(np.median([b / w for w, b in zip(rates[0].rates, rates[1].rates, strict=True)]))
    report.bars.append(Bar(f"{belady} over window(16): hit ratio", hits[belady] / max(hits[window], 1e-9), FLOOR_HITS))
    report.bars.append(Bar(f"{belady} over window(16): rows/s", times, FLOOR_ROWS))
    within = grown[belady] / growth_allowed(budget)
    report.bars.append(Bar(f"{belady}: growth of the process / (1.05 x budget + 32 MiB)", within, 1.0, True))
