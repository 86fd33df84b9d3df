"""Parquet parts of nodes and edges, as Spark, Beam and BigQuery write them; needs pyarrow (``pip install 'gids[parquet]'``).

    SOURCE/nodes/*.parquet                 or  SOURCE/nodes/<type>/*.parquet
    SOURCE/edges/*.parquet                 or  SOURCE/edges/<source>__<relation>__<destination>/*.parquet

Parts of one folder are one table, in the order of their names.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gids.convert.edges import EdgeList
from gids.convert.graph import Edges, Graph, Nodes
from gids.convert.sources import RowSource
from gids.dataset import EDGE, NODE
from gids.dataset.table_writer import Rows, dtype_name
from gids.errors import ConfigError, DatasetError
from gids.types import EdgeType

#: Names of columns with a meaning of their own; every other column of numbers, or of lists of them, is a feature table.
ID, LABELS, SPLIT = "id", ("label", "labels", "y"), "split"
SOURCES, DESTINATIONS, WEIGHTS = ("src", "source"), ("dst", "destination", "target"), ("weight", "weights")


def _pyarrow() -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise ConfigError(f"Parquet needs pyarrow: pip install 'gids[parquet]' ({error})") from error
    return pyarrow


def matches(path: Path) -> bool:
    """Whether a directory has Parquet parts of edges."""
    edges = path / "edges"
    return (edges.is_dir() and any(edges.glob("*.parquet"))) or any(edges.glob("*/*.parquet"))


class ParquetRows(RowSource):
    """A column of Parquet files, one file after the other; a row group is opened at a time.

    Parameters
    ----------
    files : sequence of Path
        Parts of the table, in order.
    column : str
        Numbers, or lists of as many numbers in every row.
    """

    divisible = True

    def __init__(self, files: Sequence[Path], column: str):
        parquet = _pyarrow().parquet
        self.column, self.name = column, f"column {column!r} of {files[0].parent}"
        self._groups: list[tuple[Path, int, int]] = []  # file, group and the rows before it
        self.num_rows, kinds = 0, set()
        for path in files:
            with _damage_in(path), parquet.ParquetFile(path) as file:
                if column not in file.schema_arrow.names:
                    raise DatasetError(f"{path} must have a column {column!r} as {files[0]} has")
                kinds.add(file.schema_arrow.field(column).type)
                for group in range(file.num_row_groups):
                    self._groups.append((path, group, self.num_rows))
                    self.num_rows += file.metadata.row_group(group).num_rows
        if len(kinds) != 1:
            raise DatasetError(f"{self.name} must have one type in all parts (got {', '.join(map(str, kinds))})")
        kind = kinds.pop()
        self._is_list = hasattr(kind, "value_type") and not hasattr(kind, "index_type")
        value = kind.value_type if self._is_list else kind
        try:
            self.dtype = dtype_name("uint8" if str(value) == "bool" else value.to_pandas_dtype())
        except (ConfigError, NotImplementedError, TypeError) as error:
            raise DatasetError(f"{self.name} must hold numbers (got {kind})") from error
        self.dim = 1
        if self._is_list:
            first = next(self._batches(0, 1), None)
            self.dim = 1 if first is None else max(1, len(first.flatten()))

    def read(self, begin: int, step: int) -> Iterator[Rows]:
        """Yield rows of consecutive row groups."""
        held: list[np.ndarray] = []
        count = 0
        for rows in self._rows(begin, step):
            while len(rows):
                part = rows[: step - count]
                held.append(part)
                count += len(part)
                rows = rows[len(part) :]
                if count == step:
                    yield np.concatenate(held) if len(held) > 1 else held[0]
                    held, count = [], 0
        if held:
            yield np.concatenate(held)

    def _rows(self, begin: int, step: int) -> Iterator[np.ndarray]:
        position = begin
        for column in self._batches(begin, step):
            if column.null_count:
                place = position + int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
                raise DatasetError(f"{self.name} must have a value in every row (row {place} has none)")
            values = column.flatten() if self._is_list else column
            if values.null_count or len(values) != len(column) * self.dim or not self._even(column):
                raise DatasetError(
                    f"{self.name} must have lists of {self.dim} numbers (rows {position} to {position + len(column)} have not)"
                )
            array = values.to_numpy(zero_copy_only=False)
            yield array.astype(self.dtype, copy=False).reshape(-1, self.dim)
            position += len(column)

    def _even(self, column: Any) -> bool:
        offsets = getattr(column, "offsets", None)
        return offsets is None or bool((np.diff(offsets.to_numpy()) == self.dim).all())

    def _batches(self, begin: int, step: int) -> Iterator[Any]:
        """Yield arrays of pyarrow with the rows from ``begin`` on, at most ``step`` in one."""
        parquet = _pyarrow().parquet
        ends = [first for _, _, first in self._groups[1:]] + [self.num_rows]
        for (path, group, first), end in zip(self._groups, ends, strict=True):
            if end <= begin:
                continue
            with _damage_in(path), parquet.ParquetFile(path) as file:
                for batch in file.iter_batches(batch_size=step, row_groups=[group], columns=[self.column]):
                    column = batch.column(0)
                    if begin > first:
                        skipped = min(begin - first, len(column))
                        column, first = column.slice(skipped), first + skipped
                    first += len(column)
                    if len(column):
                        yield column


class CheckedIds(RowSource):
    """Rows of a column, while the ids beside them are checked to be the numbers of the rows."""

    divisible = True

    def __init__(self, rows: ParquetRows, ids: ParquetRows):
        self._rows, self._ids = rows, ids
        self.name, self.num_rows, self.dim, self.dtype = rows.name, rows.num_rows, rows.dim, rows.dtype

    def read(self, begin: int, step: int) -> Iterator[Rows]:
        """Yield rows."""
        for rows, ids in zip(self._rows.read(begin, step), self._ids.read(begin, step), strict=True):
            found = np.asarray(ids).reshape(-1)
            wrong = np.flatnonzero(found != np.arange(begin, begin + len(found)))
            if len(wrong):
                place = begin + int(wrong[0])
                raise DatasetError(
                    f"{self._ids.name} must count the rows from 0 over all parts (got {found[wrong[0]]} in row {place}): "
                    "number the nodes, and sort by id before writing"
                )
            begin += len(found)
            yield rows


def read(path: Path) -> Graph:
    """Find the tables of a directory."""
    nodes: dict[str, Nodes] = {}
    edges: dict[EdgeType, Edges] = {}
    files: list[Path] = []
    for folder, ntype in _folders(path / "nodes", NODE):
        parts = _parts(folder)
        files += parts
        nodes[ntype] = _nodes(parts)
    for folder, name in _folders(path / "edges", None):
        parts = _parts(folder)
        files += parts
        words = EDGE if name is None else tuple(name.split("__"))
        if len(words) != 3 or not all(words):
            raise DatasetError(f"{folder} must be named <source>__<relation>__<destination> (got {name!r})")
        edges[words[0], words[1], words[2]] = _edges(parts)
        for ntype in (words[0], words[2]):
            nodes.setdefault(ntype, Nodes(None))
    if not edges:
        raise DatasetError(f"{path} must have Parquet parts in edges/, or in folders of it (found none)")
    return Graph("parquet", nodes, edges, files)


def _folders(root: Path, plain: Any) -> list[tuple[Path, Any]]:
    if not root.is_dir():
        return []
    if _parts(root):
        return [(root, plain)]
    return [(folder, folder.name) for folder in sorted(root.iterdir()) if folder.is_dir() and _parts(folder)]


def _parts(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.parquet") if not path.name.startswith(("_", ".")))


def _columns(files: Sequence[Path]) -> list[str]:
    with _damage_in(files[0]), _pyarrow().parquet.ParquetFile(files[0]) as file:
        return list(file.schema_arrow.names)


def _count(files: Sequence[Path]) -> int:
    total = 0
    for path in files:
        with _damage_in(path), _pyarrow().parquet.ParquetFile(path) as file:
            total += file.metadata.num_rows
    return total


def _nodes(files: Sequence[Path]) -> Nodes:
    columns = _columns(files)
    ids = ParquetRows(files, ID) if ID in columns else None
    nodes = Nodes(_count(files))
    for column in columns:
        if column == SPLIT:
            nodes.splits = _splits(files)
        elif column != ID:
            rows = ParquetRows(files, column)
            source = rows if ids is None else CheckedIds(rows, ids)
            if column in LABELS:
                nodes.labels = source
            else:
                nodes.features[column] = source
    return nodes


def _splits(files: Sequence[Path]) -> dict[str, np.ndarray]:
    """Return the rows of every word in the column of splits; rows without a word are in none."""
    found: dict[str, list[np.ndarray]] = {}
    first = 0
    for path in files:
        with _damage_in(path), _pyarrow().parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(columns=[SPLIT]):
                words = np.array(batch.column(0).to_pylist(), object)
                for word in sorted({word for word in words if word}):
                    found.setdefault(str(word), []).append(first + np.flatnonzero(words == word))
                first += len(words)
    return {word: np.concatenate(parts) for word, parts in found.items()}


def _edges(files: Sequence[Path]) -> Edges:
    columns = _columns(files)

    def first(names: tuple[str, ...]) -> str | None:
        return next((name for name in names if name in columns), None)

    source, destination, weight = first(SOURCES), first(DESTINATIONS), first(WEIGHTS)
    if source is None or destination is None:
        raise DatasetError(
            f"{files[0]} must have columns {' or '.join(SOURCES)}, and {' or '.join(DESTINATIONS)} "
            f"(got {', '.join(columns)})"
        )
    weights = None if weight is None else ParquetRows(files, weight)
    topology = EdgeList(ParquetRows(files, source), ParquetRows(files, destination), weights)
    others = [name for name in columns if name not in (source, destination, weight)]
    return Edges(topology, {name: ParquetRows(files, name) for name in others})


@contextlib.contextmanager
def _damage_in(path: Path) -> Iterator[None]:
    """Turn what pyarrow says about a file into a :class:`DatasetError` that names it."""
    try:
        yield
    except (_pyarrow().ArrowException, OSError) as error:
        raise DatasetError(f"{path} must be a Parquet file that can be read ({error})") from error
