"""The second step: decide where every row goes, and write down where each batch finds its rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from gids.dataset.build import Build
from gids.dataset.packed import BATCH, POSITIONS, SAMPLES, encode_positions
from gids.dataset.table_writer import Progress
from gids.pack import layout
from gids.pack.recipe import Packable, count_batches
from gids.pack.sampled import Appended, SampledEpochs
from gids.table import RowTable

Positions = NDArray[np.int64]

#: Room for the manifest, the journal, and the records of regions that hold hot or shared rows.
MANIFEST_BYTES = 32 << 10


@dataclass
class ArrangedTable:
    """Where the rows of one table go.

    Attributes
    ----------
    table : RowTable
        Whose rows.
    hot : int64[h]
        Rows that memory holds, most wanted first; the first of the packed table.
    rows : int
        Of the packed table.
    regions : list of (int, bool)
        Where regions begin, and whether their rows come in any order.
    position_bytes : int
        Bytes of a stored position.
    """

    table: RowTable
    hot: Positions
    rows: int = 0
    regions: list[tuple[int, bool]] = field(default_factory=list)
    position_bytes: int = 8


@dataclass(frozen=True)
class Sizes:
    """Bytes on disk, as counted before anything is moved.

    Attributes
    ----------
    samples : int
        Sampled batches, positions and records.
    hot : int
        Rows that memory will hold.
    work : int
        Files that are deleted when the epochs are complete, at their largest.
    """

    samples: int
    hot: int
    work: int


def hot_rows(sampled: SampledEpochs, hot_bytes: int) -> list[Positions]:
    """Choose the rows of each table that memory will hold; a table gets its share of the bytes that batches ask for."""
    tables = list(sampled.tables.values())
    asked = [int(n) * table.row_bytes for n, table in zip(sampled.accesses, tables, strict=True)]
    chosen = []
    for number, table in enumerate(tables):
        room = hot_bytes * asked[number] // max(1, sum(asked)) // table.row_bytes
        counts = sampled.access_counts(number) if room else np.zeros(0, np.uint32)
        chosen.append(layout.choose_hot(counts, room))
    return chosen


def count_sizes(sampled: SampledEpochs, hot: list[Positions], samples_bytes: int) -> Sizes:
    """Count what does not depend on the size of segments."""
    tables = list(sampled.tables.values())
    work = sum(int(n) * (_id_bytes(t.num_rows) + 8) for n, t in zip(sampled.accesses, tables, strict=True))
    # Positions may need eight bytes where a packed table has more rows than fit in four.
    positions = sum(int(n) * _id_bytes(int(n)) for n in sampled.accesses) + 8 * len(tables) * len(sampled.records)
    records = len(sampled.records) * (BATCH.itemsize + 24 * len(tables)) + MANIFEST_BYTES
    in_memory = sum(len(rows) * table.row_bytes for rows, table in zip(hot, tables, strict=True))
    return Sizes(samples_bytes + positions + records, in_memory, work + 2 * records)


def _id_bytes(count: int) -> int:
    return 4 if count < 1 << 32 else 8


def choose_segment(sampled: SampledEpochs, hot: list[Positions], sizes: Sizes, limit_bytes: int | None) -> int:
    """Return the batches of a segment: 1 where everything fits, otherwise the fewest that fit; refuses too small a disk."""
    tables = list(sampled.tables.values())
    known: dict[int, int] = {}

    def size_bytes(segment: int) -> int:
        if segment not in known:
            on_disk = sum(
                table.row_bytes * layout.distinct_rows(sampled.batches(number), segment, hot[number], table.num_rows)
                for number, table in enumerate(tables)
            )
            known[segment] = on_disk + sizes.samples + sizes.hot + sizes.work
        return known[segment]

    return layout.smallest_segment(len(sampled.records), size_bytes, limit_bytes)


def arrange(
    build: Build,
    recipe: Packable,
    sampled: SampledEpochs,
    hot: list[Positions],
    segment: int,
    progress: Progress | None,
) -> tuple[list[ArrangedTable], dict[str, Any]]:
    """Lay out every segment; writes positions, and for every table which row goes where (``source-N.bin``).

    Returns
    -------
    list of ArrangedTable, dict
        Where rows go, and what was counted by epoch.
    """
    tables = list(sampled.tables.values())
    per_epoch = count_batches(recipe)
    arranged = [
        ArrangedTable(table, rows, len(rows), position_bytes=_id_bytes(int(accesses) + len(rows)))
        for table, rows, accesses in zip(tables, hot, sampled.accesses, strict=True)
    ]
    places = [_hot_places(table, rows) for table, rows in zip(tables, hot, strict=True)]
    sources = [Appended(build.work / f"source-{number}.bin") for number in range(len(tables))]
    positions_file = Appended(build.partial / POSITIONS)
    counted = _Counted(len(sampled.records), per_epoch)
    for number, (entry, file) in enumerate(zip(arranged, sources, strict=True)):
        file.append(entry.hot.astype("<i8").tobytes())
        uses = sampled.access_counts(number)[entry.hot] if len(entry.hot) else np.empty(0, np.uint32)
        groups = np.flatnonzero(np.append(True, np.diff(uses) != 0)[: len(uses)])
        entry.regions += layout.regions_of(0, groups, len(entry.hot), entry.table.row_bytes)
    dtypes = [np.dtype(f"<i{entry.position_bytes}" if entry.position_bytes == 8 else "<u4") for entry in arranged]
    try:
        for begin in range(0, len(sampled.records), segment):
            end = min(begin + segment, len(sampled.records))
            found = [
                _arrange_segment(entry, place, list(sampled.batches(number, begin, end)), file, counted, begin)
                for number, (entry, place, file) in enumerate(zip(arranged, places, sources, strict=True))
            ]
            for batch in range(begin, end):
                _write_positions(
                    build, recipe, sampled, batch, [part[batch - begin] for part in found], dtypes, positions_file
                )
            if progress is not None:
                progress("layout", end, len(sampled.records))
        positions_file.sync()
    finally:
        for file in (*sources, positions_file):
            file.close()
    return arranged, counted.facts()


def _hot_places(table: RowTable, hot: Positions) -> Positions | None:
    if not len(hot):
        return None
    places = np.full(table.num_rows, -1, np.int64 if len(hot) >= 1 << 31 else np.int32)
    places[hot] = np.arange(len(hot))
    return places


def _arrange_segment(
    entry: ArrangedTable,
    places: Positions | None,
    batches: list[NDArray[Any]],
    file: Appended,
    counted: _Counted,
    first: int,
) -> list[Positions]:
    """Lay out one segment of one table; returns the positions of every batch's rows, ascending by row."""
    in_memory = [np.full(len(ids), -1, np.int64) if places is None else places[ids].astype(np.int64) for ids in batches]
    cold = [ids[place < 0] for ids, place in zip(batches, in_memory, strict=True)]
    segment = layout.lay_out_segment(cold, entry.table.num_rows, seed=first)
    begin, row_bytes = entry.rows, entry.table.row_bytes
    entry.regions += layout.regions_of(begin, segment.groups, begin + len(segment.sources), row_bytes)
    entry.rows += len(segment.sources)
    file.append(segment.sources.astype("<i8").tobytes())
    for number, (place, where) in enumerate(zip(in_memory, segment.positions, strict=True)):
        place[place < 0] = where + begin
        counted.add(first + number, len(place), where + begin, row_bytes)
    return in_memory


