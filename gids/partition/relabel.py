"""Relabel the nodes of a dataset, so that rows that are asked for together are neighbours on disk."""

from __future__ import annotations

import enum
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from gids.dataset import Dataset, DatasetWriter, EdgeType, TableWriter
from gids.dataset.rows import as_tensor, blocks, read_rows
from gids.dataset.table_writer import Progress
from gids.errors import ConfigError
from gids.partition.stored import Partition, load, save
from gids.storage import RowReader
from gids.table import RowTable

Ids = npt.NDArray[np.int64]

#: Bytes of rows, and edges, that are in memory at a time.
PIECE_BYTES = 32 << 20
PIECE_EDGES = 1 << 21
#: Edges of a node that :func:`visit_order` takes to be sampled; only the ranking depends on it.
TYPICAL_FANOUT = 10


class OrderBy(enum.Enum):
    """What decides the new ids."""

    PARTITION = "partition"
    VISITS = "visits"
    DEGREE = "degree"


def partition_order(partition: Partition) -> dict[str, Ids]:
    """Return the nodes part by part, by id within a part: ``order[new id] = id``, by node type."""
    return {ntype: np.argsort(parts, kind="stable") for ntype, parts in partition.parts.items()}


def visit_order(dataset: Dataset, fanout: int = TYPICAL_FANOUT) -> dict[str, Ids]:
    """Return the nodes by how often they are sampled when every node is a destination once, most often first."""
    visits = {ntype: np.zeros(dataset.num_nodes(ntype)) for ntype in dataset.node_types}
    for etype in dataset.edge_types:
        degrees = np.diff(np.array(dataset.indptr(etype)))
        share = np.minimum(1.0, fanout / np.maximum(degrees, 1))
        ends = np.cumsum(degrees)
        for begin, sources in _stream(dataset.indices_table(etype)):
            # Nodes that the piece's edges lead to; of the first and the last one only a part may be in it.
            first, last = np.searchsorted(ends, [begin, begin + len(sources) - 1], side="right")
            counts = degrees[first : last + 1].copy()
            counts[0] = ends[first] - begin
            counts[-1] -= max(int(ends[last]) - begin - len(sources), 0)
            chances = np.repeat(share[first : last + 1], counts)
            visits[etype[0]] += np.bincount(sources, chances, minlength=len(visits[etype[0]]))
    return {ntype: np.argsort(-counts, kind="stable") for ntype, counts in visits.items()}


def degree_order(dataset: Dataset) -> dict[str, Ids]:
    """Return the nodes by the edges they are the source of, most first: as often their rows are neighbours' rows."""
    degrees = {ntype: np.zeros(dataset.num_nodes(ntype), np.int64) for ntype in dataset.node_types}
    for etype in dataset.edge_types:
        for _, sources in _stream(dataset.indices_table(etype)):
            degrees[etype[0]] += np.bincount(sources, minlength=len(degrees[etype[0]]))
    return {ntype: np.argsort(-counts, kind="stable") for ntype, counts in degrees.items()}


