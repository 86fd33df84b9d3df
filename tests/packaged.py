"""The package as users get it: built, installed into an environment of its own, and tested there without the source tree.

    python tests/packaged.py wheel       # an sdist, a wheel made from it, its manylinux tag, and the tests on it
    python tests/packaged.py floors      # the same wheel with the oldest releases that pyproject.toml declares
    python tests/packaged.py coverage    # an instrumented build, and which lines of Python and C++ the tests run

Each keeps what came out, with its commit, in experiments/results/long/packaged.json. Tests that read the source tree
(documentation, kernels, experiments) are left out, and named.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import venv
import zipfile
from collections import Counter
from collections.abc import Iterable
from email import message_from_bytes
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.long_run import ROOT, commit, outcomes

BUILD = ROOT / "build" / "packaged"
RECORD = ROOT / "experiments" / "results" / "long" / "packaged.json"
#: Extras whose floors are installed: those that run without a GPU. cuda-core's is in tests/requirements-floor.txt.
EXTRAS = ("dgl", "pyg", "graphbolt", "partition", "parquet", "report", "ray", "stage")
#: What the tests themselves need, at the versions of tests/requirements.txt whatever gids runs on.
TOOLS = ("pytest", "pytest-xdist", "pytest-timeout", "hypothesis", "moto", "flask", "flask-cors")
#: What `make floors` runs: the tests of what calls the packages that have floors.
FLOOR_TESTS = [
    "tests/gids/dataset",
    "tests/gids/loader",
    "tests/gids/convert",
    "tests/gids/pyg",
    "tests/gids/dgl",
    "tests/gids/storage",
    "tests/gids/cluster/test_stage.py",
]
INSTRUMENTED = "--coverage -fprofile-update=atomic"


def run(*words: object, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run a command in sight of the user; raise where it fails."""
    print("+", *(str(word) for word in words), flush=True)
    return subprocess.run([str(word) for word in words], check=True, text=True, **more)


def build() -> tuple[Path, str]:
    """Build an sdist, a wheel from it, and what auditwheel makes of that; return the wheel and its platform tag."""
    shutil.rmtree(BUILD / "dist", ignore_errors=True)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    run(
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--outdir",
        BUILD / "dist",
        ROOT,
        env=os.environ | {"PATH": path},
    )
    (wheel,) = (BUILD / "dist").glob("*.whl")
    audit = [sys.executable, "-m", "auditwheel"]
    shown = run(*audit, "show", wheel, capture_output=True).stdout
    print(shown, flush=True)
    run(*audit, "repair", "--wheel-dir", BUILD / "dist" / "repaired", wheel, env=os.environ | {"PATH": path})
    (repaired,) = (BUILD / "dist" / "repaired").glob("*.whl")
    tags = re.findall(r"manylinux_\d+_\d+_\w+", repaired.name)
    if not tags:
        raise SystemExit(f"auditwheel found no manylinux tag for {repaired.name}")
    return repaired, tags[0]


def floors(built: Path) -> list[str]:
    """Return the oldest releases that a wheel declares, for itself and for EXTRAS, as pins."""
    with zipfile.ZipFile(built) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        declared = message_from_bytes(archive.read(name)).get_all("Requires-Dist") or []
    return floors_of(Requirement(line) for line in declared)


def floors_of(declared: Iterable[Requirement]) -> list[str]:
    """Return the oldest releases that requirements allow, where they apply here, as pins."""
    pins = {}
    for requirement in declared:
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *EXTRAS)):
            (lowest,) = (clause.version for clause in requirement.specifier if clause.operator == ">=")
            pins[requirement.name] = f"{requirement.name}=={lowest}"
    return sorted(pins.values())


def pinned(names: tuple[str, ...] | None = None) -> list[str]:
    """Return lines of the tests' requirements, all or those of some packages."""
    lines = (ROOT / "tests" / "requirements.txt").read_text().splitlines()
    return [line for line in lines if line and line[0] != "#" and (names is None or Requirement(line).name in names)]


def environment(name: str, *packages: object) -> Path:
    """Make a virtual environment with packages; return its Python."""
    place = BUILD / name
    shutil.rmtree(place, ignore_errors=True)
    venv.create(place, with_pip=True)
    python = place / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages)
    return python


