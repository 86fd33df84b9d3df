"""Sampling for historical embeddings: what was computed a few batches ago is not sampled, nor read, again.

Approximate, and only on request: see :class:`gids.loader.history.History` for what a model does with it.
"""

from __future__ import annotations

import copy
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gids import _native
from gids.errors import ConfigError
from gids.sampling.neighbor import NeighborSampler
from gids.sampling.order import SeedOrder
from gids.sampling.sample import Sample, SampleKey
from gids.sampling.sampler import Fanout, Sampler
from gids.sampling.seeds import EdgeSeeds, Seeds
from gids.sampling.topology import Topology

#: ``seeds_of(epoch, batch)``: the seeds of a batch, by its number over all ranks.
SeedsOf = Callable[[int, int], Any]
Slots = npt.NDArray[np.int32]


@dataclass(frozen=True)
class HistoryStep:
    """How the inputs of a batch's last layer are put together, by node type.

    Attributes
    ----------
    num_inputs : dict of str to int
        Inputs of the last layer.
    fresh : dict of str to Tensor[int64]
        Which of them this batch computes: the destinations of the block before, in this order.
    pulled, pulled_slots : dict of str to Tensor[int64]
        Which of them are taken from the store, and from where.
    pushed, pushed_slots : dict of str to Tensor[int64]
        Which of the computed ones, by their place in ``fresh``, are stored, and where.
    since, stamp : int
        What is pulled was pushed at a stamp of ``[since, stamp)``; what is pushed gets ``stamp``.
    whole : bool
        Whether layers compute a row for every input (PyG), those of ``pulled`` to be replaced, or for the fresh ones only.
    """

    num_inputs: dict[str, int]
    fresh: dict[str, Tensor]
    pulled: dict[str, Tensor]
    pulled_slots: dict[str, Tensor]
    pushed: dict[str, Tensor]
    pushed_slots: dict[str, Tensor]
    since: int
    stamp: int
    whole: bool = False


@dataclass(frozen=True)
class HistorySample(Sample):
    """A sample whose first layers lead to the fresh inputs of the last one only.

    Attributes
    ----------
    history : HistoryStep
        How these and stored embeddings are put together.
    last_inputs : dict of str to Tensor[int64]
        Sources of the last block, the fresh ones and the others.
    """

    history: HistoryStep | None = field(default=None, repr=False)
    last_inputs: dict[str, Tensor] = field(default_factory=dict, repr=False)


class Candidates:
    """Nodes whose embeddings are stored, and where: the ``i``-th of a type in slot ``i``. 4 bytes for every node.

    Parameters
    ----------
    nodes : Tensor[int64], or mapping of str to Tensor[int64]
        Distinct nodes; by type where there are several.
    num_nodes : int, or mapping of str to int
        Nodes of the graph.
    """

    def __init__(self, nodes: Tensor | Mapping[str, Tensor], num_nodes: int | Mapping[str, int]):
        chosen = nodes if isinstance(nodes, Mapping) else {"_N": nodes}
        counts = num_nodes if isinstance(num_nodes, Mapping) else {"_N": num_nodes}
        self.num_slots = {ntype: len(ids) for ntype, ids in chosen.items()}
        self._slots: dict[str, Slots] = {}
        digest = hashlib.sha256()
        for ntype, ids in chosen.items():
            if ntype not in counts:
                raise ConfigError(f"node types of candidates must be among {list(counts)} (got {ntype!r})")
            if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < counts[ntype]:
                raise ConfigError(f"candidates of {ntype} must be in [0, {counts[ntype]})")
            slots = np.full(counts[ntype], -1, np.int32)
            slots[ids.numpy()] = np.arange(len(ids), dtype=np.int32)
            if int((slots >= 0).sum()) != len(ids):
                raise ConfigError(f"candidates of {ntype} must be distinct")
            self._slots[ntype] = slots
            digest.update(f"{ntype} ".encode() + ids.numpy().tobytes())
        self._digest = digest.hexdigest()[:16]

    @property
    def nbytes(self) -> int:
        """Memory of the table that finds the slots."""
        return sum(slots.nbytes for slots in self._slots.values())

    def __repr__(self) -> str:
        return f"Candidates({self.num_slots}, {self._digest})"

    def slots_of(self, ntype: str, nodes: Tensor) -> Slots:
        """Return the slot of every node, −1 for those that are no candidates."""
        if ntype not in self._slots:
            return np.full(len(nodes), -1, np.int32)
        found: Slots = self._slots[ntype][nodes.numpy()]
        return found


