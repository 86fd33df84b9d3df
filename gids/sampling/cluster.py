"""Cluster batches: whole parts of a partition with every edge between their nodes (Cluster-GCN)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gids import _native
from gids.errors import ConfigError
from gids.sampling.sample import NODE, SampleKey
from gids.sampling.sampler import Sampler, expand_fanouts
from gids.sampling.seeds import EdgeSeeds, Ids, SeedPlan, Seeds, TimedSeeds, as_ids
from gids.sampling.topology import Topology


class ClusterSampler(Sampler):
    """Takes parts as seeds and gives the subgraph between all their nodes, edges between the parts included.

    Seeds are numbers of parts, so ``gids.Loader(data, torch.arange(sampler.num_parts), sampler=sampler, batch_size=20)``
    has 20 random parts to a batch, and an epoch has every node once. The sample has one block whose sources are its
    destinations, as that of :class:`ShadowSampler`; all its nodes are seeds.

    Parameters
    ----------
    parts : array of int, mapping of str to array of int, or gids.partition.Partition
        Part of every node; by node type where the graph has several.
    edge_ids : bool
        Whether the block carries the ids of its edges.
    """

    def __init__(self, parts: npt.ArrayLike | Mapping[str, npt.ArrayLike] | Any, *, edge_ids: bool = False) -> None:
        given = getattr(parts, "parts", parts)
        by_type = dict(given) if isinstance(given, Mapping) else {NODE: given}
        labels = {ntype: as_ids(part) for ntype, part in by_type.items()}
        lowest = min((int(part.min()) for part in labels.values() if len(part)), default=0)
        if lowest < 0:
            raise ConfigError(f"parts must not be negative (got {lowest})")
        self.num_parts = max((int(part.max()) + 1 for part in labels.values() if len(part)), default=0)
        self.edge_ids = edge_ids
        #: By node type: nodes part after part, ascending within each, and where the parts begin.
        self._nodes: dict[str, Ids] = {n: np.argsort(part, kind="stable") for n, part in labels.items()}
        counts = {n: np.bincount(part, minlength=self.num_parts) for n, part in labels.items()}
        self._begins: dict[str, Ids] = {n: np.concatenate([[0], np.cumsum(count)]) for n, count in counts.items()}
        digest = hashlib.sha256()
        for ntype, part in labels.items():
            digest.update(ntype.encode() + part.tobytes())
        self.identity = f"{self.num_parts} parts, {digest.hexdigest()[:16]}"

    def __repr__(self) -> str:
        return f"ClusterSampler({self.identity}, edge_ids={self.edge_ids})"

    def check(self, topology: Topology) -> None:
        """Raise ConfigError where the parts are not those of the nodes of ``topology``."""
        found = {ntype: len(nodes) for ntype, nodes in self._nodes.items()}
        if found != topology.num_nodes:
            raise ConfigError(f"parts must have one entry for each node = {topology.num_nodes} (got {found})")

    def plan(self, topology: Topology, seeds: Seeds, key: SampleKey) -> SeedPlan:
        """Return the nodes of the parts that ``seeds`` names as the native samplers take them.

        ``topology`` is the graph; ``key`` is not used, as parts are what they are.
        """
        if isinstance(seeds, EdgeSeeds | TimedSeeds):
            raise ConfigError(f"seeds of a ClusterSampler must be numbers of parts (got {type(seeds).__name__})")
        numbers = list(seeds.values()) if isinstance(seeds, Mapping) else [seeds]
        parts = np.concatenate([np.empty(0, np.int64), *(as_ids(ids) for ids in numbers)])
        if len(parts) and not 0 <= parts.min() <= parts.max() < self.num_parts:
            raise ConfigError(f"seeds must be parts in [0, {self.num_parts}) (got {parts.min()} to {parts.max()})")
        nodes = []
        for ntype in topology.node_types:
            begins, ordered = self._begins[ntype], self._nodes[ntype]
            pieces = [ordered[begins[part] : begins[part + 1]] for part in parts]
            nodes.append(np.concatenate([np.empty(0, np.int64), *pieces]))
        return SeedPlan(nodes, [])

    def function(self, topology: Topology) -> _native.SampleFunction:
        """Return the native sampler of ``topology``."""
        return _native.SampleFunction.shadow(expand_fanouts([0], topology), False, self.edge_ids, False)
