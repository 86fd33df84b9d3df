"""``gids bench nvme``: what the queue code itself costs, against a drive made of memory."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from gids import _native
from gids.bench.harness import Bar, Contender, Measurement, Report, alternate

COMMANDS, QUICK_COMMANDS = 2_000_000, 20_000
BATCH = 64

#: A Gen4 drive delivers about 1 M random 4 KiB reads a second (Samsung PM1735); one thread must outrun four of them.
COMMANDS_PER_SECOND = 4e6
#: A thread that has a queue pair of its own does not slow another one down; the machine has two cores for everyone.
SCALING = 1.6


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--batch", type=int, default=BATCH, help=f"commands per doorbell (default {BATCH})")


def run(args: argparse.Namespace) -> Report:
    """Measure one thread, two threads with a pair each, and two threads on one pair."""
    commands = QUICK_COMMANDS if args.quick else COMMANDS
    report = Report("nvme", settings={"commands": commands, "batch": args.batch, "quick": args.quick})
    shapes = {
        "1 thread": (1, False, args.batch),
        "2 threads, a pair each": (2, False, args.batch),
        "2 threads, one pair": (2, True, args.batch),
        "1 thread, doorbell per command": (1, False, 1),
    }
    rates: dict[str, list[float]] = {name: [] for name in shapes}

    def measure(name: str) -> Callable[[], float]:
        def once() -> float:
            rates[name].append(
                _native.nvme_measure_queue(shapes[name][0], shapes[name][1], commands, shapes[name][2])[0]
            )
            return commands

        return once

    rounds = 5
    alternate([Contender(name, measure(name)) for name in shapes], unit="commands", rounds=rounds)
    report.measurements = [Measurement(name, "commands", tuple(values)) for name, values in rates.items()]
    one, two = report.measurements[0].median, report.measurements[1].median
    report.extra = {"ns_per_command": round(1e9 / one, 1), "scaling_of_two_threads": round(two / one, 2)}
    report.bars = [
        Bar("commands per second, one thread", one, COMMANDS_PER_SECOND),
        Bar("two threads against one, a pair each", two / one, SCALING),
    ]
    return report
