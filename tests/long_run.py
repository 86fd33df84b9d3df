"""Runs the tests marked `long` and keeps what came out, with the commit, in experiments/results/long/test_long.json.

    python tests/long_run.py [PATH ...] [--OPTION ...]

The record has one entry for each part that ran, `tests` or the paths given, with the commit at which it did. A part that runs
again replaces its entry and those of what lies within it; the others stay as they are, at the commits that they name.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path, PurePosixPath
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "experiments" / "results" / "long" / "test_long.json"


def commit() -> str:
    """Return the commit that is checked out, with ``-dirty`` where files differ from it, other than such records."""
    name = ["git", "rev-parse", "--short=12", "HEAD"]
    changes = ["git", "status", "--porcelain", "--untracked-files=no", "--", ".", ":!experiments/results/long"]
    said = [subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True) for words in (name, changes)]
    return said[0].stdout.strip() + ("-dirty" if said[1].stdout else "")


def outcomes(report: Path) -> list[dict[str, object]]:
    """Return name, outcome, seconds and first line of the reason of every test in a JUnit report."""
    found = []
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        bad = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
        found.append(
            {
                "test": f"{case.get('classname')}::{case.get('name')}",
                "outcome": "passed" if bad is None else bad.tag,
                "seconds": round(float(case.get("time", "0")), 1),
                "reason": "" if bad is None else (bad.get("message") or "").partition("\n")[0],
            }
        )
    return found


def kept(entries: list[dict[str, Any]], entry: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the entries of a record with one more, which replaces those of whose paths it has each."""
    ran = [PurePosixPath(path) for path in entry["paths"]]
    others = [
        other
        for other in entries
        if not all(any(PurePosixPath(path).is_relative_to(whole) for whole in ran) for path in other["paths"])
    ]
    return sorted([*others, entry], key=lambda one: one["paths"])


def main(arguments: list[str]) -> int:
    """Run, print, keep; return pytest's exit code."""
    begun = time.time()
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.xml"
        where = [argument for argument in arguments if not argument.startswith("-")] or ["tests"]
        options = [argument for argument in arguments if argument.startswith("-")]
        command = [sys.executable, "-m", "pytest", "-m", "long", f"--junitxml={report}", *options, *where]
        at = commit()  # before: files may be changed while the tests run
        code = subprocess.run(command, cwd=ROOT, check=False).returncode
        tests = outcomes(report) if report.exists() else []
    if not tests:
        return code
    entry = {
        "paths": sorted(where),
        "options": options,
        "commit": at,
        "time_utc": time.strftime("%Y-%m-%d %H:%M", time.gmtime(begun)),
        "seconds": round(time.time() - begun),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "exit_code": code,
        "tests": tests,
    }
    entries = json.loads(RECORD.read_text())["parts"] if RECORD.exists() else []
    RECORD.write_text(json.dumps({"parts": kept(entries, entry)}, indent=1) + "\n")
    print(f"kept in {RECORD.relative_to(ROOT)}")
    return code


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
