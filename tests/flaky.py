"""Runs the suite again and again under load, in random order and with random seeds, and prints what failed how often.

    python tests/flaky.py --rounds 10 [--tests tests/gids/storage] [--load none]

The load is ``stress-ng`` on every processor, with memory pressure and a busy disk; in every second round the tests' files
also lie on a throttled file system (``bindfs``). Each round is added to experiments/results/long/flaky.json as soon as it
ends, with its commit: a run that was ended goes on where it was, and ``--rounds`` counts the rounds that the record has
for this commit and these tests. Order of files, order within files, and the seed of hypothesis are functions of the
round's seed: ``--seed N --rounds 1`` repeats one.
"""

from __future__ import annotations

import argparse
import contextlib
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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.long_run import ROOT, commit, outcomes

RECORD = ROOT / "experiments" / "results" / "long" / "flaky.json"
SLOW_DISK_BYTES_S = "60M"
STRESS = ["--vm", "1", "--vm-bytes", "20%", "--hdd", "1", "--hdd-bytes", "256m", "--quiet"]


@contextlib.contextmanager
def load(kind: str) -> Iterator[str]:
    """Keep the machine busy; yield with what."""
    if kind != "stress":
        yield (
            "none"
            if kind == "none"
            else f"what else ran on the machine: {os.getloadavg()[0]:.1f} processes at the start"
        )
        return
    if shutil.which("stress-ng") is None:
        print("stress-ng is not installed: the rounds run without load")
        yield "none"
        return
    with tempfile.TemporaryDirectory(prefix="gids-flaky-") as directory:
        command = ["stress-ng", "--cpu", str(os.cpu_count() or 1), *STRESS, "--temp-path", directory]
        stress = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield "stress-ng: every processor, memory, disk"
        finally:
            stress.terminate()
            stress.wait()


@contextlib.contextmanager
def disk(slow: bool) -> Iterator[tuple[Path, str]]:
    """Make a directory for the tests' files, on a throttled file system where asked for; yield it and what it is on."""
    with tempfile.TemporaryDirectory(prefix="gids-flaky-") as place:
        shown = Path(place) / "shown"
        below = Path(place) / "below"
        shown.mkdir()
        below.mkdir()
        rates = [f"--read-rate={SLOW_DISK_BYTES_S}", f"--write-rate={SLOW_DISK_BYTES_S}"]
        slow = slow and shutil.which("bindfs") is not None
        slow = slow and subprocess.run(["bindfs", *rates, str(below), str(shown)], check=False).returncode == 0
        try:
            yield shown, f"bindfs at {SLOW_DISK_BYTES_S}B/s" if slow else "the machine's"
        finally:
            if slow:
                subprocess.run(["umount", "--lazy", str(shown)], check=False)


def run_suite(seed: int, tests: list[str], workers: int, where: Path) -> list[dict[str, object]]:
    """Run the suite once, in the order that the seed gives; return every test's outcome."""
    files = sorted({str(path.relative_to(ROOT)) for name in tests for path in found(ROOT / name)})
    random.Random(seed).shuffle(files)
    report = where.parent / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not long", "-p", "no:cacheprovider", f"--junitxml={report}"]
    command += ["-n", str(workers), "--dist", "loadfile", "--no-loadscope-reorder", f"--hypothesis-seed={seed}"]
    environment = os.environ | {"PYTHONHASHSEED": str(seed), "GIDS_TEST_ORDER": str(seed), "TMPDIR": str(where)}
    code = subprocess.run(
        [*command, *files], cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, check=False
    ).returncode
    if not report.exists():
        return [{"test": "(pytest itself)", "outcome": "error", "seconds": 0, "reason": f"exit code {code}"}]
    return outcomes(report)


def found(place: Path) -> list[Path]:
    """List the files of tests at a place."""
    return sorted(place.rglob("test_*.py")) if place.is_dir() else [place]


def one_round(seed: int, tests: list[str], workers: int, kind: str) -> dict[str, Any]:
    """Run the suite once under load; return what the record keeps of it."""
    begun, checked_out = time.time(), commit()
    with load(kind) as busy, disk(slow=seed % 2 == 0) as (where, on):
        results = run_suite(seed, tests, workers, where)
    bad = [result for result in results if result["outcome"] in ("failure", "error")]
    return {
        "commit": checked_out,
        "time_utc": time.strftime("%Y-%m-%d %H:%M", time.gmtime(begun)),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "tests": tests,
        "seed": seed,
        "load": busy,
        "disk": on,
        "run": len(results),
        "skipped": sum(result["outcome"] == "skipped" for result in results),
        "failed": [{"test": result["test"], "reason": str(result["reason"])[:300]} for result in bad],
        "seconds": round(time.time() - begun),
    }


def kept() -> list[dict[str, Any]]:
    """Return the rounds of the record."""
    return json.loads(RECORD.read_text())["rounds"] if RECORD.exists() else []


def table(rounds: list[dict[str, Any]]) -> str:
    """Return what failed how often, as text; what did not fail is counted."""
    failures = Counter(failure["test"] for each in rounds for failure in each["failed"])
    reasons = {failure["test"]: failure["reason"] for each in rounds for failure in each["failed"]}
    lines = [f"{count:>6}  {test}: {reasons[test]}" for test, count in failures.most_common()]
    none = f"{0:>6}  of {sum(each['run'] for each in rounds):,} runs of tests in {len(rounds)} rounds"
    return "\n".join([f"{'failed':>6}  test", *(lines or [none])])


def main() -> int:
    """Run the rounds that are missing, keep each, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10, help="that the record should have (default 10)")
    parser.add_argument("--tests", nargs="+", default=["tests"], help="files or directories (default: all)")
    parser.add_argument("--workers", type=int, default=4, help="processes of pytest (default 4)")
    parser.add_argument("--seed", type=int, help="of the first round; runs --rounds of them whatever the record has")
    parser.add_argument(
        "--load", choices=["stress", "machine", "none"], default="stress", help="machine: what else runs here"
    )
    args = parser.parse_args()
    ours = [each for each in kept() if each["commit"] == commit() and each["tests"] == args.tests]
    missing = range(len(ours), args.rounds) if args.seed is None else range(args.rounds)
    first = int(time.time()) % 2**31 if args.seed is None else args.seed
    for number in missing:
        result = one_round(first + number, args.tests, args.workers, args.load)
        ours.append(result)
        RECORD.write_text(json.dumps({"rounds": [*kept(), result]}, indent=1) + "\n")
        print(
            f"round {number + 1}: seed {result['seed']}, {result['run']} tests, {len(result['failed'])} failed, "
            f"{result['seconds']} s",
            flush=True,
        )
    print("\n" + table(ours))
    return 1 if any(each["failed"] for each in ours) else 0


if __name__ == "__main__":
    raise SystemExit(main())
