"""What all samplers share: seeds in, a native call, a :class:`Sample` out."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch

from gids import _native
from gids.errors import ConfigError
from gids.sampling.sample import Block, EdgeType, Sample, SampleKey
from gids.sampling.seeds import Ids, SeedPlan, Seeds, pair_rows, plan_seeds
from gids.sampling.topology import Topology

Fanout = int | Mapping[EdgeType, int]
NativePart = tuple[Ids, Ids, Ids | None, npt.NDArray[np.float32] | None]
NativeSample = tuple[list[Ids], list[Ids], list[tuple[list[int], list[int], list[NativePart]]]]


class Sampler(abc.ABC):
    """Samples batches. Has no state: several threads may use one sampler at once."""

    weights: bool = False

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
        if self.weights:
            missing = [etype for etype, relation in topology.relations.items() if relation.weights is None]
            if missing:
                raise ConfigError(f"weighted sampling needs weights of every edge type (missing: {missing})")
        plan = plan_seeds(topology, seeds, key)
        sample = dress(topology, self._run(topology, plan, key, pool))
        if plan.edges is None:
            return sample
        return Sample(
            sample.seeds,
            sample.input_nodes,
            sample.blocks,
            sample.seed_rows,
            pair_rows(topology, plan.edges, sample.seed_rows),
        )

    @abc.abstractmethod
    def _run(
        self, topology: Topology, plan: SeedPlan, key: SampleKey, pool: _native.ThreadPool | None
    ) -> NativeSample: ...


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
    """Give ``[layer][relation]`` fanouts in the topology's order of edge types."""
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


def dress(topology: Topology, native: NativeSample) -> Sample:
    """Give native arrays as a :class:`Sample`, without copying them."""
    nodes, rows, blocks = native
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
    )