def reorder(
    dataset: Dataset,
    path: str | os.PathLike[str],
    *,
    by: OrderBy | str | None = None,
    partition: Partition | str | int | None = None,
    order: Mapping[str, npt.ArrayLike] | None = None,
    edge_ids: bool = False,
    overwrite: bool = False,
    stripe_dirs: Sequence[str | os.PathLike[str]] = (),
    progress: Progress | None = None,
    threads: int | None = None,
) -> Dataset:
    """Write a dataset again with its nodes relabelled.

    Neighbour lists, splits and labels keep their order, edges their ids, and samplers draw their random numbers for
    what nodes were called: a batch of the new dataset is that of the old one under the new ids, row for row.
    :meth:`gids.Dataset.original_ids` leads back. A killed run continues when it is started again with the same
    arguments. Memory: 24 bytes for each node, and what is on its way.

    Parameters
    ----------
    dataset : Dataset
        What to read.
    path : path-like
        Directory to create.
    by : OrderBy or str, optional
        ``"partition"`` (of which a copy is stored beside the new dataset), ``"visits"`` or ``"degree"``.
    partition : Partition, str or int, optional
        For ``by="partition"``: which one; may be left out where only one is stored.
    order : mapping of str to array, optional
        Instead of ``by``: ``order[ntype][new id] = id``; types that are left out stay as they are.
    edge_ids : bool
        Store the former positions of edges as their ids even where the dataset stores no edge ids or edge features.
    overwrite, stripe_dirs, progress, threads
        As for :class:`gids.DatasetWriter`.
    """
    if (by is None) == (order is None):
        raise ConfigError("by or order must be given, and not both")
    chosen: Partition | None = None
    if by is not None:
        by = OrderBy(by)
        if partition is not None and by is not OrderBy.PARTITION:
            raise ConfigError(f"partition is an option of by='partition' (got by={by.value!r})")
        if by is OrderBy.PARTITION:
            chosen = partition if isinstance(partition, Partition) else load(dataset, partition)
            order = partition_order(chosen)
        else:
            order = visit_order(dataset) if by is OrderBy.VISITS else degree_order(dataset)
    if dataset.manifest.knowledge is not None:
        raise ConfigError(f"{dataset.path} must hold no triples to be reordered (it is a knowledge graph)")
    orders = _check_order(dataset, order or {})
    inverse = {ntype: _inverse(ids) for ntype, ids in orders.items()}
    digest = xxhash.xxh3_128()
    for ntype, ids in orders.items():
        digest.update(ntype.encode())
        digest.update(ids.data)
    recipe = {"from": dataset.id, "by": "order" if by is None else by.value, "order": digest.hexdigest()}
    with DatasetWriter(
        path,
        overwrite=overwrite,
        job={"reorder": recipe, "edge_ids": edge_ids, "stripe_dirs": [str(directory) for directory in stripe_dirs]},
        stripe_dirs=stripe_dirs,
        attributes=dataset.attributes | {"reordered": recipe},
        progress=progress,
        threads=threads,
    ) as writer:
        for ntype in dataset.node_types:
            writer.add_nodes(dataset.num_nodes(ntype), ntype)
        for ntype in dataset.node_types:
            _write_nodes(writer, dataset, ntype, orders[ntype], inverse[ntype])
        for etype in dataset.edge_types:  # in this order, which random keys depend on
            _write_edges(writer, dataset, etype, orders[etype[2]], inverse[etype[0]], edge_ids)
        made = writer.finish()
    if chosen is not None:
        parts = {ntype: np.asarray(chosen.parts[ntype])[ids] for ntype, ids in orders.items()}
        moved = Partition(
            parts, chosen.num_parts, made.id, chosen.cut_edges, chosen.num_edges,
            chosen.provenance | {"relabelled from": dataset.id},
        )  # fmt: skip
        save(made, moved, str(chosen.num_parts), overwrite=True)
    return made


def _check_order(dataset: Dataset, order: Mapping[str, npt.ArrayLike]) -> dict[str, Ids]:
    unknown = set(order) - set(dataset.node_types)
    if unknown:
        raise ConfigError(f"node types of order must be among {dataset.node_types} (got {sorted(unknown)})")
    checked = {}
    for ntype in dataset.node_types:
        count = dataset.num_nodes(ntype)
        ids = np.ascontiguousarray(order.get(ntype, np.arange(count)), dtype=np.int64)
        if ids.shape != (count,):
            raise ConfigError(f"order of {ntype} must have {count} ids (got shape {list(ids.shape)})")
        if count and not (ids.min() >= 0 and ids.max() < count and np.bincount(ids, minlength=count).max() == 1):
            raise ConfigError(f"order of {ntype} must have each id of [0, {count}) once")
        checked[ntype] = ids
    return checked


def _inverse(order: Ids) -> Ids:
    inverse = np.empty_like(order)
    inverse[order] = np.arange(len(order))
    return inverse


