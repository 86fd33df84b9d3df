"""Node-wise neighbour sampling (GraphSAGE)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gids import _native
from gids.errors import ConfigError
from gids.sampling.sample import Block, EdgeType, Sample, SampleKey
from gids.sampling.topology import Topology

Fanout = int | Mapping[EdgeType, int]
Ids = npt.NDArray[np.int64]
NativeBlock = tuple[list[int], list[int], list[tuple[Ids, Ids, Ids | None]]]
Seeds = Tensor | Ids | Sequence[int] | Mapping[str, Tensor]


class NeighborSampler:
    """Samples up to ``fanout`` in-edges of every node, layer by layer from the seeds outwards.

    Parameters
    ----------
    fanouts : sequence of int or mapping of EdgeType to int
        One entry per layer, outermost first, as in DGL: ``fanouts[i]`` makes ``blocks[i]``, so the last one applies to
        the seeds. −1 takes all in-edges, 0 none. A mapping gives each edge type its own; types not named get 0.
    replace : bool
        Whether an edge can be drawn more than once.
    edge_ids : bool
        Whether blocks carry the ids of their edges.
    """

    def __init__(self, fanouts: Sequence[Fanout], *, replace: bool = False, edge_ids: bool = False) -> None:
        if not fanouts:
            raise ConfigError("fanouts must have at least one layer (got none)")
        for fanout in fanouts:
            for value in fanout.values() if isinstance(fanout, Mapping) else (fanout,):
                if not isinstance(value, int) or not -1 <= value < 1 << 31:
                    raise ConfigError(f"fanout must be -1 (all) or between 0 and 2**31 - 1 (got {value!r})")
        self.fanouts = list(fanouts)
        self.replace = replace
        self.edge_ids = edge_ids

    def sample(
        self, topology: Topology, seeds: Seeds, key: SampleKey, pool: _native.ThreadPool | None = None
    ) -> Sample:
        """Sample the batch of ``seeds``.

        Parameters
        ----------
        topology : Topology
            The graph.
        seeds : Tensor[int64], or mapping of str to Tensor[int64]
            Seed nodes; by type where the graph has several. Duplicates are sampled once, see ``Sample.seed_rows``.
        key : SampleKey
            Names the batch; the result is a function of it, the graph and the seeds alone.
        pool : ThreadPool, optional
            Threads to share the work with; by default the calling thread works alone.
        """
        nodes, rows, blocks = topology.native.sample_neighbors(
            expand_fanouts(self.fanouts, topology),
            self.replace,
            self.edge_ids,
            key.seed,
            key.epoch,
            key.batch,
            seeds_by_type(topology, seeds),
            pool,
        )
        return make_sample(topology, nodes, rows, blocks)


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


def seeds_by_type(topology: Topology, seeds: Seeds) -> list[Ids]:
    """Give one int64 array per node type, in the topology's order."""
    types = topology.node_types
    if not isinstance(seeds, Mapping):
        if len(types) != 1:
            raise ConfigError(f"seeds must be given by node type where a graph has several (has {types})")
        return [_as_ids(seeds)]
    unknown = set(seeds) - set(types)
    if unknown:
        raise ConfigError(f"node types of seeds must be among {types} (got {sorted(unknown)})")
    return [_as_ids(seeds[ntype]) if ntype in seeds else np.empty(0, np.int64) for ntype in types]


def _as_ids(seeds: object) -> Ids:
    array = seeds.numpy() if isinstance(seeds, Tensor) else np.asarray(seeds)
    if array.size and array.dtype.kind not in "iu":
        raise ConfigError(f"seeds must be integers (got {array.dtype})")
    if array.ndim != 1:
        raise ConfigError(f"seeds must have one dimension (got {array.ndim})")
    return np.ascontiguousarray(array, dtype=np.int64)


def make_sample(topology: Topology, nodes: list[Ids], rows: list[Ids], blocks: list[NativeBlock]) -> Sample:
    """Dress native arrays as a :class:`Sample`, without copying them."""
    types = topology.node_types
    input_nodes = {ntype: torch.from_numpy(array) for ntype, array in zip(types, nodes, strict=True)}
    layers = []
    for num_dst, num_src, parts in blocks:
        by_type = dict(zip(topology.relations, parts, strict=True))
        with_ids = all(ids is not None for _, _, ids in parts)
        layers.append(
            Block(
                num_src=dict(zip(types, num_src, strict=True)),
                num_dst=dict(zip(types, num_dst, strict=True)),
                indptr={etype: torch.from_numpy(indptr) for etype, (indptr, _, _) in by_type.items()},
                src={etype: torch.from_numpy(src) for etype, (_, src, _) in by_type.items()},
                edge_ids={etype: torch.from_numpy(ids) for etype, (_, _, ids) in by_type.items()} if with_ids else None,
            )
        )
    last = layers[-1]
    return Sample(
        seeds={ntype: input_nodes[ntype][: last.num_dst[ntype]] for ntype in types},
        input_nodes=input_nodes,
        blocks=layers,
        seed_rows={ntype: torch.from_numpy(array) for ntype, array in zip(types, rows, strict=True)},
    )
