"""What all generated datasets share: labels, noisy features and splits, made piece by piece from (seed, node)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from gids import _native
from gids.dataset import DatasetWriter
from gids.dataset.table_writer import TableWriter, work_array
from gids.errors import ConfigError
from gids.table import DTYPES

#: Bytes of float32 features that are in memory at a time.
PIECE_BYTES = 32 << 20

LabelsOf = Callable[[int, np.ndarray], None]  # first node, int64 array to fill


@dataclass(frozen=True)
class NodeData:
    """Features, labels and splits of a generated dataset.

    Attributes
    ----------
    dim : int
        Values in a feature row.
    dtype : str
        A float dtype.
    num_classes : int
        Classes.
    signal : float
        Length of a class centroid against noise of variance 1: higher makes features alone more telling.
    train, val, test : float
        Shares of the nodes in the three splits.
    seed : int
        Everything is a function of it.
    """

    dim: int
    dtype: str
    num_classes: int
    signal: float
    train: float
    val: float
    test: float
    seed: int

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES or not DTYPES[self.dtype].is_floating_point:
            floats = ", ".join(name for name, dtype in DTYPES.items() if dtype.is_floating_point)
            raise ConfigError(f"dtype must be one of {floats} (got {self.dtype!r})")
        if self.dim < 1:
            raise ConfigError(f"dim must be at least 1 (got {self.dim})")
        if self.num_classes < 1:
            raise ConfigError(f"num_classes must be at least 1 (got {self.num_classes})")
        if not 0 <= self.seed < 2**64:
            raise ConfigError(f"seed must be in [0, 2^64) (got {self.seed})")
        if min(self.train, self.val, self.test) < 0 or self.train + self.val + self.test > 1 + 1e-9:
            shares = f"{self.train}, {self.val}, {self.test}"
            raise ConfigError(f"train, val and test must be shares that add up to at most 1 (got {shares})")


def feature_rows(
    begin: int, labels: np.ndarray, dim: int, seed: int, signal: float, dtype: str, pool: _native.ThreadPool
) -> torch.Tensor:
    """Compute the feature rows of nodes ``begin, begin + 1, ...`` with these labels: ``dtype[len(labels), dim]``."""
    values = np.empty(len(labels) * dim, np.float32)
    _native.class_features(begin, labels, dim, seed, signal, values, pool)
    return torch.from_numpy(values).view(-1, dim).to(DTYPES[dtype])


def write_node_data(writer: DatasetWriter, data: NodeData, labels_of: LabelsOf) -> None:
    """Write labels, splits and features of the nodes that the writer has declared."""
    num_nodes = writer.num_nodes()

    def labels(begin: int, end: int) -> np.ndarray:
        out = np.empty(end - begin, np.int64)
        labels_of(begin, out)
        return out

    fill(writer.labels(num_classes=data.num_classes), labels)
    edges = np.cumsum([0.0, data.train, data.val, data.test]) * num_nodes
    bounds = np.minimum(np.floor(edges + 1e-6).astype(np.int64), num_nodes)
    for name, begin, end in zip(("train", "val", "test"), bounds[:-1], bounds[1:], strict=True):
        ids = np.empty(int(end - begin), np.int64)
        _native.shuffled_ids(num_nodes, data.seed, int(begin), ids, writer.pool)
        writer.add_split(name, np.sort(ids))

    def features(begin: int, end: int) -> torch.Tensor:
        return feature_rows(begin, labels(begin, end), data.dim, data.seed, data.signal, data.dtype, writer.pool)

    fill(writer.features(data.dtype, data.dim), features, row_bytes=data.dim * 4)


def fill(table: TableWriter, rows: Callable[[int, int], np.ndarray | torch.Tensor], row_bytes: int = 8) -> None:
    """Append what ``rows(begin, end)`` gives, in pieces of :data:`PIECE_BYTES`, from where the table stands."""
    step = max(1, PIECE_BYTES // row_bytes)
    total = table.table.num_rows
    for begin in range(table.rows_done, total, step):
        table.append(rows(begin, min(begin + step, total)))


def write_csc(
    writer: DatasetWriter,
    degrees_of: LabelsOf,
    sources_of: Callable[[int, np.ndarray, np.ndarray], None],
) -> None:
    """Write topology that is computed by destination: degrees first, then sources of ranges of nodes.

    Parameters
    ----------
    degrees_of : callable
        ``degrees_of(first_node, out)`` fills in-degrees.
    sources_of : callable
        ``sources_of(first_node, offsets, out)`` fills the sources of ``len(offsets) - 1`` nodes, those of the ``i``-th
        at ``offsets[i]..offsets[i + 1]``.
    """
    num_nodes = writer.num_nodes()
    step = max(1, PIECE_BYTES // 8)
    offsets = work_array(writer.work / "indptr", np.int64, num_nodes + 1)
    offsets[0] = 0
    for begin in range(0, num_nodes, step):
        degrees = np.empty(min(step, num_nodes - begin), np.int64)
        degrees_of(begin, degrees)
        np.cumsum(degrees, out=degrees)
        offsets[begin + 1 : begin + 1 + len(degrees)] = degrees + offsets[begin]
    fill(writer.indptr(), lambda begin, end: np.array(offsets[begin:end]))
    dtype = "int32" if num_nodes <= 2**31 - 1 else "int64"
    table = writer.indices(int(offsets[-1]), dtype)
    # A killed run may have stopped within a node's edges: go on with that node and skip what is stored.
    node = int(np.searchsorted(offsets, table.rows_done, side="right")) - 1
    while table.rows_done < table.table.num_rows:
        last = int(np.searchsorted(offsets, offsets[node] + step, side="right")) - 1
        last = min(max(last, node + 1), num_nodes)
        local = np.array(offsets[node : last + 1]) - int(offsets[node])
        sources = np.empty(int(local[-1]), np.int64)
        sources_of(node, local, sources)
        table.append(sources[table.rows_done - int(offsets[node]) :].astype(dtype))
        node = last
