"""The graph that samplers walk: offsets in memory, neighbour lists in memory or on disk."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from gids import _native
from gids.errors import ConfigError, DatasetError
from gids.sampling.disk import PositionReader, keep_hot, load_visits
from gids.sampling.sample import EDGE, NODE, EdgeType
from gids.storage import StorageOptions
from gids.table import RowTable
from gids.units import parse_bytes

Array = npt.NDArray[Any]
#: ``read(positions, out)``: fill ``out[i]`` with the source node of edge position ``positions[i]`` (both int64).
NeighborReader = Callable[[npt.NDArray[np.int64], npt.NDArray[np.int64]], None]
#: The same for weights: ``out`` is float32.
WeightReader = Callable[[npt.NDArray[np.int64], npt.NDArray[np.float32]], None]


class GraphSource(Protocol):
    """What a topology needs of a dataset; :class:`gids.Dataset` has it."""

    @property
    def node_types(self) -> Sequence[str]:
        """Node types in order."""

    @property
    def edge_types(self) -> Sequence[EdgeType]:
        """Edge types in order."""

    def num_nodes(self, ntype: str | None = None) -> int:
        """Count the nodes of one type."""

    def indptr(self, etype: EdgeType) -> Array:
        """Give the offsets of the in-edges, int64."""

    def indices_table(self, etype: EdgeType) -> RowTable:
        """Say where the source nodes of the in-edges are."""

    def edge_ids_table(self, etype: EdgeType) -> RowTable | None:
        """Say where the edge ids are, if they are not the positions."""

    def edge_weight_table(self, etype: EdgeType) -> RowTable | None:
        """Say where the edge weights are, if there are any."""


def _vector(value: object, name: str) -> Array:
    array = value.numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
    if array.ndim != 1:
        raise ConfigError(f"{name} must have one dimension (got {array.ndim})")
    return np.ascontiguousarray(array)


@dataclass(frozen=True)
class Relation:
    """In-edges of one type, compressed by destination.

    Attributes
    ----------
    indptr : array[int64]
        Offsets, one more than there are destination nodes.
    indices : array[int32 or int64], or NeighborReader
        Source node of each edge position, or a function that reads them.
    edge_ids : array[int64] or NeighborReader, optional
        Id of each edge position; without it the position is the id.
    weights : array[float32] or WeightReader, optional
        Weight of each edge position, not negative.
    """

    indptr: Array
    indices: Array | NeighborReader
    edge_ids: Array | NeighborReader | None = None
    weights: Array | WeightReader | None = None


class Topology:
    """A graph to sample from. Safe to use from several threads at once.

    Parameters
    ----------
    num_nodes : mapping of str to int
        Nodes by type.
    relations : mapping of EdgeType to Relation
        In-edges by edge type; their order is part of the random keys.
    validate : bool
        Check offsets and neighbours, one pass over the edges.
    """

    def __init__(
        self, num_nodes: Mapping[str, int], relations: Mapping[EdgeType, Relation], *, validate: bool = True
    ) -> None:
        self.num_nodes = dict(num_nodes)
        self.relations: dict[EdgeType, Relation] = {}
        for ntype, count in self.num_nodes.items():
            if count < 0:
                raise ConfigError(f"num_nodes of {ntype} must not be negative (got {count})")
        self._readers: list[PositionReader] = []
        self._hot: dict[EdgeType, _native.HotLists] = {}
        self._types = {ntype: i for i, ntype in enumerate(self.num_nodes)}
        self._native = _native.SamplingTopology(list(self.num_nodes), list(self.num_nodes.values()))
        for etype, relation in relations.items():
            self._add(etype, relation, validate)

    def _add(self, etype: EdgeType, relation: Relation, validate: bool) -> None:
        if len(etype) != 3:
            raise ConfigError(f"edge type must be (source type, name, destination type) (got {etype!r})")
        source, name, destination = etype
        for ntype in (source, destination):
            if ntype not in self._types:
                raise ConfigError(f"node types of {etype} must be among {list(self._types)} (got {ntype!r})")
        indptr = _vector(relation.indptr, f"indptr of {name}").astype(np.int64, copy=False)
        if len(indptr) != self.num_nodes[destination] + 1:
            raise ConfigError(
                f"indptr of {name} must have num_nodes[{destination!r}] + 1 = {self.num_nodes[destination] + 1} "
                f"entries (got {len(indptr)})"
            )
        if indptr[0] != 0 or (validate and bool((np.diff(indptr) < 0).any())):
            raise DatasetError(f"indptr of {name} must begin at 0 and never decrease")
        indices: Array | NeighborReader = relation.indices
        if not callable(indices):
            indices = _vector(indices, f"indices of {name}")
            if indices.dtype not in (np.int32, np.int64):
                raise ConfigError(f"indices of {name} must be int32 or int64 (got {indices.dtype})")
            if len(indices) != indptr[-1]:
                raise DatasetError(
                    f"indices of {name} must have indptr[-1] = {indptr[-1]} entries (got {len(indices)})"
                )
            if validate and len(indices) and not 0 <= indices.min() <= indices.max() < self.num_nodes[source]:
                raise DatasetError(
                    f"indices of {name} must be in [0, {self.num_nodes[source]}) "
                    f"(got {indices.min()} to {indices.max()})"
                )
        edge_ids = relation.edge_ids
        if edge_ids is not None and not callable(edge_ids):
            edge_ids = _vector(edge_ids, f"edge_ids of {name}").astype(np.int64, copy=False)
            if len(edge_ids) != indptr[-1]:
                raise DatasetError(f"edge_ids of {name} must have {indptr[-1]} entries (got {len(edge_ids)})")
        weights = relation.weights
        if weights is not None and not callable(weights):
            weights = _vector(weights, f"weights of {name}").astype(np.float32, copy=False)
            if len(weights) != indptr[-1]:
                raise DatasetError(f"weights of {name} must have {indptr[-1]} entries (got {len(weights)})")
            if validate and not bool((np.isfinite(weights) & (weights >= 0)).all()):
                raise DatasetError(f"weights of {name} must be finite and not negative")
        self.relations[etype] = Relation(indptr, indices, edge_ids, weights)
        self._native.add_relation(
            name, self._types[source], self._types[destination], indptr, indices, edge_ids, weights
        )

    @classmethod
    def from_arrays(
        cls,
        indptr: object,
        indices: object,
        *,
        num_nodes: int | None = None,
        edge_ids: object | None = None,
        weights: object | None = None,
        validate: bool = True,
    ) -> Topology:
        """Make a graph of one node and edge type over arrays or tensors, without copying them.

        Parameters
        ----------
        indptr : array_like[int64]
            Offsets of the in-edges, ``nodes + 1`` of them.
        indices : array_like[int32 or int64]
            Source node of each in-edge.
        num_nodes : int, optional
            Nodes; by default ``len(indptr) - 1``.
        edge_ids : array_like[int64], optional
            Id of each edge position.
        weights : array_like[float32], optional
            Weight of each edge position.
        validate : bool
            Check that every neighbour exists.
        """
        offsets = _vector(indptr, "indptr")
        ids = None if edge_ids is None else _vector(edge_ids, "edge_ids")
        factors = None if weights is None else _vector(weights, "weights")
        count = len(offsets) - 1 if num_nodes is None else num_nodes
        relation = Relation(offsets, _vector(indices, "indices"), ids, factors)
        return cls({NODE: count}, {EDGE: relation}, validate=validate)

    @classmethod
    def from_dataset(
        cls,
        dataset: GraphSource,
        *,
        on_disk: bool = False,
        budget: int | str = "64MiB",
        storage: StorageOptions | None = None,
    ) -> Topology:
        """Take the graph of a dataset, into memory or where it is. Both give the same samples.

        Parameters
        ----------
        dataset : GraphSource
            What :func:`gids.open` returns.
        on_disk : bool
            Keep only the offsets in memory and read the sampled neighbours, ids and weights from disk, past the page
            cache.
        budget : int or str
            Memory for the hottest neighbour lists of an on-disk graph; 0 keeps none.
        storage : StorageOptions, optional
            How an on-disk graph is read.
        """
        num_nodes = {ntype: dataset.num_nodes(ntype) for ntype in dataset.node_types}
        offsets = {etype: _load_offsets(dataset.indptr(etype)) for etype in dataset.edge_types}
        tables = {etype: dataset.indices_table(etype) for etype in dataset.edge_types}
        readers: list[PositionReader] = []

        def take(table: RowTable | None) -> Any:
            if table is None or not on_disk:
                return None if table is None else load_table(table)
            readers.append(PositionReader(table, storage))
            return readers[-1]

        relations = {
            etype: Relation(
                offsets[etype],
                take(tables[etype]),
                take(dataset.edge_ids_table(etype)),
                take(dataset.edge_weight_table(etype)),
            )
            for etype in dataset.edge_types
        }
        topology = cls(num_nodes, relations, validate=False)
        topology._readers = readers
        budget_bytes = parse_bytes(budget, "budget")
        if on_disk and budget_bytes:
            visits = load_visits(getattr(dataset, "scratch_dir", None), num_nodes, offsets, tables)
            total = sum(table.total_bytes for table in tables.values())
            for number, (etype, table) in enumerate(tables.items()):
                share = budget_bytes * table.total_bytes // max(total, 1)
                lists = keep_hot(table, offsets[etype], visits[etype[2]], share)
                if lists is not None:
                    topology._native.keep_hot(number, lists)
                    topology._hot[etype] = lists
        return topology

    def close(self) -> None:
        """Close the files of an on-disk graph; a graph in memory needs no closing."""
        for reader in self._readers:
            reader.close()

    def __enter__(self) -> Topology:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def resident_bytes(self) -> int:
        """Count the bytes that the graph keeps in memory: offsets, lists, staging and hash tables at rest."""
        total = self._native.table_bytes + sum(lists.bytes for lists in self._hot.values())
        total += sum(reader.reader.options.staging_bytes for reader in self._readers)
        for relation in self.relations.values():
            for part in (relation.indptr, relation.indices, relation.edge_ids, relation.weights):
                total += part.nbytes if isinstance(part, np.ndarray) else 0
        return total

    def disk_stats(self) -> dict[EdgeType, dict[str, int]]:
        """Give, by edge type on disk, what was read so far and how many lists are in memory."""
        stats = {}
        for etype, relation in self.relations.items():
            if isinstance(relation.indices, PositionReader):
                hot = self._hot.get(etype)
                stats[etype] = relation.indices.reader.stats() | {"hot_lists": hot.num_lists if hot else 0}
        return stats

    @property
    def node_types(self) -> list[str]:
        """Node types in the graph's order."""
        return list(self.num_nodes)

    @property
    def edge_types(self) -> list[EdgeType]:
        """Edge types in the graph's order."""
        return list(self.relations)

    def only(self, etype: EdgeType | None) -> EdgeType:
        """Give ``etype``, or the single edge type where it is None."""
        if etype is None:
            if len(self.relations) != 1:
                raise ConfigError(f"edge type must be given where a graph has several (has {self.edge_types})")
            return next(iter(self.relations))
        if etype not in self.relations:
            raise ConfigError(f"edge type must be one of {self.edge_types} (got {etype!r})")
        return etype

    def num_edges(self, etype: EdgeType | None = None) -> int:
        """Count the edges of one type, or of all where ``etype`` is None."""
        chosen = self.relations if etype is None else {etype: self.relations[etype]}
        return sum(int(relation.indptr[-1]) for relation in chosen.values())

    @property
    def native(self) -> _native.SamplingTopology:
        """The object that native samplers work on."""
        return self._native


