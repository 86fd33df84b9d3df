"""What is known about one run, as JSON on disk: the input of ``gids report``."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gids.errors import DatasetError
from gids.report.provenance import provenance

FORMAT = "gids-run"
VERSION = 1
RUN_FILE = "run.json"

#: Where a row can come from, in the order in which tiers are asked; the keys of every ``rows`` entry.
SOURCES = ("cache", "host", "disk", "duplicates")


@dataclass
class Epoch:
    """One pass over the training seeds by one trainer."""

    trainer: str
    number: int
    seconds: float
    batches: int
    loss: float | None = None
    accuracy: float | None = None
    rows: dict[str, int] = field(default_factory=dict)
    bytes_read: int = 0

    @property
    def total_rows(self) -> int:
        """Rows that were handed to the trainer, from wherever they came."""
        return sum(self.rows.get(source, 0) for source in SOURCES)


@dataclass
class Memory:
    """Budget of a loader, what it allotted, and how much the process really grew."""

    budget_bytes: int
    peak_bytes: int
    table_bytes: int
    rss_growth_bytes: int | None = None
    parts: dict[str, int] = field(default_factory=dict)


@dataclass
class Run:
    """A run: settings, headline figures, epochs, memory, promises, timeline, and where the numbers come from."""

    name: str
    title: str
    settings: dict[str, Any] = field(default_factory=dict)
    headline: dict[str, str] = field(default_factory=dict)
    results: dict[str, Any] = field(default_factory=dict)
    epochs: list[Epoch] = field(default_factory=list)
    memory: Memory | None = None
    rates: list[dict[str, Any]] = field(default_factory=list)
    bars: list[dict[str, Any]] = field(default_factory=list)
    trace: list[dict[str, Any]] = field(default_factory=list)
    provenance: dict[str, Any] = field(default_factory=provenance)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON object that :func:`load_run` reads."""
        return {"format": FORMAT, "version": VERSION, **asdict(self)}

    def save(self, directory: Path) -> Path:
        """Write ``run.json`` into ``directory``; an older one is replaced in one step."""
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / RUN_FILE
        unfinished = path.with_suffix(".tmp")
        unfinished.write_text(json.dumps(self.as_dict(), indent=1, default=str))
        return unfinished.replace(path)


def load_run(path: Path) -> Run:
    """Read a run directory, its ``run.json``, the JSON of a ``gids bench``, or a saved trace.

    Raises
    ------
    DatasetError
        Where there is no such file, it is no JSON, or it is not of this version.
    """
    path = path / RUN_FILE if path.is_dir() else path
    try:
        record = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise DatasetError(f"run must be a directory with {RUN_FILE} or a JSON file (got {path}: not found)") from error
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"run must be JSON (got {path}: {error})") from error
    if isinstance(record, dict) and record.get("format") == FORMAT:
        return _from_record(record, path)
    if isinstance(record, dict) and "benchmark" in record:
        try:
            return _from_benchmark(record)
        except (TypeError, ValueError) as error:
            raise DatasetError(f"fields of {path} must be those of a benchmark ({error})") from error
    if isinstance(record, dict) and isinstance(record.get("traceEvents"), list):
        return Run("profile", f"Profile {path.name}", trace=record["traceEvents"], provenance={})
    raise DatasetError(f"run must be of format {FORMAT}, a benchmark's JSON, or a trace (got {path})")


def _from_record(record: dict[str, Any], path: Path) -> Run:
    if record.get("version") != VERSION:
        raise DatasetError(f"version of {path} must be {VERSION} (got {record.get('version')!r})")
    fields = {key: value for key, value in record.items() if key not in ("format", "version", "epochs", "memory")}
    try:
        epochs = [Epoch(**epoch) for epoch in record.get("epochs", [])]
        memory = Memory(**record["memory"]) if record.get("memory") else None
        return Run(**fields, epochs=epochs, memory=memory)
    except (TypeError, ValueError) as error:
        raise DatasetError(f"fields of {path} must be those of a run ({error})") from error


def _from_benchmark(record: dict[str, Any]) -> Run:
    results = dict(record.get("results", {}))
    origin = dict(record.get("provenance", {}))
    return Run(
        name=str(record["benchmark"]),
        title=f"gids bench {record['benchmark']}",
        settings=origin.pop("settings", {}),
        rates=results.pop("rates", []),
        results=results,
        bars=record.get("bars", []),
        provenance=origin,
    )
