"""The graph that samplers walk: offsets in memory, neighbour lists in memory or on disk."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from gids import _native
from gids.dataset.rows import StoredOffsets
from gids.errors import ConfigError, DatasetError
from gids.sampling.disk import PositionReader, pack_offsets
from gids.sampling.disk_memory import DiskMemory, default_topology_bytes, divide
from gids.sampling.lists import ListMemory
from gids.sampling.load import Place, load_table, own_memory
from gids.sampling.sample import EDGE, NODE, EdgeType
from gids.sampling.times import TimesById, edge_time_table, node_time_table, read_times
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
        """Return the offsets of the in-edges, int64."""

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
    packed : PackedOffsets, optional
        The same offsets in less memory; then samplers use these, and ``indptr`` may be a mapped file.
    times : array[int64] or NeighborReader, optional
        When each edge position came to be.
    """

    indptr: Array | StoredOffsets
    indices: Array | NeighborReader
    edge_ids: Array | NeighborReader | None = None
    weights: Array | WeightReader | None = None
    packed: _native.PackedOffsets | None = None
    times: Array | NeighborReader | None = None


class Topology:
    """A graph to sample from. Safe to use from several threads at once.

    Parameters
    ----------
    num_nodes : mapping of str to int
        Nodes by type.
    relations : mapping of EdgeType to Relation
        In-edges by edge type; their order is part of the random keys.
    origins : mapping of str to array[int64], optional
        Of a relabelled graph: the ids that its nodes had, by node type. Random numbers are drawn for these, so that
        samples are those of the graph before, under its new ids.
    node_times : mapping of str to array[int64], optional
        When nodes came to be, by node type.
    validate : bool
        Check offsets and neighbours, one pass over the edges.
    """

    def __init__(
        self,
        num_nodes: Mapping[str, int],
        relations: Mapping[EdgeType, Relation],
        *,
        origins: Mapping[str, Array] | None = None,
        node_times: Mapping[str, object] | None = None,
        validate: bool = True,
    ) -> None:
        self.num_nodes = dict(num_nodes)
        self.relations: dict[EdgeType, Relation] = {}
        for ntype, count in self.num_nodes.items():
            if count < 0:
                raise ConfigError(f"num_nodes of {ntype} must not be negative (got {count})")
        self._readers: list[PositionReader] = []
        self.disk_memory: DiskMemory | None = None
        self.shared_by = 1  # processes that have the same arrays
        self._place: Place = own_memory  # lives as long as the arrays do
        self.lists: ListMemory | None = None
        self._types = {ntype: i for i, ntype in enumerate(self.num_nodes)}
        self._native = _native.SamplingTopology(list(self.num_nodes), list(self.num_nodes.values()))
        for etype, relation in relations.items():
            self._add(etype, relation, validate)
        self.origins: dict[str, Array] = {}
        self._renamed: dict[str, Array] = {}
        for ntype, ids in (origins or {}).items():
            if ntype not in self._types or len(ids) != self.num_nodes[ntype]:
                raise ConfigError(f"origins must have one id for each node of a type (got {len(ids)} for {ntype!r})")
            self.origins[ntype] = _vector(ids, f"origins of {ntype}").astype(np.int64, copy=False)
            self._native.set_origins(self._types[ntype], self.origins[ntype])
        self.node_times: dict[str, Array] = {}
        for ntype, times in (node_times or {}).items():
            self._set_node_times(ntype, times)

    def renamed(self, ntype: str) -> Array | None:
        """Return the id that each former id of a relabelled node type has now: int64; None where none was relabelled."""
        if ntype not in self.origins:
            return None
        if ntype not in self._renamed:
            now = np.empty(self.num_nodes[ntype], np.int64)
            now[self.origins[ntype]] = np.arange(len(now))
            self._renamed[ntype] = now
        return self._renamed[ntype]

    def _add(self, etype: EdgeType, relation: Relation, validate: bool) -> None:
        if len(etype) != 3:
            raise ConfigError(f"edge type must be (source type, name, destination type) (got {etype!r})")
        source, name, destination = etype
        for ntype in (source, destination):
            if ntype not in self._types:
                raise ConfigError(f"node types of {etype} must be among {list(self._types)} (got {ntype!r})")
        indptr: Any = relation.indptr
        if not isinstance(indptr, StoredOffsets):
            indptr = _vector(indptr, f"indptr of {name}").astype(np.int64, copy=False)
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
        times = relation.times
        if times is not None and not callable(times):
            times = _vector(times, f"times of {name}").astype(np.int64, copy=False)
            if len(times) != indptr[-1]:
                raise DatasetError(f"times of {name} must have {indptr[-1]} entries (got {len(times)})")
        self.relations[etype] = Relation(indptr, indices, edge_ids, weights, relation.packed, times)
        offsets = indptr if relation.packed is None else relation.packed
        parts = [part.native if isinstance(part, PositionReader) else part for part in (indices, edge_ids, weights)]
        self._native.add_relation(name, self._types[source], self._types[destination], offsets, *parts)
        if times is not None:
            native = times.native if isinstance(times, PositionReader) else times
            self._native.set_edge_times(len(self.relations) - 1, native)

    def _set_node_times(self, ntype: str, times: object) -> None:
        if ntype not in self._types:
            raise ConfigError(f"node types of node_times must be among {list(self._types)} (got {ntype!r})")
        array = _vector(times, f"times of {ntype}").astype(np.int64, copy=False)
        if len(array) != self.num_nodes[ntype]:
            raise DatasetError(f"times of {ntype} must have {self.num_nodes[ntype]} entries (got {len(array)})")
        self.node_times[ntype] = array
        self._native.set_node_times(self._types[ntype], array)

    @classmethod
    def from_arrays(
        cls,
        indptr: object,
        indices: object,
        *,
        num_nodes: int | None = None,
        edge_ids: object | None = None,
        weights: object | None = None,
        edge_times: object | None = None,
        node_times: object | None = None,
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
        edge_times, node_times : array_like[int64], optional
            When each edge position and each node came to be.
        validate : bool
            Check that every neighbour exists.
        """
        offsets = _vector(indptr, "indptr")
        ids = None if edge_ids is None else _vector(edge_ids, "edge_ids")
        factors = None if weights is None else _vector(weights, "weights")
        count = len(offsets) - 1 if num_nodes is None else num_nodes
        times = None if edge_times is None else _vector(edge_times, "edge_times")
        relation = Relation(offsets, _vector(indices, "indices"), ids, factors, times=times)
        of_nodes = None if node_times is None else {NODE: node_times}
        return cls({NODE: count}, {EDGE: relation}, node_times=of_nodes, validate=validate)

    @classmethod
    def from_dataset(
        cls,
        dataset: GraphSource,
        *,
        on_disk: bool | Literal["auto"] = False,
        budget: int | str | DiskMemory | None = None,
        storage: StorageOptions | None = None,
        time_attr: str | None = None,
        place: Place = own_memory,
    ) -> Topology:
        """Take the graph of a dataset, into memory or where it is. Both give the same samples.

        Parameters
        ----------
        dataset : GraphSource
            What :func:`gids.open` returns.
        on_disk : bool or "auto"
            Keep only packed offsets and the most useful lists in memory, and read the other neighbours, ids and weights
            from disk, past the page cache. ``"auto"`` does so where the graph does not fit into ``budget``.
        budget : int, str or DiskMemory, optional
            What an on-disk graph may add to the process: offsets, lists, a cache, what is being read. 0 stands for the
            least, a :class:`DiskMemory` for parts of the user's choice. By default what is free but for a quarter, at least 160 MiB, for samples.
        storage : StorageOptions, optional
            How an on-disk graph is read; its staging memory comes from the budget.
        time_attr : str, optional
            Name of the tables that are times (int64, dim 1), among the features of edges and of nodes.
        place : Place
            Where a graph in memory goes.
        """
        time_tables: dict[EdgeType, RowTable] = {}
        node_times: dict[str, Array] = {}
        if time_attr is not None:
            timed: Any = dataset
            found = {etype: edge_time_table(timed, etype, time_attr) for etype in dataset.edge_types}
            time_tables = {etype: table for etype, table in found.items() if table is not None}
            of_nodes = {ntype: node_time_table(timed, ntype, time_attr) for ntype in dataset.node_types}
            node_times = {ntype: read_times(table) for ntype, table in of_nodes.items() if table is not None}
            if not time_tables and not node_times:
                raise ConfigError(f"time_attr must name a table of edges or of nodes (got {time_attr!r})")
        tables = {etype: dataset.indices_table(etype) for etype in dataset.edge_types}
        beside = [
            table
            for etype in dataset.edge_types
            for table in (dataset.edge_ids_table(etype), dataset.edge_weight_table(etype))
            if table is not None
        ] + list(time_tables.values())
        num_nodes = {ntype: dataset.num_nodes(ntype) for ntype in dataset.node_types}
        if on_disk == "auto":
            whole = topology_bytes(dataset) + sum(table.total_bytes for table in time_tables.values())
            on_disk = True if isinstance(budget, DiskMemory) else whole > _budget_bytes(budget)
        if on_disk:
            return cls._on_disk(dataset, num_nodes, tables, beside, budget, storage, time_tables, node_times)
        relations = {}
        for etype in dataset.edge_types:

            def load(table: RowTable | None, role: str, etype: EdgeType = etype) -> Array | None:
                return None if table is None else load_table(table, place=place, name=f"{etype} {role}")

            name = f"{etype} indices"
            indices = load_table(tables[etype], below=num_nodes[etype[0]], place=place, name=name)
            ids, times = load(dataset.edge_ids_table(etype), "ids"), load(time_tables.get(etype), "times")
            relations[etype] = Relation(
                _load_offsets(dataset.indptr(etype), f"{etype} offsets", place),
                indices,
                ids,
                load(dataset.edge_weight_table(etype), "weights"),
                times=times if times is None or ids is None else times[ids],
            )
        topology = cls(num_nodes, relations, origins=_origins(dataset), node_times=node_times, validate=False)
        topology._place = place
        return topology

    @classmethod
    def _on_disk(
        cls,
        dataset: GraphSource,
        num_nodes: dict[str, int],
        tables: dict[EdgeType, RowTable],
        beside: list[RowTable],
        budget: int | str | DiskMemory | None,
        storage: StorageOptions | None,
        time_tables: dict[EdgeType, RowTable],
        node_times: dict[str, Array],
    ) -> Topology:
        # Offsets of a dataset stay on disk; a graph that has them in memory already gives those.
        offsets_of = getattr(dataset, "stored_offsets", dataset.indptr)
        packed = {etype: pack_offsets(offsets_of(etype), num_nodes[etype[2]], etype[1]) for etype in dataset.edge_types}
        for etype, table in tables.items():
            if table.dim == 1 and packed[etype].num_edges != table.num_rows:
                raise DatasetError(
                    f"indices of {etype[1]} must have indptr[-1] = {packed[etype].num_edges} entries "
                    f"(got {table.num_rows})"
                )
        memory = budget
        if not isinstance(memory, DiskMemory):
            lists = sum(
                table.num_rows * max(num_nodes[etype[0]] - 1, 0).bit_length() // 8 for etype, table in tables.items()
            )
            lists += sum(3 * count for count in num_nodes.values()) + len(tables) * 8192
            memory = divide(
                _budget_bytes(memory), sum(p.bytes for p in packed.values()), len(tables) + len(beside), lists
            )
        total = sum(table.total_bytes for table in [*tables.values(), *beside])
        least = DiskMemory()
        storage = storage or StorageOptions()
        readers: list[PositionReader] = []

        def take(table: RowTable | None) -> PositionReader | None:
            if table is None:
                return None
            share = table.total_bytes / max(total, 1)
            staging = max(int(memory.staging_bytes * share), least.staging_bytes)
            chosen = storage.staging_bytes != StorageOptions().staging_bytes  # by the user
            options = storage if chosen else replace(storage, staging_bytes=staging)
            reader = PositionReader(
                table,
                options,
                cache_bytes=int(memory.cache_bytes * share),
                group_bytes=max(int(memory.group_bytes * share), least.group_bytes),
            )
            readers.append(reader)
            return reader

        try:
            relations = {}
            for etype, table in tables.items():
                ids, times = take(dataset.edge_ids_table(etype)), take(time_tables.get(etype))
                relations[etype] = Relation(
                    offsets_of(etype),
                    _required(take(table)),
                    ids,
                    take(dataset.edge_weight_table(etype)),
                    packed[etype],
                    times if times is None or ids is None else TimesById(ids, times),
                )
            topology = cls(num_nodes, relations, origins=_origins(dataset), node_times=node_times, validate=False)
            topology._readers = readers
            topology.disk_memory = memory
            if tables:
                scratch = getattr(dataset, "scratch_dir", None)
                topology.lists = ListMemory(topology.native, num_nodes, packed, tables, scratch)
                topology.lists.keep(memory.hot_bytes)
        except BaseException:
            for reader in readers:
                reader.close()
            raise
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
        """Count the bytes that the graph keeps in memory: offsets, lists, staging and hash tables at rest.

        Of what processes of this machine share, each counts its part.
        """
        total = self._native.table_bytes + (0 if self.lists is None else self.lists.bytes)
        total += sum(reader.resident_bytes() for reader in self._readers)
        total += sum(ids.nbytes for ids in (*self.origins.values(), *self._renamed.values(), *self.node_times.values()))
        arrays = 0
        for relation in self.relations.values():
            offsets = relation.indptr if relation.packed is None else None
            total += 0 if relation.packed is None else relation.packed.bytes
            for part in (offsets, relation.indices, relation.edge_ids, relation.weights, relation.times):
                arrays += part.nbytes if isinstance(part, np.ndarray) else 0
        return total + arrays // self.shared_by

    def disk_stats(self) -> dict[EdgeType, dict[str, int]]:
        """Return, by edge type on disk, what was asked for and read so far, and what is in memory."""
        stats = {}
        for etype, relation in self.relations.items():
            if isinstance(relation.indices, PositionReader):
                hot = None if self.lists is None else self.lists.kept.get(etype)
                stats[etype] = relation.indices.stats() | {
                    "hot_lists": hot.num_lists if hot else 0,
                    "hot_edges": hot.num_edges if hot else 0,
                    "hot_bytes": hot.bytes if hot else 0,
                    "offset_bytes": 0 if relation.packed is None else relation.packed.bytes,
                }
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
        """Return ``etype``, or the single edge type where it is None."""
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


_shared: weakref.WeakValueDictionary[tuple[str, str, str | None], Topology] = (
    weakref.WeakValueDictionary()
)  # guarded by _shared_lock
_shared_lock = threading.Lock()


def topology_bytes(dataset: GraphSource) -> int:
    """Return the memory that the whole graph of a dataset takes: offsets, lists, ids and weights."""
    total = 0
    for etype in dataset.edge_types:
        total += 8 * (dataset.num_nodes(etype[2]) + 1)
        for table in (
            dataset.indices_table(etype),
            dataset.edge_ids_table(etype),
            dataset.edge_weight_table(etype),
        ):
            total += 0 if table is None else table.total_bytes
    return total


def share_topology(
    dataset: IdentifiedGraph, time_attr: str | None = None, *, place: Place = own_memory, processes: int = 1
) -> Topology:
    """Take the graph of a dataset into memory, or share the copy that somebody in this process holds already.

    The copy lives as long as one of its users, so loaders of one dataset hold its edges, and pin them, once.

    Parameters
    ----------
    dataset : IdentifiedGraph
        Whose graph.
    time_attr : str, optional
        As for :meth:`Topology.from_dataset`.
    place : Place
        Where it goes, if nobody holds it yet: memory that other processes share, too.
    processes : int
        How many share that place.
    """
    with _shared_lock:
        key = (str(dataset.path), dataset.id, time_attr)
        topology = _shared.get(key)
        if topology is None:
            topology = _shared[key] = Topology.from_dataset(dataset, time_attr=time_attr, place=place)
            topology.shared_by = processes
        return topology


_Part = TypeVar("_Part")


def _required(part: _Part | None) -> _Part:
    assert part is not None
    return part


def _budget_bytes(budget: int | str | None) -> int:
    return default_topology_bytes() if budget is None else parse_bytes(budget, "budget")


def _origins(dataset: GraphSource) -> dict[str, Array]:
    """Return what the nodes of a relabelled dataset were called, by node type; nothing for others."""
    original_ids = getattr(dataset, "original_ids", lambda _: None)
    return {ntype: ids for ntype in dataset.node_types if (ids := original_ids(ntype)) is not None}


def _load_offsets(indptr: Array, name: str, place: Place) -> Array:
    """Take offsets as they are where they lie in memory of ours, else copy them to their place."""
    if bool((indptr[1:] < indptr[:-1]).any()):
        raise DatasetError(f"indptr of {name} must never decrease")
    memory = indptr.base
    if place is own_memory and type(memory) is np.ndarray and memory.flags.writeable and memory.nbytes == indptr.nbytes:
        return memory.view(np.int64)

    def fill(offsets: Array) -> None:
        offsets.view(np.int64)[:] = indptr

    return place(name, len(indptr) * 8, fill).view(np.int64)
