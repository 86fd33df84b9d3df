"""gids.pack: sample epochs ahead of training and lay their rows out as they will be read."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from gids.budget import Memory, default_budget
from gids.dataset import Dataset
from gids.dataset.build import Build
from gids.dataset.packed import FORMAT, INDEX, POSITIONS, SAMPLES, VERSION, Packed, digest_of
from gids.dataset.table_writer import Progress, write_errors
from gids.errors import ConfigError, DatasetError
from gids.loader.graph import Features, Seeds
from gids.loader.packed import labels_bytes, packed_options
from gids.pack.arrange import ArrangedTable, HotRows, arrange, choose_segment, count_sizes, hot_rows
from gids.pack.layout import distinct_rows
from gids.pack.materialise import TableFile
from gids.pack.recipe import Packable, Recipe, count_batches
from gids.pack.sampled import SampledEpochs, sample_epochs
from gids.pack.scratch import remove_orphans
from gids.runtime.backend import Sampler
from gids.runtime.options import MemoryOptions, OrderOptions
from gids.table import RowTable
from gids.units import format_bytes, parse_bytes

#: Memory for packing where none is given: large enough for a buffer of 64 KiB for each of many thousand batches.
MEMORY = "1GiB"


def pack(
    dataset: Dataset | str | os.PathLike[str],
    path: str | os.PathLike[str],
    seeds: Seeds = None,
    *,
    fanouts: Sequence[Any] | None = None,
    sampler: Sampler | None = None,
    batch_size: int | None = None,
    features: Features = "feat",
    order: OrderOptions | None = None,
    topology: str = "memory",
    epochs: int = 1,
    reuse: bool = False,
    disk: int | str | None = None,
    budget: int | str | None = None,
    hot: int | str | None = None,
    memory: int | str = MEMORY,
    progress: Progress | None = None,
) -> Packed:
    """Sample epochs and write their rows in the order in which training will read them.

    The batches are those that :class:`gids.Loader` makes with the same arguments, to the bit. A killed run goes on where
    it was when the same call is made again.

    Parameters
    ----------
    dataset : Dataset or path-like
        What to train on.
    path : path-like
        Directory to make; it appears when everything is on disk.
    seeds, fanouts, sampler, batch_size, features, order
        As in :class:`gids.Loader`. Batches of all ranks of ``order`` are packed.
    topology : {"memory", "disk"}
        Where neighbour lists are while batches are sampled.
    epochs : int
        Different epochs to pack.
    reuse : bool
        Let training use them again and again; without it, an epoch beyond them is an error.
    disk : int or str, optional
        Most disk space, also while packing: bytes (``"64GiB"``) or a multiple of the packed tables (``"3x"``). Rows that
        several batches share are then stored once for a segment of batches. Without it every batch has all its rows.
    budget : int or str, optional
        Memory that the loader will have in training, as its ``budget``: what it leaves holds the most wanted rows, which
        are then not packed for each batch. By default as the loader's.
    hot : int or str, optional
        Memory for those rows, rather than what the budget leaves.
    memory : int or str
        Memory for packing itself, beside the graph, two numbers for each row, and those of rows that a segment shares.
    progress : callable, optional
        Called as ``progress(what, done, total)``.
    """
    recipe = Recipe(
        dataset,
        seeds,
        fanouts=fanouts,
        sampler=sampler,
        batch_size=batch_size,
        features=features,
        budget=budget,
        order=order,
        memory=MemoryOptions(topology=topology),
    )
    settings = {"epochs": epochs, "reuse": reuse, "disk": disk, "hot": hot, "budget": budget, "memory": memory}
    return Packing(recipe, Path(path), settings, progress).run()


@dataclass(frozen=True)
class Trial:
    """A part of a job, to see what all of it will take.

    Attributes
    ----------
    batches : int
        To pack.
    segment : int
        Batches of a segment.
    hot : list of HotRows
        Rows of each table that memory will hold.
    """

    batches: int
    segment: int
    hot: list[HotRows]


class Packing:
    """One job of packing.

    Parameters
    ----------
    recipe : Packable
        What to sample.
    path : Path
        Directory to make.
    settings : mapping
        ``epochs``, ``reuse``, ``disk``, ``hot``, ``budget`` and ``memory`` of :func:`pack`.
    progress : callable, optional
        Called as ``progress(what, done, total)``.
    trial : Trial, optional
        Pack only so much.
    """

    def __init__(
        self,
        recipe: Packable,
        path: Path,
        settings: Mapping[str, Any],
        progress: Progress | None = None,
        trial: Trial | None = None,
    ):
        self.recipe, self.path, self.settings = recipe, path.absolute(), dict(settings)
        self._progress, self._trial = progress, trial
        self._most_batches = None if trial is None else trial.batches
        self.epochs = int(settings["epochs"])
        if self.epochs < 1:
            raise ConfigError(f"epochs must be at least 1 (got {self.epochs})")
        self.memory_bytes = parse_bytes(settings["memory"], "memory")
        self.table_bytes = sum(table.total_bytes for table in recipe.tables.values())
        if not recipe.tables:
            raise ConfigError("features must name at least one table to pack (got none)")
        if not count_batches(recipe):
            raise ConfigError("seeds must make at least one batch (got none)")
        self.limit_bytes = disk_limit(settings["disk"], self.table_bytes)
        self.seconds: dict[str, float] = {}

    def run(self) -> Packed:
        """Make the packed epochs; a full disk, or too small a limit, leaves nothing."""
        job = {
            "pack": self.recipe.identity(),
            "tables": [str(key) for key in self.recipe.tables],
            **self.settings,
            "budget": self._budget_bytes(),
            "batches": self._most_batches,
        }
        if self.path.exists():  # what was packed is not replaced: a mistaken path would cost hours
            raise DatasetError(f"{self.path} exists; choose another path, or remove it")
        remove_orphans(self.path.parent)  # of a plan that was killed: their space may be needed
        build = Build(self.path, job, False, (), self._progress, None)
        try:
            packed = self._make(build)
        except (ConfigError, DatasetError):
            # What breaks a rule breaks it again, and space that a full disk needs must not be held by half of a job.
            build.abandon(discard=True)
            raise
        finally:
            build.abandon()
        return packed

    def _budget_bytes(self) -> int | None:
        """Return the loader's budget where it was given: what is free at this moment is no part of the job."""
        given = self.settings["budget"]
        return None if given is None else parse_bytes(given, "budget")

    def _make(self, build: Build) -> Packed:
        begin = time.perf_counter()
        limit = self.limit_bytes
        sampled = sample_epochs(build, self.recipe, self.epochs, limit, self._progress, self._most_batches)
        self._took("sampling", begin)
        begin = time.perf_counter()
        hot = hot_rows(sampled, self._hot_bytes(build, sampled)) if self._trial is None else self._trial.hot
        samples_bytes = (build.partial / SAMPLES).stat().st_size
        segment = self._segment(sampled, hot, samples_bytes) if self._trial is None else self._trial.segment
        arranged, counted = arrange(build, self.recipe, sampled, hot, segment, self._progress)
        self._took("layout", begin)
        begin = time.perf_counter()
        files = [
            TableFile(build, number, entry, self.memory_bytes, None, self._progress)
            for number, entry in enumerate(arranged)
        ]
        self._require_space(build, files)
        for file in files:
            file.fill()
        self._took("rows", begin)
        facts = counted | {
            "seconds": self.seconds,
            "bytes_read": sum(file.bytes_read for file in files),
            "bytes_written": sum(file.bytes_written for file in files),
            "episodes": [len(file.episodes) for file in files],
            "least_memory_bytes": [file.least_memory_bytes for file in files],
            "samples_bytes": samples_bytes,
            "table_bytes": self.table_bytes,
            "disk_limit_bytes": limit,
        }
        self._publish(build, sampled, arranged, segment, facts)
        return Packed(self.path)

    def _segment(self, sampled: SampledEpochs, hot: list[HotRows], samples_bytes: int) -> int:
        """Return the batches of a segment; refuses a limit that none fits."""
        tables, batches = list(sampled.tables.values()), len(sampled.records)
        sizes = count_sizes(tables, sampled.accesses.tolist(), batches, hot, samples_bytes)

        def rows_bytes(segment: int) -> int:
            return sum(
                table.row_bytes * distinct_rows(sampled.batches(number), segment, hot[number].rows, table.num_rows)
                for number, table in enumerate(tables)
            )

        return choose_segment(batches, rows_bytes, sizes, self.limit_bytes)

    def _took(self, step: str, begin: float) -> None:
        self.seconds[step] = time.perf_counter() - begin

    def _hot_bytes(self, build: Build, sampled: SampledEpochs) -> int:
        """Return the memory for hot rows: as asked for, or what the loader's budget leaves; the same after a kill."""
        if self.settings["hot"] is not None:
            return parse_bytes(self.settings["hot"], "hot")
        noted = build.journal.get("hot bytes")
        if noted is None:
            budget = self._budget_bytes()
            room = Memory(default_budget() if budget is None else budget)
            tables = {key: (table, sampled.largest(n)) for n, (key, table) in enumerate(sampled.tables.items())}
            standing = (sampled.records.nbytes, labels_bytes(self.recipe.dataset))
            options = packed_options(self.recipe.options, room, tables, _sample_bytes(sampled), standing)
            assert isinstance(options.memory.host_buffer, int)
            noted = rows_bytes_in(options.memory.host_buffer, sampled.tables.values())
            build.journal.note("hot bytes", noted)
        return int(noted)

    def _require_space(self, build: Build, files: list[TableFile]) -> None:
        there = sum(file.path.stat().st_blocks * 512 for file in files if file.path.exists())
        needed = sum(file.size_bytes for file in files) - there
        free = shutil.disk_usage(build.partial).free
        if needed > free:
            raise DatasetError(
                f"packed rows need {format_bytes(needed)} on the disk of {self.path.parent}, which has "
                f"{format_bytes(free)} free: free some space, pack fewer epochs, or give a disk limit"
            )

    def _publish(
        self, build: Build, sampled: SampledEpochs, arranged: list[ArrangedTable], segment: int, facts: dict[str, Any]
    ) -> None:
        index = sampled.records.tobytes()
        with write_errors(build.partial / INDEX, "the packed epochs"), (build.partial / INDEX).open("wb") as file:
            file.write(index)
            file.flush()
            os.fsync(file.fileno())
        trial = self._trial is not None
        per_rank = [len(order) for order in self.recipe.orders(0)]
        tables: list[dict[str, Any]] = []
        for number, (key, entry) in enumerate(zip(sampled.tables, arranged, strict=True)):
            tables.append(
                {
                    "key": [key.type if isinstance(key.type, str) else list(key.type), key.name],
                    "file": f"rows-{number}.bin",
                    "regions": f"regions-{number}.bin",
                    "dtype": entry.table.dtype,
                    "dim": entry.table.dim,
                    "rows": entry.rows,
                    "hot_rows": len(entry.hot),
                    "largest_rows": sampled.largest(number),
                    "position_bytes": entry.position_bytes,
                }
            )
        names = [SAMPLES, POSITIONS, INDEX, *(t["file"] for t in tables), *(t["regions"] for t in tables)]
        document = {
            "format": FORMAT,
            "version": VERSION,
            "dataset": self.recipe.dataset.id,
            "identity": self.recipe.identity() | ({"world_size": 1} if trial else {}),
            "epochs": 1 if trial else self.epochs,
            "reuse": bool(self.settings["reuse"]),
            "batches": len(sampled.records) if trial else count_batches(self.recipe),
            "batches_of_rank": [len(sampled.records)] if trial else per_rank,
            "segment_batches": segment,
            "largest_sample_bytes": _sample_bytes(sampled),
            "tables": tables,
            "files": {name: (build.partial / name).stat().st_size for name in names},
            "index_hash": xxhash.xxh3_64_intdigest(index),
            "facts": facts,
        }
        document = json.loads(json.dumps(document))  # as it will be read, so that its digest is the same
        build.publish(json.dumps({"digest": digest_of(document), **document}, indent=1) + "\n")


def rows_bytes_in(host_buffer: int, tables: Iterable[RowTable]) -> int:
    """Return the bytes of rows that a host buffer holds: each takes an entry in a map too, which has room for half again."""
    return int(host_buffer * min(table.row_bytes / (table.row_bytes + 8 + 48) for table in tables))


def _sample_bytes(sampled: SampledEpochs) -> int:
    """Return the memory of the largest batch: its sample, and the positions of its rows."""
    return sampled.largest_sample_bytes + 8 * sum(sampled.largest(n) for n in range(len(sampled.tables)))


def disk_limit(disk: int | str | None, table_bytes: int) -> int | None:
    """Return the bytes of a limit: a size, or a multiple of the tables such as ``"3x"``."""
    if disk is None:
        return None
    if isinstance(disk, str) and disk.strip().lower().endswith("x"):
        try:
            times = float(disk.strip()[:-1])
        except ValueError:
            times = -1.0
        if times <= 0:
            raise ConfigError(f"disk must be a size or a multiple of the tables such as '3x' (got {disk!r})")
        return int(times * table_bytes)
    return parse_bytes(disk, "disk")
