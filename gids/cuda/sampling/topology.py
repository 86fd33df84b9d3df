"""Topology where kernels can read it: host arrays pinned once, and shared by every sampler of the process."""

from __future__ import annotations

import copy
import threading
from dataclasses import dataclass, replace
from typing import Any

import numpy.typing as npt

from gids.cuda.array import DeviceArray
from gids.cuda.pinned import HostArray, host_array
from gids.cuda.session import CudaSession, Session
from gids.errors import ConfigError
from gids.sampling.sample import EdgeType
from gids.sampling.topology import Topology


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

    def with_offsets_in(self, session: CudaSession) -> PinnedTopology:
        """Return the same with the offsets of its lists in the device's memory, which is freed with the last use. Waits."""
        held = copy.copy(self)
        held.relations = {
            etype: replace(relation, indptr=_Held(session, relation.indptr.array))
            for etype, relation in self.relations.items()
        }
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

    def __init__(self, session: CudaSession, pinned: DeviceArray):
        memory = session.reserve(pinned.nbytes, pinned.dtype.itemsize)
        session.copy_bytes(memory.pointer, pinned.pointer, pinned.nbytes)
        session.synchronize()
        self.array: DeviceArray = memory.view(pinned.shape, pinned.dtype)

    def close(self) -> None:
        """Do nothing: the memory goes with the last array over it."""


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
