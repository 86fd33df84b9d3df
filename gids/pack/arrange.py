"""The second step: decide where every row goes, and write down where each batch finds its rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
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
from gids.pack.sampled import Appended, ColdBatches, SampledEpochs
from gids.table import RowTable

Positions = NDArray[np.int64]
Places = NDArray[Any]  # int32 or int64

#: Room for the manifest, the journal, and the records of regions that hold hot or shared rows.
MANIFEST_BYTES = 32 << 10
#: Batches that are laid out before the positions of the first of them are written.
BATCHES_AHEAD = 8


@dataclass(frozen=True)
class HotRows:
    """Rows of one table that memory will hold.

    Attributes
    ----------
    rows : int64[h]
        Which, most wanted first.
    uses : uint32[h]
        Batches that want each.
    """

    rows: Positions
    uses: NDArray[np.uint32]

    @staticmethod
    def of(counts: NDArray[np.uint32], most_rows: int) -> HotRows:
        """Choose the rows that are worth memory by how many batches want each row of the table."""
        rows = layout.choose_hot(counts, most_rows)
        return HotRows(rows, counts[rows])

    def __len__(self) -> int:
        return len(self.rows)

    def first(self, count: int) -> HotRows:
        """Return the most wanted ones."""
        return HotRows(self.rows[:count], self.uses[:count])


@dataclass
class ArrangedTable:
    """Where the rows of one table go.

    Attributes
    ----------
    table : RowTable
        Whose rows.
    hot : HotRows
        Rows that memory holds; the first of the packed table.
    rows : int
        Of the packed table.
    regions : list of (int, bool)
        Where regions begin, and whether their rows come in any order.
    position_bytes : int
        Bytes of a stored position.
    """

    table: RowTable
    hot: HotRows
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


def hot_rows(sampled: SampledEpochs, hot_bytes: int) -> list[HotRows]:
    """Choose the rows of each table that memory will hold; a table gets its share of the bytes that batches ask for."""
    tables = list(sampled.tables.values())
    asked = [int(n) * table.row_bytes for n, table in zip(sampled.accesses, tables, strict=True)]
    chosen = []
    for number, table in enumerate(tables):
        room = hot_bytes * asked[number] // max(1, sum(asked)) // table.row_bytes
        counts = sampled.access_counts(number) if room else np.zeros(0, np.uint32)
        chosen.append(HotRows.of(counts, room))
    return chosen


def count_sizes(
    tables: Sequence[RowTable], accesses: Sequence[int], batches: int, hot: Sequence[HotRows], samples_bytes: int
) -> Sizes:
    """Count what does not depend on the size of segments.

    Parameters
    ----------
    tables : sequence of RowTable
        What is packed.
    accesses : sequence of int
        Rows that all batches want of each.
    batches : int
        How many there are.
    hot : sequence of HotRows
        What memory will hold of each.
    samples_bytes : int
        Of all sampled batches.
    """
    work = sum(int(n) * (_id_bytes(t.num_rows) + 8) for n, t in zip(accesses, tables, strict=True))
    # Positions may need eight bytes where a packed table has more rows than fit in four.
    positions = sum(int(n) * _id_bytes(int(n)) for n in accesses) + 8 * len(tables) * batches
    records = batches * (BATCH.itemsize + 24 * len(tables)) + MANIFEST_BYTES
    in_memory = sum(len(rows) * table.row_bytes for rows, table in zip(hot, tables, strict=True))
    return Sizes(samples_bytes + positions + records, in_memory, work + 2 * records)


def _id_bytes(count: int) -> int:
    return 4 if count < 1 << 32 else 8


def choose_segment(batches: int, rows_bytes: Callable[[int], int], sizes: Sizes, limit_bytes: int | None) -> int:
    """Return the batches of a segment: 1 where everything fits, otherwise the fewest that fit; refuses too small a disk.

    Parameters
    ----------
    batches : int
        In all.
    rows_bytes : callable
        Counts the bytes on disk of rows that are not hot, for a size of segments.
    sizes : Sizes
        Of everything else.
    limit_bytes : int, optional
        The most that there may be on disk, also while packing.
    """
    others = sizes.samples + sizes.hot + sizes.work
    return layout.smallest_segment(batches, lambda segment: rows_bytes(segment) + others, limit_bytes)


def arrange(
    build: Build,
    recipe: Packable,
    sampled: SampledEpochs,
    hot: list[HotRows],
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
    is_cold = [_is_cold(entry) for entry in arranged]
    sources = [Appended(build.work / f"source-{number}.bin") for number in range(len(tables))]
    counted = _Counted(len(sampled.records), per_epoch)
    for entry, file in zip(arranged, sources, strict=True):
        file.append(entry.hot.rows.astype("<i8").tobytes())
        groups = np.flatnonzero(np.append(True, np.diff(entry.hot.uses) != 0)[: len(entry.hot)])
        entry.regions += layout.regions_of(0, groups, len(entry.hot), entry.table.row_bytes)
    positions = _PositionsWriter(build, recipe, sampled, arranged)
    writing: deque[Future[None]] = deque()  # on a thread of its own, while the next batches are laid out
    thread = ThreadPoolExecutor(1, "gids-pack")
    try:
        for begin in range(0, len(sampled.records), segment):
            end = min(begin + segment, len(sampled.records))
            cold = [ColdBatches(sampled, number, which, begin, end) for number, which in enumerate(is_cold)]
            segments = [
                layout.Segment(batches, entry.table.num_rows, seed=begin)
                for entry, batches in zip(arranged, cold, strict=True)
            ]
            for found, file in zip(segments, sources, strict=True):
                file.append(found.cached.tobytes())
            for batch, *wanted in zip(range(begin, end), *cold, strict=True):
                chunks = []
                for number, (entry, ids) in enumerate(zip(arranged, wanted, strict=True)):
                    where, own = segments[number].add(ids)
                    sources[number].append(own.tobytes())
                    where += entry.rows
                    counted.add(batch, sampled.num_rows(number, batch), where, entry.table.row_bytes)
                    chunks.append((ids, where))
                writing.append(thread.submit(positions.write, batch, chunks))
                if len(writing) > BATCHES_AHEAD:
                    writing.popleft().result()
                if progress is not None:
                    progress("layout", batch + 1, len(sampled.records))
            for entry, found in zip(arranged, segments, strict=True):
                entry.regions += layout.regions_of(
                    entry.rows, found.groups, entry.rows + found.rows, entry.table.row_bytes
                )
                entry.rows += found.rows
        while writing:
            writing.popleft().result()
        positions.sync()
    finally:
        thread.shutdown(cancel_futures=True)  # waits for one batch at most
        for file in sources:
            file.close()
        positions.close()
    return arranged, counted.facts()


class _PositionsWriter:
    """Writes where the rows of every batch are, in the order of its sample; used by one thread at a time."""

    def __init__(self, build: Build, recipe: Packable, sampled: SampledEpochs, arranged: list[ArrangedTable]):
        self._recipe, self._sampled = recipe, sampled
        self._places = [_places(entry, int(n)) for entry, n in zip(arranged, sampled.accesses, strict=True)]
        self._dtypes = [np.dtype("<i8" if entry.position_bytes == 8 else "<u4") for entry in arranged]
        self._file = Appended(build.partial / POSITIONS)
        self._samples = (build.partial / SAMPLES).open("rb")

    def write(self, batch: int, chunks: list[tuple[NDArray[Any], Positions]]) -> None:
        """Write those of a batch; ``chunks``: of every table, rows that are not hot, and where they are."""
        record = self._sampled.records[batch]
        if not record["sample_bytes"]:
            return
        self._samples.seek(int(record["sample_offset"]))
        rows = self._recipe.rows(self._samples.read(int(record["sample_bytes"])))
        ordered = [
            _positions(place, cold, where, rows[key].numpy())
            for key, place, (cold, where) in zip(self._sampled.tables, self._places, chunks, strict=True)
        ]
        data = encode_positions(ordered, self._dtypes)
        record["positions_offset"] = self._file.append(data)
        record["positions_bytes"], record["positions_hash"] = len(data), xxhash.xxh3_64_intdigest(data)

    def sync(self) -> None:
        """Force everything to disk."""
        self._file.sync()

    def close(self) -> None:
        """Close the files."""
        self._file.close()
        self._samples.close()


def _is_cold(entry: ArrangedTable) -> NDArray[np.bool_]:
    """Say of each row that it is not hot."""
    found: NDArray[np.bool_] = np.ones(entry.table.num_rows, bool)
    found[entry.hot.rows] = False
    return found


def _places(entry: ArrangedTable, accesses: int) -> Places:
    """Return where each row of a table is: hot ones for good, others where the batch at hand has them."""
    dtype = np.int32 if len(entry.hot) + accesses <= np.iinfo(np.int32).max else np.int64
    places = np.full(entry.table.num_rows, np.iinfo(dtype).max, dtype)
    places[entry.hot.rows] = np.arange(len(entry.hot))
    return places


def _positions(places: Places, cold: NDArray[Any], where: Positions, rows: NDArray[np.int64]) -> Places:
    """Return where the rows of one batch are, in the order of its sample."""
    places[cold] = where
    return places[rows]


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
