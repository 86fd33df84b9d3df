"""Two builds of gids side by side: the loader of ``gids bench epoch``, alternated in one run on the same data.

python -m experiments.builds /path/to/other/checkout --data /data/graph

The other checkout needs its own ``make build``. Prints one JSON object with the rows per second of every round.
"""

import argparse
import json
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import gids
from gids.bench.epoch import FULL, PROCESS_BYTES, QUICK, Worker, make_dataset
from gids.bench.page_cache import forget_pages
from gids.report.provenance import provenance
from gids.storage.curve import save_curve
from gids.storage.probe import probe, warm
from gids.units import parse_bytes


def measure(other: Path, data: Path, *, rounds: int, batches: int, quick: bool) -> dict[str, object]:
    """Alternate the two builds and return what was measured."""
    scale = QUICK if quick else FULL
    limit = parse_bytes(scale.limit)
    with ExitStack() as stack:
        make_dataset(data, scale)
        table = gids.open(data).feature_table()
        if not quick:
            warm(table.stripes[0].path, table.total_bytes, seconds=30.0)
        for stripe in table.stripes:
            forget_pages(stripe.path)
        cache_home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gids-curve-")))
        curve = probe(data, seconds=1.0 if quick else 4.0, scratch_bytes=32 << 20)
        save_curve(data, curve, cache_home / "gids" / "curves")
        workers = {}
        for name, python in (("here", sys.executable), ("other", str(other / ".venv/bin/python"))):
            spec = {
                "name": name,
                "contender": "gids",
                "data": str(data),
                "fanouts": [10, 10],
                "batch_size": scale.batch_size,
                "torch_threads": 1,
                "hidden": scale.hidden,
                "options": {"prefetch": 1},
                "budget": limit - PROCESS_BYTES,
                "advice": "",
            }
            command = [python, "-P" if sys.version_info >= (3, 11) else "-E", "-m", "gids.bench.epoch_worker"]
            workers[name] = Worker(spec, limit, [*command, json.dumps(spec)], cache_home)
            stack.callback(workers[name].close)
        rates: dict[str, list[float]] = {name: [] for name in workers}
        for number in range(rounds):
            for name in workers if number % 2 == 0 else reversed(workers):
                answer = workers[name].ask("round", number, batches)
                rates[name].append(answer["rows"] / answer["seconds"])
    medians = {name: statistics.median(values) for name, values in rates.items()}
    ratios = [here / there for here, there in zip(rates["here"], rates["other"], strict=True)]
    return {
        "provenance": provenance(),
        "other": str(other),
        "rows_per_s": rates,
        "here_over_other": medians["here"] / medians["other"],
        "ratios_by_round": ratios,
        "probed": {"bandwidth": curve.bandwidth, "iops": curve.peak_iops},
        "batches": batches,
    }


def main() -> None:
    """Parse arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="checkout of the other build")
    parser.add_argument("--data", type=Path, required=True, help="dataset to use or to make")
    parser.add_argument("--rounds", type=int, default=5, help="repeats (default 5)")
    parser.add_argument("--batches", type=int, help=f"batches of a round (default {FULL.batches})")
    parser.add_argument("--quick", action="store_true", help="a small run")
    args = parser.parse_args()
    batches = args.batches or (QUICK if args.quick else FULL).batches
    found = measure(args.other, args.data, rounds=args.rounds, batches=batches, quick=args.quick)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
