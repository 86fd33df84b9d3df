"""What others do on a graph of several node types: the peers of ``gids bench train`` there, with a map for each type."""

from __future__ import annotations

import abc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

import gids
from gids.bench.epoch_peers import MappedTable, Prepared, rows_by_threads, take_rows
from gids.bench.typed_graph import TARGET
from gids.sampling import NeighborSampler, Sample, SampleKey, SeedOrder, Topology
from gids.sampling.load import load_table


class TypedPeer(abc.ABC):
    """Seeds in the order of gids.Loader, and a map, or an array in memory, for each node type.

    Parameters
    ----------
    spec : dict
        ``data``, ``fanouts``, ``batch_size``, ``advice`` as in :class:`MappedTable`, and ``setting``: what it is tuned by.
    """

    #: Batches that are under way at once.
    under_way = 1

    def __init__(self, spec: dict[str, Any]):
        self.setting = int(spec["setting"])
        self.dataset = gids.open(spec["data"])
        self.fanouts, self.batch_size = spec["fanouts"], spec["batch_size"]
        self.train = self.dataset.split("train", TARGET)
        self.tables = {t: MappedTable(self.dataset, spec["advice"] or "random", t) for t in self.dataset.node_types}

    @abc.abstractmethod
    def prepared(self, epoch: int) -> Iterator[Prepared]:
        """Yield the batches of an epoch; rows are by type, seeds those of the type that has labels."""

    def order(self, epoch: int) -> SeedOrder:
        """Return the very order that gids.Loader uses."""
        return SeedOrder({TARGET: self.train}, batch_size=self.batch_size, seed=0, epoch=epoch)

    def seeds(self, epoch: int) -> Tensor:
        """Return all seeds of an epoch in their order."""
        order = self.order(epoch)
        return torch.cat([order[index].nodes[TARGET] for index in range(len(order))])

    def rest(self) -> None:
        """Unmap the pages."""
        for table in self.tables.values():
            table.rest()


class TypedLoop(TypedPeer):
    """Our sampler one batch ahead on a thread of its own, then ``index_select`` by ``setting`` threads."""

    def __init__(self, spec: dict[str, Any]):
        super().__init__(spec)
        self.topology, self.sampler = Topology.from_dataset(self.dataset), NeighborSampler(self.fanouts)
        self.ahead, self.pool = ThreadPoolExecutor(1), ThreadPoolExecutor(self.setting)

    def prepared(self, epoch: int) -> Iterator[Prepared]:
        """Yield the batches of an epoch."""
        order = self.order(epoch)

        def sampled(index: int) -> Sample:
            return self.sampler.sample(self.topology, order[index].nodes, SampleKey(0, epoch, index))

        coming = self.ahead.submit(sampled, 0)
        for index in range(len(order)):
            sample = coming.result()
            if index + 1 < len(order):
                coming = self.ahead.submit(sampled, index + 1)
            nodes = sample.input_nodes
            rows = {t: rows_by_threads(self.tables[t].rows, ids, self.pool, self.setting) for t, ids in nodes.items()}
            yield Prepared(nodes[TARGET], rows, sample.blocks, sample.seeds[TARGET])


class TypedDgl(TypedPeer):
    """DGL's DataLoader; ``setting`` worker processes sample and take the rows."""

    def __init__(self, spec: dict[str, Any]):
        import dgl

        if int(spec["setting"]):  # threads of OpenMP's do not survive the fork of a worker
            dgl.utils.set_num_threads(1)
        super().__init__(spec)
        self.under_way = max(1, self.setting)
        self.graph = typed_dgl_graph(self.dataset).formats("csc")
        tables, inner = self.tables, dgl.dataloading.NeighborSampler(self.fanouts, fused=False)

        class WithRows(dgl.dataloading.Sampler):  # type: ignore[misc] # DGL has no types
            def sample(self, graph: Any, seeds: Any) -> tuple[Any, dict[str, Tensor], Any, Any]:
                nodes, seeds, blocks = inner.sample(graph, seeds)
                return nodes, {t: take_rows(tables[t].rows, ids.long()) for t, ids in nodes.items()}, blocks, seeds

        self.with_rows = WithRows()

    def prepared(self, epoch: int) -> Iterator[Prepared]:
        """Yield the batches of an epoch."""
        import dgl

        loader = dgl.dataloading.DataLoader(
            self.graph,
            {TARGET: self.seeds(epoch).to(self.graph.idtype)},
            self.with_rows,
            batch_size=self.batch_size,
            shuffle=False,
            num_workers=self.setting,
        )
        for nodes, rows, blocks, seeds in loader:
            yield Prepared(nodes[TARGET].long(), rows, blocks, seeds[TARGET].long())


class TypedPyg(TypedPeer):
    """PyG's NodeLoader with ``x`` a map; gids samples, as pyg-lib cannot be installed everywhere."""

    def __init__(self, spec: dict[str, Any]):
        from torch_geometric.data import HeteroData

        from gids.pyg import NeighborSampler as PygSampler

        super().__init__(spec)
        self.under_way = max(1, self.setting)
        self.data = HeteroData()
        for ntype, table in self.tables.items():
            self.data[ntype].x = table.rows
        for etype in self.dataset.edge_types:  # the graph is the sampler's; PyG wants to see an edge_index to fill
            self.data[etype].edge_index = torch.empty(2, 0, dtype=torch.int64)
        self.sampler = PygSampler(self.dataset, self.fanouts[::-1])

    def prepared(self, epoch: int) -> Iterator[Prepared]:
        """Yield the batches of an epoch."""
        from torch_geometric.loader import NodeLoader

        loader = NodeLoader(
            self.data,
            self.sampler,
            input_nodes=(TARGET, self.seeds(epoch)),
            batch_size=self.batch_size,
            shuffle=False,
            num_workers=self.setting,
            filter_per_worker=self.setting > 0,
        )
        for batch in loader:
            of_target = batch[TARGET]
            yield Prepared(of_target.n_id, batch.x_dict, batch.edge_index_dict, of_target.n_id[: of_target.batch_size])


def typed_dgl_graph(dataset: gids.Dataset) -> Any:
    """Return the dataset's graph as DGL's, in the types that it has on disk."""
    import dgl

    edges = {}
    for etype in dataset.edge_types:
        sources = torch.from_numpy(load_table(dataset.indices_table(etype)))
        indptr = torch.from_numpy(dataset.indptr(etype).copy()).to(sources.dtype)
        edges[etype] = ("csc", (indptr, sources, torch.empty(0, dtype=sources.dtype)))
    return dgl.heterograph(edges, num_nodes_dict={t: dataset.num_nodes(t) for t in dataset.node_types})


#: Door -> the class, what its setting is called, and the settings that are tried.
TYPED_PEERS: dict[str, tuple[type[TypedPeer], str, tuple[int, ...]]] = {
    "plain": (TypedLoop, "threads", (4, 16, 32)),
    "dgl": (TypedDgl, "workers", (0, 4)),
    "pyg": (TypedPyg, "workers", (0, 4)),
}
