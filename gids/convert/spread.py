"""Conversion as tasks over ranges of rows: the same files, byte for byte, as one process writes, made by many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from gids.convert.buckets import put_rows
from gids.convert.edges import EdgeList, EdgeSort, edge_tables, record_shape
from gids.convert.sources import RowSource
from gids.convert.workers import Workers
from gids.dataset import DatasetWriter, EdgeType, TableWriter
from gids.dataset.build import safe_name
from gids.dataset.table_writer import PieceWriter, Rows, TableFiles, seal
from gids.errors import ConfigError
from gids.table import DTYPES

#: Copies of a record that are alive at once while edges are grouped or sorted: columns read, records, and their orders.
COPIES = 6
#: Ranges that a list of edges is read in, at most: each has a file for every bucket.
MAX_PIECES = 32
#: Rows of one task, in bytes: enough to be worth handing over, few enough for progress and for an even end.
TASK_BYTES = 64 << 20


def run_noted(
    writer: DatasetWriter,
    workers: Workers,
    key: str,
    function: Callable[..., Any],
    tasks: Sequence[tuple[Any, ...]],
    report: Callable[[int], None],
) -> list[Any]:
    """Run the tasks that no former run has noted as done; returns the result of every task.

    ``report`` is called with the number of tasks that are done.
    """
    results = {number: note for number in range(len(tasks)) if (note := writer.journal.get(f"{key} {number}"))}
    left = [number for number in range(len(tasks)) if number not in results]
    report(len(results))
    for place, found in workers.run(function, [tasks[number] for number in left]):
        results[left[place]] = [found]
        writer.journal.note(f"{key} {left[place]}", [found])
        report(len(results))
    return [results[number][0] for number in range(len(tasks))]


def spread_edges(writer: DatasetWriter, etype: EdgeType, edges: EdgeList, workers: Workers) -> None:
    """Do what :func:`gids.convert.edges.write_edges` does: ranges of edges go to buckets, buckets are sorted, in tasks."""
    name = ":".join(etype)
    num_sources, num_nodes = writer.num_nodes(etype[0]), writer.num_nodes(etype[2])
    columns, dtype = record_shape(edges, num_sources, num_nodes)
    limit = max(1024, workers.memory_bytes // (COPIES * columns * dtype.itemsize))
    step = max(512, limit // 2)
    rows = edges.source.num_rows
    pieces = min(MAX_PIECES, -(-rows // step)) if edges.divisible else 1
    bounds = [rows * piece // max(pieces, 1) for piece in range(max(pieces, 1) + 1)]
    directory = writer.work / f"edges-{safe_name(name)}-in-tasks"
    sort = EdgeSort(edges, name, num_sources, num_nodes, directory, step, limit, len(bounds) - 1)
    shape = [bounds, sort.buckets.num_buckets, limit]
    key = f"edges {name}"
    if writer.journal.get(key) != shape:  # else a former run has begun just so
        sort.buckets.begin()
        writer.journal.note(key, shape)
    counts = run_noted(
        writer,
        workers,
        f"{key} {shape} fill",
        _fill,
        [(sort, piece, *bounds[piece : piece + 2]) for piece in range(len(bounds) - 1)],
        lambda done: writer.report(f"{name} reading", bounds[done], rows),
    )
    sizes = [sum(column) for column in zip(*counts, strict=True)]
    firsts = [0, *np.cumsum(sizes).tolist()]
    tables = edge_tables(writer, etype, edges, firsts[-1])
    if any(table.rows_done < table.table.num_rows for table in tables.values()):
        files = {part: table.files for part, table in tables.items()}
        run_noted(
            writer,
            workers,
            f"{key} {shape} sort",
            _merge,
            [(sort, bucket, firsts[bucket], files) for bucket in range(len(sizes))],
            lambda done: writer.report(f"{name} sorting", firsts[done], max(firsts[-1], 1)),
        )
        for part, table in tables.items():
            _seal(writer, workers, f"{key} {shape} {part}", table)
    for table in tables.values():
        table.finish()
    sort.buckets.remove()


def _fill(sort: EdgeSort, piece: int, begin: int, end: int) -> list[int]:
    return sort.buckets.fill(sort.records(begin, end), lambda done: None, piece)


def _merge(sort: EdgeSort, bucket: int, first_edge: int, files: dict[str, TableFiles]) -> None:
    low, high = sort.buckets.keys(bucket)
    first_row = dict.fromkeys(files, first_edge) | {"indptr": low + 1 if bucket else 0}
    tables = {part: PieceWriter(file, first_row[part]) for part, file in files.items()}
    try:
        if bucket == 0:
            put_rows(tables["indptr"], 0, np.zeros(1, np.int64))
        if high > low:
            sort.merge(bucket, first_edge, tables)
    finally:
        for table in tables.values():
            table.close()


def _seal(writer: DatasetWriter, workers: Workers, key: str, table: TableWriter) -> None:
    tasks = [(table.files, *rows, workers.memory_bytes // COPIES) for rows in _ranges(table)]
    run_noted(writer, workers, f"{key} sums", seal, tasks, lambda done: None)
    table.filled()


def _ranges(table: TableWriter) -> list[tuple[int, int]]:
    """Cut a table into ranges of whole chunks."""
    rows = table.table.num_rows
    step = max(1, TASK_BYTES // (table.chunk_rows * table.table.row_bytes)) * table.chunk_rows
    return [(begin, min(begin + step, rows)) for begin in range(0, rows, step)]


def spread_rows(
    writer: DatasetWriter, source: RowSource, table: TableWriter, workers: Workers, dtype: str | None = None
) -> None:
    """Do what :func:`gids.convert.graph.copy_source` does, a range of rows in each task."""
    if source.num_rows != table.table.num_rows:
        raise ConfigError(f"{source.name} must have {table.table.num_rows} rows (got {source.num_rows})")
    if table.rows_done == table.table.num_rows:
        return
    ranges = _ranges(table) if source.divisible else [(0, table.table.num_rows)]
    row_bytes = table.table.row_bytes + source.dim * DTYPES[source.dtype].itemsize
    chunks = max(1, workers.memory_bytes // (COPIES * row_bytes * table.chunk_rows))
    step = min(chunks * table.chunk_rows, max(source.num_rows, 1))
    run_noted(
        writer,
        workers,
        f"rows {table.table.name} {ranges[:2]}",
        _copy,
        [(source, table.files, begin, end, step, dtype or table.table.dtype) for begin, end in ranges],
        lambda done: writer.report(
            table.table.name, done * table.table.total_bytes // len(ranges), table.table.total_bytes
        ),
    )
    table.filled()


def _copy(source: RowSource, files: TableFiles, begin: int, end: int, step: int, dtype: str) -> None:
    with PieceWriter(files, begin, sealed=True) as piece:
        for rows in source.read_range(begin, end, step):
            piece.append(cast(rows, dtype))


def spread_count(edges: EdgeList, workers: Workers) -> int:
    """Do what :func:`gids.convert.edges.count_nodes` does, a range of edges in each task."""
    step = max(1024, workers.memory_bytes // (COPIES * 16))
    rows = edges.source.num_rows
    pieces = max(1, min(MAX_PIECES, -(-rows // step))) if edges.divisible else 1
    bounds = [rows * piece // pieces for piece in range(pieces + 1)]
    tasks = [(edges, begin, end, step) for begin, end in pairwise(bounds)]
    return 1 + max((found for _, found in workers.run(_largest, tasks)), default=-1)


def _largest(edges: EdgeList, begin: int, end: int, step: int) -> int:
    return max((max(int(s.max()), int(d.max())) for s, d, _ in edges.read(begin, end, step) if len(s)), default=-1)


def cast(rows: Rows, dtype: str) -> Rows:
    """Convert rows to a dtype of :data:`gids.table.DTYPES`, without a copy where they have it."""
    if isinstance(rows, torch.Tensor):
        return rows.to(DTYPES[dtype])
    if dtype == "bfloat16":
        return torch.from_numpy(np.ascontiguousarray(rows, np.float32)).to(torch.bfloat16)
    return rows.astype(dtype, copy=False)