def _write_nodes(writer: DatasetWriter, dataset: Dataset, ntype: str, order: Ids, inverse: Ids) -> None:
    entry = dataset.manifest.nodes[ntype]
    before = dataset.original_ids(ntype)
    ids = writer.original_ids(ntype)
    for begin, end in _pieces(ids.rows_done, len(order), 8):
        ids.append(order[begin:end] if before is None else before[order[begin:end]])
    for name, stored in entry.features.items():
        table = stored.table
        stripes = len(table.stripes)
        layout = {"row_stride": table.row_stride} if table.row_stride != table.row_bytes else {}
        rows = writer.features(table.dtype, table.dim, ntype, name, stripes=stripes, **layout)
        _gather(table, _order_pieces(table, order, rows), rows)
    if entry.labels is not None:
        table = entry.labels.table
        labels = writer.labels(table.dtype, ntype, table.dim, entry.num_classes)
        _gather(table, _order_pieces(table, order, labels), labels)
    for name in entry.splits:
        writer.add_split(name, inverse[dataset.split(name, ntype).numpy()], ntype)


def _write_edges(
    writer: DatasetWriter, dataset: Dataset, etype: EdgeType, order: Ids, sources: Ids, keep_ids: bool
) -> None:
    entry = dataset.manifest.edges[etype]
    offsets = np.array(dataset.indptr(etype))
    degrees = np.diff(offsets)[order]
    starts = offsets[:-1][order]
    renewed = np.concatenate([np.zeros(1, np.int64), np.cumsum(degrees)])
    table = writer.indptr(etype)
    for begin, end in _pieces(table.rows_done, len(renewed), 8):
        table.append(renewed[begin:end])

    def positions(begin: int, end: int) -> Iterator[Ids]:
        """Yield the former positions of the edges from ``begin`` on, a piece at a time."""
        while begin < end:
            stop = min(begin + PIECE_EDGES, end)
            first = int(np.searchsorted(renewed, begin, side="right")) - 1
            last = int(np.searchsorted(renewed, stop, side="left"))
            shift = np.repeat(starts[first:last] - renewed[first:last], degrees[first:last])
            edges = np.arange(renewed[first], renewed[last])
            yield (edges + shift)[begin - int(renewed[first]) : stop - int(renewed[first])]
            begin = stop

    indices = entry.indices.table
    copy = writer.indices(entry.num_edges, indices.dtype, etype)
    with RowReader(indices) as reader:
        for chosen in positions(copy.rows_done, entry.num_edges):
            former = reader.read(chosen).numpy().reshape(-1)
            copy.append(sources[former].astype(indices.dtype))
    if entry.weights is not None:
        weights = writer.weights(entry.weights.table.dtype, etype)
        _gather(entry.weights.table, positions(weights.rows_done, entry.num_edges), weights)
    if entry.edge_ids is not None:
        ids = writer.edge_ids(entry.edge_ids.table.dtype, etype)
        _gather(entry.edge_ids.table, positions(ids.rows_done, entry.num_edges), ids)
    elif keep_ids or entry.features:
        named = writer.edge_ids("int64", etype)
        for chosen in positions(named.rows_done, entry.num_edges):
            named.append(chosen)
    for name, stored in entry.features.items():
        # Rows of edge features go by edge id, and ids stay: these are copied as they lie.
        table_of = stored.table
        layout = {"row_stride": table_of.row_stride} if table_of.row_stride != table_of.row_bytes else {}
        rows = writer.edge_features(
            table_of.dtype, table_of.dim, etype, name, num_rows=table_of.num_rows, stripes=len(table_of.stripes),
            **layout,
        )  # fmt: skip
        for begin, end in _pieces(rows.rows_done, table_of.num_rows, table_of.row_bytes):
            rows.append(as_tensor(table_of, read_rows(table_of, begin, end)))


def _gather(table: RowTable, wanted: Iterator[Ids], copy: TableWriter) -> None:
    """Append rows of a table, those of each piece of ``wanted`` together."""
    with RowReader(table) as reader:
        for chosen in wanted:
            copy.append(reader.read(chosen))


def _order_pieces(table: RowTable, order: Ids, copy: TableWriter) -> Iterator[Ids]:
    for begin, end in _pieces(copy.rows_done, len(order), table.row_bytes):
        yield order[begin:end]


def _pieces(begin: int, end: int, row_bytes: int) -> Iterator[tuple[int, int]]:
    step = max(1, PIECE_BYTES // row_bytes)
    for first in range(begin, end, step):
        yield first, min(first + step, end)


def _stream(table: RowTable) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    for begin, end in blocks(table):
        yield begin, as_tensor(table, read_rows(table, begin, end)).numpy()
