"""Topology where kernels can read it: host arrays pinned once, and shared by every sampler of the process."""

from __future__ import annotations

import copy
import threading
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gids import _native
from gids.cuda.array import DeviceArray
from gids.cuda.pinned import HostArray, host_array
from gids.cuda.session import Session
from gids.errors import ConfigError, DatasetError
from gids.sampling.disk import pack_offsets
from gids.sampling.lists import TYPICAL_FANOUT, TYPICAL_VISITS
from gids.sampling.sample import EdgeType
from gids.sampling.topology import Topology
from gids.sampling.visits import Visits

PIECE_BYTES = 64  # kPieceBytes of kernels/neighbors.cuh


class DeviceMemory(Session, Protocol):
    """A session that gives memory of its own, which no pool takes back; :class:`gids.cuda.session.CudaSession` does."""

    def reserve(self, count: int, align: int) -> DeviceArray:
        """Return so many bytes, at a multiple of ``align``."""

    def synchronize(self) -> None:
        """Wait until what was queued is done."""


@dataclass(frozen=True)
class HeldLists:
    """The pieces of a relation's neighbour lists that are in device memory; see kernels/neighbors.cuh."""

    pieces: DeviceArray  # words of HeldPieces
    values: DeviceArray


@dataclass(frozen=True)
class PinnedRelation:
    """In-edges of one type where kernels can read them."""

    indptr: HostArray
    indices: HostArray
    edge_ids: HostArray | None
    weights: HostArray | None
    held: HeldLists | None = None

    @property
    def neighbors(self) -> tuple[DeviceArray, DeviceArray | None, DeviceArray | None]:
        """Sources by edge position, as kernels take them."""
        return self.indices.array, *((None, None) if self.held is None else (self.held.pieces, self.held.values))


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
        self.origins: dict[str, HostArray] = {}
        try:
            self._pin(topology, session)
        except BaseException:
            self.close()
            raise

    def _pin(self, topology: Topology, session: Session) -> None:
        for ntype, ids in topology.origins.items():
            self.origins[ntype] = host_array(session, ids, f"original ids of {ntype}")
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

    def held_by(self, session: DeviceMemory, lists_bytes: int) -> PinnedTopology:
        """Return the same with a part in the device's memory, which is freed with the last use. Waits.

        Parameters
        ----------
        session : DeviceMemory
            Of the device.
        lists_bytes : int
            Memory for neighbour lists: all of them where they fit, else those that sampling reads most from. Offsets are
            held whole.
        """
        held = copy.copy(self)
        total = lists_bytes_of(self.topology)
        visits = None if lists_bytes >= total or not lists_bytes else _expected_visits(self.topology)
        held.relations = {}
        for etype, relation in self.relations.items():
            part = replace(relation, indptr=_Held(session, relation.indptr.array))
            if lists_bytes >= total:
                part = replace(part, indices=_Held(session, relation.indices.array))
            elif visits is not None:
                share = lists_bytes * relation.indices.array.nbytes // total
                part = replace(part, held=_hold_hottest(session, self.topology, etype, part, visits[etype[2]], share))
            held.relations[etype] = part
        session.synchronize()
        return held

    def close(self) -> None:
        """Unpin."""
        for ids in self.origins.values():
            ids.close()
        for relation in self.relations.values():
            for array in (relation.indptr, relation.indices, relation.edge_ids, relation.weights):
                if array is not None:
                    array.close()


class _Held:
    """A copy of a pinned array in device memory of its own: a pool would grow by half of it whenever it grows."""

    def __init__(self, session: DeviceMemory, pinned: DeviceArray):
        memory = session.reserve(pinned.nbytes, pinned.dtype.itemsize)
        self.array: DeviceArray = memory.view(pinned.shape, pinned.dtype)
        session.copy(self.array, pinned)

    def close(self) -> None:
        """Do nothing: the memory goes with the last array over it."""


def lists_bytes_of(topology: Topology) -> int:
    """Return the device memory that all neighbour lists of a topology take."""
    lists = (_in_memory(relation.indices, "neighbours") for relation in topology.relations.values())
    return sum(array.nbytes + array.itemsize for array in lists)  # one more, so that they can begin at a multiple of it


def _expected_visits(topology: Topology) -> Visits:
    """Say how often each node is reached when every node is a destination once: one pass over the edges."""
    visits = {ntype: np.zeros(count, np.float32) for ntype, count in topology.num_nodes.items()}
    for etype, relation in topology.relations.items():
        indices = _in_memory(relation.indices, f"neighbours of {etype[1]}")
        try:
            _native.count_visits(_packed(topology, etype), 0, indices, TYPICAL_FANOUT, visits[etype[0]])
        except DatasetError as error:
            raise DatasetError(f"indices of {etype[1]}: {error}") from error
    return visits


def _packed(topology: Topology, etype: EdgeType) -> _native.PackedOffsets:
    relation = topology.relations[etype]
    return relation.packed or pack_offsets(relation.indptr, topology.num_nodes[etype[2]], etype[1])


def _hold_hottest(
    session: DeviceMemory,
    topology: Topology,
    etype: EdgeType,
    relation: PinnedRelation,
    visits: npt.NDArray[np.float32],
    count: int,
) -> HeldLists | None:
    """Copy the lists that are worth most to ``count`` bytes of the device, the table that finds them included."""
    indices = relation.indices.array
    words = _native.hold_pieces(
        _packed(topology, etype), visits, TYPICAL_VISITS, TYPICAL_FANOUT, indices.dtype.itemsize,
        count - 2 * PIECE_BYTES,  # to align table and values
    )  # fmt: skip
    pieces = int(words[-2]).bit_count() + int(words[-1]) if len(words) else 0
    if not pieces:
        return None
    table = session.reserve(words.nbytes, PIECE_BYTES).view(words.shape, words.dtype)
    session.copy(table, session.upload(words))
    values = session.reserve(pieces * PIECE_BYTES, PIECE_BYTES)
    values = values.view((pieces * PIECE_BYTES // indices.dtype.itemsize,), indices.dtype)
    session.launch(
        f"hold_neighbors_{8 * indices.dtype.itemsize}", len(indices), indices, np.int64(len(indices)), table, values
    )
    return HeldLists(table, values)


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
