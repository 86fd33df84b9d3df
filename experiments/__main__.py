"""``python -m experiments``: list the experiments, run some or all, gather them on one page."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from pathlib import Path
from types import ModuleType

from experiments import harness, keep, page, tables


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments", description=harness.__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help=f"which (default: all): {', '.join(harness.names())}")
    parser.add_argument("--scale", choices=harness.SCALES, default="full", help="tiny is what the tests run")
    parser.add_argument(
        "--out", type=Path, default=Path("build/figures"), help="where results go (default: %(default)s)"
    )
    parser.add_argument("--again", action="store_true", help="run also what the output directory has already")
    parser.add_argument("--list", action="store_true", help="say what there is and how long it takes, and stop")
    parser.add_argument("--draw", action="store_true", help="draw recorded results again without measuring")
    parser.add_argument("--keep", action="store_true", help="also put the results into the repository and its README")
    args = parser.parse_args()
    chosen = {name: harness.load(name) for name in args.only or harness.names()}
    if args.list:
        for name, experiment in chosen.items():
            print(f"{name:12} {experiment.SECONDS:4} s  {experiment.TITLE}")
        return 0
    # An end from outside unwinds too: contenders' processes and cgroups must not outlive this one.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    failed: list[str] = []
    try:
        if args.draw:
            draw(args.out, list(chosen))
        else:
            failed = run(chosen, args.scale, args.out, args.again)
    finally:
        print(page.write(args.out))
    if args.keep:
        keep.keep(args.out)
    if failed:
        print(f"FAILED: {', '.join(failed)} (why: on the page and above); run again to try only these", file=sys.stderr)
    return 1 if failed else 0


def draw(out: Path, names: list[str]) -> None:
    """Draw what was recorded; what was not is no error."""
    for name in names:
        if (out / f"{name}.json").exists():
            harness.picture(json.loads((out / f"{name}.json").read_text()), out / f"{name}.svg")


def run(chosen: dict[str, ModuleType], scale: str, out: Path, again: bool) -> list[str]:
    """Run what is not done yet, one failure not ending the others, and give the names of those that failed."""
    todo = dict(chosen)
    for name in chosen:
        record = None if again else harness.done(name, scale, out)
        if record:
            print(
                f"{name}: done at commit {record['provenance']['commit']}, in {record['seconds']:.0f} s (--again runs it)"
            )
            del todo[name]
    left, expected, failed = sum(e.SECONDS for e in todo.values()), 0.0, []
    begin = time.perf_counter()
    if scale == "full" and todo:
        print(
            f"{len(todo)} experiments, about {left / 60:.0f} minutes on two cores, more where graphs must be made first"
        )
        harness.probe_once(out)
    for number, (name, experiment) in enumerate(todo.items(), 1):
        print(f"[{number}/{len(todo)}] {name}: {experiment.TITLE}", flush=True)
        start = time.perf_counter()
        try:
            record = json.loads(harness.run(name, scale, out).read_text())
        except Exception as error:
            failed.append(name)
            print(f"  FAILED {name}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        else:
            if tables.rows(record):
                print(tables.text(record))
            print(f"  Here: {experiment.here(record['results'])}")
        left, expected = left - experiment.SECONDS, expected + experiment.SECONDS
        if scale == "full":
            # What is left by the list, at the pace of what is done.
            now = time.perf_counter()
            minutes = left * (now - begin) / expected / 60
            print(
                f"  {now - start:.0f} s; {(now - begin) / 60:.1f} minutes so far, about {minutes:.1f} left", flush=True
            )
    return failed


if __name__ == "__main__":
    sys.exit(main())