class HistoryWindow:
    """What the batches of a window have met, for one order of batches.

    Parameters
    ----------
    candidates : Candidates
        Nodes that count.
    max_age : int
        Windows have ``max_age + 1`` batches.
    world_size : int
        Ranks: batch ``b`` belongs to rank ``b % world_size``, and each rank has windows of its own.
    """

    def __init__(self, candidates: Candidates, max_age: int, world_size: int = 1):
        if max_age < 0:
            raise ConfigError(f"max_age must not be negative (got {max_age})")
        if world_size < 1:
            raise ConfigError(f"world_size must be at least 1 (got {world_size})")
        self.candidates, self.max_age, self.world_size = candidates, max_age, world_size
        self._lock = threading.Lock()
        self._met: OrderedDict[tuple[int, int, int], dict[str, Slots]] = OrderedDict()  # guarded by _lock

    def __getstate__(self) -> dict[str, Any]:
        return {"candidates": self.candidates, "max_age": self.max_age, "world_size": self.world_size}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc] # what was met is found out anew

    def step(
        self,
        key: SampleKey,
        inputs: Mapping[str, Tensor],
        num_seeds: Mapping[str, int],
        inputs_of: Callable[[SampleKey], Mapping[str, Tensor]],
        *,
        whole: bool = False,
    ) -> HistoryStep:
        """Say which inputs of a batch's last layer are fresh, and which are not computed again.

        Parameters
        ----------
        key : SampleKey
            Names the batch.
        inputs, num_seeds : mapping of str to Tensor, to int
            Inputs of its last layer, and how many of them, the first, are seeds: those are always computed.
        inputs_of : callable
            Samples the last layer of another batch; called for earlier ones of the window that were not sampled here.
        whole : bool
            See :class:`HistoryStep`.
        """
        number = key.batch // self.world_size
        first = number - number % (self.max_age + 1)
        self._remember(key, inputs)
        before = [self._met_by(self._key(key, earlier), inputs_of) for earlier in range(first, number)]
        names = ("fresh", "pulled", "pulled_slots", "pushed", "pushed_slots")
        parts: dict[str, dict[str, Tensor]] = {name: {} for name in names}
        for ntype, nodes in inputs.items():
            slots = self.candidates.slots_of(ntype, nodes)
            known = np.zeros(self.candidates.num_slots.get(ntype, 0) + 1, bool)  # the last for those without a slot
            for met in before:
                known[met[ntype]] = True
            old = known[slots]
            old[: num_seeds.get(ntype, 0)] = False
            fresh = np.flatnonzero(~old)
            kept = np.flatnonzero(slots[fresh] >= 0)
            found: list[npt.NDArray[Any]] = [fresh, np.flatnonzero(old), slots[old], kept, slots[fresh][kept]]
            for name, value in zip(names, found, strict=True):
                parts[name][ntype] = torch.from_numpy(value.astype(np.int64))
        counts = {ntype: len(nodes) for ntype, nodes in inputs.items()}
        since, stamp = _stamp(key.epoch, first), _stamp(key.epoch, number)
        return HistoryStep(num_inputs=counts, since=since, stamp=stamp, whole=whole, **parts)

    def _key(self, key: SampleKey, number: int) -> SampleKey:
        return SampleKey(key.seed, key.epoch, number * self.world_size + key.batch % self.world_size)

    def _met_by(self, key: SampleKey, inputs_of: Callable[[SampleKey], Mapping[str, Tensor]]) -> Mapping[str, Slots]:
        with self._lock:
            found = self._met.get((key.seed, key.epoch, key.batch))
        return self._remember(key, inputs_of(key)) if found is None else found

    def _remember(self, key: SampleKey, inputs: Mapping[str, Tensor]) -> Mapping[str, Slots]:
        met = {}
        for ntype, nodes in inputs.items():
            slots = self.candidates.slots_of(ntype, nodes)
            met[ntype] = slots[slots >= 0]
        with self._lock:
            self._met[key.seed, key.epoch, key.batch] = met
            while len(self._met) > 4 * (self.max_age + 1):  # those of windows that are over
                self._met.popitem(last=False)
        return met