def _write_positions(
    build: Build,
    recipe: Packable,
    sampled: SampledEpochs,
    batch: int,
    positions: list[Positions],
    dtypes: list[np.dtype[Any]],
    file: Appended,
) -> None:
    """Write the positions of one batch, in the order of its rows."""
    record = sampled.records[batch]
    if not record["sample_bytes"]:
        return
    with (build.partial / SAMPLES).open("rb") as samples:
        samples.seek(int(record["sample_offset"]))
        rows = recipe.rows(samples.read(int(record["sample_bytes"])))
    ordered = []
    for key, where in zip(sampled.tables, positions, strict=True):
        rank = np.empty(len(where), np.int64)
        rank[np.argsort(rows[key].numpy(), kind="stable")] = np.arange(len(where))
        ordered.append(where[rank])
    data = encode_positions(ordered, dtypes)
    record["positions_offset"] = file.append(data)
    record["positions_bytes"], record["positions_hash"] = len(data), xxhash.xxh3_64_intdigest(data)


class _Counted:
    """Counts what each epoch will read."""

    def __init__(self, batches: int, per_epoch: int):
        self._per_epoch = per_epoch
        epochs = max(1, -(-batches // per_epoch))
        self._asked, self._disk, self._read = (np.zeros(epochs, np.int64) for _ in range(3))

    def add(self, batch: int, asked_rows: int, disk: Positions, row_bytes: int) -> None:
        epoch = batch // self._per_epoch
        self._asked[epoch] += asked_rows * row_bytes
        self._disk[epoch] += len(disk) * row_bytes
        self._read[epoch] += layout.pages_bytes(disk, row_bytes)

    def facts(self) -> dict[str, Any]:
        """Return bytes by epoch: asked for, of rows on disk, and of the pages that hold them."""
        amplification = [float(r) / max(1, int(d)) for r, d in zip(self._read, self._disk, strict=True)]
        return {
            "asked_bytes": self._asked.tolist(),
            "disk_bytes": self._disk.tolist(),
            "page_bytes": self._read.tolist(),
            "read_amplification": amplification,
        }


def source_rows(build: Build, number: int, begin: int, end: int) -> Positions:
    """Read which rows of a table go to rows ``begin..end`` of its packed one."""
    with (build.work / f"source-{number}.bin").open("rb") as file:
        file.seek(begin * 8)
        return np.fromfile(file, "<i8", end - begin)


def iter_regions(entry: ArrangedTable) -> Iterator[tuple[int, int, bool]]:
    """Yield begin, end and whether rows come in any order, of every region of a packed table."""
    begins = [begin for begin, _ in entry.regions]
    for (begin, placed), end in zip(entry.regions, [*begins[1:], entry.rows], strict=True):
        yield begin, end, placed
