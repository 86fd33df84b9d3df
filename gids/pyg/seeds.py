"""What a mini-batch of PyG begins with: nodes, or edges with their negatives; a function of positions and a key."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch_geometric.sampler import NegativeSampling

from gids import _native
from gids.dataset import Dataset
from gids.dataset.rows import as_tensor, read_rows
from gids.errors import ConfigError
from gids.loader.epochs import describe_ids
from gids.loader.graph import Seeds as NamedSeeds
from gids.loader.graph import on_host, resolve_seeds
from gids.sampling import EdgeType, SampleKey, TimedSeeds
from gids.sampling.times import draw_causal

#: Draws are taken from so many values where nodes have weights: as many as a double tells apart.
_FINE = 1 << 53


@dataclass(frozen=True)
class Start:
    """Where one batch begins.

    Attributes
    ----------
    nodes : dict of str to Tensor[int64]
        Nodes by type; distinct, unless neighbourhoods are disjoint.
    attributes : dict of (node or edge type) to dict of str to Tensor or int
        What the mini-batch says about them, by the type whose store says it.
    times : dict of str to Tensor[int64], optional
        When each of the nodes is asked about.
    trees : int
        Where several disjoint neighbourhoods belong to one example: examples of the batch; else 0.
    """

    nodes: dict[str, Tensor]
    attributes: dict[Any, dict[str, Any]]
    times: dict[str, Tensor] | None = None
    trees: int = 0


class Inputs(Protocol):
    """All that an epoch begins with."""

    @property
    def positions(self) -> dict[str, Tensor]:
        """One number for every seed, by node type: what is shuffled and cut into batches."""

    @property
    def nodes(self) -> dict[str, Tensor]:
        """All nodes that sampling begins at, by type."""

    @property
    def times(self) -> Tensor | None:
        """Times of the seeds, where they were given."""

    @property
    def origins(self) -> dict[str, Tensor]:
        """The node whose part a seed belongs to, one for each position, by node type."""

    def describe(self) -> dict[str, Any]:
        """Return what tells them from others: loaders of the same seeds resume each other's epochs."""

    def start(self, positions: Mapping[str, Tensor], key: SampleKey) -> Start:
        """Return the beginning of the batch of ``positions``; ``key`` decides what is drawn."""


class NodeInputs:
    """Nodes, as ``input_nodes`` of PyG's NeighborLoader.

    Parameters
    ----------
    dataset : Dataset
        The graph.
    input_nodes : str, Tensor, tuple, mapping or None
        As :func:`gids.loader.graph.resolve_seeds` means them; also the name of a node type: all of its nodes.
    input_id : Tensor, optional
        Names of the seeds.
    input_time : Tensor, optional
        Times of the seeds.
    """

    def __init__(
        self,
        dataset: Dataset,
        input_nodes: NamedSeeds,
        input_id: Tensor | None = None,
        input_time: Tensor | None = None,
    ):
        if isinstance(input_nodes, str) and input_nodes in dataset.node_types:
            with_split = [ntype for ntype in dataset.node_types if input_nodes in dataset.split_names(ntype)]
            input_nodes = input_nodes if with_split else (input_nodes, None)
        found = resolve_seeds(dataset, input_nodes, "input_nodes")
        if isinstance(found, TimedSeeds):
            raise ConfigError("input_nodes must be nodes (got TimedSeeds): give their times as input_time=")
        if not isinstance(found, dict):
            raise ConfigError("input_nodes must be nodes (got edges): use gids.pyg.LinkNeighborLoader")
        self.nodes = found
        if input_id is not None:
            if len(found) != 1 or len(input_id) != len(next(iter(found.values()))):
                raise ConfigError("input_id must have one entry for every seed, of one node type")
            input_id = input_id.cpu()
        self._input_id = input_id
        if input_time is not None:
            if len(found) != 1 or len(input_time) != len(next(iter(found.values()))):
                raise ConfigError("input_time must have one entry for every seed, of one node type")
            input_time = on_host(input_time).to(torch.int64)
        self._input_time = input_time

    @property
    def times(self) -> Tensor | None:
        """Times of the seeds, as given."""
        return self._input_time

    @property
    def origins(self) -> dict[str, Tensor]:
        """The seeds themselves."""
        return self.nodes

    def describe(self) -> dict[str, Any]:
        """Return the seeds, in their order, and their times, as digests."""
        return describe_ids({**self.nodes, **({} if self.times is None else {"times": self.times})})

    @property
    def positions(self) -> dict[str, Tensor]:
        """Positions among the given seeds."""
        return {ntype: torch.arange(len(ids)) for ntype, ids in self.nodes.items()}

    def start(self, positions: Mapping[str, Tensor], key: SampleKey) -> Start:
        """Return the nodes; a batch says in ``input_id`` which of the seeds it holds, in ``batch_size`` how many."""
        names = {t: chosen if self._input_id is None else self._input_id[chosen] for t, chosen in positions.items()}
        attributes = {t: {"input_id": names[t], "batch_size": len(chosen)} for t, chosen in positions.items()}
        times = None
        if self._input_time is not None:
            times = {t: self._input_time[chosen] for t, chosen in positions.items()}
            for ntype, moments in times.items():
                attributes[ntype]["seed_time"] = moments
        return Start({t: self.nodes[t][chosen] for t, chosen in positions.items()}, attributes, times)


