"""Neighbour sampling on a device: the passes of the CPU sampler as kernels, over topology in pinned host memory."""

from __future__ import annotations

import abc
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gids.cuda.array import DeviceArray
from gids.cuda.passes import exclusive_scan, full
from gids.cuda.pinned import HostArray, host_array
from gids.cuda.session import Session
from gids.errors import ConfigError, DatasetError
from gids.sampling.neighbor import NeighborSampler
from gids.sampling.sample import EdgeType, SampleKey
from gids.sampling.sampler import Fanout, expand_fanouts
from gids.sampling.topology import Topology

_NEIGHBORS = 1  # Stream::kNeighbors of kernels/philox.cuh
_M0, _M1, _W0, _W1, _LOW = 0xD2511F53, 0xCD9E8D57, 0x9E3779B9, 0xBB67AE85, 0xFFFFFFFF


def _philox(key: tuple[int, int], counter: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    (k0, k1), (c0, c1, c2, c3) = key, counter
    for _ in range(10):
        p0, p1 = _M0 * c0, _M1 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & _LOW, (p0 >> 32) ^ c3 ^ k1, p0 & _LOW
        k0, k1 = (k0 + _W0) & _LOW, (k1 + _W1) & _LOW
    return c0, c1, c2, c3


def random_key(key: SampleKey, layer: int, relation: int, stream: int = _NEIGHBORS) -> tuple[int, int]:
    """Compute ``random_key()`` of kernels/philox.cuh: two words for one layer and relation of a batch."""
    a = _philox((key.seed & _LOW, key.seed >> 32), (key.epoch, key.batch & _LOW, key.batch >> 32, stream))
    b = _philox((a[0], a[1]), (a[2], a[3], layer, relation))
    return b[0], b[1]


@dataclass(frozen=True)
class PinnedRelation:
    """In-edges of one type where kernels can read them."""

    indptr: HostArray
    indices: HostArray
    edge_ids: HostArray | None
    weights: HostArray | None


def _in_memory(values: Any, name: str) -> npt.NDArray[Any]:
    if callable(values):
        raise ConfigError(
            f"topology must be in memory for device='cuda': {name} are read from disk "
            "(raise the host budget, or sample on the CPU)"
        )
    array: npt.NDArray[Any] = values
    return array


class PinnedTopology:
    """A topology whose arrays are pinned once, for every sampler of the process.

    Parameters
    ----------
    topology : Topology
        In memory; neighbour lists on disk cannot be read by kernels.
    session : Session
        Any session of the device.
    """

    def __init__(self, topology: Topology, session: Session):
        self.topology = topology
        self.relations: dict[EdgeType, PinnedRelation] = {}
        try:
            self._pin(topology, session)
        except BaseException:
            self.close()
            raise

    def _pin(self, topology: Topology, session: Session) -> None:
        for etype, relation in topology.relations.items():
            name = etype[1]
            indptr = _in_memory(relation.indptr, f"offsets of {name}")
            indices = _in_memory(relation.indices, f"neighbours of {name}")
            self.relations[etype] = PinnedRelation(
                host_array(session, indptr, f"indptr of {name}"),
                host_array(session, indices, f"indices of {name}"),
                None
                if relation.edge_ids is None
                else host_array(session, _in_memory(relation.edge_ids, f"edge ids of {name}"), f"edge ids of {name}"),
                None
                if relation.weights is None
                else host_array(session, _in_memory(relation.weights, f"weights of {name}"), f"weights of {name}"),
            )

    def close(self) -> None:
        """Unpin."""
        for relation in self.relations.values():
            for array in (relation.indptr, relation.indices, relation.edge_ids, relation.weights):
                if array is not None:
                    array.close()


_users: dict[int, list[PinnedTopology]] = {}  # id of a topology -> its pinning, once per user; guarded by _users_lock
_users_lock = threading.Lock()


def pin_topology(topology: Topology, session: Session) -> PinnedTopology:
    """Pin a topology, or share the pinning that it has. Each call is undone by one :func:`unpin_topology`."""
    with _users_lock:
        users = _users.setdefault(id(topology), [])
        try:
            users.append(users[0] if users else PinnedTopology(topology, session))
        except BaseException:
            del _users[id(topology)]
            raise
        return users[0]


def unpin_topology(pinned: PinnedTopology) -> None:
    """Unpin a topology when its last user lets go."""
    with _users_lock:
        users = _users[id(pinned.topology)]
        users.pop()
        if not users:
            del _users[id(pinned.topology)]
            pinned.close()


@dataclass(frozen=True)
class DeviceBlock:
    """One layer, as :class:`gids.sampling.Block`, with arrays on the device."""

    num_src: dict[str, int]
    num_dst: dict[str, int]
    indptr: dict[EdgeType, DeviceArray]
    src: dict[EdgeType, DeviceArray]
    edge_ids: dict[EdgeType, DeviceArray] | None
    weights: dict[EdgeType, DeviceArray] | None = None


@dataclass(frozen=True)
class DeviceSample:
    """A sampled batch, as :class:`gids.sampling.Sample`, with arrays on the device."""

    seeds: dict[str, DeviceArray]
    input_nodes: dict[str, DeviceArray]
    blocks: list[DeviceBlock]
    seed_rows: dict[str, DeviceArray]


class NodeNumbers:
    """Distinct nodes of one type, numbered by first occurrence (kernels/unique.cuh)."""

    def __init__(self, session: Session):
        self._session = session
        self.size = 0
        self.nodes = session.empty(0, np.int64)
        self._log2 = 0
        self._table: tuple[DeviceArray, DeviceArray] = (session.empty(0, np.uint64), session.empty(0, np.uint64))

    def add(self, ids: DeviceArray) -> DeviceArray:
        """Give every occurrence the number of its node; new nodes are numbered in order."""
        session, count = self._session, len(ids)
        numbers = session.empty(count, np.int64)
        if count == 0:
            return numbers
        self._reserve(self.size + count)
        table, base = (*self._table, np.int32(self._log2)), np.int64(self.size)
        slots, flags = session.empty(count, np.int64), session.empty(count, np.int64)
        session.launch("unique_insert_nodes", count, *table, ids, np.int64(count), base, slots)
        session.launch("unique_flag_firsts", count, *table, slots, np.int64(count), base, flags)
        before = exclusive_scan(session, flags, full(session, 1, count), count)
        session.launch("unique_assign_ids", count, *table, ids, slots, np.int64(count), base, flags, before, self.nodes)
        session.launch("unique_read_ids", count, *table, slots, np.int64(count), numbers)
        self.size += int(session.download(before[count : count + 1])[0])
        return numbers

    def find(self, ids: DeviceArray) -> DeviceArray:
        """Give the number of every node, −1 where it has none."""
        out = self._session.empty(len(ids), np.int64)
        if len(ids):
            self._reserve(max(self.size, 1))
            table = (*self._table, np.int32(self._log2))
            self._session.launch("unique_find_ids", len(ids), *table, ids, np.int64(len(ids)), out)
        return out

    def _reserve(self, bound: int) -> None:
        session = self._session
        if len(self.nodes) < bound:
            grown = session.empty(max(bound, 2 * len(self.nodes)), np.int64)
            session.copy(grown[: self.size], self.nodes[: self.size])
            self.nodes = grown
        log2 = max((2 * bound - 1).bit_length(), 4)
        if log2 <= self._log2:
            return
        self._log2 = log2
        self._table = (session.empty(1 << log2, np.uint64), session.empty(1 << log2, np.uint64))
        table = (*self._table, np.int32(log2))
        session.launch("unique_clear_slots", 1 << log2, *table)
        if self.size:
            slots = session.empty(self.size, np.int64)
            session.launch(
                "unique_insert_nodes", self.size, *table, self.nodes, np.int64(self.size), np.int64(0), slots
            )


@dataclass(frozen=True)
class DeviceEdges:
    """In-edges of a layer's destinations: those of destination ``i`` are ``begins[i]`` to ``begins[i + 1]``."""

    begins: DeviceArray
    positions: DeviceArray
    src: DeviceArray  # node ids


class Hop:
    """The edges of one relation and layer: choosing, resolving, naming."""

    def __init__(self, session: Session, topology: PinnedTopology, etype: EdgeType, bad: DeviceArray):
        self._session, self._etype, self._bad = session, etype, bad
        self._relation = topology.relations[etype]
        self._num_src = topology.topology.num_nodes[etype[0]]

    def choose(
        self,
        nodes: DeviceArray,
        num_dst: int,
        fanout: int,
        *,
        replace: bool = False,
        weighted: bool = False,
        key: tuple[int, int] = (0, 0),
        lanes: int | None = None,
    ) -> DeviceEdges:
        """Choose up to ``fanout`` in-edges of the first ``num_dst`` nodes (−1: all). Waits for their number."""
        session, relation, count = self._session, self._relation, np.int64(num_dst)
        if num_dst == 0:
            return DeviceEdges(full(session, 1, 0), session.empty(0, np.int64), session.empty(0, np.int64))
        replacing = np.int32(replace and fanout >= 0)
        first, degree, positive, counts = (session.empty(num_dst, np.int64) for _ in range(4))
        offsets = relation.indptr.array
        if weighted:
            assert relation.weights is not None
            factors = relation.weights.array
            session.launch(
                "count_weighted", num_dst, offsets, factors, nodes, count, np.int64(fanout), replacing, first, degree,
                positive, counts, lanes=8,
            )  # fmt: skip
        else:
            session.launch(
                "count_edges", num_dst, offsets, nodes, count, np.int64(fanout), replacing, first, degree, counts
            )
        begins = exclusive_scan(session, counts, full(session, 1, num_dst), num_dst)
        edges = int(session.download(begins[num_dst : num_dst + 1])[0])
        positions = session.empty(edges, np.int64)
        if edges and weighted:
            times = session.empty(edges, np.float64)
            session.launch(
                "choose_weighted_edges", num_dst, *(np.uint32(word) for word in key), factors, nodes, count, first,
                degree, positive, begins, replacing, times, positions, lanes=8,
            )  # fmt: skip
        elif edges:
            lanes = lanes or (32 if fanout < 0 or fanout > 32 else 8 if fanout > 2 else 1)
            session.launch(
                f"choose_edges_{lanes}", num_dst, *(np.uint32(word) for word in key), nodes, count, first, degree,
                begins, replacing, positions, lanes=lanes,
            )  # fmt: skip
        return DeviceEdges(begins, positions, self._resolve(positions))

    def _resolve(self, positions: DeviceArray) -> DeviceArray:
        session, edges = self._session, len(positions)
        src = session.empty(edges, np.int64)
        if edges:
            indices, limit = self._relation.indices.array, np.int64(self._num_src)
            kernel = f"gather_neighbors_{8 * indices.dtype.itemsize}"
            session.launch(kernel, edges, indices, positions, np.int64(edges), limit, src, self._bad)
            if session.download(self._bad)[0]:
                raise DatasetError(f"indices of {self._etype[1]} must be in [0, {limit}): a sampled neighbour is not")
        return src

    def keep(self, edges: DeviceEdges, flags: DeviceArray, values: DeviceArray) -> tuple[DeviceEdges, DeviceArray]:
        """Keep the flagged edges, with ``values`` as their sources; gives the prefix sum of the flags too. Waits."""
        session, count = self._session, len(edges.positions)
        before = exclusive_scan(session, flags, full(session, 1, count), count)
        total = int(session.download(before[count : count + 1])[0])
        src, positions = session.empty(total, np.int64), session.empty(total, np.int64)
        begins = session.empty(len(edges.begins), np.int64)
        session.launch("take_values", len(begins), before, edges.begins, np.int64(len(begins)), begins)
        if count:
            session.launch("keep_pairs", count, flags, before, np.int64(count), values, edges.positions, src, positions)
        return DeviceEdges(begins, positions, src), before

    def name(self, positions: DeviceArray) -> DeviceArray:
        """Give the ids of edges by their positions."""
        if self._relation.edge_ids is None or not len(positions):
            return positions
        ids = self._session.empty(len(positions), np.int64)
        from_ids, count = self._relation.edge_ids.array, np.int64(len(positions))
        self._session.launch("take_values", len(positions), from_ids, positions, count, ids)
        return ids

    @property
    def weights(self) -> DeviceArray | None:
        """Weights of the relation's edges."""
        return None if self._relation.weights is None else self._relation.weights.array


Part = tuple[DeviceArray, DeviceArray, DeviceArray]  # indptr, src, positions or ids


class CudaSampler(abc.ABC):
    """What the samplers of a device share: seeds in, layers, a :class:`DeviceSample` out."""

    edge_ids: bool = False

    def sample(
        self, session: Session, topology: PinnedTopology, seeds: Mapping[str, DeviceArray], key: SampleKey
    ) -> DeviceSample:
        """Sample the batch of ``seeds`` (int64 on the device, by node type). Waits for the sizes of its arrays."""
        graph = topology.topology
        numbers = {ntype: NodeNumbers(session) for ntype in graph.node_types}
        bad = session.empty(1, np.uint32)
        session.fill(bad, 0)
        seed_rows = {}
        for ntype, numbering in numbers.items():
            given = seeds.get(ntype, session.empty(0, np.int64))
            limit = np.int64(graph.num_nodes[ntype])
            if len(given):
                session.launch("check_ids", len(given), given, np.int64(len(given)), limit, bad)
                if session.download(bad)[0]:
                    raise ConfigError(f"seeds of {ntype} must be in [0, {limit})")
            seed_rows[ntype] = numbering.add(given)
        num_seeds = {ntype: numbering.size for ntype, numbering in numbers.items()}
        hops = {etype: Hop(session, topology, etype, bad) for etype in topology.relations}
        blocks = self._blocks(session, graph, hops, numbers, key)
        nodes = {ntype: numbering.nodes[: numbering.size] for ntype, numbering in numbers.items()}
        return DeviceSample(
            {ntype: nodes[ntype][:count] for ntype, count in num_seeds.items()}, nodes, blocks, seed_rows
        )

    @abc.abstractmethod
    def _blocks(
        self,
        session: Session,
        graph: Topology,
        hops: Mapping[EdgeType, Hop],
        numbers: dict[str, NodeNumbers],
        key: SampleKey,
    ) -> list[DeviceBlock]: ...

    def _block(
        self,
        numbers: dict[str, NodeNumbers],
        num_dst: dict[str, int],
        parts: dict[EdgeType, Part],
        weights: dict[EdgeType, DeviceArray] | None = None,
    ) -> DeviceBlock:
        return DeviceBlock(
            num_src=sizes(numbers),
            num_dst=num_dst,
            indptr={etype: part[0] for etype, part in parts.items()},
            src={etype: part[1] for etype, part in parts.items()},
            edge_ids={etype: part[2] for etype, part in parts.items()} if self.edge_ids else None,
            weights=weights,
        )


def sizes(numbers: Mapping[str, NodeNumbers]) -> dict[str, int]:
    """Give the number of nodes of each type."""
    return {ntype: numbering.size for ntype, numbering in numbers.items()}


class CudaNeighborSampler(CudaSampler):
    """Samples on a device what :class:`gids.sampling.NeighborSampler` samples on the CPU, bit for bit.

    Parameters
    ----------
    sampler : NeighborSampler
        Fanouts and options.
    lanes : int, optional
        Lanes that choose the edges of one node: 1, 8 or 32. Default: by fanout.
    """

    def __init__(self, sampler: NeighborSampler, lanes: int | None = None):
        if lanes not in (None, 1, 8, 32):
            raise ConfigError(f"lanes must be 1, 8 or 32 (got {lanes})")
        self.fanouts: Sequence[Fanout] = sampler.fanouts
        self.replace = sampler.replace
        self.edge_ids = sampler.edge_ids
        self.weighted = sampler.weights
        self.lanes = lanes

    def _blocks(
        self,
        session: Session,
        graph: Topology,
        hops: Mapping[EdgeType, Hop],
        numbers: dict[str, NodeNumbers],
        key: SampleKey,
    ) -> list[DeviceBlock]:
        blocks: list[DeviceBlock] = []
        for number, layer in enumerate(reversed(expand_fanouts(self.fanouts, graph))):
            num_dst = sizes(numbers)
            parts: dict[EdgeType, Part] = {}
            for r, (etype, hop) in enumerate(hops.items()):
                edges = hop.choose(
                    numbers[etype[2]].nodes, num_dst[etype[2]], layer[r], replace=self.replace,
                    weighted=self.weighted, key=random_key(key, number, r), lanes=self.lanes,
                )  # fmt: skip
                ids = hop.name(edges.positions) if self.edge_ids else edges.positions
                parts[etype] = (edges.begins, numbers[etype[0]].add(edges.src), ids)
            blocks.append(self._block(numbers, num_dst, parts))
        return blocks[::-1]


def as_numpy(session: Session, sample: DeviceSample) -> dict[str, Any]:
    """Copy a sample to the host, as nested dicts of NumPy arrays in the order of a CPU sample. Waits."""

    def host(arrays: Mapping[Any, DeviceArray]) -> dict[Any, npt.NDArray[Any]]:
        return {name: session.download(array) for name, array in arrays.items()}

    return {
        "seeds": host(sample.seeds),
        "input_nodes": host(sample.input_nodes),
        "seed_rows": host(sample.seed_rows),
        "blocks": [
            {
                "num_src": block.num_src,
                "num_dst": block.num_dst,
                "indptr": host(block.indptr),
                "src": host(block.src),
                "edge_ids": None if block.edge_ids is None else host(block.edge_ids),
                "weights": None if block.weights is None else host(block.weights),
            }
            for block in sample.blocks
        ],
    }
