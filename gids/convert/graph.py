"""What a converter has found in someone else's files: sources of rows, and the job that writes them as a dataset."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gids.convert.edges import EdgeList, count_nodes, write_edges
from gids.convert.sources import ColumnRows, RowSource
from gids.convert.spread import cast, spread_count, spread_edges, spread_rows
from gids.convert.workers import Workers
from gids.dataset import EDGE, NODE, Dataset, DatasetWriter, EdgeType, TableWriter
from gids.dataset.table_writer import Progress
from gids.dataset.writer import check_range
from gids.errors import ConfigError, DatasetError
from gids.table import DTYPES

#: Bytes of rows copied at a time.
COPY_BYTES = 16 << 20


@dataclass
class Nodes:
    """One node type. ``num_nodes`` None: one more than the largest id in its edges."""

    num_nodes: int | None
    features: dict[str, RowSource] = field(default_factory=dict)
    labels: RowSource | None = None
    num_classes: int | None = None
    splits: dict[str, np.ndarray] = field(default_factory=dict)


@dataclass
class Csc:
    """Edges that are stored by destination already."""

    indptr: RowSource
    indices: RowSource
    weight: RowSource | None = None


@dataclass
class Edges:
    """One edge type."""

    topology: EdgeList | Csc
    features: dict[str, RowSource] = field(default_factory=dict)


@dataclass
class Graph:
    """A graph in someone else's files.

    Attributes
    ----------
    format : str
        Name of the layout.
    nodes, edges : dict
        By type.
    files : list of Path
        Everything it is read from: a resumed job needs all of them unchanged.
    attributes : dict
        Notes for the manifest.
    """

    format: str
    nodes: dict[str, Nodes]
    edges: dict[EdgeType, Edges]
    files: list[Path] = field(default_factory=list)
    attributes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ConvertOptions:
    """How a graph is written.

    Attributes
    ----------
    in_place : bool
        Leave feature files where they are instead of copying them, where their layout allows it.
    feature_dtype : str, optional
        Cast node features, e.g. to ``"float16"``.
    add_reverse : bool
        Add reverse edges: to the same edge type where both ends have one node type, else as a type ``rev_<relation>``.
    workers : Workers, optional
        Who does it, in tasks over ranges of rows: :class:`gids.convert.LocalWorkers` or :class:`gids.convert.RayWorkers`;
        by default this process alone. The dataset is the same, byte for byte.
    overwrite, stripe_dirs, progress, threads
        As for :class:`gids.DatasetWriter`.
    """

    in_place: bool = False
    feature_dtype: str | None = None
    add_reverse: bool = False
    workers: Workers | None = None
    overwrite: bool = False
    stripe_dirs: Sequence[str | os.PathLike[str]] = ()
    progress: Progress | None = None
    threads: int | None = None

    def __post_init__(self) -> None:
        if self.feature_dtype is not None and self.feature_dtype not in DTYPES:
            raise ConfigError(f"dtype must be one of {', '.join(DTYPES)} (got {self.feature_dtype!r})")
        if self.in_place and (self.feature_dtype is not None or self.stripe_dirs):
            raise ConfigError("features used in place can neither be cast nor striped: leave out dtype and stripes")


def write_graph(graph: Graph, source: Path | None, path: str | os.PathLike[str], options: ConvertOptions) -> Dataset:
    """Write a graph as a dataset; a killed run is continued by an equal one whose files have not changed.

    A graph in memory has no ``source``; nothing tells whether it is the same one, so a killed run begins anew.
    """
    origin = "memory" if source is None else str(source.absolute())
    job = (
        None
        if source is None
        else {
            "format": graph.format,
            "source": origin,
            "files": [[str(file), file.stat().st_size, file.stat().st_mtime_ns] for file in graph.files],
            "in_place": options.in_place,
            "feature_dtype": options.feature_dtype,
            "add_reverse": options.add_reverse,
            "stripe_dirs": [str(directory) for directory in options.stripe_dirs],
            "attributes": graph.attributes,
        }
    )
    _check_edges(graph)
    edges = _with_reverse(graph.edges) if options.add_reverse else graph.edges
    with DatasetWriter(
        path,
        overwrite=options.overwrite,
        job=job,
        stripe_dirs=options.stripe_dirs,
        attributes={"converter": graph.format, "source": origin, **graph.attributes},
        progress=options.progress,
        threads=options.threads,
    ) as writer:
        for ntype, nodes in graph.nodes.items():
            writer.add_nodes(_num_nodes(graph, ntype, nodes, options.workers), ntype)
        for etype, edge in edges.items():
            _write_topology(writer, etype, edge, options.workers)
        for ntype, nodes in graph.nodes.items():
            _write_nodes(writer, ntype, nodes, options)
        return writer.finish()


def copy_source(source: RowSource, table: TableWriter, dtype: str | None = None) -> None:
    """Copy the rows that a table does not have yet; ``dtype`` casts them."""
    if source.num_rows != table.table.num_rows:
        raise ConfigError(f"{source.name} must have {table.table.num_rows} rows (got {source.num_rows})")
    step = max(1, COPY_BYTES // table.table.row_bytes)
    if table.rows_done == table.table.num_rows:
        return
    for rows in source.read(table.rows_done, step):
        table.append(cast(rows, dtype or table.table.dtype))


def _num_nodes(graph: Graph, ntype: str, nodes: Nodes, workers: Workers | None) -> int:
    if nodes.num_nodes is not None:
        return nodes.num_nodes
    counted = [source.num_rows for source in (*nodes.features.values(), nodes.labels) if source is not None]
    if counted:
        return counted[0]
    lists = [edge.topology for etype, edge in graph.edges.items() if ntype in (etype[0], etype[2])]
    count = count_nodes if workers is None else partial(spread_count, workers=workers)
    return max((count(topology) for topology in lists if isinstance(topology, EdgeList)), default=0)


def _check_edges(graph: Graph) -> None:
    for etype, edge in graph.edges.items():
        if isinstance(edge.topology, EdgeList):
            source, destination = edge.topology.source, edge.topology.destination
            width = 2 if source is destination else 1
            for ids in (source, destination):
                if ids.dim != width and ids.num_rows:
                    raise DatasetError(f"{ids.name} must have {width} ids in a row (got {ids.dim})")
                if "int" not in ids.dtype:
                    raise DatasetError(f"{ids.name} must hold whole numbers (got {ids.dtype})")
            if source.num_rows != destination.num_rows:
                counts = f"{source.num_rows} and {destination.num_rows}"
                raise DatasetError(
                    f"edges of {':'.join(etype)} must have as many sources as destinations (got {counts})"
                )
            weight = edge.topology.weight
            if weight is not None and weight.num_rows != source.num_rows:
                raise DatasetError(f"{weight.name} must have {source.num_rows} weights (got {weight.num_rows})")


def _with_reverse(edges: dict[EdgeType, Edges]) -> dict[EdgeType, Edges]:
    result: dict[EdgeType, Edges] = {}
    for etype, edge in edges.items():
        topology = edge.topology
        if isinstance(topology, Csc):
            raise ConfigError("reverse edges can be added to edge lists only, not to edges stored by destination")
        ids = topology.keep_ids or bool(edge.features)
        if etype[0] == etype[2]:
            both = EdgeList(topology.source, topology.destination, topology.weight, both_ways=True, keep_ids=ids)
            result[etype] = Edges(both, edge.features)
        else:
            result[etype] = edge
            reverse = EdgeList(*_swapped(topology), topology.weight, keep_ids=ids)
            result[etype[2], f"rev_{etype[1]}", etype[0]] = Edges(reverse)
    return result


def _swapped(edges: EdgeList) -> tuple[RowSource, RowSource]:
    if edges.source is edges.destination:
        return ColumnRows(edges.source, 1), ColumnRows(edges.source, 0)
    return edges.destination, edges.source


def _write_topology(writer: DatasetWriter, etype: EdgeType, edge: Edges, workers: Workers | None) -> None:
    topology = edge.topology
    if isinstance(topology, EdgeList):
        if edge.features and not topology.keep_ids:
            topology = EdgeList(
                topology.source, topology.destination, topology.weight, topology.both_ways, keep_ids=True
            )
        if workers is None:
            write_edges(writer, etype, topology)
        else:
            spread_edges(writer, etype, topology, workers)
    else:
        copy_source(topology.indptr, writer.indptr(etype))
        _copy_indices(writer, topology.indices, etype)
        if topology.weight is not None:
            dtype = topology.weight.dtype if "float" in topology.weight.dtype else "float32"
            copy_source(topology.weight, writer.weights(dtype, etype))
    for name, source in edge.features.items():
        table = writer.edge_features(source.dtype, source.dim, etype, name, num_rows=source.num_rows)
        _write_rows(writer, source, table, workers)


def _write_rows(
    writer: DatasetWriter, source: RowSource, table: TableWriter, workers: Workers | None, dtype: str | None = None
) -> None:
    if workers is None:
        copy_source(source, table, dtype)
    else:
        spread_rows(writer, source, table, workers, dtype)


def _copy_indices(writer: DatasetWriter, indices: RowSource, etype: EdgeType) -> None:
    """Copy source ids, in 32 bits where they fit; checked before they are narrowed."""
    num_sources = writer.num_nodes(etype[0])
    table = writer.indices(indices.num_rows, "int32" if num_sources <= 2**31 - 1 else "int64", etype)
    for rows in indices.read(table.rows_done, COPY_BYTES // 8) if table.rows_done < indices.num_rows else ():
        ids = np.asarray(rows).reshape(-1)
        check_range(ids, 0, num_sources, f"source ids of {':'.join(etype)}", table.rows_done)
        table.append(ids.astype(table.table.dtype))


def _write_nodes(writer: DatasetWriter, ntype: str, nodes: Nodes, options: ConvertOptions) -> None:
    for name, ids in nodes.splits.items():
        writer.add_split(name, ids, ntype)
    if nodes.labels is not None:
        _write_labels(writer, ntype, nodes.labels, nodes.num_classes)
    for name, source in nodes.features.items():
        if options.in_place and source.row_file is not None:
            writer.reference_features(source.row_file, ntype, name)
            continue
        floating = DTYPES[source.dtype].is_floating_point
        dtype = options.feature_dtype if options.feature_dtype and floating else source.dtype
        _write_rows(writer, source, writer.features(dtype, source.dim, ntype, name), options.workers, dtype)


def _write_labels(writer: DatasetWriter, ntype: str, labels: RowSource, num_classes: int | None) -> None:
    """Write labels; floats that are all whole numbers or NaN are class numbers, with -1 for NaN."""
    classes, highest = labels.dim == 1, -1
    for rows in labels.read(0, 1 << 20) if classes else ():
        values = np.asarray(rows.float() if isinstance(rows, torch.Tensor) else rows, np.float64)
        known = values[~np.isnan(values)]
        if len(known) and (np.any(known != np.floor(known)) or known.min() < -1):
            classes = False
            break
        highest = max(highest, int(known.max()) if len(known) else -1)
    if not classes:
        copy_source(labels, writer.labels(labels.dtype, ntype, labels.dim))
        return
    table = writer.labels("int64", ntype, 1, num_classes if num_classes is not None else highest + 1)
    if labels.num_rows != table.table.num_rows:
        raise ConfigError(f"{labels.name} must have {table.table.num_rows} rows (got {labels.num_rows})")
    for rows in labels.read(table.rows_done, 1 << 20) if table.rows_done < table.table.num_rows else ():
        values = np.asarray(rows.float() if isinstance(rows, torch.Tensor) else rows)
        if values.dtype.kind == "f":
            values = np.where(np.isnan(values), -1, values)
        table.append(values.reshape(-1).astype(np.int64))


def homogeneous(nodes: Nodes, edges: Edges) -> tuple[dict[str, Nodes], dict[EdgeType, Edges]]:
    """Name the types of a graph with one node and one edge type."""
    return {NODE: nodes}, {EDGE: edges}
