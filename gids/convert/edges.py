"""Edge lists of any length to CSC in bounded memory: edges go to buckets by destination, buckets are sorted one by one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gids import _native
from gids.convert.sources import RowSource
from gids.dataset import DatasetWriter, EdgeType, TableWriter
from gids.dataset.build import safe_name
from gids.dataset.table_writer import write_errors
from gids.errors import ConfigError

#: Edges read at a time, and edges that a bucket may have in memory.
STEP_EDGES = 1 << 21
BUCKET_EDGES = 1 << 23
MAX_BUCKETS = 256


@dataclass(frozen=True)
class EdgeList:
    """Edges in any order.

    Attributes
    ----------
    source, destination : RowSource
        Node ids; the same object (of dim 2) where they are pairs.
    weight : RowSource, optional
        Weights, in the order of the edges.
    both_ways : bool
        Add the reverse of every edge; it has the id and weight of the edge.
    keep_ids : bool
        Store the position of every edge in the list as its id, e.g. because edge features are in that order.
    """

    source: RowSource
    destination: RowSource
    weight: RowSource | None = None
    both_ways: bool = False
    keep_ids: bool = False

    @property
    def num_edges(self) -> int:
        """Edges, with the added ones."""
        return self.source.num_rows * (2 if self.both_ways else 1)

    def read(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray | None]]:
        """Yield sources, destinations and weights of consecutive edges."""
        weights = iter(()) if self.weight is None else self.weight.read(0, STEP_EDGES)
        for source, destination in _id_pairs(self.source, self.destination):
            weight = None if self.weight is None else np.asarray(next(weights), np.float64).reshape(-1)
            yield source, destination, weight


def _id_pairs(source: RowSource, destination: RowSource) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    if source is destination:
        for pairs in source.read(0, STEP_EDGES):
            array = np.asarray(pairs)
            yield array[:, 0].astype(np.int64), array[:, 1].astype(np.int64)
        return
    for left, right in zip(source.read(0, STEP_EDGES), destination.read(0, STEP_EDGES), strict=True):
        yield np.asarray(left).reshape(-1).astype(np.int64), np.asarray(right).reshape(-1).astype(np.int64)


def count_nodes(edges: EdgeList) -> int:
    """Find the number of nodes that an edge list needs: one more than its largest id."""
    return 1 + max((max(int(s.max()), int(d.max())) for s, d, _ in edges.read() if len(s)), default=-1)


def write_edges(writer: DatasetWriter, etype: EdgeType, edges: EdgeList) -> None:
    """Add an edge list to a dataset, by destination; edges of one destination keep their order."""
    _Sort(writer, etype, edges).run()


class _Sort:
    """One edge list on its way: columns are destination, source, and where needed edge id and weight bits."""

    def __init__(self, writer: DatasetWriter, etype: EdgeType, edges: EdgeList):
        self.writer, self.etype, self.edges = writer, etype, edges
        self.name = ":".join(etype)
        self.num_sources, self.num_nodes = writer.num_nodes(etype[0]), writer.num_nodes(etype[2])
        wide = edges.keep_ids or edges.weight is not None or max(self.num_sources, self.num_nodes) > 2**31 - 1
        self.dtype = np.dtype(np.int64 if wide else np.int32)
        self.columns = 2 + edges.keep_ids + (edges.weight is not None)
        buckets = min(MAX_BUCKETS, -(-edges.num_edges // (BUCKET_EDGES // 2)), max(self.num_nodes, 1))
        self.num_buckets = max(1, buckets)
        self.width = max(1, -(-self.num_nodes // self.num_buckets))
        self.directory = writer.work / f"edges-{safe_name(self.name)}"

    def run(self) -> None:
        key = f"sorted {self.name}"
        note = self.writer.journal.get(key)
        if note is None:
            note = self.partition()
            self.writer.journal.note(key, note)
        counts: list[int] = note
        tables = self.tables(sum(counts))
        if any(table.rows_done < table.table.num_rows for table in tables.values()):
            self.merge(counts, tables)
        for table in tables.values():
            table.finish()  # on disk, before what it was made of is deleted
        shutil.rmtree(self.directory, ignore_errors=True)

    def partition(self) -> list[int]:
        """Append every edge to the bucket of its destination; gives the buckets' sizes."""
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir()
        counts = np.zeros(self.num_buckets, np.int64)
        done = 0
        with ExitStack() as stack, write_errors(self.directory, self.name):
            files = [stack.enter_context(self.path(b).open("wb", buffering=0)) for b in range(self.num_buckets)]
            for source, destination, weight in self.edges.read():
                self.check_ids(source, self.num_sources, "source", done)
                self.check_ids(destination, self.num_nodes, "destination", done)
                records = self.records(source, destination, weight, done)
                done += len(source)
                bucket = (records[:, 0] // self.width).astype(np.int16)
                order = np.argsort(bucket, kind="stable")
                sizes = np.bincount(bucket, minlength=self.num_buckets)
                ends = np.cumsum(sizes)
                records = records[order]
                for b in np.flatnonzero(sizes):
                    _write_all(files[b], records[ends[b] - sizes[b] : ends[b]])
                counts += sizes
                size = self.columns * self.dtype.itemsize
                self.writer.report(f"{self.name} sorting", done * size, self.edges.source.num_rows * size)
            for file in files:
                os.fsync(file.fileno())
        return [int(count) for count in counts]

    def records(self, source: np.ndarray, destination: np.ndarray, weight: np.ndarray | None, first: int) -> np.ndarray:
        columns = [destination, source]
        if self.edges.keep_ids:
            columns.append(np.arange(first, first + len(source)))
        if weight is not None:
            columns.append(weight.view(np.int64))
        records = np.empty((len(source) * (2 if self.edges.both_ways else 1), self.columns), self.dtype)
        step = 2 if self.edges.both_ways else 1
        for i, column in enumerate(columns):
            records[::step, i] = column
        if self.edges.both_ways:
            for i, column in enumerate([source, destination, *columns[2:]]):
                records[1::2, i] = column
        return records

    def check_ids(self, ids: np.ndarray, bound: int, role: str, first: int) -> None:
        if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= bound):
            place = int(np.flatnonzero((ids < 0) | (ids >= bound))[0])
            raise ConfigError(
                f"{role} id of edge {first + place} of {self.name} must be in [0, {bound}) (got {ids[place]})"
            )

    def tables(self, num_edges: int) -> dict[str, TableWriter]:
        small = self.num_sources <= 2**31 - 1
        tables = {"indptr": self.writer.indptr(self.etype)}
        tables["indices"] = self.writer.indices(num_edges, "int32" if small else "int64", self.etype)
        if self.edges.keep_ids:
            tables["edge_ids"] = self.writer.edge_ids("int64", self.etype)
        if self.edges.weight is not None:
            dtype = "float64" if self.edges.weight.dtype == "float64" else "float32"
            tables["weights"] = self.writer.weights(dtype, self.etype)
        return tables

    def merge(self, counts: list[int], tables: dict[str, TableWriter]) -> None:
        """Sort bucket after bucket and append it, leaving out what a former run has stored."""
        _put(tables["indptr"], 0, np.zeros(1, np.int64))
        first_edge = 0
        for bucket, count in enumerate(counts):
            low, high = bucket * self.width, min((bucket + 1) * self.width, self.num_nodes)
            done = tables["indptr"].rows_done > high and all(
                table.rows_done >= first_edge + count for name, table in tables.items() if name != "indptr"
            )
            if high > low and not done:
                self.merge_bucket(bucket, low, high, first_edge, tables)
            first_edge += count

    def merge_bucket(self, bucket: int, low: int, high: int, edge: int, tables: dict[str, TableWriter]) -> None:
        for begin, end in self.parts(bucket, low, high):
            position, degree = edge, 0
            whole = (begin, end) == (low, high)
            for records in self.select(bucket, begin, end, whole):
                offsets = np.empty(end - begin + 1, np.int64)
                order = np.empty(len(records), np.int64)
                _native.group_by_key(np.ascontiguousarray(records[:, 0] - begin), offsets, order)
                self.put_edges(tables, position, records[order])
                position += len(records)
                degree += len(records)
                if end - begin > 1:
                    _put(tables["indptr"], begin + 1, offsets[1:] + edge)
            if end - begin == 1:
                _put(tables["indptr"], begin + 1, np.array([edge + degree], np.int64))
            edge = position

    def put_edges(self, tables: dict[str, TableWriter], first: int, records: np.ndarray) -> None:
        _put(tables["indices"], first, records[:, 1])
        if "edge_ids" in tables:
            _put(tables["edge_ids"], first, records[:, 2])
        if "weights" in tables:
            _put(tables["weights"], first, np.ascontiguousarray(records[:, -1]).view(np.float64))

    def parts(self, bucket: int, low: int, high: int) -> list[tuple[int, int]]:
        """Cut a bucket that is too large for memory into ranges of destinations; a range of one node may be large."""
        if self.path(bucket).stat().st_size <= BUCKET_EDGES * self.columns * self.dtype.itemsize:
            return [(low, high)]
        degrees = np.zeros(high - low, np.int64)
        for records in self.blocks(bucket):
            degrees += np.bincount(records[:, 0] - low, minlength=high - low)
        parts, begin, total = [], low, 0
        for node in range(low, high):
            if node > begin and total + degrees[node - low] > BUCKET_EDGES:
                parts.append((begin, node))
                begin, total = node, 0
            total += int(degrees[node - low])
        return [*parts, (begin, high)]

    def select(self, bucket: int, begin: int, end: int, whole: bool) -> Iterator[np.ndarray]:
        """Give the records of a range of destinations: in one piece, or of a single node piece by piece."""
        if end - begin == 1:
            for records in self.blocks(bucket):
                yield records[records[:, 0] == begin]
        elif whole:
            yield np.fromfile(self.path(bucket), self.dtype).reshape(-1, self.columns)
        else:
            kept = [r[(r[:, 0] >= begin) & (r[:, 0] < end)] for r in self.blocks(bucket)]
            yield np.concatenate(kept)

    def blocks(self, bucket: int) -> Iterator[np.ndarray]:
        with self.path(bucket).open("rb") as file:
            while data := file.read(STEP_EDGES * self.columns * self.dtype.itemsize):
                yield np.frombuffer(data, self.dtype).reshape(-1, self.columns)

    def path(self, bucket: int) -> Path:
        return self.directory / f"{bucket}.bin"


def _put(table: TableWriter, first_row: int, rows: np.ndarray) -> None:
    """Append rows that belong at ``first_row``, without those that are stored already."""
    new = rows[max(0, table.rows_done - first_row) :]
    if len(new):
        table.append(np.ascontiguousarray(new).astype(table.table.dtype))


def _write_all(file: object, records: np.ndarray) -> None:
    view = np.ascontiguousarray(records).reshape(-1).view(np.uint8).data
    while len(view):
        view = view[file.write(view) :]  # type: ignore[attr-defined]
