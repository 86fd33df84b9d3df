"""A NeighborLoader for PyG whose features stay on disk: the same mini-batches, sampled and read ahead by gids."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from gids._native import ThreadPool
from gids.dataset import Dataset
from gids.errors import ConfigError
from gids.external import Options, Tables, node_and_edge_tables
from gids.loader import Fetched, SeedOrder, Work
from gids.loader.batch import tensor_bytes
from gids.loader.seeds import SeedBatch
from gids.loader.stats import TableStats
from gids.pyg.hops import HopSampler, Neighborhood, NumNeighbors
from gids.pyg.stores import attribute_names
from gids.sampling import SampleKey, Topology

#: PyG's name for edge features.
EDGE_ATTR = "edge_attr"


class NeighborLoader:
    """Yields ``Data`` or ``HeteroData`` mini-batches as ``torch_geometric.loader.NeighborLoader`` does.

    A batch has ``n_id``, ``e_id``, ``edge_index``, ``x``, ``y``, ``batch_size``, ``input_id``, ``num_sampled_nodes``,
    ``num_sampled_edges``, ``edge_attr`` where asked for, and other feature tables under their names. Batch ``b`` of epoch ``e`` is a function
    of ``(seed, e, b)`` and of the dataset alone.

    Parameters
    ----------
    data : Dataset, path or Options
        The graph, and how its features are read.
    num_neighbors : sequence of int, or mapping of edge type to sequence of int
        Neighbours per hop, nearest first; −1 takes all.
    input_nodes : str, Tensor or tuple of (node type, str or Tensor)
        Seeds: the name of a split, node ids, or a mask; with the node type on a heterogeneous graph.
    batch_size, shuffle, drop_last : int, bool, bool
        As in PyG.
    replace : bool
        Whether an edge can be drawn more than once.
    edge_features : bool
        Whether to fetch edge features too.
    transform : callable, optional
        Applied to every mini-batch.
    seed : int
        Of order and samples.
    rank, world_size : int
        Part of the seeds that this process gets.
    """

    def __init__(
        self,
        data: Dataset | str | os.PathLike[str] | Options,
        num_neighbors: NumNeighbors,
        input_nodes: str | Tensor | tuple[str, str | Tensor] = "train",
        *,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        replace: bool = False,
        edge_features: bool = False,
        transform: Callable[[Any], Any] | None = None,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ):
        options = data if isinstance(data, Options) else Options(data)
        self.dataset = options.open()
        self.transform = transform
        self._hops = HopSampler(num_neighbors, replace=replace)
        self._topology = Topology.from_dataset(self.dataset)
        self._labels = {t: labels for t in self.dataset.node_types if (labels := self.dataset.labels(t)) is not None}
        self._ntype, self._nodes = _resolve(self.dataset, input_nodes)
        # Positions in input_nodes are what is shuffled: a batch says in input_id which of them it holds.
        self._seed, self._epoch = seed, 0
        self._order = {"batch_size": batch_size, "shuffle": shuffle, "drop_last": drop_last, "seed": seed}
        self._order |= {"rank": rank, "world_size": world_size}
        known = node_and_edge_tables(self.dataset)
        self._node_names = {ntype: attribute_names(self.dataset, ntype) for ntype in self.dataset.node_types}
        self._edge_names = {
            e: self.dataset.edge_feature_names(e) if edge_features else [] for e in self.dataset.edge_types
        }
        self._tables = Tables(known, options)
        self._pool = ThreadPool(options.threads or torch.get_num_threads(), "gids-pyg")
        self._run: weakref.ref[Any] | None = None
        self._hetero = len(self.dataset.node_types) > 1 or len(self.dataset.edge_types) > 1

    def set_epoch(self, epoch: int) -> None:
        """Choose which epoch the next iteration is; without it they count up."""
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self._batches(0))

    def _batches(self, epoch: int) -> SeedOrder:
        return SeedOrder(torch.arange(len(self._nodes)), epoch=epoch, **self._order)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        """Begin an epoch; one that is still under way ends."""
        self._end_run()
        epoch, self._epoch = self._epoch, self._epoch + 1
        order = self._batches(epoch)
        works = (self._sample(order[index], epoch) for index in range(len(order)))
        run = self._tables.run(works, self._finish, here=False)
        self._run = weakref.ref(run)
        return run

    def _sample(self, batch: SeedBatch, epoch: int) -> Work:
        (input_id,) = batch.nodes.values()
        key = SampleKey(self._seed, epoch, batch.global_index)
        found = self._hops.sample(self._topology, {self._ntype: self._nodes[input_id]}, key, self._pool)
        rows: dict[Any, Tensor] = {}
        for ntype, names in self._node_names.items():
            rows |= {("node", ntype, name): found.node[ntype] for name in names.values()}
        for etype, edge_names in self._edge_names.items():
            rows |= {("edge", etype, name): found.edge[etype] for name in edge_names}
        return Work((input_id, found), rows, tensor_bytes(found))

    def _finish(self, fetched: Fetched) -> Any:
        input_id, found = fetched.work.payload
        data = self._hetero_data(found, fetched.rows) if self._hetero else self._data(found, fetched.rows)
        seeds = data[self._ntype] if self._hetero else data
        seeds.input_id, seeds.batch_size = input_id, len(input_id)
        return data if self.transform is None else self.transform(data)

    def _data(self, found: Neighborhood, rows: Mapping[Any, Tensor]) -> Data:
        (ntype,), (etype,) = found.node, found.row
        data = Data(edge_index=torch.stack([found.row[etype], found.col[etype]]))
        self._fill(data, ntype, found, rows)
        self._fill_edges(data, etype, found, rows)
        data.num_sampled_nodes = found.num_sampled_nodes[ntype]
        data.num_sampled_edges = found.num_sampled_edges[etype]
        return data

    def _hetero_data(self, found: Neighborhood, rows: Mapping[Any, Tensor]) -> HeteroData:
        data = HeteroData()
        for ntype in found.node:
            self._fill(data[ntype], ntype, found, rows)
        for etype in found.row:
            data[etype].edge_index = torch.stack([found.row[etype], found.col[etype]])
            self._fill_edges(data[etype], etype, found, rows)
        data.set_value_dict("num_sampled_nodes", found.num_sampled_nodes)
        data.set_value_dict("num_sampled_edges", found.num_sampled_edges)
        return data

    def _fill(self, store: Any, ntype: str, found: Neighborhood, rows: Mapping[Any, Tensor]) -> None:
        store.n_id = found.node[ntype]
        store.num_nodes = len(found.node[ntype])
        for attribute, name in self._node_names[ntype].items():
            store[attribute] = rows["node", ntype, name]
        if ntype in self._labels:
            store.y = self._labels[ntype][found.node[ntype]]

    def _fill_edges(self, store: Any, etype: Any, found: Neighborhood, rows: Mapping[Any, Tensor]) -> None:
        store.e_id = found.edge[etype]
        for name in self._edge_names[etype]:
            store[EDGE_ATTR if name == "feat" else name] = rows["edge", etype, name]

    def stats(self) -> dict[str, TableStats]:
        """Tell for every table where its rows came from so far."""
        return self._tables.stats()

    def close(self) -> None:
        """End the epoch that is under way and give files and memory back; the loader can still be iterated."""
        self._end_run()
        self._tables.close()

    def _end_run(self) -> None:
        run = self._run() if self._run is not None else None
        if run is not None:
            run.close()


def _resolve(dataset: Dataset, input_nodes: str | Tensor | tuple[str, str | Tensor]) -> tuple[str, Tensor]:
    """Give the node type of the seeds and their ids."""
    if isinstance(input_nodes, tuple):
        ntype, chosen = input_nodes
    elif len(dataset.node_types) == 1:
        ntype, chosen = dataset.node_types[0], input_nodes
    elif isinstance(input_nodes, str):
        having = [t for t in dataset.node_types if input_nodes in dataset.split_names(t)]
        if len(having) != 1:
            raise ConfigError(f"input_nodes must be (node type, split): {having or 'no type'} has {input_nodes!r}")
        ntype, chosen = having[0], input_nodes
    else:
        raise ConfigError("input_nodes must be (node type, ids) on a heterogeneous graph (got ids alone)")
    if isinstance(chosen, str):
        return ntype, dataset.split(chosen, ntype)
    ids = chosen.nonzero().flatten() if chosen.dtype == torch.bool else chosen.to(torch.int64)
    if len(ids) and not (int(ids.min()) >= 0 and int(ids.max()) < dataset.num_nodes(ntype)):
        limit = dataset.num_nodes(ntype)
        raise ConfigError(f"input_nodes must be in [0, {limit}) (got {int(ids.min())} to {int(ids.max())})")
    return ntype, ids
