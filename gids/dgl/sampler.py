"""Samplers of gids where DGL expects one of its own: reproducible batches, many threads, no DGL graph needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol

import dgl
import torch
from dgl.dataloading import BlockSampler
from torch import Tensor

from gids import _native, sampling
from gids.dataset import Dataset
from gids.dgl.blocks import to_dgl_blocks, without_edges
from gids.errors import ConfigError
from gids.loader.graph import open_topology
from gids.runtime.batch import map_tensors
from gids.runtime.options import RuntimeOptions
from gids.sampling import Relation, Sample, SampleKey, Topology
from gids.sampling.topology import share_topology


class GidsSampler(Protocol):
    """A sampler of :mod:`gids.sampling`."""

    def sample(self, topology: Topology, seeds: Any, key: SampleKey, pool: _native.ThreadPool | None = None) -> Sample:
        """Sample the batch that ``key`` names."""


def topology_of(graph: Any, prob: str | None = None) -> Topology:
    """Return the graph that our samplers walk: a dataset's, or a DGL graph's own arrays without a copy.

    Parameters
    ----------
    graph : Dataset, DatasetGraph or DGLGraph
        The graph.
    prob : str, optional
        Column of a DGL graph's edges with their weights; a dataset has weights of its own.
    """
    if isinstance(graph, Dataset):
        return share_topology(graph)
    if isinstance(graph, DatasetGraph):
        return graph.topology
    relations = {}
    for etype in graph.canonical_etypes:
        indptr, indices, edge_ids = (part.cpu() for part in graph.adj_tensors("csc", etype=etype))
        ids = edge_ids.long() if len(edge_ids) else None
        weights = None
        if prob is not None:
            if prob not in graph.edges[etype].data:
                raise ConfigError(f"prob must be a column of the edges of every type (got {prob!r}, {etype} has none)")
            column = graph.edges[etype].data[prob].cpu().float().reshape(-1)
            weights = (column if ids is None else column[ids]).numpy()
        relations[tuple(etype)] = Relation(
            indptr.long().numpy(), indices.numpy(), None if ids is None else ids.numpy(), weights
        )
    return Topology({ntype: graph.num_nodes(ntype) for ntype in graph.ntypes}, relations, validate=False)


class DatasetGraph:
    """A dataset in the place of a DGL graph, for samplers of gids; holds no features.

    Parameters
    ----------
    dataset : Dataset
        The graph.
    options : RuntimeOptions, optional
        Whether its edges stay on disk; by default they are in memory.
    """

    def __init__(self, dataset: Dataset, options: RuntimeOptions | None = None):
        self.dataset, self._options = dataset, RuntimeOptions() if options is None else options
        self.idtype = torch.int64
        self.device = torch.device("cpu")
        self.ntypes = dataset.node_types
        self.canonical_etypes = dataset.edge_types

    @cached_property
    def topology(self) -> Topology:
        """The graph that samplers walk, opened when it is first asked for: packed epochs never ask."""
        return open_topology(self.dataset, self._options)

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
    prob : str, optional
        Column of a DGL graph's edges with the weights that an inner sampler with ``weights=True`` draws by.
    """

    def __init__(
        self,
        inner: GidsSampler,
        *,
        seed: int = 0,
        prefetch_node_feats: Any = None,
        prefetch_labels: Any = None,
        prefetch_edge_feats: Any = None,
        prob: str | None = None,
    ):
        super().__init__(prefetch_node_feats, prefetch_labels, prefetch_edge_feats)
        if getattr(inner, "timed", False) or getattr(inner, "disjoint", False):
            raise ConfigError(
                f"inner must share nodes between seeds (got a disjoint {type(inner).__name__}): DGL's blocks have no trees; "
                "gids.Loader and gids.pyg.NeighborLoader have"
            )
        self.inner = inner
        self.seed = seed
        self.prob = prob
        self._epoch = 0
        self._batch = 0
        self._topology: tuple[Any, Topology] | None = None
        self._pool: _native.ThreadPool | None = None

    @property
    def epoch(self) -> int:
        """The epoch of the next batch."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch at its first batch; with ``gids=`` the loader counts epochs: use its ``set_epoch``.

        Parameters
        ----------
        epoch : int
            Its number, from 0.
        """
        self._epoch, self._batch = epoch, 0

    def next_epoch(self) -> None:
        """Begin the next epoch, unless nothing of this one was sampled yet."""
        if self._batch:
            self.set_epoch(self._epoch + 1)

    def topology(self, graph: Any) -> Topology:
        """Return the graph as the inner sampler walks it; made once for a graph."""
        if self._topology is None or self._topology[0] is not graph:
            self._topology = (graph, topology_of(graph, self.prob))
        return self._topology[1]

    def sample_blocks(self, g: Any, seed_nodes: Any, exclude_eids: Any = None) -> tuple[Any, Any, list[Any]]:
        """Sample the blocks of the next batch, as DGL's samplers do.

        Parameters
        ----------
        g : DGLGraph, DatasetGraph or Dataset
            The graph.
        seed_nodes : Tensor, or mapping of str to Tensor
            Seeds, by type where there are several.
        exclude_eids : Tensor, or mapping of edge type to Tensor, optional
            Edges that must not be in the blocks.
        """
        topology, on_host = self.topology(g), map_tensors(seed_nodes, lambda ids: ids.cpu())
        sample = self.inner.sample(topology, on_host, self._next_key(), self._threads())
        if exclude_eids is not None:
            excluded = {etype: ids for etype, ids in _by_type(g, exclude_eids).items() if len(ids)}
            blocks = [without_edges(block, excluded) for block in sample.blocks]
            sample = Sample(sample.seeds, sample.input_nodes, blocks, sample.seed_rows)
        input_nodes, blocks = dgl_batch(sample)
        return input_nodes, seed_nodes, blocks

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
        Outermost layer first; −1 takes all.
    edge_dir : {"in"}
        Graphs are stored by destination.
    prob : str, optional
        Column of the graph's edges that neighbours are chosen in proportion to; with a dataset in the place of the
        graph, its edge weights.
    mask : str, optional
        Column of booleans: edges that may be chosen; in the same way.
    replace : bool
        Whether an edge can be drawn more than once.
    prefetch_node_feats, prefetch_labels, prefetch_edge_feats : list or dict
        See :class:`Sampler`.
    output_device : None
        Refused: ``device=`` of the loader says where batches are delivered.
    fused : bool
        Taken, and without effect.
    seed : int
        Of the random keys.
    """

    def __init__(
        self,
        fanouts: Sequence[Any],
        edge_dir: str = "in",
        prob: str | None = None,
        mask: str | None = None,
        replace: bool = False,
        prefetch_node_feats: Any = None,
        prefetch_labels: Any = None,
        prefetch_edge_feats: Any = None,
        output_device: None = None,
        fused: bool = True,
        *,
        seed: int = 0,
    ):
        if edge_dir != "in":
            raise ConfigError(f"edge_dir must be 'in': graphs are stored by destination (got {edge_dir!r})")
        if output_device is not None:
            raise ConfigError(f"output_device must be None: give device= to the loader (got {output_device!r})")
        if prob is not None and mask is not None:
            raise ConfigError("prob and mask must not be given together: multiply them")
        column = prob or mask
        inner = sampling.NeighborSampler(list(fanouts), replace=replace, edge_ids=True, weights=column is not None)
        super().__init__(
            inner,
            seed=seed,
            prefetch_node_feats=prefetch_node_feats,
            prefetch_labels=prefetch_labels,
            prefetch_edge_feats=prefetch_edge_feats,
            prob=column,
        )


#: DGL's older name of the same.
MultiLayerNeighborSampler = NeighborSampler


class MultiLayerFullNeighborSampler(NeighborSampler):
    """All neighbours in every layer, with the arguments of ``dgl.dataloading.MultiLayerFullNeighborSampler``.

    Parameters
    ----------
    num_layers : int
        Layers.
    **options
        See :class:`NeighborSampler`.
    """

    def __init__(self, num_layers: int, **options: Any):
        super().__init__([-1] * num_layers, **options)


def dgl_batch(sample: Sample) -> tuple[Any, list[Any]]:
    """Return the input nodes and blocks of a sample as DGL's samplers do: a tensor where there is one node type."""
    nodes: Any = sample.input_nodes
    return (next(iter(nodes.values())) if len(nodes) == 1 else nodes), to_dgl_blocks(sample)


def _by_type(graph: Any, ids: Any) -> dict[Any, Tensor]:
    if isinstance(ids, Mapping):
        return {tuple(graph.to_canonical_etype(etype)): value.long() for etype, value in ids.items()}
    return {tuple(graph.canonical_etypes[0]): ids.long()}


def wrap(sampler: Any, dataset: Dataset) -> Any:
    """Return a DGL sampler: DGL's own as it is, one of ours as :class:`Sampler` that asks for every feature and label."""
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
