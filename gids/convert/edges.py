"""Edge lists of any length to CSC in bounded memory: edges go to buckets by destination, buckets are sorted one by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gids import _native
from gids.convert.buckets import Buckets, put_rows
from gids.convert.sources import RowSource
from gids.dataset import DatasetWriter, EdgeType, TableWriter
from gids.dataset.build import safe_name
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
        count = min(MAX_BUCKETS, -(-edges.num_edges // (BUCKET_EDGES // 2)), max(self.num_nodes, 1))
        self.buckets = Buckets(
            writer.work / f"edges-{safe_name(self.name)}",
            self.name,
            self.num_nodes,
            max(1, count),
            2 + edges.keep_ids + (edges.weight is not None),
            np.dtype(np.int64 if wide else np.int32),
            STEP_EDGES,
            BUCKET_EDGES,
        )

    def run(self) -> None:
        key = f"sorted {self.name}"
        note = self.writer.journal.get(key)
        if note is None:
            size, total = self.buckets.record_bytes, self.edges.num_edges
            note = self.buckets.fill(
                self.records(), lambda done: self.writer.report(f"{self.name} sorting", done * size, total * size)
            )
            self.writer.journal.note(key, note)
        counts: list[int] = note
        tables = self.tables(sum(counts))
        if any(table.rows_done < table.table.num_rows for table in tables.values()):
            self.merge(counts, tables)
        for table in tables.values():
            table.finish()  # on disk, before what it was made of is deleted
        self.buckets.remove()

    def records(self) -> Iterator[np.ndarray]:
        """Yield records of consecutive edges, the reverse of an edge after it."""
        done = 0
        step = 2 if self.edges.both_ways else 1
        for source, destination, weight in self.edges.read():
            self.check_ids(source, self.num_sources, "source", done)
            self.check_ids(destination, self.num_nodes, "destination", done)
            columns = [destination, source]
            if self.edges.keep_ids:
                columns.append(np.arange(done, done + len(source)))
            if weight is not None:
                columns.append(weight.view(np.int64))
            records = np.empty((len(source) * step, self.buckets.columns), self.buckets.dtype)
            for i, column in enumerate(columns):
                records[::step, i] = column
            if self.edges.both_ways:
                for i, column in enumerate([source, destination, *columns[2:]]):
                    records[1::2, i] = column
            done += len(source)
            yield records

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
        put_rows(tables["indptr"], 0, np.zeros(1, np.int64))
        first_edge = 0
        for bucket, count in enumerate(counts):
            low, high = self.buckets.keys(bucket)
            done = tables["indptr"].rows_done > high and all(
                table.rows_done >= first_edge + count for name, table in tables.items() if name != "indptr"
            )
            if high > low and not done:
                self.merge_bucket(bucket, first_edge, tables)
            first_edge += count

    def merge_bucket(self, bucket: int, edge: int, tables: dict[str, TableWriter]) -> None:
        for begin, end in self.buckets.parts(bucket):
            position, degree = edge, 0
            for records in self.select(bucket, begin, end):
                offsets = np.empty(end - begin + 1, np.int64)
                order = np.empty(len(records), np.int64)
                _native.group_by_key(np.ascontiguousarray(records[:, 0] - begin), offsets, order)
                self.put_edges(tables, position, records[order])
                position += len(records)
                degree += len(records)
                if end - begin > 1:
                    put_rows(tables["indptr"], begin + 1, offsets[1:] + edge)
            if end - begin == 1:
                put_rows(tables["indptr"], begin + 1, np.array([edge + degree], np.int64))
            edge = position

    def put_edges(self, tables: dict[str, TableWriter], first: int, records: np.ndarray) -> None:
        put_rows(tables["indices"], first, records[:, 1])
        if "edge_ids" in tables:
            put_rows(tables["edge_ids"], first, records[:, 2])
        if "weights" in tables:
            put_rows(tables["weights"], first, np.ascontiguousarray(records[:, -1]).view(np.float64))

    def select(self, bucket: int, begin: int, end: int) -> Iterator[np.ndarray]:
        """Yield the records of a range of destinations: in one piece, or of a single node piece by piece."""
        if end - begin == 1:
            for records in self.buckets.blocks(bucket):
                yield records[records[:, 0] == begin]
        else:
            yield self.buckets.select(bucket, begin, end)
