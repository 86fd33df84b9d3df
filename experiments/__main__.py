"""``python -m experiments``: list, run one, or make every figure."""

from __future__ import annotations

import argparse
from pathlib import Path

from experiments import harness


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments", description=harness.__doc__.splitlines()[0])
    parser.add_argument("experiment", nargs="*", help=f"which (default: all): {', '.join(harness.names())}")
    parser.add_argument("--scale", choices=harness.SCALES, default="full", help="tiny is what the tests run")
    parser.add_argument(
        "--out", type=Path, default=Path("build/figures"), help="where results go (default: %(default)s)"
    )
    args = parser.parse_args()
    for name in args.experiment or harness.names():
        print(f"{name}: {harness.load(name).TITLE}", flush=True)
        print(f"  {harness.run(name, args.scale, args.out)}", flush=True)
    print(harness.page(args.out))


main()
