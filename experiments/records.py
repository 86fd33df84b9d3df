"""Records of benchmarks that the repository keeps: one file for each benchmark, machine and commit, none ever replaced."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gids.cli.bench import BENCHMARKS

RESULTS = Path(__file__).with_name("results") / "bench"
#: Benchmarks whose records are kept, in the order in which they are shown. ``demo`` is what ``gids demo --json`` printed.
NAMES = (*BENCHMARKS, "demo")


@dataclass(frozen=True)
class Record:
    """What one run of ``gids bench NAME --json`` printed, and where it is kept."""

    path: Path
    content: dict[str, Any]

    @property
    def machine(self) -> str:
        """The processor, as the record names it."""
        return str(self.content["provenance"]["cpu"])

    @property
    def when(self) -> str:
        """Date and minute, UTC."""
        return str(self.content["provenance"]["time_utc"])[:16].replace("T", " ")

    @property
    def commit(self) -> str:
        """What was measured."""
        return str(self.content["provenance"]["commit"])

    @property
    def bars(self) -> list[dict[str, Any]]:
        """Every promise with its measurement."""
        return list(self.content["bars"])


def file_name(record: dict[str, Any]) -> str:
    """Name a record by machine and commit."""
    plain = re.sub(r"\(r\)|\(tm\)|processor|@", "", record["provenance"]["cpu"].lower())
    return f"{re.sub(r'[^a-z0-9.]+', '-', plain).strip('-')}-{record['provenance']['commit']}.json"


def kept(name: str) -> list[Record]:
    """Return all records of a benchmark, newest first."""
    records = [Record(path, json.loads(path.read_text())) for path in (RESULTS / name).glob("*.json")]
    return sorted(records, key=lambda record: record.when, reverse=True)


def newest(name: str) -> list[Record]:
    """Return the newest record of each machine, newest first, and older ones with promises that newer ones have not."""
    found: list[Record] = []
    seen: dict[str, set[str]] = {}  # promises, by machine
    for record in kept(name):
        promises = {bar["name"] for bar in record.bars}
        if record.machine not in seen or promises - seen[record.machine]:
            found.append(record)
        seen.setdefault(record.machine, set()).update(promises)
    return found


def keep(path: Path) -> Path:
    """Put a record into the repository: of a whole run or of its parts, of a clean commit; returns where it is."""
    record = json.loads(path.read_text())
    name, origin = record.get("benchmark", record.get("name")), record.get("provenance", {})
    if name not in NAMES:
        raise SystemExit(
            f"{path} must be what `gids bench NAME --json` printed, NAME of {', '.join(NAMES)} (got {name})"
        )
    command, commit = [str(word) for word in origin["command"]], str(origin["commit"])
    if {"--quick", "--medium"} & set(command) or "dirty" in commit:
        raise SystemExit(
            f"kept records must be of a whole run and a clean commit (got {path}: {' '.join(command)}, {commit})"
        )
    target: Path = RESULTS / name / file_name(record)
    if target.exists():
        record = joined(target, json.loads(target.read_text()), record)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(record, indent=1) + "\n")
    return target


def joined(target: Path, first: dict[str, Any], further: dict[str, Any]) -> dict[str, Any]:
    """Return one record of two runs with ``--only``: of the same commit, each with promises that the other has not.

    Raises SystemExit where both measured the same: records are not replaced.
    """
    if first == further or further["provenance"] in first.get("further_runs", []):
        return first
    both = {bar["name"] for bar in first["bars"]} & {bar["name"] for bar in further["bars"]}
    whole = {rate["name"] for rate in first["results"].get("rates", [])}
    both |= whole & {rate["name"] for rate in further["results"].get("rates", [])}
    if both or "--only" not in first["provenance"]["command"] or "--only" not in further["provenance"]["command"]:
        raise SystemExit(f"{target} exists with another run of the same commit: records are not replaced")
    bars = [*first["bars"], *further["bars"]]
    missed = [bar for bar in bars if not bar["holds"]]
    beyond = sum(not bar["reachable"] for bar in missed)
    return first | {
        "further_runs": [*first.get("further_runs", []), further["provenance"]],
        "results": of_both(first["results"], further["results"], len(first.get("further_runs", [])) + 2),
        "bars": bars,
        "summary": f"{len(missed)} of {len(bars)} bars missed, {beyond} of them beyond reach",
    }


def of_both(first: dict[str, Any], further: dict[str, Any], run: int) -> dict[str, Any]:
    """Return the entries of two runs: tables joined, lists of names one after the other, and values that differ side by side.

    Parameters
    ----------
    first, further : dict
        Results, or a part of them.
    run : int
        Number of the further run, which names what differs: nothing is lost.
    """
    found = further | first
    for key in first.keys() & further.keys():
        one, other = first[key], further[key]
        if isinstance(one, dict) and isinstance(other, dict):
            found[key] = of_both(one, other, run)
        elif isinstance(one, list) and isinstance(other, list) and all(isinstance(v, str | dict) for v in one + other):
            found[key] = [*one, *(value for value in other if value not in one)]
        elif one != other:
            found[f"{key}, run {run}"] = other
    return found