def copy_tests(place: Path) -> tuple[list[str], list[str]]:
    """Copy tests and pytest's settings to a directory without the package; return files to run, and those left out."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    shutil.copytree(ROOT / "tests", place / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", place)
    files = sorted((place / "tests" / "gids").rglob("test_*.py"))
    left_out = [path for path in files if re.search(r"\bparents\[|\bROOT\b", path.read_text())]
    names = [[str(path.relative_to(place)) for path in some] for some in (files, left_out)]
    return [name for name in names[0] if name not in names[1]], names[1]


def run_tests(python: Path, place: Path, only: list[str], *options: str) -> dict[str, Any]:
    """Run the copied tests; return counts, failures and what was left out."""
    files, left_out = copy_tests(place)
    files = [name for name in files if not only or any(name.startswith(part) for part in only)]
    print(f"left out, because they read the source tree: {' '.join(left_out)}", flush=True)
    report = place / "report.xml"
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    where = subprocess.run([python, "-c", "import gids; print(gids.__file__)"], cwd=place, env=clean, **_SAID).stdout
    if not Path(where.strip()).is_relative_to(python.parents[1]):
        raise SystemExit(f"gids must come from {python.parents[1]} (got {where.strip()})")
    words = [python, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", "-m", "not long and not slow"]
    words += ["-p", "no:cacheprovider", f"--junitxml={report}", *options, *files]
    begun = time.time()
    subprocess.run([str(word) for word in words], cwd=place, env=clean, check=False)
    results = outcomes(report)
    count = Counter(str(result["outcome"]) for result in results)
    bad = [
        {"test": r["test"], "reason": str(r["reason"])[:300]} for r in results if r["outcome"] in ("failure", "error")
    ]
    return {
        "commit": commit(),
        "time_utc": time.strftime("%Y-%m-%d %H:%M", time.gmtime(begun)),
        "python": platform.python_version(),
        "seconds": round(time.time() - begun),
        "tests": dict(count),
        "failed": bad,
        "left_out": left_out,
    }


_SAID: dict[str, Any] = {"check": True, "capture_output": True, "text": True}


def keep(name: str, record: dict[str, Any], whole: bool) -> int:
    """Add a record to the kept ones, where it is of a whole run; return the exit code."""
    print(json.dumps({**record, "left_out": len(record["left_out"])}, indent=1))
    if whole:
        kept = json.loads(RECORD.read_text()) if RECORD.exists() else {}
        RECORD.write_text(json.dumps({**kept, name: record}, indent=1) + "\n")
        print(f"kept in {RECORD.relative_to(ROOT)}")
    return 1 if record["failed"] or not record["tests"].get("passed") else 0


def wheel(only: list[str]) -> int:
    """Build, install with the pinned releases, test."""
    built, tag = build()
    python = environment("wheel", "-r", ROOT / "requirements.txt", "-r", ROOT / "tests" / "requirements.txt", built)
    return keep("wheel", {"wheel": built.name, "platform": tag, **run_tests(python, BUILD / "run", only)}, not only)


def oldest(only: list[str]) -> int:
    """Install the newest wheel that was built with the declared floors, and test."""
    found = sorted((BUILD / "dist" / "repaired").glob("*.whl"))
    built = found[-1] if found else build()[0]
    pins = floors(built)
    python = environment("floors", built, *pins, *pinned(TOOLS), "psutil", "scipy", "packaging")
    only = only or FLOOR_TESTS
    return keep("floors", {"floors": pins, **run_tests(python, BUILD / "run", only)}, only == FLOOR_TESTS)


def covered(python: Path) -> dict[str, Any]:
    """Return the share of lines that ran, for each package of gids and each folder of C++, and files below a half."""
    data = BUILD / "coverage.json"
    run(python, "-m", "coverage", "json", "-q", "-o", data, cwd=BUILD / "run")
    lines: dict[str, list[int]] = {}
    files = {}
    for name, one in json.loads(data.read_text())["files"].items():
        path = "gids/" + name.rpartition("/gids/")[2]
        files[path] = (one["summary"]["covered_lines"], one["summary"]["num_statements"])
    cpp = BUILD / "gcovr.json"
    run(python, "-m", "gcovr", "-r", ROOT, "--json-summary", cpp, "--gcov-ignore-errors=all", "-j", 2, BUILD / "cmake")
    for one in json.loads(cpp.read_text())["files"]:
        if one["filename"].startswith(("cpp/", "kernels/")):
            files[one["filename"]] = (one["line_covered"], one["line_total"])
    for path, (ran, total) in files.items():
        group = "/".join(path.split("/")[:2]) if path.count("/") > 1 else path.split("/")[0]
        for name in (group, "Python" if path.startswith("gids/") else "C++"):
            counts = lines.setdefault(name, [0, 0])
            counts[0] += ran
            counts[1] += total
    share = {name: round(100 * ran / max(1, total), 1) for name, (ran, total) in sorted(lines.items())}
    low = {
        path: round(100 * ran / total, 1) for path, (ran, total) in sorted(files.items()) if total and ran < total / 2
    }
    return {"percent": share, "below_half": low}


def coverage(only: list[str]) -> int:
    """Build with counters, test, and print what ran."""
    flags = [f"-Ccmake.define.CMAKE_CXX_FLAGS={INSTRUMENTED}", "-Ccmake.define.CMAKE_CXX_FLAGS_RELEASE=-O1"]
    shutil.rmtree(BUILD / "instrumented", ignore_errors=True)
    for counters in (BUILD / "cmake").rglob("*.gcda"):
        counters.unlink()
    words = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps", ROOT]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    where = ["-w", BUILD / "instrumented", f"-Cbuild-dir={BUILD / 'cmake'}"]
    run(*words, *where, *flags, env=os.environ | {"PATH": path})
    (built,) = (BUILD / "instrumented").glob("*.whl")
    tools = [ROOT / name for name in ("requirements.txt", "tests/requirements.txt", "tests/requirements-packaged.txt")]
    python = environment("coverage", *(word for tool in tools for word in ("-r", tool)), built)
    result = run_tests(python, BUILD / "run", only, "--cov=gids", "--cov-report=")
    result |= covered(python)
    for name, percent in result["percent"].items():
        print(f"{percent:6.1f} %  {name}")
    return keep("coverage", result, not only)


def main() -> int:
    """Run one of the three."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["wheel", "floors", "coverage"])
    parser.add_argument("only", nargs="*", help="files or directories of tests; nothing is kept then")
    args = parser.parse_args()
    return {"wheel": wheel, "floors": oldest, "coverage": coverage}[args.what](args.only)


if __name__ == "__main__":
    raise SystemExit(main())
