"""``python -m experiments``: list the experiments, run some or all, gather them on one page."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from pathlib import Path

from experiments import harness, keep, page, tables


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments", description=harness.__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help=f"which (default: all): {', '.join(harness.names())}")
    parser.add_argument("--scale", choices=harness.SCALES, default="full", help="tiny is what the tests run")
    parser.add_argument(
        "--out", type=Path, default=Path("build/figures"), help="where results go (default: %(default)s)"
    )
    parser.add_argument("--list", action="store_true", help="say what there is and how long it takes, and stop")
    parser.add_argument("--draw", action="store_true", help="draw recorded results again without measuring")
    parser.add_argument("--keep", action="store_true", help="also put the results into the repository and its README")
    args = parser.parse_args()
    chosen = {name: harness.load(name) for name in args.only or harness.names()}
    if args.list:
        for name, experiment in chosen.items():
            print(f"{name:12} {experiment.SECONDS:4} s  {experiment.TITLE}")
        return
    # An end from outside unwinds too: contenders' processes and cgroups must not outlive this one.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    left = sum(experiment.SECONDS for experiment in chosen.values())
    if args.scale == "full" and not args.draw:
        print(f"about {left / 60:.0f} minutes on two cores, and some for making graphs the first time")
    for name, experiment in chosen.items():
        begin = time.perf_counter()
        print(f"{name}: {experiment.TITLE}", flush=True)
        if args.draw:
            record = json.loads((args.out / f"{name}.json").read_text())
            harness.picture(record, args.out / f"{name}.svg")
            continue
        record = json.loads(harness.run(name, args.scale, args.out).read_text())
        if tables.rows(record):
            print(tables.text(record))
        left -= experiment.SECONDS
        if args.scale == "full":
            print(f"  {time.perf_counter() - begin:.0f} s, about {left / 60:.0f} minutes left", flush=True)
    print(page.write(args.out))
    if args.keep:
        keep.keep(args.out)


main()
