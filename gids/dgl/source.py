"""What a dataset has for a DGL graph: tables on disk, labels in memory; and which seeds are meant."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gids.dataset import Dataset
from gids.dgl.sampler import DatasetGraph
from gids.errors import ConfigError
from gids.loader.feed import load_labels
from gids.loader.graph import on_host, resolve_seeds
from gids.runtime.backend import Backend
from gids.sampling import EdgeSeeds, TimedSeeds
from gids.table import RowTable
from gids.types import TableKey

#: Names under which a dataset's labels are found where the graph has no such column.
LABEL_NAMES = ("label", "labels", "y")


class Source:
    """Where the columns that a sampler asks for come from.

    Parameters
    ----------
    dataset : Dataset
        Whose tables and labels.
    graph : DGLGraph or DatasetGraph
        What is sampled from.
    """

    def __init__(self, dataset: Dataset, graph: Any):
        self.dataset, self.graph = dataset, graph
        self.tables: dict[TableKey, RowTable] = {}
        for ntype in dataset.node_types:
            self.tables |= {TableKey(ntype, n): dataset.feature_table(ntype, n) for n in dataset.feature_names(ntype)}
        for etype in dataset.edge_types:
            names = dataset.edge_feature_names(etype)
            self.tables |= {TableKey(etype, name): dataset.edge_feature_table(etype, name) for name in names}
        self._labels: dict[str, Tensor] = {}
        self._labelled = [t for t in dataset.node_types if dataset.manifest.nodes[t].labels is not None]
        for ntype in dataset.node_types:
            if ntype in graph.ntypes and graph.num_nodes(ntype) != dataset.num_nodes(ntype):
                raise ConfigError(
                    f"graph must have {dataset.num_nodes(ntype)} nodes of type {ntype!r} as the dataset has "
                    f"(got {graph.num_nodes(ntype)})"
                )

    def load_labels(self, backend: Backend) -> None:
        """Read the labels to where batches are delivered."""
        self._labels = backend.deliver_tensors(load_labels(self.dataset))

    @property
    def labels_bytes(self) -> int:
        """Memory of the labels."""
        return sum(labels.nbytes for labels in self._labels.values())

    def has(self, key: TableKey) -> bool:
        """Whether a column is served from here."""
        return key in self.tables or self.is_label(key)

    def is_label(self, key: TableKey) -> bool:
        """Whether a column is the labels of a node type, which the graph does not have itself."""
        if key.is_edge or key.name not in LABEL_NAMES or key.type not in self._labelled:
            return False
        return not self._graph_has(key)

    def _graph_has(self, key: TableKey) -> bool:
        frames = getattr(self.graph, "_node_frames", None)
        return frames is not None and key.name in frames[self.graph.get_ntype_id(key.type)]

    def labels(self, key: TableKey, ids: Tensor) -> Tensor:
        """Return the labels of nodes."""
        assert isinstance(key.type, str)
        labels = self._labels[key.type]
        return labels[ids.to(labels.device, torch.int64)]

    def say_what_to_prefetch(self) -> None:
        """Raise, or warn where the graph has the features itself, because the sampler asks the dataset for nothing."""
        node_names = sorted({key.name for key in self.tables if not key.is_edge})
        edge_names = sorted({key.name for key in self.tables if key.is_edge})
        adding = [f"prefetch_node_feats={node_names}"] if node_names else []
        adding += ["prefetch_labels=['label']"] if self._labelled else []
        adding += [f"prefetch_edge_feats={edge_names}"] if edge_names else []
        message = (
            "gids= is set, but the sampler asks for nothing that the dataset has: blocks will come without features. "
            f"Give the sampler what to fetch, e.g. {', '.join(adding) or 'nothing, the dataset has no tables'}"
        )
        if any(not key.is_edge and key.type in self.graph.ntypes and self._graph_has(key) for key in self.tables):
            warnings.warn(message, stacklevel=2)
        else:
            raise ConfigError(message)


def resolve_indices(dataset: Dataset, graph: Any, indices: Any, edges: bool) -> Any:
    """Return what DGL's DataLoader takes for seeds that may be named as everywhere in gids.

    Parameters
    ----------
    dataset : Dataset
        Whose splits may be named.
    graph : DGLGraph or DatasetGraph
        Whose nodes or edges are meant; of other node types than the dataset's, ids are taken as they are.
    indices : str, Tensor, tuple, mapping, dataset of indices, or None
        As :func:`gids.loader.graph.resolve_seeds` means them. Where seeds are edges: ids or masks of edges, by type
        where there are several, None for all.
    edges : bool
        Whether seeds are edges.
    """
    if _is_index_dataset(indices):
        return indices
    if edges:
        found = _resolve_edges(graph, indices)
    else:
        strangers: dict[str, Any] = {}
        if isinstance(indices, Mapping):
            strangers = {
                t: on_host(ids) for t, ids in indices.items() if t not in dataset.node_types and t in graph.ntypes
            }
            indices = {ntype: ids for ntype, ids in indices.items() if ntype not in strangers}
        nothing_left = bool(strangers) and not len(indices)
        named = {} if nothing_left else resolve_seeds(dataset, indices, "indices")
        if isinstance(named, EdgeSeeds):
            raise ConfigError(
                "indices must be nodes or edge ids (got EdgeSeeds): use gids.dgl.as_edge_prediction_sampler"
            )
        if isinstance(named, TimedSeeds):
            raise ConfigError(
                "indices must be nodes or edge ids (got TimedSeeds): gids.Loader takes a gids.TemporalSampler"
            )
        found = named | strangers
    idtype, device = getattr(graph, "idtype", torch.int64), graph.device
    found = {type_: ids.to(device, idtype) for type_, ids in found.items()}
    single = len(graph.canonical_etypes if edges else graph.ntypes) == 1
    return next(iter(found.values())) if single else found


def _is_index_dataset(indices: Any) -> bool:
    """Whether seeds come in batches from a dataset of the user's, which DGL takes too."""
    return isinstance(indices, torch.utils.data.Dataset)


def _resolve_edges(graph: Any, indices: Any) -> dict[Any, Tensor]:
    if isinstance(graph, DatasetGraph):
        raise ConfigError("seeds can be edges only with a DGL graph (got a dataset): gids.Loader takes gids.EdgeSeeds")
    if indices is None:
        return {etype: torch.arange(graph.num_edges(etype)) for etype in graph.canonical_etypes}
    if isinstance(indices, tuple) and len(indices) == 2 and isinstance(indices[0], str | tuple):
        indices = {indices[0]: indices[1]}
    if isinstance(indices, str):
        raise ConfigError(f"indices must be ids or masks of edges: splits have nodes (got {indices!r})")
    if not isinstance(indices, Mapping):
        if len(graph.canonical_etypes) != 1:
            raise ConfigError(
                f"indices must be given by edge type where a graph has several (has {graph.canonical_etypes})"
            )
        indices = {graph.canonical_etypes[0]: indices}
    found = {}
    for etype, chosen in indices.items():
        count = graph.num_edges(etype)
        ids = torch.arange(count) if chosen is None else on_host(chosen)
        if ids.dtype == torch.bool:
            if len(ids) != count:
                raise ConfigError(
                    f"mask of indices must have {count} entries, one per edge of {etype!r} (got {len(ids)})"
                )
            ids = ids.nonzero().flatten()
        if len(ids) and not (int(ids.min()) >= 0 and int(ids.max()) < count):
            raise ConfigError(
                f"indices must be in [0, {count}) for {etype!r} (got {int(ids.min())} to {int(ids.max())})"
            )
        found[etype] = ids
    return found
