"""Neighbour sampling on a device: the passes of the CPU sampler as kernels, over topology in pinned host memory."""

from __future__ import annotations

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
        for etype, relation in topology.relations.items():
            if callable(relation.indices) or callable(relation.edge_ids):
                raise ConfigError(
                    f"topology must be in memory for device='cuda': neighbours of {etype} are read from disk "
                    "(raise the host budget, or sample on the CPU)"
                )
            self.relations[etype] = PinnedRelation(
                host_array(session, relation.indptr, f"indptr of {etype[1]}"),
                host_array(session, relation.indices, f"indices of {etype[1]}"),
                None
                if relation.edge_ids is None
                else host_array(session, relation.edge_ids, f"edge ids of {etype[1]}"),
            )

    def close(self) -> None:
        """Unpin."""
        for relation in self.relations.values():
            for array in (relation.indptr, relation.indices, relation.edge_ids):
                if array is not None:
                    array.close()


_shared: dict[int, tuple[Topology, PinnedTopology]] = {}  # by id of the topology; guarded by _shared_lock
_shared_lock = threading.Lock()


def pinned_topology(topology: Topology, session: Session) -> PinnedTopology:
    """Pin a topology, or give the one that is pinned already."""
    with _shared_lock:
        found = _shared.get(id(topology))
        if found is None:
            found = _shared[id(topology)] = (topology, PinnedTopology(topology, session))
        return found[1]


def unpin_all() -> None:
    """Unpin every shared topology."""
    with _shared_lock:
        while _shared:
            _shared.popitem()[1][1].close()


@dataclass(frozen=True)
class DeviceBlock:
    """One layer, as :class:`gids.sampling.Block`, with arrays on the device."""

    num_src: dict[str, int]
    num_dst: dict[str, int]
    indptr: dict[EdgeType, DeviceArray]
    src: dict[EdgeType, DeviceArray]
    edge_ids: dict[EdgeType, DeviceArray] | None


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


class CudaNeighborSampler:
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
        self.lanes = lanes

    def sample(
        self, session: Session, topology: PinnedTopology, seeds: Mapping[str, DeviceArray], key: SampleKey
    ) -> DeviceSample:
        """Sample the batch of ``seeds`` (int64 on the device, by node type). Waits once per layer and relation."""
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
        fanouts = expand_fanouts(self.fanouts, graph)
        blocks: list[DeviceBlock] = []
        for hop, layer in enumerate(reversed(fanouts)):
            num_dst = {ntype: numbering.size for ntype, numbering in numbers.items()}
            parts = {}
            for r, (etype, relation) in enumerate(topology.relations.items()):
                parts[etype] = self._sample_relation(
                    session, graph, etype, relation, layer[r], random_key(key, hop, r), numbers, num_dst[etype[2]], bad
                )
            blocks.append(
                DeviceBlock(
                    num_src={ntype: numbering.size for ntype, numbering in numbers.items()},
                    num_dst=num_dst,
                    indptr={etype: part[0] for etype, part in parts.items()},
                    src={etype: part[1] for etype, part in parts.items()},
                    edge_ids={etype: part[2] for etype, part in parts.items()} if self.edge_ids else None,
                )
            )
        nodes = {ntype: numbering.nodes[: numbering.size] for ntype, numbering in numbers.items()}
        return DeviceSample(
            {ntype: nodes[ntype][:count] for ntype, count in num_seeds.items()}, nodes, blocks[::-1], seed_rows
        )

    def _sample_relation(
        self,
        session: Session,
        graph: Topology,
        etype: EdgeType,
        relation: PinnedRelation,
        fanout: int,
        key: tuple[int, int],
        numbers: dict[str, NodeNumbers],
        num_dst: int,
        bad: DeviceArray,
    ) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
        replace = np.int32(self.replace and fanout >= 0)
        nodes, count = numbers[etype[2]].nodes, np.int64(num_dst)
        if num_dst == 0:
            return full(session, 1, 0), session.empty(0, np.int64), session.empty(0, np.int64)
        first, degree, counts = (session.empty(num_dst, np.int64) for _ in range(3))
        session.launch(
            "count_edges",
            num_dst,
            relation.indptr.array,
            nodes,
            count,
            np.int64(fanout),
            replace,
            first,
            degree,
            counts,
        )
        begins = exclusive_scan(session, counts, full(session, 1, num_dst), num_dst)
        edges = int(session.download(begins[num_dst : num_dst + 1])[0])
        positions, src = session.empty(edges, np.int64), session.empty(edges, np.int64)
        if edges:
            lanes = self.lanes or (32 if fanout < 0 or fanout > 32 else 8 if fanout > 2 else 1)
            session.launch(
                f"choose_edges_{lanes}", num_dst, *(np.uint32(word) for word in key), nodes, count, first, degree,
                begins, replace, positions, lanes=lanes,
            )  # fmt: skip
            kernel = f"gather_neighbors_{8 * relation.indices.array.dtype.itemsize}"
            limit = np.int64(graph.num_nodes[etype[0]])
            session.launch(kernel, edges, relation.indices.array, positions, np.int64(edges), limit, src, bad)
            if session.download(bad)[0]:
                raise DatasetError(f"indices of {etype[1]} must be in [0, {limit}): a sampled neighbour is not")
            src = numbers[etype[0]].add(src)
            if self.edge_ids and relation.edge_ids is not None:
                ids = session.empty(edges, np.int64)
                session.launch("take_values", edges, relation.edge_ids.array, positions, np.int64(edges), ids)
                positions = ids
        return begins, src, positions


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
            }
            for block in sample.blocks
        ],
    }
