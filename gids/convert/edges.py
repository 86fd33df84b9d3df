"""Edge lists of any length to CSC in bounded memory: edges go to buckets by destination, buckets are sorted one by one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gids import _native
from gids.convert.buckets import Buckets, put_rows
from gids.convert.sources import RowSource
from gids.dataset import DatasetWriter, EdgeType, TableWriter
from gids.dataset.build import safe_name
from gids.dataset.table_writer import PieceWriter
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

    @property
    def divisible(self) -> bool:
        """Whether edges can be read from the middle without those before them."""
        return all(rows is None or rows.divisible for rows in (self.source, self.destination, self.weight))

    def read(
        self, begin: int = 0, end: int | None = None, step: int = STEP_EDGES
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray | None]]:
        """Yield sources, destinations and weights of consecutive edges."""
        end = self.source.num_rows if end is None else end
        weights = iter(()) if self.weight is None else self.weight.read_range(begin, end, step)
        for source, destination in self._id_pairs(begin, end, step):
            weight = None if self.weight is None else np.asarray(next(weights), np.float64).reshape(-1)
            yield source, destination, weight

    def _id_pairs(self, begin: int, end: int, step: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        if self.source is self.destination:
            for pairs in self.source.read_range(begin, end, step):
                array = np.asarray(pairs)
                yield array[:, 0].astype(np.int64), array[:, 1].astype(np.int64)
            return
        both = (rows.read_range(begin, end, step) for rows in (self.source, self.destination))
        for left, right in zip(*both, strict=True):
            yield np.asarray(left).reshape(-1).astype(np.int64), np.asarray(right).reshape(-1).astype(np.int64)


def count_nodes(edges: EdgeList) -> int:
    """Find the number of nodes that an edge list needs: one more than its largest id."""
    return 1 + max((max(int(s.max()), int(d.max())) for s, d, _ in edges.read() if len(s)), default=-1)


def write_edges(writer: DatasetWriter, etype: EdgeType, edges: EdgeList) -> None:
    """Add an edge list to a dataset, by destination; edges of one destination keep their order."""
    name = ":".join(etype)
    sort = EdgeSort(
        edges,
        name,
        writer.num_nodes(etype[0]),
        writer.num_nodes(etype[2]),
        writer.work / f"edges-{safe_name(name)}",
        STEP_EDGES,
        BUCKET_EDGES,
    )
    key = f"sorted {name}"
    counts: list[int] | None = writer.journal.get(key)
    if counts is None:
        size, total = sort.buckets.record_bytes, edges.num_edges
        sort.buckets.begin()
        counts = sort.buckets.fill(
            sort.records(), lambda done: writer.report(f"{name} sorting", done * size, total * size)
        )
        writer.journal.note(key, counts)
    tables = edge_tables(writer, etype, edges, sum(counts))
    if any(table.rows_done < table.table.num_rows for table in tables.values()):
        _merge(sort, counts, tables)
    for table in tables.values():
        table.finish()  # on disk, before what it was made of is deleted
    sort.buckets.remove()


def edge_tables(writer: DatasetWriter, etype: EdgeType, edges: EdgeList, num_edges: int) -> dict[str, TableWriter]:
    """Begin the tables of an edge type."""
    small = writer.num_nodes(etype[0]) <= 2**31 - 1
    tables = {"indptr": writer.indptr(etype)}
    tables["indices"] = writer.indices(num_edges, "int32" if small else "int64", etype)
    if edges.keep_ids:
        tables["edge_ids"] = writer.edge_ids("int64", etype)
    if edges.weight is not None:
        dtype = "float64" if edges.weight.dtype == "float64" else "float32"
        tables["weights"] = writer.weights(dtype, etype)
    return tables


def _merge(sort: EdgeSort, counts: list[int], tables: dict[str, TableWriter]) -> None:
    """Sort bucket after bucket and append it, leaving out what a former run has stored."""
    put_rows(tables["indptr"], 0, np.zeros(1, np.int64))
    first_edge = 0
    for bucket, count in enumerate(counts):
        low, high = sort.buckets.keys(bucket)
        done = tables["indptr"].rows_done > high and all(
            table.rows_done >= first_edge + count for name, table in tables.items() if name != "indptr"
        )
        if high > low and not done:
            sort.merge(bucket, first_edge, tables)
        first_edge += count


class EdgeSort:
    """One edge list on its way to CSC: buckets of destination, source, and where needed edge id and weight bits.

    Parameters
    ----------
    edges : EdgeList
        What is sorted.
    name : str
        For messages.
    num_sources, num_nodes : int
        Bounds of source and destination ids.
    directory : Path
        Of the buckets.
    step_edges, bucket_edges : int
        Edges read at a time, and edges that a bucket may have in memory.
    num_pieces : int
        Parts that the edges are read in, each by itself.
    """

    def __init__(
        self,
        edges: EdgeList,
        name: str,
        num_sources: int,
        num_nodes: int,
        directory: Path,
        step_edges: int,
        bucket_edges: int,
        num_pieces: int = 1,
    ):
        self.edges, self.name = edges, name
        self.num_sources, self.num_nodes = num_sources, num_nodes
        count = min(MAX_BUCKETS, -(-edges.num_edges // (bucket_edges // 2)), max(num_nodes, 1))
        columns, dtype = record_shape(edges, num_sources, num_nodes)
        self.buckets = Buckets(
            directory, name, num_nodes, max(1, count), columns, dtype, step_edges, bucket_edges, num_pieces
        )

    def records(self, begin: int = 0, end: int | None = None) -> Iterator[np.ndarray]:
        """Yield records of consecutive edges, the reverse of an edge after it."""
        done = begin
        step = 2 if self.edges.both_ways else 1
        for source, destination, weight in self.edges.read(begin, end, self.buckets.step_records):
            self._check_ids(source, self.num_sources, "source", done)
            self._check_ids(destination, self.num_nodes, "destination", done)
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

    def _check_ids(self, ids: np.ndarray, bound: int, role: str, first: int) -> None:
        if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= bound):
            place = int(np.flatnonzero((ids < 0) | (ids >= bound))[0])
            raise ConfigError(
                f"{role} id of edge {first + place} of {self.name} must be in [0, {bound}) (got {ids[place]})"
            )

    def merge(self, bucket: int, edge: int, tables: Mapping[str, TableWriter | PieceWriter]) -> None:
        """Sort a bucket, whose first edge is ``edge``, into its place in the tables."""
        for begin, end in self.buckets.parts(bucket):
            position, degree = edge, 0
            for records in self._select(bucket, begin, end):
                offsets = np.empty(end - begin + 1, np.int64)
                order = np.empty(len(records), np.int64)
                _native.group_by_key(np.ascontiguousarray(records[:, 0] - begin), offsets, order)
                _put_edges(tables, position, records[order])
                position += len(records)
                degree += len(records)
                if end - begin > 1:
                    put_rows(tables["indptr"], begin + 1, offsets[1:] + edge)
            if end - begin == 1:
                put_rows(tables["indptr"], begin + 1, np.array([edge + degree], np.int64))
            edge = position

    def _select(self, bucket: int, begin: int, end: int) -> Iterator[np.ndarray]:
        """Yield the records of a range of destinations: in one piece, or of a single node piece by piece."""
        if end - begin == 1:
            for records in self.buckets.blocks(bucket):
                yield records[records[:, 0] == begin]
        else:
            yield self.buckets.select(bucket, begin, end)


def record_shape(edges: EdgeList, num_sources: int, num_nodes: int) -> tuple[int, np.dtype]:
    """Return columns and dtype of the records of an edge list."""
    wide = edges.keep_ids or edges.weight is not None or max(num_sources, num_nodes) > 2**31 - 1
    return 2 + edges.keep_ids + (edges.weight is not None), np.dtype(np.int64 if wide else np.int32)


def _put_edges(tables: Mapping[str, TableWriter | PieceWriter], first: int, records: np.ndarray) -> None:
    put_rows(tables["indices"], first, records[:, 1])
    if "edge_ids" in tables:
        put_rows(tables["edge_ids"], first, records[:, 2])
    if "weights" in tables:
        put_rows(tables["weights"], first, np.ascontiguousarray(records[:, -1]).view(np.float64))
