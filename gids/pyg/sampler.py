"""Our sampler where PyG expects one of its own, so that its loaders work without pyg-lib."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch_geometric.sampler import (
    BaseSampler,
    EdgeSamplerInput,
    HeteroSamplerOutput,
    NegativeSampling,
    NodeSamplerInput,
    SamplerOutput,
)
from torch_geometric.sampler.neighbor_sampler import edge_sample, node_sample

from gids._native import ThreadPool
from gids.dataset import Dataset
from gids.errors import ConfigError
from gids.pyg.hops import HopSampler, Neighborhood, NumNeighbors
from gids.sampling import SampleKey
from gids.sampling.topology import share_topology


class NeighborSampler(BaseSampler):  # type: ignore[misc] # PyG's base has no types
    """Samples from a dataset's graph for ``torch_geometric.loader.NodeLoader`` and ``LinkLoader``.

    Parameters
    ----------
    dataset : Dataset
        Whose graph.
    num_neighbors : sequence of int, or mapping of edge type to sequence of int
        As in PyG: nearest hop first.
    replace : bool
        Whether an edge can be drawn more than once.
    seed : int
        Of the random keys; the n-th batch that is sampled has key ``(seed, 0, n)``.
    """

    def __init__(self, dataset: Dataset, num_neighbors: NumNeighbors, *, replace: bool = False, seed: int = 0):
        self._topology = share_topology(dataset)
        self._hops = HopSampler(num_neighbors, replace=replace)
        self._seed = seed
        self._batch = 0
        self._pool: ThreadPool | None = None

    def sample_from_nodes(self, index: NodeSamplerInput, **kwargs: Any) -> SamplerOutput | HeteroSamplerOutput:
        """Sample around nodes.

        Parameters
        ----------
        index : NodeSamplerInput
            The nodes.
        **kwargs
            What other samplers of PyG take; not used.
        """
        return node_sample(index, self._sample)

    def sample_from_edges(
        self, index: EdgeSamplerInput, neg_sampling: NegativeSampling | None = None
    ) -> SamplerOutput | HeteroSamplerOutput:
        """Sample around both ends of edges, and of negative edges if asked for.

        Parameters
        ----------
        index : EdgeSamplerInput
            The edges.
        neg_sampling : NegativeSampling, optional
            What to draw beside them.
        """
        counts = self._topology.num_nodes
        num_nodes = counts if index.input_type is not None else next(iter(counts.values()))
        return edge_sample(index, self._sample, num_nodes, False, None, neg_sampling)

    def _sample(self, seeds: Tensor | Mapping[str, Tensor], time: Any = None, **kwargs: Any) -> Any:
        if time is not None:
            raise ConfigError("input_time must not be given: sampling by time is not supported")
        by_type = seeds if isinstance(seeds, Mapping) else {self._topology.node_types[0]: seeds}
        found = self._hops.sample(self._topology, by_type, self._next_key(), self._threads())
        return hetero_output(found) if isinstance(seeds, Mapping) else output(found)

    def _next_key(self) -> SampleKey:
        worker = torch.utils.data.get_worker_info()
        number, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        key = SampleKey(self._seed, 0, self._batch * workers + number)
        self._batch += 1
        return key

    def _threads(self) -> ThreadPool | None:
        if torch.utils.data.get_worker_info() is not None:
            return None  # a worker process is one of many; threads would only contend
        if self._pool is None:
            self._pool = ThreadPool(torch.get_num_threads(), "gids-pyg")
        return self._pool


def output(found: Neighborhood) -> SamplerOutput:
    """Return the neighbourhood of a graph with one node and edge type as PyG has it."""
    ((etype, row),) = found.row.items()
    (node,) = found.node.values()
    (ntype,) = found.node
    nodes, edges = found.num_sampled_nodes, found.num_sampled_edges
    return SamplerOutput(
        node=node,
        row=row,
        col=found.col[etype],
        edge=found.edge[etype],
        batch=None if found.batch is None else next(iter(found.batch.values())),
        num_sampled_nodes=None if nodes is None else nodes[ntype],
        num_sampled_edges=None if edges is None else edges[etype],
    )


def hetero_output(found: Neighborhood) -> HeteroSamplerOutput:
    """Return the neighbourhood of a graph with several types as PyG has it."""
    return HeteroSamplerOutput(
        node=found.node,
        row=found.row,
        col=found.col,
        edge=dict(found.edge),
        batch=found.batch,
        num_sampled_nodes=found.num_sampled_nodes,
        num_sampled_edges=found.num_sampled_edges,
    )


def from_output(out: SamplerOutput | HeteroSamplerOutput, found: Neighborhood) -> Neighborhood:
    """Return what a transform made of a sampler's output, for the types of the neighbourhood it was made from."""
    if isinstance(out, HeteroSamplerOutput):
        edge = out.edge or {}
        return Neighborhood(
            dict(out.node),
            dict(out.row),
            dict(out.col),
            dict(edge),
            out.num_sampled_nodes,
            out.num_sampled_edges,
            batch=None if out.batch is None else dict(out.batch),
        )
    (ntype,), (etype,) = found.node, found.row
    return Neighborhood(
        {ntype: out.node},
        {etype: out.row},
        {etype: out.col},
        {etype: out.edge},
        None if out.num_sampled_nodes is None else {ntype: out.num_sampled_nodes},
        None if out.num_sampled_edges is None else {etype: out.num_sampled_edges},
        batch=None if out.batch is None else {ntype: out.batch},
    )