class HistorySampler(Sampler):
    """Samples as :class:`NeighborSampler` does, but leaves out what was computed at most ``max_age`` batches ago.

    Batches of an epoch are taken in windows of ``max_age + 1``. Of the candidates among the last layer's inputs, those
    that were such inputs in an earlier batch of the window are not expanded; seeds always are. Which these are follows
    from the keys and seeds of the window's batches, so it is the same on any number of threads, in any order of
    sampling, and after resuming. With ``max_age=0`` samples are those of :class:`NeighborSampler`, bit for bit.

    Parameters
    ----------
    fanouts : sequence of int or mapping of EdgeType to int
        At least two layers, outermost first.
    candidates : Candidates, Tensor[int64], or mapping of str to Tensor[int64]
        Nodes whose embeddings are stored, e.g. the fifth that is sampled most often; by type where there are several.
    num_nodes : int, or mapping of str to int
        Nodes of the graph.
    max_age : int
        Batches after which an embedding is too old.
    seeds_of : callable, optional
        ``seeds_of(epoch, batch)``; or see :meth:`following`.
    world_size : int
        Ranks: batch ``b`` belongs to rank ``b % world_size``, and each rank has a history of its own.
    edge_ids, replace : bool
        As for :class:`NeighborSampler`.
    """

    def __init__(
        self,
        fanouts: Sequence[Fanout],
        candidates: Candidates | Tensor | Mapping[str, Tensor],
        num_nodes: int | Mapping[str, int],
        *,
        max_age: int,
        seeds_of: SeedsOf | None = None,
        world_size: int = 1,
        edge_ids: bool = False,
        replace: bool = False,
    ) -> None:
        if len(fanouts) < 2:
            raise ConfigError(f"fanouts must have at least two layers for a history (got {len(fanouts)})")
        chosen = candidates if isinstance(candidates, Candidates) else Candidates(candidates, num_nodes)
        self.fanouts, self.edge_ids, self.replace = list(fanouts), edge_ids, replace
        self._seeds_of, self._window = seeds_of, HistoryWindow(chosen, max_age, world_size)
        self._last = NeighborSampler(fanouts[-1:], edge_ids=edge_ids, replace=replace)
        self._first = NeighborSampler(fanouts[:-1], edge_ids=edge_ids, replace=replace, first_hop=1)

    @property
    def candidates(self) -> Candidates:
        """Nodes whose embeddings are stored."""
        return self._window.candidates

    @property
    def identity(self) -> str:
        """What decides samples, beside keys and seeds."""
        settings = f"{self.fanouts}, {self.candidates}, max_age={self._window.max_age}"
        return f"HistorySampler({settings}, edge_ids={self.edge_ids}, replace={self.replace})"

    def following(self, seeds_of: SeedsOf, world_size: int = 1) -> HistorySampler:
        """Return this sampler for one order of batches, whose seeds ``seeds_of(epoch, batch)`` tells."""
        found = copy.copy(self)
        found._seeds_of = seeds_of
        found._window = HistoryWindow(self.candidates, self._window.max_age, world_size)
        return found

    def sample(
        self, topology: Topology, seeds: Seeds, key: SampleKey, pool: _native.ThreadPool | None = None
    ) -> HistorySample:
        """Sample the batch of ``seeds``; see :meth:`Sampler.sample`."""
        if isinstance(seeds, EdgeSeeds):
            raise ConfigError("seeds must be nodes for a history (got edges)")
        if self._seeds_of is None:
            raise ConfigError("seeds_of must be set before sampling: give it, or take following(...)")
        seeds_of = self._seeds_of
        last = self._last.sample(topology, seeds, key, pool)

        def inputs_of(other: SampleKey) -> Mapping[str, Tensor]:
            return self._last.sample(topology, seeds_of(other.epoch, other.batch), other, pool).input_nodes

        num_seeds = {ntype: len(ids) for ntype, ids in last.seeds.items()}
        step = self._window.step(key, last.input_nodes, num_seeds, inputs_of)
        expand = {ntype: nodes[step.fresh[ntype]] for ntype, nodes in last.input_nodes.items()}
        inner = self._first.sample(topology, expand, key, pool)
        blocks = [*inner.blocks, *last.blocks]
        return HistorySample(
            last.seeds, inner.input_nodes, blocks, last.seed_rows, history=step, last_inputs=last.input_nodes
        )

    def function(self, topology: Topology) -> _native.SampleFunction:
        """Refuse: a sample is made by two native samplers, with what earlier batches met between them."""
        raise ConfigError("a sampler with history cannot be served: sample in the process that trains")


def seeds_of_orders(order_of: Callable[[int], SeedOrder]) -> SeedsOf:
    """Return ``seeds_of`` for an order of this rank's batches by epoch; keeps the order of one epoch."""
    orders: dict[int, SeedOrder] = {}

    def seeds_of(epoch: int, batch: int) -> Any:
        order = orders.get(epoch)
        if order is None:
            order = order_of(epoch)
            orders.clear()
            orders[epoch] = order
        return order[batch // order.world_size].nodes

    return seeds_of


def _stamp(epoch: int, number: int) -> int:
    return epoch << 32 | number