@dataclass
class LinkInputs:
    """Edges, as ``edge_label_index`` of PyG's LinkNeighborLoader, with labels and negatives as there.

    Attributes
    ----------
    etype : EdgeType
        Their type.
    source, destination : Tensor[int64]
        Ends of the edges.
    label : Tensor, optional
        Labels of the edges.
    negatives : NegativeSampling, optional
        What to draw beside them.
    num_nodes : mapping of str to int
        Nodes by type, to draw from.
    disjoint : bool
        Whether the ends of every edge have neighbourhoods of their own.
    time : Tensor[int64], optional
        When each edge is asked about.
    node_times : mapping of str to Tensor[int64]
        When nodes came to be, by type: negatives of an edge existed at its time, where this is known.
    """

    etype: EdgeType
    source: Tensor
    destination: Tensor
    label: Tensor | None
    negatives: NegativeSampling | None
    num_nodes: Mapping[str, int]
    disjoint: bool = False
    time: Tensor | None = None
    node_times: Mapping[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.negatives is None or self.label is None:
            return
        if self.negatives.is_triplet():
            raise ConfigError(
                "edge_label must be None with triplets: src_index, dst_pos_index and dst_neg_index tell them apart"
            )
        if len(self.label) and int(self.label.min()) == 0:
            self.label = self.label + 1  # 0 means negative from here on, as in PyG

    @property
    def positions(self) -> dict[str, Tensor]:
        """Positions among the given edges."""
        return {"edges": torch.arange(len(self.source))}

    @property
    def times(self) -> Tensor | None:
        """Times of the edges, as given."""
        return self.time

    @property
    def origins(self) -> dict[str, Tensor]:
        """The sources of the edges."""
        return {self.etype[0]: self.source}

    def describe(self) -> dict[str, Any]:
        """Return the edges, in their order, and their times, as digests; their type, and what is drawn beside them."""
        times = {} if self.time is None else {"times": self.time}
        ends = describe_ids({"src": self.source, "dst": self.destination} | times)
        return ends | {"etype": str(self.etype), "negatives": str(self.negatives)}

    @property
    def nodes(self) -> dict[str, Tensor]:
        """Both ends of all edges."""
        return _distinct(self.etype, self.source, self.destination)[0]

    def start(self, positions: Mapping[str, Tensor], key: SampleKey) -> Start:
        """Return both ends of the edges of a batch and of their negatives; numbers are positions among the nodes."""
        chosen = positions["edges"]
        source, destination = self.source[chosen], self.destination[chosen]
        label = None if self.label is None else self.label[chosen]
        moments = None if self.time is None else self.time[chosen]
        count, drawn = len(chosen), 0
        if self.negatives is not None:
            drawn = math.ceil(count * self.negatives.amount)
            away = self._draw(drawn, self.etype[2], self.negatives.dst_weight, key, 0, moments)
            destination = torch.cat([destination, away])
            if self.negatives.is_binary():
                weight = self.negatives.src_weight
                source = torch.cat([source, self._draw(drawn, self.etype[0], weight, key, drawn, moments)])
                label = torch.ones(count) if label is None else label
                label = torch.cat([label, label.new_zeros(drawn, *label.shape[1:])])
        number = _apart if self.disjoint else _distinct
        nodes, src, dst = number(self.etype, source, destination)
        about: dict[Any, dict[str, Any]] = {self.etype: {"input_id": chosen}}
        times = None
        if moments is not None:
            if self.negatives is None or self.negatives.is_binary():
                about[self.etype]["edge_label_time"] = _repeated(moments, len(source))
            else:
                about |= {ntype: {"seed_time": moments} for ntype in (self.etype[0], self.etype[2])}
            ends = {self.etype[0]: _repeated(moments, len(source))}
            again = _repeated(moments, len(destination))
            ends[self.etype[2]] = torch.cat([ends[self.etype[0]], again]) if self._one_type else again
            times = ends
        if self.negatives is not None and self.negatives.is_triplet():
            about.setdefault(self.etype[0], {})["src_index"] = src
            about_ends = about.setdefault(self.etype[2], {})
            about_ends["dst_pos_index"] = dst[:count]
            away = dst[count:]
            if count:  # disjoint ones were drawn round after round over the edges
                away = away.view(-1, count).t() if self.disjoint else away.view(count, -1)
            about_ends["dst_neg_index"] = away.squeeze(-1) if count else away
        else:
            about[self.etype]["edge_label_index"] = torch.stack([src, dst])
            if label is not None:
                about[self.etype]["edge_label"] = label
        return Start(nodes, about, times, count if self.disjoint else 0)

    @property
    def _one_type(self) -> bool:
        return self.etype[0] == self.etype[2]

    def _draw(
        self, count: int, ntype: str, weight: Tensor | None, key: SampleKey, first: int, moments: Tensor | None
    ) -> Tensor:
        """Draw nodes with replacement; the two ends of a pair come from different parts of one random sequence.

        With times, the i-th one existed at the time of edge ``i % edges``.
        """
        if moments is not None and ntype in self.node_times and count:
            if weight is not None:
                raise ConfigError("neg_sampling must have no weights where nodes have times: that is not supported")
            until = _repeated(moments, count).numpy()
            drawn = draw_causal(self.node_times[ntype].numpy(), until, 1, key, first)
            return torch.from_numpy(drawn)
        available = self.num_nodes[ntype] if weight is None else _FINE
        if not count or not available:
            return torch.empty(0, dtype=torch.int64)
        drawn = _native.draw_negatives(first + count, 1, available, key.seed, key.epoch, key.batch)[first:]
        if weight is None:
            return torch.from_numpy(drawn.copy())
        running = np.cumsum(weight.cpu().double().numpy())
        places = np.searchsorted(running, drawn / _FINE * running[-1], side="right")
        return torch.from_numpy(np.minimum(places, len(running) - 1))


def _repeated(moments: Tensor, count: int) -> Tensor:
    """Return so many times, those of the edges over and over."""
    return moments.repeat(-(-count // max(len(moments), 1)))[:count]


def _apart(etype: EdgeType, source: Tensor, destination: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Return all ends by type, none shared, and the positions of sources and destinations there."""
    src, dst = torch.arange(len(source)), torch.arange(len(destination))
    if etype[0] == etype[2]:
        return {etype[0]: torch.cat([source, destination])}, src, dst + len(source)
    return {etype[0]: source, etype[2]: destination}, src, dst


def _distinct(etype: EdgeType, source: Tensor, destination: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Return the distinct ends by type, ascending as in PyG, and the positions of sources and destinations there."""
    if etype[0] == etype[2]:
        nodes, places = torch.unique(torch.cat([source, destination]), return_inverse=True)
        return {etype[0]: nodes}, places[: len(source)], places[len(source) :]
    sources, src = torch.unique(source, return_inverse=True)
    destinations, dst = torch.unique(destination, return_inverse=True)
    return {etype[0]: sources, etype[2]: destinations}, src, dst


def resolve_edges(dataset: Dataset, edge_label_index: Any) -> tuple[EdgeType, Tensor, Tensor]:
    """Return the edge type, sources and destinations that PyG's ``edge_label_index`` means.

    Parameters
    ----------
    dataset : Dataset
        The graph.
    edge_label_index : Tensor [2, n], edge type, tuple of (edge type or None, Tensor or None), or None
        Edges; without a tensor all edges of the type, by edge id.
    """
    etype, index = None, edge_label_index
    if isinstance(index, tuple) and len(index) == 3 and all(isinstance(part, str) for part in index):
        etype, index = index, None
    elif isinstance(index, tuple) and len(index) == 2 and (index[0] is None or isinstance(index[0], tuple)):
        etype, index = index
    if etype is None:
        if len(dataset.edge_types) != 1:
            raise ConfigError(f"edge_label_index must be (edge type, edges): the graph has {dataset.edge_types}")
        etype = dataset.edge_types[0]
    etype = tuple(etype)
    if etype not in dataset.edge_types:
        raise ConfigError(f"edge type of edge_label_index must be among {dataset.edge_types} (got {etype})")
    if index is None:
        return etype, *_all_edges(dataset, etype)
    ends = on_host(index)
    if ends.dim() != 2 or len(ends) != 2 or ends.dtype.is_floating_point:
        raise ConfigError(f"edge_label_index must be integers of shape [2, n] (got {ends.dtype}, {tuple(ends.shape)})")
    for side, ntype in ((ends[0], etype[0]), (ends[1], etype[2])):
        limit = dataset.num_nodes(ntype)
        if len(side) and not (int(side.min()) >= 0 and int(side.max()) < limit):
            raise ConfigError(
                f"edge_label_index must be in [0, {limit}) for {ntype!r} (got {int(side.min())} to {int(side.max())})"
            )
    return etype, ends[0].to(torch.int64).contiguous(), ends[1].to(torch.int64).contiguous()


def _all_edges(dataset: Dataset, etype: EdgeType) -> tuple[Tensor, Tensor]:
    table = dataset.indices_table(etype)
    source = as_tensor(table, read_rows(table)).to(torch.int64)
    degrees = torch.from_numpy(np.diff(dataset.indptr(etype)))
    destination = torch.repeat_interleave(torch.arange(len(degrees)), degrees)
    ids_table = dataset.edge_ids_table(etype)
    if ids_table is None:
        return source, destination
    by_id = torch.argsort(as_tensor(ids_table, read_rows(ids_table)))
    return source[by_id], destination[by_id]