class IdentifiedGraph(GraphSource, Protocol):
    """A dataset that can be told from others; :class:`gids.Dataset` is one."""

    @property
    def id(self) -> str:
        """Stable identity."""

    @property
    def path(self) -> object:
        """Where it is."""


_shared: weakref.WeakValueDictionary[tuple[str, str], Topology] = (
    weakref.WeakValueDictionary()
)  # guarded by _shared_lock
_shared_lock = threading.Lock()


def share_topology(dataset: IdentifiedGraph) -> Topology:
    """Take the graph of a dataset into memory, or share the copy that somebody in this process holds already.

    The copy lives as long as one of its users, so loaders of one dataset hold its edges, and pin them, once.
    """
    with _shared_lock:
        key = (str(dataset.path), dataset.id)
        topology = _shared.get(key)
        if topology is None:
            topology = _shared[key] = Topology.from_dataset(dataset)
        return topology


def _load_offsets(indptr: Array) -> Array:
    offsets = _native.huge_bytes(len(indptr) * 8).view(np.int64)
    offsets[:] = indptr
    return offsets


def load_table(table: RowTable) -> Array:
    """Read a whole one-column table into memory on huge pages."""
    if table.dim != 1:
        raise DatasetError(f"{table.name} must have dim 1 to be used as an array (got {table.dim})")
    dtype = np.dtype(table.dtype)
    whole = _native.huge_bytes(table.num_rows * dtype.itemsize).view(dtype)
    unit, files = table.stripe_rows, len(table.stripes)
    for number, stripe in enumerate(table.stripes):
        if table.row_stride == dtype.itemsize and files == 1:
            with stripe.path.open("rb", buffering=0) as file:
                file.seek(stripe.data_offset)
                _read_all(file, whole, stripe.path)
            continue
        rows = np.memmap(stripe.path, np.uint8, "r", stripe.data_offset, (stripe.num_rows * table.row_stride,))
        values = rows.reshape(-1, table.row_stride)[:, : dtype.itemsize].copy().view(dtype).reshape(-1)
        for begin in range(0, stripe.num_rows, unit):
            at = (begin // unit * files + number) * unit
            piece = values[begin : begin + unit]
            whole[at : at + len(piece)] = piece
    return whole


def _read_all(file: Any, array: Array, path: object) -> None:
    view = memoryview(array.view(np.uint8).data)
    while view:
        count = file.readinto(view[: 1 << 30])
        if not count:
            raise DatasetError(f"{path} is {len(view)} bytes too short")
        view = view[count:]
