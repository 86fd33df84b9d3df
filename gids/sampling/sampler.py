"""What all samplers share: seeds in, a native call, a :class:`Sample` out."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from gids import _native
from gids.errors import ConfigError
from gids.sampling.sample import Block, EdgeType, Sample, SampleKey
from gids.sampling.seeds import EdgeSeeds, Ids, SeedPlan, Seeds, pair_rows, plan_seeds
from gids.sampling.topology import Topology

if TYPE_CHECKING:
    from gids.sampling.serve import SampleServer

Fanout = int | Mapping[EdgeType, int]
NativePart = tuple[Ids, Ids, Ids | None, npt.NDArray[np.float32] | None]
NativeSample = tuple[list[Ids], list[Ids], list[tuple[list[int], list[int], list[NativePart]]], list[Ids] | None]


class Sampler(abc.ABC):
    """Samples batches. Has no state: several threads may use one sampler at once."""

    weights: bool = False
    timed: bool = False

    def sample(
        self, topology: Topology, seeds: Seeds, key: SampleKey, pool: _native.ThreadPool | None = None
    ) -> Sample:
        """Sample the batch of ``seeds``.

        Parameters
        ----------
        topology : Topology
            The graph.
        seeds : Tensor[int64], mapping of str to Tensor[int64], or EdgeSeeds
            Seed nodes (by type where the graph has several) or edges. Duplicates are sampled once, see
            ``Sample.seed_rows``.
        key : SampleKey
            Names the batch; the result is a function of it, the graph and the seeds alone.
        pool : ThreadPool, optional
            Threads to share the work with; by default the calling thread works alone.
        """
        self.check(topology)
        plan = self.plan(topology, seeds, key)
        native = topology.native.sample(
            self.function(topology), plan.excluded, plan.times, key.seed, key.epoch, key.batch, plan.nodes, pool
        )
        return build_sample(topology, native, plan.edges)

    def plan(self, topology: Topology, seeds: Seeds, key: SampleKey) -> SeedPlan:
        """Return checked seeds as the native samplers take them.

        Parameters
        ----------
        topology : Topology
            The graph.
        seeds, key
            As for :meth:`sample`.
        """
        return self.with_times(topology, plan_seeds(topology, seeds, key))

    def with_times(self, topology: Topology, plan: SeedPlan) -> SeedPlan:
        """Return the plan; raises ConfigError where seeds have times that nobody looks at, or lack those that it takes.

        Parameters
        ----------
        topology : Topology
            The graph.
        plan : SeedPlan
            The seeds of a batch.
        """
        if self.timed != plan.timed:
            rule = "seeds must have times for" if self.timed else "times of seeds need a TemporalSampler, not"
            raise ConfigError(f"{rule} {type(self).__name__} (got {'none' if self.timed else len(plan.times)})")
        return plan

    def serve(self, topology: Topology, *, workers: int | None = None, max_waiting: int = 1024) -> SampleServer:
        """Return a :class:`SampleServer` that answers any number of threads and coroutines.

        Parameters
        ----------
        topology : Topology
            The graph.
        workers, max_waiting : int
            As for :class:`SampleServer`.
        """
        from gids.sampling.serve import SampleServer  # which knows samplers

        return SampleServer(self, topology, workers=workers, max_waiting=max_waiting)

    def check(self, topology: Topology) -> None:
        """Raise ConfigError where the sampler cannot work on ``topology``."""
        if self.weights:
            missing = [etype for etype, relation in topology.relations.items() if relation.weights is None]
            if missing:
                raise ConfigError(f"weighted sampling needs weights of every edge type (missing: {missing})")

    @abc.abstractmethod
    def function(self, topology: Topology) -> _native.SampleFunction:
        """Return the native sampler of ``topology``."""


def check_fanouts(fanouts: Sequence[Fanout]) -> list[Fanout]:
    """Reject fanouts that mean nothing."""
    if not fanouts:
        raise ConfigError("fanouts must have at least one layer (got none)")
    for fanout in fanouts:
        for value in fanout.values() if isinstance(fanout, Mapping) else (fanout,):
            if not isinstance(value, int) or not -1 <= value < 1 << 31:
                raise ConfigError(f"fanout must be -1 (all) or between 0 and 2**31 - 1 (got {value!r})")
    return list(fanouts)


def expand_fanouts(fanouts: Sequence[Fanout], topology: Topology) -> list[list[int]]:
    """Return ``[layer][relation]`` fanouts in the topology's order of edge types."""
    expanded = []
    for fanout in fanouts:
        if isinstance(fanout, Mapping):
            unknown = set(fanout) - set(topology.relations)
            if unknown:
                raise ConfigError(f"edge types of fanouts must be among {topology.edge_types} (got {sorted(unknown)})")
            expanded.append([fanout.get(etype, 0) for etype in topology.relations])
        else:
            expanded.append([fanout] * len(topology.relations))
    return expanded


def build_sample(topology: Topology, native: NativeSample, edges: EdgeSeeds | None = None) -> Sample:
    """Return native arrays as a :class:`Sample`, without copying them; ``edges`` are what its seeds came from."""
    nodes, rows, blocks, trees = native
    types = topology.node_types
    input_nodes = {ntype: torch.from_numpy(array) for ntype, array in zip(types, nodes, strict=True)}
    layers = []
    for num_dst, num_src, parts in blocks:
        ids = {e: torch.from_numpy(p[2]) for e, p in zip(topology.relations, parts, strict=True) if p[2] is not None}
        weights = {
            e: torch.from_numpy(p[3]) for e, p in zip(topology.relations, parts, strict=True) if p[3] is not None
        }
        layers.append(
            Block(
                num_src=dict(zip(types, num_src, strict=True)),
                num_dst=dict(zip(types, num_dst, strict=True)),
                indptr={e: torch.from_numpy(p[0]) for e, p in zip(topology.relations, parts, strict=True)},
                src={e: torch.from_numpy(p[1]) for e, p in zip(topology.relations, parts, strict=True)},
                edge_ids=ids or None,
                weights=weights or None,
            )
        )
    seed_rows = {ntype: torch.from_numpy(array) for ntype, array in zip(types, rows, strict=True)}
    counts = {ntype: int(r.max()) + 1 if len(r) else 0 for ntype, r in seed_rows.items()}
    return Sample(
        seeds={ntype: input_nodes[ntype][: counts[ntype]] for ntype in types},
        input_nodes=input_nodes,
        blocks=layers,
        seed_rows=seed_rows,
        edges=None if edges is None else pair_rows(topology, edges, seed_rows),
        trees=None if trees is None else {n: torch.from_numpy(t) for n, t in zip(types, trees, strict=True)},
    )
