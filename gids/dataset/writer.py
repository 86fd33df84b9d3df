"""Create a dataset: declare node types, add tables, and it appears under its name when all is on disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch

from gids import _native
from gids.dataset import manifest as manifests
from gids.dataset.build import Build, Layout, safe_name
from gids.dataset.dataset import Dataset, check_indptr
from gids.dataset.in_place import RowFile
from gids.dataset.journal import Journal
from gids.dataset.knowledge_writer import KnowledgeWriter
from gids.dataset.manifest import EdgeEntry, Manifest, NodeEntry, StoredTable
from gids.dataset.rows import offset_parts
from gids.dataset.table_writer import Check, Progress, Rows, TableWriter, dtype_name
from gids.errors import ConfigError, DatasetError
from gids.types import EDGE, NODE, EdgeType

#: Bytes of rows that whole arrays are copied by.
COPY_BYTES = 32 << 20


class DatasetWriter:
    """Write a dataset that appears under ``path`` only when it is complete.

    Parameters
    ----------
    path : path-like
        Directory to create.
    overwrite : bool
        Replace an existing dataset, at the moment the new one is complete.
    job : mapping, optional
        What is being made, in values that JSON knows. Where a killed run of an equal job left a half-made dataset
        behind, this one continues it; without a job every run starts clean.
    stripe_dirs : sequence of path-like
        Spread the rows of feature tables over files in these directories (one for each drive).
    attributes : mapping, optional
        Notes about the origin, kept in the manifest.
    progress : callable, optional
        Called as ``progress(table_name, bytes_done, bytes_total)`` after every piece of work.
    threads : int, optional
        Threads for checksums and generation; all cores by default.

    Notes
    -----
    Arguments that methods share:

    ntype, etype : str, EdgeType
        Which type; the only one of a homogeneous graph where it is left out.
    name : str
        Of the table or split.
    rows, labels, ids : array, Tensor or sequence
        All values at once.
    dtype, dim : str, int
        Of a table that is written piece by piece: a key of ``gids.table.DTYPES``, and values in a row.
    num_nodes, num_edges, num_classes : int
        Counts; classes are found from the labels where they are left out.
    indptr, indices, weights, edge_ids : array or Tensor
        Edges by destination, with what is stored for each; weights and ids may be left out.
    stripes, stripe_rows, row_stride : int, optional
        Files that a table is spread over, consecutive rows in each, and bytes from row to row.
    file : RowFile
        Rows that stay where they are.
    num_triples, base_relations, reverse, identity
        See :class:`KnowledgeWriter`.
    done, total : int
        Bytes of a piece of work.
    discard : bool
        Whether to remove what was made.

    Examples
    --------
    >>> with DatasetWriter("toy") as writer:
    ...     writer.add_nodes(4)
    ...     writer.add_features(torch.randn(4, 8))
    ...     writer.add_csc(indptr=[0, 1, 2, 3, 3], indices=[1, 2, 3])
    ...     writer.add_labels([0, 1, 0, 1])
    ...     writer.add_split("train", [0, 1])
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        job: Mapping[str, Any] | None = None,
        stripe_dirs: Sequence[str | os.PathLike[str]] = (),
        attributes: Mapping[str, Any] | None = None,
        progress: Progress | None = None,
        threads: int | None = None,
    ):
        homes = [Path(directory).absolute() for directory in stripe_dirs]
        self._build = Build(Path(path).absolute(), job, overwrite, homes, progress, threads)
        self._attributes = dict(attributes or {})
        self._progress = progress
        self._nodes: dict[str, NodeEntry] = {}
        self._num_edges: dict[EdgeType, int] = {}
        self._topology: dict[EdgeType, dict[str, TableWriter]] = {}
        self._edge_features: dict[EdgeType, dict[str, TableWriter]] = {}
        self._assign: list[tuple[TableWriter, Callable[[StoredTable], None]]] = []
        self._knowledge: KnowledgeWriter | None = None

    @property
    def path(self) -> Path:
        """Where the dataset will be."""
        return self._build.path

    @property
    def journal(self) -> Journal:
        """Notes of this job, for steps that are more than a table."""
        return self._build.journal

    @property
    def work(self) -> Path:
        """A directory for intermediate files; deleted when the dataset is complete."""
        return self._build.work

    @property
    def pool(self) -> _native.ThreadPool:
        """Threads to share."""
        return self._build.pool

    def note_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Add notes about the origin that are known only once it was read."""
        self._attributes.update(attributes)

    def report(self, name: str, done: int, total: int) -> None:
        """Show progress of work that is not a table."""
        if self._progress is not None:
            self._progress(name, done, total)

    def add_nodes(self, num_nodes: int, ntype: str = NODE) -> None:
        """Declare a node type; before anything else about it."""
        safe_name(ntype)
        if ntype in self._nodes:
            raise ConfigError(f"node type {ntype!r} was added before")
        if num_nodes < 0:
            raise ConfigError(f"num_nodes of {ntype!r} must not be negative (got {num_nodes})")
        self._nodes[ntype] = NodeEntry(int(num_nodes))

    def num_nodes(self, ntype: str = NODE) -> int:
        """Count the nodes of a declared type."""
        return self._node(ntype).num_nodes

    def features(
        self,
        dtype: str,
        dim: int,
        ntype: str = NODE,
        name: str = "feat",
        *,
        stripes: int | None = None,
        stripe_rows: int | None = None,
        row_stride: int | None = None,
    ) -> TableWriter:
        """Begin a feature table, to be filled with :meth:`TableWriter.append`, one row for every node.

        Parameters
        ----------
        stripes : int, optional
            Number of files; without effect where the writer has ``stripe_dirs``.
        stripe_rows : int, optional
            Consecutive rows in one file before the next one takes its turn; 1 MiB by default.
        row_stride : int, optional
            Bytes from row to row, e.g. 4096 to align rows with pages; no padding by default.
        """
        node = self._node(ntype)
        key = _feature_key(ntype, name)
        layout = Layout(stripes or 1, stripe_rows, row_stride, on_stripe_dirs=True)
        writer = self._build.table(key, f"{ntype}/{name}", dtype, dim, node.num_nodes, layout)
        self._assign.append((writer, lambda stored: node.features.__setitem__(name, stored)))
        return writer

    def add_features(self, rows: Rows, ntype: str = NODE, name: str = "feat", **layout: int | None) -> None:
        """Add a whole feature table, ``[num_nodes, dim]``; a memory-mapped array is copied piece by piece.

        ``layout`` is ``stripes``, ``stripe_rows`` and ``row_stride`` of :meth:`features`.
        """
        _expect_rows(rows, self.num_nodes(ntype), f"{ntype}/{name}")
        copy_rows(rows, self.features(dtype_name(rows.dtype), _width(rows), ntype, name, **layout))

    def reference_features(self, file: RowFile, ntype: str = NODE, name: str = "feat") -> None:
        """Use a feature file where it is (see :func:`gids.dataset.npy_header` and :func:`gids.dataset.raw_rows`).

        The file is read once for checksums, and must neither move nor change afterwards.
        """
        node = self._node(ntype)
        if file.num_rows != node.num_nodes:
            raise ConfigError(f"{ntype}/{name} must have {node.num_nodes} rows (got {file.num_rows} in {file.path})")
        node.features[name] = self._build.reference(file, _feature_key(ntype, name), f"{ntype}/{name}")

    def labels(
        self, dtype: str = "int64", ntype: str = NODE, dim: int = 1, num_classes: int | None = None
    ) -> TableWriter:
        """Begin the labels of a node type; class numbers (-1: none) are checked against ``num_classes``."""
        node = self._node(ntype)
        node.num_classes = num_classes

        def check(values: np.ndarray, first_row: int) -> None:
            check_range(values, -1, num_classes or 0, f"labels of {ntype}", first_row)

        classes = num_classes is not None and dim == 1 and "int" in dtype
        key = f"nodes/{safe_name(ntype)}/labels"
        writer = self._build.table(key, f"{ntype}/labels", dtype, dim, node.num_nodes, check=check if classes else None)
        self._assign.append((writer, lambda stored: setattr(node, "labels", stored)))
        return writer

    def add_labels(self, labels: Rows | Sequence[int], ntype: str = NODE, num_classes: int | None = None) -> None:
        """Add labels: class numbers (``[num_nodes]`` integers, -1 for none) or values of any dtype and dim."""
        rows = torch.as_tensor(labels)
        _expect_rows(rows, self.num_nodes(ntype), f"{ntype}/labels")
        if num_classes is None and _width(rows) == 1 and not rows.is_floating_point() and len(rows):
            num_classes = max(int(rows.max()) + 1, 0)
        copy_rows(rows, self.labels(dtype_name(rows.dtype), ntype, _width(rows), num_classes))

    def add_split(self, name: str, ids: Rows | Sequence[int], ntype: str = NODE) -> None:
        """Add the node ids of a split, e.g. ``"train"``; each must be in ``[0, num_nodes)``."""
        node = self._node(ntype)
        rows = torch.as_tensor(ids)
        if rows.ndim != 1 or (rows.is_floating_point() and len(rows)) or rows.dtype == torch.bool:
            raise ConfigError(f"split {name!r} must be a list of node ids (got {rows.dtype} {list(rows.shape)})")

        def check(values: np.ndarray, first_row: int) -> None:
            check_range(values, 0, node.num_nodes, f"ids of split {name!r} of {ntype}", first_row)

        key = f"nodes/{safe_name(ntype)}/splits/{safe_name(name)}"
        writer = self._build.table(key, f"{ntype}/splits/{name}", "int64", 1, len(rows), check=check)
        self._assign.append((writer, lambda stored: node.splits.__setitem__(name, stored)))
        copy_rows(rows.to(torch.int64), writer)

    def original_ids(self, ntype: str = NODE) -> TableWriter:
        """Begin what the nodes of a relabelled type were called: ``int64``, each id once."""
        node = self._node(ntype)

        def check(values: np.ndarray, first_row: int) -> None:
            check_range(values, 0, node.num_nodes, f"original ids of {ntype}", first_row)

        key = f"nodes/{safe_name(ntype)}/original_ids"
        writer = self._build.table(key, f"{ntype}/original_ids", "int64", 1, node.num_nodes, check=check)
        self._assign.append((writer, lambda stored: setattr(node, "original_ids", stored)))
        return writer

    def indptr(self, etype: EdgeType = EDGE) -> TableWriter:
        """Begin the offsets of an edge type: ``int64``, one more than destination nodes, from 0 to the number of edges."""
        return self._topology_table(etype, "indptr", "int64", self.num_nodes(etype[2]) + 1)

    def indices(self, num_edges: int, dtype: str = "int64", etype: EdgeType = EDGE) -> TableWriter:
        """Begin the source ids of an edge type, by destination."""
        num_sources = self.num_nodes(etype[0])
        if dtype not in ("int32", "int64"):
            raise ConfigError(f"dtype of indices must be int32 or int64 (got {dtype})")

        def check(values: np.ndarray, first_row: int) -> None:
            check_range(values, 0, num_sources, f"source ids of {':'.join(etype)}", first_row)

        self._num_edges[etype] = num_edges
        return self._topology_table(etype, "indices", dtype, num_edges, check)

    def weights(self, dtype: str = "float32", etype: EdgeType = EDGE) -> TableWriter:
        """Begin the edge weights, in the order of the indices, after these."""
        return self._topology_table(etype, "weights", dtype, self._edges(etype))

    def edge_ids(self, dtype: str = "int64", etype: EdgeType = EDGE) -> TableWriter:
        """Begin the edge ids, in the order of the indices, after these; where none are stored, the position is the id."""
        return self._topology_table(etype, "edge_ids", dtype, self._edges(etype))

    def add_csc(
        self,
        indptr: Rows | Sequence[int],
        indices: Rows | Sequence[int],
        etype: EdgeType = EDGE,
        *,
        weights: Rows | None = None,
        edge_ids: Rows | None = None,
    ) -> None:
        """Add the edges of a type from arrays by destination (CSC)."""
        offsets, sources = torch.as_tensor(indptr).to(torch.int64), torch.as_tensor(indices)
        name = ":".join(etype)
        _expect_rows(offsets, self.num_nodes(etype[2]) + 1, f"{name}/indptr")
        try:
            check_indptr([offsets.numpy()], len(sources), f"{name}/indptr")
        except DatasetError as error:
            raise ConfigError(str(error)) from error
        if sources.dtype not in (torch.int32, torch.int64):
            sources = sources.to(torch.int64)
        copy_rows(offsets, self.indptr(etype))
        copy_rows(sources, self.indices(len(sources), dtype_name(sources.dtype), etype))
        if weights is not None:
            _expect_rows(weights, len(sources), f"{name}/weights")
            copy_rows(weights, self.weights(dtype_name(weights.dtype), etype))
        if edge_ids is not None:
            _expect_rows(edge_ids, len(sources), f"{name}/edge_ids")
            copy_rows(edge_ids, self.edge_ids(dtype_name(edge_ids.dtype), etype))

    def edge_features(
        self,
        dtype: str,
        dim: int,
        etype: EdgeType = EDGE,
        name: str = "feat",
        *,
        num_rows: int | None = None,
        stripes: int | None = None,
        stripe_rows: int | None = None,
        row_stride: int | None = None,
    ) -> TableWriter:
        """Begin a feature table of an edge type, after its indices: row ``i`` belongs to the edges with id ``i``.

        ``num_rows`` is the number of edges unless edge ids are stored (several edges may share an id).
        """
        key = f"edges/{_edge_dir(etype)}/features/{safe_name(name)}"
        layout = Layout(stripes or 1, stripe_rows, row_stride, on_stripe_dirs=True)
        rows = self._edges(etype) if num_rows is None else num_rows
        if rows != self._edges(etype) and "edge_ids" not in self._topology[etype]:
            raise ConfigError(f"{':'.join(etype)}/{name} must have {self._edges(etype)} rows, or edge ids (got {rows})")
        writer = self._build.table(key, f"{':'.join(etype)}/{name}", dtype, dim, rows, layout)
        self._edge_features.setdefault(etype, {})[name] = writer
        return writer

    def add_edge_features(self, rows: Rows, etype: EdgeType = EDGE, name: str = "feat", **layout: int | None) -> None:
        """Add a whole feature table of an edge type, ``[num_edges, dim]``, by edge id.

        ``layout`` is ``stripes``, ``stripe_rows`` and ``row_stride`` of :meth:`edge_features`.
        """
        _expect_rows(rows, self._edges(etype), f"{':'.join(etype)}/{name}")
        copy_rows(rows, self.edge_features(dtype_name(rows.dtype), _width(rows), etype, name, **layout))

    def knowledge(
        self, num_triples: int, base_relations: int, *, reverse: bool, identity: bool, ntype: str = NODE
    ) -> KnowledgeWriter:
        """Begin the triples of a knowledge graph over the nodes of one type; see :class:`KnowledgeWriter`."""
        if self._knowledge is not None:
            raise ConfigError("triples were added before")
        counts = (self.num_nodes(ntype), num_triples, base_relations)
        self._knowledge = KnowledgeWriter(self._build, ntype, *counts, reverse=reverse, identity=identity)
        return self._knowledge

    def finish(self) -> Dataset:
        """Complete the dataset and give it its final name."""
        for writer, assign in self._assign:
            assign(writer.finish())
        edges: dict[EdgeType, EdgeEntry] = {}
        for etype, parts in self._topology.items():
            missing = {"indptr", "indices"} - parts.keys()
            if missing:
                raise ConfigError(f"edge type {':'.join(etype)} needs {' and '.join(sorted(missing))}")
            stored: dict[str, Any] = {part: writer.finish() for part, writer in parts.items()}
            offsets = stored["indptr"].table
            check_indptr(offset_parts(offsets), self._num_edges[etype], offsets.name)
            features = {name: writer.finish() for name, writer in self._edge_features.get(etype, {}).items()}
            edges[etype] = EdgeEntry(self._num_edges[etype], **stored, features=features)
        manifest = Manifest("", self._nodes, edges, self._attributes)
        if self._knowledge is not None:
            manifest.knowledge = self._knowledge.finish()
        manifest.id = manifests.identity(manifest)
        self._build.publish(manifests.dump(manifest, self._build.partial))
        return Dataset(self.path)

    def abandon(self, discard: bool = False) -> None:
        """Stop writing. A job that can be resumed keeps what it has made unless it is discarded; others leave nothing."""
        self._build.abandon(discard)

    def __enter__(self) -> DatasetWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Input that breaks a rule will break it again: there is nothing to go on with.
        discard = kind is not None and issubclass(kind, ConfigError)
        try:
            if kind is None and not self._build.closed:
                self.finish()
        except ConfigError:
            discard = True
            raise
        finally:
            self.abandon(discard)

    def _node(self, ntype: str) -> NodeEntry:
        if ntype not in self._nodes:
            raise ConfigError(f"node type {ntype!r} must be declared with add_nodes first")
        return self._nodes[ntype]

    def _edges(self, etype: EdgeType) -> int:
        if etype not in self._num_edges:
            raise ConfigError(f"indices of {':'.join(etype)} must be added before its other tables")
        return self._num_edges[etype]

    def _topology_table(
        self,
        etype: EdgeType,
        part: str,
        dtype: str,
        num_rows: int,
        check: Check | None = None,
    ) -> TableWriter:
        for ntype in (etype[0], etype[2]):
            self._node(ntype)
        key = f"edges/{_edge_dir(etype)}/{part}"
        writer = self._build.table(key, f"{':'.join(etype)}/{part}", dtype, 1, num_rows, check=check)
        self._topology.setdefault(etype, {})[part] = writer
        return writer


def copy_rows(rows: Rows, writer: TableWriter) -> None:
    """Append the rows that a table does not have yet, a piece at a time."""
    step = max(1, COPY_BYTES // writer.table.row_bytes)
    for begin in range(writer.rows_done, len(rows), step):
        writer.append(rows[begin : begin + step])


def check_range(values: np.ndarray, low: int, high: int, name: str, first_row: int) -> None:
    """Refuse values outside ``[low, high)``, naming the first one and its place."""
    if int(values.min()) < low or int(values.max()) >= high:
        place = int(np.flatnonzero((values < low) | (values >= high))[0])
        raise ConfigError(f"{name} must be in [{low}, {high}) (got {int(values[place])} at row {first_row + place})")


def _width(rows: Rows) -> int:
    return int(np.prod(rows.shape[1:], dtype=np.int64))


def _expect_rows(rows: Rows, num_rows: int, name: str) -> None:
    if rows.ndim == 0 or len(rows) != num_rows:
        raise ConfigError(f"{name} must have {num_rows} rows (got shape {list(rows.shape)})")


def _feature_key(ntype: str, name: str) -> str:
    return f"nodes/{safe_name(ntype)}/features/{safe_name(name)}"


def _edge_dir(etype: EdgeType) -> str:
    return ",".join(safe_name(part) for part in etype)
