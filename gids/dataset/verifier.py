"""Read a whole dataset and compare it with its checksums and its own rules."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gids import _native
from gids.dataset import checksum
from gids.dataset.dataset import Dataset, check_indptr
from gids.dataset.manifest import KnowledgeEntry, StoredTable
from gids.dataset.rows import blocks, offset_parts, read_rows
from gids.dataset.table_writer import Progress
from gids.errors import DatasetError
from gids.table import RowTable


@dataclass(frozen=True)
class Problem:
    """Something wrong in a dataset.

    Attributes
    ----------
    table : str
        Name of the table, e.g. ``"paper/feat"``.
    first_row, last_row : int
        Rows concerned, both included; equal where the damaged row is known exactly.
    message : str
        What is wrong, for people.
    """

    table: str
    first_row: int
    last_row: int
    message: str


def verify(dataset: Dataset, progress: Progress | None = None) -> list[Problem]:
    """Check every row of a dataset against its checksums, and ids and offsets against their bounds.

    Damage within one row is pinned to that row, otherwise to a range of about 64 KiB.
    """
    pool = _native.ThreadPool(len(os.sched_getaffinity(0)), "gids-verify")
    problems: list[Problem] = []
    for stored in dataset.manifest.tables():
        problems.extend(check_table(stored, dataset.path, progress, pool))
    damaged = {problem.table for problem in problems}
    # Damaged bytes break rules too; once is enough.
    problems.extend(problem for problem in _check_rules(dataset) if problem.table not in damaged)
    return problems


def check_table(
    stored: StoredTable, root: Path, progress: Progress | None, pool: _native.ThreadPool
) -> Iterator[Problem]:
    """Yield what is wrong in one table; ``root`` is the dataset's directory."""
    table, file = stored.table, stored.checksums
    path = root / file.path
    expected = -(-table.num_rows // file.chunk_rows) * checksum.RECORD.itemsize
    if not path.exists() or path.stat().st_size != expected or checksum.file_digest(path) != file.digest:
        message = f"checksums of {table.name} in {path} are missing or damaged: its rows cannot be checked"
        yield Problem(table.name, 0, max(table.num_rows - 1, 0), message)
        return
    records = np.fromfile(path, checksum.RECORD)
    for begin, end in _held_blocks(table, file.chunk_rows):
        actual = checksum.chunk_records(read_rows(table, begin, end), file.chunk_rows, pool)
        first = begin // file.chunk_rows
        stored_records = records[first : first + len(actual)]
        for chunk in np.flatnonzero(stored_records["hash"] != actual["hash"]):
            low = begin + int(chunk) * file.chunk_rows
            high = min(low + file.chunk_rows, table.num_rows)
            row = checksum.damaged_row(stored_records[chunk], actual[chunk], high - low)
            yield _damage(table, low, high) if row is None else _damage(table, low + row, low + row + 1)
        if progress is not None:
            progress(table.name, end * table.row_bytes, table.total_bytes)


def _held_blocks(table: RowTable, chunk_rows: int) -> Iterator[tuple[int, int]]:
    """Cut what a table holds into ranges of whole chunks; of a part of a table, the chunks that it has whole."""
    if table.held is None:
        yield from blocks(table, chunk_rows)
        return
    low = -(-table.held[0] // chunk_rows) * chunk_rows
    high = table.num_rows if table.held[1] == table.num_rows else table.held[1] // chunk_rows * chunk_rows
    for begin, end in blocks(table, chunk_rows):
        if max(begin, low) < min(end, high):
            yield max(begin, low), min(end, high)


def _damage(table: RowTable, begin: int, end: int) -> Problem:
    stripe, offset = table.locate(begin)
    where = f"row {begin}" if end == begin + 1 else f"rows {begin} to {end - 1}"
    place = f"{table.stripes[stripe].path}, offset {offset}"
    return Problem(table.name, begin, end - 1, f"{table.name} is damaged in {where} ({place})")


def _check_rules(dataset: Dataset) -> Iterator[Problem]:
    manifest = dataset.manifest
    for node in manifest.nodes.values():
        for split in node.splits.values():
            yield from _check_ids(split.table, 0, node.num_nodes)
        if node.labels is not None and node.num_classes is not None and "int" in node.labels.table.dtype:
            yield from _check_ids(node.labels.table, -1, node.num_classes)
    for (source, _, _), edge in manifest.edges.items():
        offsets = edge.indptr.table
        try:
            check_indptr(offset_parts(offsets), edge.num_edges, offsets.name)
        except DatasetError as error:
            yield Problem(offsets.name, 0, offsets.num_rows - 1, str(error))
        yield from _check_ids(edge.indices.table, 0, manifest.nodes[source].num_nodes)
        if edge.edge_ids is not None and edge.features:
            rows = min(feature.table.num_rows for feature in edge.features.values())
            yield from _check_ids(edge.edge_ids.table, 0, rows)

    if manifest.knowledge is not None:
        yield from _check_knowledge(manifest.knowledge, manifest.nodes[manifest.knowledge.entity_type].num_nodes)


def _check_knowledge(entry: KnowledgeEntry, num_entities: int) -> Iterator[Problem]:
    offsets = entry.indptr.table
    try:
        check_indptr(offset_parts(offsets), entry.num_triples, offsets.name)
    except DatasetError as error:
        yield Problem(offsets.name, 0, offsets.num_rows - 1, str(error))
    yield from _check_columns(entry.triples.table, entry.num_triples, (entry.num_relations, num_entities))
    for stored in entry.queries.values():
        bounds = (num_entities, entry.base_relations, num_entities)
        yield from _check_columns(stored.table, stored.table.num_rows, bounds)


def _check_columns(table: RowTable, num_rows: int, bounds: tuple[int, ...]) -> Iterator[Problem]:
    for begin, end in blocks(table):
        values = read_rows(table, begin, end).reshape(-1).view(table.dtype).reshape(-1, table.dim)
        values = values[: max(0, num_rows - begin)]
        bad = np.argwhere((values < 0) | (values >= np.array(bounds)))
        if len(bad):
            row, column = begin + int(bad[0][0]), int(bad[0][1])
            got = int(values[bad[0][0], column])
            message = f"column {column} of {table.name} must be in [0, {bounds[column]}) (got {got} at row {row})"
            yield Problem(table.name, row, row, message)
            return


def _check_ids(table: RowTable, low: int, high: int) -> Iterator[Problem]:
    for begin, end in blocks(table):
        values = read_rows(table, begin, end).reshape(-1).view(table.dtype)
        bad = np.flatnonzero((values < low) | (values >= high))
        if len(bad):
            row = begin + int(bad[0])
            message = f"{table.name} must be in [{low}, {high}) (got {int(values[bad[0]])} at row {row})"
            yield Problem(table.name, row, row, message)
            return
