"""Runs the suite again and again under load, in random order and with random seeds, and prints what failed how often.

    python tests/flaky.py --rounds 10 [--tests tests/gids/storage] [--no-load]

The load is ``stress-ng`` on every processor, with memory pressure and a busy disk. The table is kept in
experiments/results/flaky.json together with the commit. The order of files, and the seed of hypothesis, are functions of
the round's seed, which is printed: ``--seed N --rounds 1`` repeats a round.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from long_run import ROOT, commit, outcomes

RECORD = ROOT / "experiments" / "results" / "flaky.json"


def load() -> subprocess.Popen[bytes] | None:
    """Start the load; None where stress-ng is not installed."""
    if shutil.which("stress-ng") is None:
        print("stress-ng is not installed: the rounds run without load")
        return None
    workers = str(os.cpu_count() or 1)
    command = [
        "stress-ng",
        "--cpu",
        workers,
        "--vm",
        "1",
        "--vm-bytes",
        "20%",
        "--hdd",
        "1",
        "--hdd-bytes",
        "256m",
        "--quiet",
    ]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=tempfile.gettempdir())


def round_of(seed: int, tests: list[str], workers: int, report: Path) -> list[dict[str, object]]:
    """Run the suite once, files in the order that the seed gives; return every test's outcome."""
    files = sorted({str(path.relative_to(ROOT)) for name in tests for path in found(ROOT / name)})
    random.Random(seed).shuffle(files)
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not long", "-p", "no:cacheprovider", f"--junitxml={report}"]
    command += ["-n", str(workers), "--dist", "loadfile", "--no-loadscope-reorder", f"--hypothesis-seed={seed}"]
    environment = os.environ | {"PYTHONHASHSEED": str(seed), "GIDS_TEST_ORDER": "given"}
    report.unlink(missing_ok=True)
    code = subprocess.run(
        [*command, *files], cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, check=False
    ).returncode
    if not report.exists():
        return [{"test": "(pytest itself)", "outcome": "error", "seconds": 0, "reason": f"exit code {code}"}]
    return outcomes(report)


def found(place: Path) -> list[Path]:
    """List the files of tests at a place."""
    return sorted(place.rglob("test_*.py")) if place.is_dir() else [place]


def main() -> int:
    """Run the rounds, print the table, keep it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10, help="times that the suite runs (default 10)")
    parser.add_argument("--tests", nargs="+", default=["tests"], help="files or directories (default: all)")
    parser.add_argument("--workers", type=int, default=3, help="processes of pytest (default 3)")
    parser.add_argument("--seed", type=int, help="of the first round (default: from the clock)")
    parser.add_argument("--no-load", action="store_true", help="without stress-ng")
    args = parser.parse_args()
    first = int(time.time()) % 2**31 if args.seed is None else args.seed
    failures: Counter[str] = Counter()
    reasons: dict[str, str] = {}
    rounds = []
    stress = None if args.no_load else load()
    try:
        with tempfile.TemporaryDirectory() as directory:
            for number in range(args.rounds):
                begun = time.time()
                results = round_of(first + number, args.tests, args.workers, Path(directory) / "report.xml")
                bad = [r for r in results if r["outcome"] in ("failure", "error")]
                failures.update(str(r["test"]) for r in bad)
                reasons |= {str(r["test"]): str(r["reason"])[:200] for r in bad}
                rounds.append(
                    {
                        "seed": first + number,
                        "tests": len(results),
                        "failed": len(bad),
                        "seconds": round(time.time() - begun),
                    }
                )
                print(
                    f"round {number + 1}: seed {first + number}, {len(results)} tests, {len(bad)} failed, {rounds[-1]['seconds']} s",
                    flush=True,
                )
    finally:
        if stress is not None:
            stress.terminate()
            stress.wait()
    print(f"\n{'failed':>6}  test")
    for test, count in failures.most_common():
        print(f"{count:>6}  {test}: {reasons[test]}")
    if not failures:
        print(f"{0:>6}  of {sum(r['tests'] for r in rounds)} runs of tests in {len(rounds)} rounds")
    record = {
        "commit": commit(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "load": "none" if stress is None else "stress-ng: every processor, memory, disk",
        "tests": args.tests,
        "rounds": rounds,
        "failures": [{"test": t, "times": n, "reason": reasons[t]} for t, n in failures.most_common()],
    }
    RECORD.write_text(json.dumps(record, indent=1) + "\n")
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
