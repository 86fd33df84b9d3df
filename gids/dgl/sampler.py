"""Samplers of gids where DGL expects one of its own: reproducible batches, many threads, no DGL graph needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import dgl
import torch
from dgl.dataloading import BlockSampler
from torch import Tensor

from gids import _native, sampling
from gids.dataset import Dataset
from gids.dgl.blocks import to_dgl_blocks, without_edges
from gids.errors import ConfigError
from gids.sampling import Relation, Sample, SampleKey, Topology


class GidsSampler(Protocol):
    """A sampler of :mod:`gids.sampling`."""

    def sample(self, topology: Topology, seeds: Any, key: SampleKey, pool: _native.ThreadPool | None = None) -> Sample:
        """Sample the batch that ``key`` names."""


def topology_of(graph: Any) -> Topology:
    """Give the graph that our samplers walk: a dataset's, or a DGL graph's own arrays without a copy."""
    if isinstance(graph, Dataset):
        return Topology.from_dataset(graph)
    if isinstance(graph, DatasetGraph):
        return graph.topology
    relations = {}
    for etype in graph.canonical_etypes:
        indptr, indices, edge_ids = graph.adj_tensors("csc", etype=etype)
        ids = edge_ids.long().numpy() if len(edge_ids) else None
        relations[tuple(etype)] = Relation(indptr.long().numpy(), indices.numpy(), ids)
    return Topology({ntype: graph.num_nodes(ntype) for ntype in graph.ntypes}, relations, validate=False)


class DatasetGraph:
    """A dataset in the place of a DGL graph, for samplers of gids; holds no features."""

    def __init__(self, dataset: Dataset):
        self.dataset = dataset
        self.topology = Topology.from_dataset(dataset)
        self.device = torch.device("cpu")
        self.ntypes = dataset.node_types
        self.canonical_etypes = dataset.edge_types

    def num_nodes(self, ntype: str | None = None) -> int:
        """Count the nodes of a type, or of all."""
        return self.dataset.num_nodes(ntype)

    def get_node_storage(self, key: str, ntype: str | None = None) -> Any:
        """Refuse: columns that the dataset has are fetched before DGL asks for any."""
        raise ConfigError(f"node features must be among {self.dataset.feature_names(ntype)} (got {key!r})")

    def get_edge_storage(self, key: str, etype: Any = None) -> Any:
        """Refuse, as for nodes."""
        raise ConfigError(f"edge features must be among {self.dataset.edge_feature_names(etype)} (got {key!r})")


class Sampler(BlockSampler):  # type: ignore[misc] # DGL has no types
    """Any sampler of :mod:`gids.sampling` as a DGL sampler.

    The batch number ``b`` of epoch ``e`` is a function of ``(seed, e, b)`` and of its seed nodes alone.

    Parameters
    ----------
    inner : sampler of gids
        Makes the blocks.
    seed : int
        Of the random keys.
    prefetch_node_feats, prefetch_labels, prefetch_edge_feats : list or dict
        As in DGL: what to put in ``srcdata`` of the first, ``dstdata`` of the last and ``edata`` of every block.
    """

    def __init__(
        self,
        inner: GidsSampler,
        *,
        seed: int = 0,
        prefetch_node_feats: Any = None,
        prefetch_labels: Any = None,
        prefetch_edge_feats: Any = None,
    ):
        super().__init__(prefetch_node_feats, prefetch_labels, prefetch_edge_feats)
        self.inner = inner
        self.seed = seed
        self._epoch = 0
        self._batch = 0
        self._topology: tuple[Any, Topology] | None = None
        self._pool: _native.ThreadPool | None = None

    def set_epoch(self, epoch: int) -> None:
        """Begin epoch ``epoch`` at its first batch."""
        self._epoch, self._batch = epoch, 0

    def next_epoch(self) -> None:
        """Begin the next epoch, unless nothing of this one was sampled yet."""
        if self._batch:
            self.set_epoch(self._epoch + 1)

    def sample_blocks(self, g: Any, seed_nodes: Any, exclude_eids: Any = None) -> tuple[Any, Any, list[Any]]:
        """Sample the blocks of the next batch, as DGL's samplers do."""
        if self._topology is None or self._topology[0] is not g:
            self._topology = (g, topology_of(g))
        topology = self._topology[1]
        sample = self.inner.sample(topology, seed_nodes, self._next_key(), self._threads())
        if exclude_eids is not None:
            excluded = {etype: ids for etype, ids in _by_type(g, exclude_eids).items() if len(ids)}
            blocks = [without_edges(block, excluded) for block in sample.blocks]
            sample = Sample(sample.seeds, sample.input_nodes, blocks, sample.seed_rows)
        input_nodes: Any = sample.input_nodes
        if len(topology.node_types) == 1:
            (input_nodes,) = input_nodes.values()
        return input_nodes, seed_nodes, to_dgl_blocks(sample)

    def _next_key(self) -> SampleKey:
        worker = torch.utils.data.get_worker_info()
        number, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        key = SampleKey(self.seed, self._epoch, self._batch * workers + number)
        self._batch += 1
        return key

    def _threads(self) -> _native.ThreadPool | None:
        if torch.utils.data.get_worker_info() is not None:
            return None  # a worker process is one of many; threads would only contend
        if self._pool is None:
            self._pool = _native.ThreadPool(torch.get_num_threads(), "gids-dgl")
        return self._pool

    def __getstate__(self) -> dict[str, Any]:
        # Threads cannot be sent to a worker process, and the graph is sent there by DGL itself.
        return {**self.__dict__, "_pool": None, "_topology": None}


class NeighborSampler(Sampler):
    """Neighbour sampling by gids, with the arguments of ``dgl.dataloading.NeighborSampler``.

    Parameters
    ----------
    fanouts : sequence of int or of mapping of edge type to int
        Outermost layer first.
    replace : bool
        Whether an edge can be drawn more than once.
    seed, prefetch_node_feats, prefetch_labels, prefetch_edge_feats
        See :class:`Sampler`.
    """

    def __init__(
        self, fanouts: Sequence[Any], *, replace: bool = False, edge_dir: str = "in", seed: int = 0, **prefetch: Any
    ):
        if edge_dir != "in":
            raise ConfigError(f"edge_dir must be 'in': graphs are stored by destination (got {edge_dir!r})")
        super().__init__(sampling.NeighborSampler(list(fanouts), replace=replace, edge_ids=True), seed=seed, **prefetch)


def _by_type(graph: Any, ids: Any) -> dict[Any, Tensor]:
    if isinstance(ids, Mapping):
        return {tuple(graph.to_canonical_etype(etype)): value.long() for etype, value in ids.items()}
    return {tuple(graph.canonical_etypes[0]): ids.long()}


def wrap(sampler: Any, dataset: Dataset) -> Any:
    """Give a DGL sampler: DGL's own as it is, one of ours as :class:`Sampler` that asks for every feature and label."""
    if isinstance(sampler, dgl.dataloading.Sampler):
        return sampler
    labelled = [ntype for ntype in dataset.node_types if dataset.labels(ntype) is not None]
    with_edges = getattr(sampler, "edge_ids", False)
    return Sampler(
        sampler,
        prefetch_node_feats={ntype: dataset.feature_names(ntype) for ntype in dataset.node_types},
        prefetch_labels={ntype: ["label"] for ntype in labelled},
        prefetch_edge_feats={e: dataset.edge_feature_names(e) for e in dataset.edge_types} if with_edges else None,
    )
