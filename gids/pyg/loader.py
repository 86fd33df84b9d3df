"""PyG's NeighborLoader and LinkNeighborLoader with features on disk: their arguments, translated for the runtime."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace as replaced
from typing import Any

import torch
from torch import Tensor
from torch_geometric.sampler import NegativeSampling
from torch_geometric.sampler.base import NumNeighbors as PygNumNeighbors

from gids._native import ThreadPool
from gids.dataset import Dataset
from gids.dataset.packed import Packed
from gids.errors import ConfigError
from gids.loader.beyond import PackedFirst
from gids.loader.epochs import describe_arrangement
from gids.loader.feed import SeedsOfEpoch
from gids.loader.graph import Features, Seeds, arrangement_of, as_dataset, feature_tables, on_host
from gids.loader.history import choose_candidates, make_history
from gids.loader.packed import PackedFeed, PackedPiece, as_packed, check_identity
from gids.pyg.builder import DataBuilder, WantedRows
from gids.pyg.feed import PygFeed, every_table, followed_hops
from gids.pyg.hops import ByTime, HistoryHops, HopSampler, NumNeighbors, Subgraph, reverse_type
from gids.pyg.keywords import TorchKeywords, refuse, subgraph_of
from gids.pyg.packed import StoredHops
from gids.pyg.seeds import Inputs, LinkInputs, NodeInputs, resolve_edges
from gids.pyg.stores import FeatureStore
from gids.runtime.backend import Backend
from gids.runtime.options import (
    MemoryOptions,
    OrderOptions,
    OutputOptions,
    PipelineOptions,
    RuntimeOptions,
    SpillOptions,
)
from gids.runtime.peers import Sharding
from gids.sampling import SeedOrder
from gids.sampling.order import check_order
from gids.sampling.times import node_time_table, read_times
from gids.storage import StorageOptions
from gids.types import EdgeType, TableKey


class HopLoader(PackedFirst[Any]):
    """What PyG's neighbour loaders share; use :class:`NeighborLoader` or :class:`LinkNeighborLoader`.

    Parameters
    ----------
    dataset : Dataset
        The graph.
    inputs : Inputs
        What batches begin with.
    hops : HopSampler
        Samples neighbourhoods.
    batch_size, shuffle, drop_last, seed
        Decide the batches.
    features, transform, transform_sampler_output
        See :class:`NeighborLoader`.
    order : OrderOptions, optional
        Which part of the seeds is ours, by default all of them, and which of them meet in a batch.
    packed : Packed or path-like, optional
        See :class:`NeighborLoader`.
    options : RuntimeOptions
        Everything else.
    """

    def __init__(
        self,
        dataset: Dataset,
        inputs: Inputs,
        hops: HopSampler,
        *,
        batch_size: int,
        shuffle: bool,
        drop_last: bool,
        seed: int,
        features: Features,
        transform: Callable[[Any], Any] | None,
        transform_sampler_output: Callable[[Any], Any] | None,
        order: OrderOptions | None,
        packed: Packed | str | os.PathLike[str] | None,
        options: RuntimeOptions,
    ):
        self.packed = None if packed is None else as_packed(packed)
        self.dataset, self.transform = dataset, transform
        self.inputs, self.hops = inputs, hops
        self._transform_sampler_output = transform_sampler_output
        self.tables = _tables(dataset, features, hops.subgraph)
        # PyG's scripts cut the seeds for every rank themselves: nothing is shared out unless that is asked for.
        rank, world_size = (0, 1) if order is None else order.resolved()
        if order is not None:
            order.check_keywords()
        uneven = "pad" if order is None else order.uneven
        check_order(batch_size=batch_size, rank=rank, world_size=world_size, uneven=uneven)
        self._order = {
            "batch_size": batch_size,
            "seed": seed,
            "shuffle": shuffle,
            "drop_last": drop_last or (order is not None and order.drop_last),
            "rank": rank,
            "world_size": world_size,
            "uneven": uneven,
        }
        self._arrangement = arrangement_of(dataset, order, inputs.origins)
        self.options = options
        self._begin()
        if self.packed is not None:
            self._check_packed(self.packed)
        history = options.memory.history
        if history is not None:
            settings: dict[str, Any] = self._order | {"rank": 0, "world_size": 1}
            nodes = SeedOrder(inputs.nodes, arrangement=self._arrangement, **settings)
            history = self._with_nodes(history, dataset, inputs.nodes, hops.by_hop[::-1], nodes)
            candidates = choose_candidates(dataset, history, inputs.nodes, hops.by_hop[0])
            self.hops = HistoryHops(hops, candidates, history.max_age)
            self.history = make_history(candidates, history, options)
            self.options = replaced(options, embeddings_bytes=self.history.bytes)
        self._chosen = self.options
        self._open()

    def check_packable(self) -> None:
        """Refuse what makes batches more than a function of the graph, the seeds and their number."""
        if self.options.memory.history is not None:
            raise ConfigError("history must be None with packed epochs: what it leaves out depends on training")
        if self._transform_sampler_output is not None:
            raise ConfigError("transform_sampler_output must be None with packed epochs: transform may be given")

    def _check_packed(self, packed: Packed) -> None:
        """Refuse packed epochs that are not what the other arguments ask for."""
        self.check_packable()
        identity = self.packed_identity()
        check_identity(packed, self.dataset, identity, identity["door"])
        if set(packed.tables) != set(self.tables):
            raise ConfigError(
                f"features must be {list(map(str, packed.tables))}, as they were packed (got {list(map(str, self.tables))})"
            )

    def packed_identity(self) -> dict[str, Any]:
        """Return what decides the batches of all ranks, and which loader makes them."""
        found = {name: value for name, value in self._order_identity().items() if name != "rank"}
        return found | {"door": f"gids.pyg.{type(self).__name__}"}

    def pause(self, reason: str) -> None:
        """End a running epoch and give files, threads and memory back until the next one begins.

        Parameters
        ----------
        reason : str
            What an iteration that runs is told.
        """
        self._end_active(reason)
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            runtime.close()

    @property
    def world_size(self) -> int:
        """Ranks that share the seeds."""
        return int(self._order["world_size"])

    def order(self, epoch: int, rank: int | None = None) -> SeedOrder:
        """Return the seeds of every batch of an epoch, as positions among the inputs.

        Parameters
        ----------
        epoch : int
            Its number.
        rank : int, optional
            Whose part; by default ours.
        """
        return self._batches(epoch, **({} if rank is None else {"rank": rank}))

    def __len__(self) -> int:
        """Batches of an epoch on this rank."""
        return len(self._batches(0))

    def _batches(self, epoch: int, **changed: int) -> SeedOrder:
        # Positions among the seeds are what is shuffled: a batch says in input_id which of them it holds.
        settings: dict[str, Any] = self._order | changed
        return SeedOrder(self.inputs.positions, epoch=epoch, arrangement=self._arrangement, **settings)

    def _make_feed(self, backend: Backend, pool: ThreadPool) -> PygFeed | PackedFeed:
        if self.packed is not None and self._stored_epoch is not None:
            wanted = WantedRows(self.dataset, self.tables, self.hops, is_changed=False)
            builder = DataBuilder(self.dataset, wanted, backend, self.options.output.labels, self.transform)
            stored = StoredHops(self.inputs, self.order, builder, self.options.seed)
            rank = int(self._order["rank"])
            return PackedFeed(self.packed, stored, backend, rank, self.world_size)
        return PygFeed(
            self.dataset,
            self.hops,
            self.inputs,
            tables=self.tables,
            profile=self._batches(0, rank=0, world_size=1),
            transform=self.transform,
            transform_sampler_output=self._transform_sampler_output,
            options=self.options,
            backend=backend,
            pool=pool,
        )

    def _pieces(self, indices: Sequence[int]) -> Iterator[SeedsOfEpoch] | Iterator[PackedPiece]:
        stored = self._stored_epoch
        if stored is not None:
            feed = self._open().feed
            assert isinstance(feed, PackedFeed)
            return feed.pieces(self._epoch, stored, indices)
        order, epoch = self._batches(self._epoch), self._epoch
        hops = followed_hops(self.hops, self.inputs, self._batches, self.options.seed)
        return (SeedsOfEpoch(order[index], epoch, hops) for index in indices)

    def _order_identity(self) -> dict[str, Any]:
        hops = f"{self.hops.by_hop}, replace={self.hops.replace}, weights={self.hops.weights}"
        hops += f", {self.hops.identity}" if isinstance(self.hops, HistoryHops) else ""
        trees = f"disjoint={self.hops.disjoint}, {self.hops.times}, {self.hops.subgraph}"
        made_by = {"seeds": self.inputs.describe(), "num_neighbors": hops, "trees": trees}
        return {"dataset": self.dataset.id} | made_by | self._order | describe_arrangement(self._arrangement)

    @property
    def notes(self) -> dict[str, str]:
        """Which storage engine each table got and why, and why a stage is not on the device."""
        found = super().notes
        if self.options.device is not None and self.options.device.type == "cuda":
            found["sampling"] = "on the CPU: neighbourhoods are sampled hop by hop"
        return found

    def __repr__(self) -> str:
        part = f", rank {self._order['rank']} of {self._order['world_size']}" if self._order["world_size"] != 1 else ""
        batches = f"{len(self)} batches of {self._order['batch_size']}"
        return f"{type(self).__name__}({str(self.dataset.path)!r}, {batches}{part})"


class NeighborLoader(HopLoader):
    """Yields ``Data`` or ``HeteroData`` mini-batches as ``torch_geometric.loader.NeighborLoader`` does.

    A batch has ``n_id``, ``e_id``, ``edge_index``, ``x``, ``y``, ``batch_size``, ``input_id``, ``num_sampled_nodes``,
    ``num_sampled_edges``, ``edge_attr`` where asked for, and other feature tables under their names. Batch ``b`` of
    epoch ``e`` is a function of ``(seed, e, b)`` and of the dataset alone.

    Parameters
    ----------
    data : Dataset, path-like, or (FeatureStore, GraphStore)
        What :func:`gids.open` returns, where it is, or the stores of :mod:`gids.pyg` of one.
    num_neighbors : sequence of int, or mapping of edge type to sequence of int
        Neighbours per hop, nearest first; −1 takes all.
    input_nodes : str, Tensor, tuple, mapping or None
        Seeds: the name of a split, a mask, node ids, any of those by node type or as ``(type, …)`` on a heterograph,
        the name of a node type, None for all nodes.
    input_time : Tensor, optional
        With ``time_attr``: when each seed is asked about; by default when its node came to be. A batch has them as
        ``seed_time``.
    replace : bool
        Whether an edge can be drawn more than once.
    subgraph_type : {"directional", "induced", "bidirectional"}
        The edges that were sampled; all edges of the graph between the nodes that were found; or those that were
        sampled, in both directions. The latter two have no ``num_sampled_nodes`` and ``num_sampled_edges``.
    disjoint : bool
        Whether every seed has a subgraph of its own; ``batch`` says whose each node is. Always so with ``time_attr``.
    temporal_strategy : {"uniform", "last"}
        With ``time_attr``: any of the edges that existed, or the latest ones.
    time_attr : str, optional
        Name of the feature tables (int64, dim 1) that say when nodes, or edges, came to be: no neighbour is from after
        its seed's time.
    weight_attr : str, optional
        Name of the edge weights that the dataset was converted from (``edge_weight``, ``weight`` or ``w``): neighbours
        are chosen in proportion to them.
    transform : callable, optional
        Applied to every mini-batch.
    transform_sampler_output : callable, optional
        Applied to the ``SamplerOutput`` of every batch before its rows are read, on the sampling thread.
    is_sorted, filter_per_worker : bool
        Taken, and without effect: a dataset is sorted, and there are no worker processes.
    neighbor_sampler : None
        Refused: PyG's NodeLoader takes samplers.
    directed : bool
        Deprecated in PyG: False stands for ``subgraph_type="induced"``.
    batch_size, shuffle, drop_last : int, bool, bool
        As in PyG.
    features : str, sequence of str, mapping of type to those, or None
        Feature tables to fetch, as in :class:`gids.Loader`; by default all of the nodes and of the edges, as in PyG.
    seed : int
        Of order and samples.
    budget : int or str, optional
        Memory for everything this loader holds, e.g. ``"2GiB"``; by default half of what is available.
    device : torch.device or str, optional
        Where mini-batches are delivered. With ``"cuda"`` their rows are planned, cached and gathered there.
    order : OrderOptions, optional
        Which part of the seeds is ours, by default all of them, as scripts for PyG cut them themselves; and which of them
        meet in a batch.
    memory : MemoryOptions, optional
        How the budget is used; a ``history`` needs two hops.
    pipeline : PipelineOptions, optional
        How far ahead of training to work.
    storage : StorageOptions or str, optional
        How to read; a string names the engine.
    output : OutputOptions, optional
        What a delivered batch is.
    shards : Shards, optional
        Feature tables are split over the nodes of a job (:class:`gids.Shards`): rows of other nodes come by the network.
    packed : Packed or path-like, optional
        What :func:`gids.pyg.pack` has made of a loader with these arguments: nothing is sampled, rows are read in order.
    spill : SpillOptions, int or str, optional
        Disk space, e.g. ``"64GiB"``, through which rows may go where that costs less, as in :class:`gids.Loader`.
    **keywords
        Of PyTorch's DataLoader: ``pin_memory``, ``in_order`` and PyG's ``input_id`` mean what they do there;
        ``num_workers``, ``persistent_workers`` and ``prefetch_factor`` are taken and change nothing, because batches
        are made on threads of this process; others are refused by name.
    """

    def __init__(
        self,
        data: Dataset | str | os.PathLike[str] | tuple[Any, Any],
        num_neighbors: NumNeighbors,
        input_nodes: Seeds = None,
        input_time: Tensor | None = None,
        replace: bool = False,
        subgraph_type: str = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        weight_attr: str | None = None,
        transform: Callable[[Any], Any] | None = None,
        transform_sampler_output: Callable[[Any], Any] | None = None,
        is_sorted: bool = False,
        filter_per_worker: bool | None = None,
        neighbor_sampler: None = None,
        directed: bool = True,
        *,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        features: Features = None,
        seed: int = 0,
        budget: int | str | None = None,
        device: torch.device | str | None = None,
        order: OrderOptions | None = None,
        memory: MemoryOptions | None = None,
        pipeline: PipelineOptions | None = None,
        storage: StorageOptions | str | None = None,
        output: OutputOptions | None = None,
        shards: Sharding | None = None,
        packed: Packed | str | os.PathLike[str] | None = None,
        spill: SpillOptions | int | str | None = None,
        **keywords: Any,
    ):
        refuse("neighbor_sampler", neighbor_sampler, "NeighborLoader")
        given = TorchKeywords.read(keywords, "NeighborLoader", pipeline, output)
        dataset = dataset_of(data)
        times = by_time(dataset, time_attr, temporal_strategy, input_time, "input_time")
        self._named_seeds = input_nodes if isinstance(input_nodes, str) else None
        super().__init__(
            dataset,
            NodeInputs(dataset, input_nodes, given.input_id, input_time),
            _hops(
                dataset,
                num_neighbors,
                replace,
                weight_attr,
                disjoint,
                times,
                subgraph_of(subgraph_type, directed),
            ),
            batch_size=batch_size,
            shuffle=shuffle,
            drop_last=drop_last,
            seed=seed,
            features=features,
            transform=transform,
            transform_sampler_output=transform_sampler_output,
            order=order,
            packed=packed,
            options=_options(budget, device, memory, given, storage, shards, seed, spill),
        )


class LinkNeighborLoader(HopLoader):
    """Yields mini-batches around edges as ``torch_geometric.loader.LinkNeighborLoader`` does.

    A batch has what those of :class:`NeighborLoader` have, ``edge_label_index`` and ``edge_label`` (or, for triplets,
    ``src_index``, ``dst_pos_index`` and ``dst_neg_index``) instead of ``batch_size``. Negatives are a function of
    ``(seed, epoch, batch)`` too.

    Parameters
    ----------
    data, num_neighbors
        See :class:`NeighborLoader`.
    edge_label_index : Tensor [2, n], edge type, tuple of (edge type, Tensor or None), or None
        Seed edges: as ends, or all edges of a type, or of the only type.
    edge_label : Tensor, optional
        Labels of the edges, one for each.
    edge_label_time : Tensor, optional
        With ``time_attr``, and then required: when each edge is asked about. Negatives existed at that time, where nodes
        have times.
    replace, subgraph_type, disjoint, temporal_strategy, time_attr
        See :class:`NeighborLoader`; with disjoint subgraphs ``batch`` names the edge that a node belongs to.
    neg_sampling : NegativeSampling, str, dict or None
        As in PyG: ``"binary"`` draws pairs of nodes, ``"triplet"`` destinations.
    neg_sampling_ratio : float, optional
        Deprecated in PyG: ``neg_sampling=dict(mode="binary", amount=ratio)``.
    weight_attr, transform, transform_sampler_output, is_sorted, filter_per_worker, neighbor_sampler, directed
        See :class:`NeighborLoader`.
    batch_size, shuffle, drop_last, features, seed
        See :class:`NeighborLoader`; ``batch_size`` counts edges without their negatives.
    budget, device, order, memory, pipeline, storage, output, shards, packed, spill
        See :class:`NeighborLoader`.
    **keywords
        See :class:`NeighborLoader`.
    """

    def __init__(
        self,
        data: Dataset | str | os.PathLike[str] | tuple[Any, Any],
        num_neighbors: NumNeighbors,
        edge_label_index: Any = None,
        edge_label: Tensor | None = None,
        edge_label_time: Tensor | None = None,
        replace: bool = False,
        subgraph_type: str = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        neg_sampling: Any = None,
        neg_sampling_ratio: float | None = None,
        time_attr: str | None = None,
        weight_attr: str | None = None,
        transform: Callable[[Any], Any] | None = None,
        transform_sampler_output: Callable[[Any], Any] | None = None,
        is_sorted: bool = False,
        filter_per_worker: bool | None = None,
        neighbor_sampler: None = None,
        directed: bool = True,
        *,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        features: Features = None,
        seed: int = 0,
        budget: int | str | None = None,
        device: torch.device | str | None = None,
        order: OrderOptions | None = None,
        memory: MemoryOptions | None = None,
        pipeline: PipelineOptions | None = None,
        storage: StorageOptions | str | None = None,
        output: OutputOptions | None = None,
        shards: Sharding | None = None,
        packed: Packed | str | os.PathLike[str] | None = None,
        spill: SpillOptions | int | str | None = None,
        **keywords: Any,
    ):
        refuse("neighbor_sampler", neighbor_sampler, "LinkNeighborLoader")
        given = TorchKeywords.read(keywords, "LinkNeighborLoader", pipeline, output)
        if memory is not None and memory.history is not None:
            raise ConfigError("history must be None: embeddings are kept for node seeds, see NeighborLoader")
        if given.input_id is not None:
            raise ConfigError("input_id must be None: batches of links say in input_id which of the edges they hold")
        dataset = dataset_of(data)
        if neg_sampling_ratio:
            neg_sampling = NegativeSampling("binary", neg_sampling_ratio)
        etype, source, destination = resolve_edges(dataset, edge_label_index)
        if edge_label is not None and len(edge_label) != len(source):
            raise ConfigError(f"edge_label must have {len(source)} entries, one per edge (got {len(edge_label)})")
        times = by_time(dataset, time_attr, temporal_strategy, edge_label_time, "edge_label_time")
        if edge_label_time is not None and len(edge_label_time) != len(source):
            raise ConfigError(
                f"edge_label_time must have {len(source)} entries, one per edge (got {len(edge_label_time)})"
            )
        if times is not None and edge_label_time is None:
            raise ConfigError(
                "edge_label_time must be given with time_attr: edges are asked about at a time (got None)"
            )
        links = LinkInputs(
            etype,
            source,
            destination,
            None if edge_label is None else edge_label.cpu(),
            NegativeSampling.cast(neg_sampling),
            {ntype: dataset.num_nodes(ntype) for ntype in dataset.node_types},
            disjoint or times is not None,
            None if edge_label_time is None else on_host(edge_label_time).to(torch.int64),
            {} if times is None else node_times(dataset, times),
        )
        super().__init__(
            dataset,
            links,
            _hops(
                dataset,
                num_neighbors,
                replace,
                weight_attr,
                disjoint,
                times,
                subgraph_of(subgraph_type, directed),
            ),
            batch_size=batch_size,
            shuffle=shuffle,
            drop_last=drop_last,
            seed=seed,
            features=features,
            transform=transform,
            transform_sampler_output=transform_sampler_output,
            order=order,
            packed=packed,
            options=_options(budget, device, memory, given, storage, shards, seed, spill),
        )


def dataset_of(data: Any) -> Dataset:
    """Return the dataset that a loader is given: opened, by its path, or behind our stores."""
    if isinstance(data, tuple) and len(data) == 2 and isinstance(data[0], FeatureStore):
        return data[0].dataset
    return as_dataset(data)


def by_time(
    dataset: Dataset, time_attr: str | None, strategy: str, seed_times: Tensor | None, name: str
) -> ByTime | None:
    """Return what sampling by time looks at, as PyG decides it: a table of the nodes, else of the edges."""
    if strategy not in ("uniform", "last"):
        raise ConfigError(f"temporal_strategy must be 'uniform' or 'last' (got {strategy!r})")
    if time_attr is None:
        if seed_times is not None:
            raise ConfigError(f"time_attr must be given with {name}: it names the times of nodes or edges (got None)")
        if strategy != "uniform":
            raise ConfigError(f"time_attr must be given with temporal_strategy {strategy!r} (got None)")
        return None
    of_nodes = [ntype for ntype in dataset.node_types if time_attr in dataset.feature_names(ntype)]
    of_edges = [etype for etype in dataset.edge_types if time_attr in dataset.edge_feature_names(etype)]
    if not of_nodes and not of_edges:
        raise ConfigError(f"time_attr must name a table of the nodes or of the edges (got {time_attr!r})")
    if not of_nodes and seed_times is None:
        raise ConfigError(f"{name} must be given where time_attr names times of edges (got None)")
    return ByTime(time_attr, "node" if of_nodes else "edge", "last" if strategy == "last" else "uniform")


def node_times(dataset: Dataset, times: ByTime) -> dict[str, Tensor]:
    """Return when nodes came to be, by type, of the types that say so."""
    tables = {ntype: node_time_table(dataset, ntype, times.time_attr) for ntype in dataset.node_types}
    return {ntype: torch.from_numpy(read_times(table)) for ntype, table in tables.items() if table is not None}


def _hops(
    dataset: Dataset,
    num_neighbors: Any,
    replace: bool,
    weight_attr: str | None,
    disjoint: bool,
    times: ByTime | None,
    subgraph: Subgraph,
) -> HopSampler:
    if isinstance(num_neighbors, PygNumNeighbors):
        num_neighbors = num_neighbors.get_values(dataset.edge_types)
    if isinstance(num_neighbors, Mapping):
        unknown = [etype for etype in num_neighbors if etype not in dataset.edge_types]
        if unknown:
            raise ConfigError(f"edge types of num_neighbors must be among {dataset.edge_types} (got {unknown})")
    if weight_attr is not None:
        missing = [etype for etype in dataset.edge_types if dataset.edge_weight_table(etype) is None]
        if missing:
            raise ConfigError(
                f"weight_attr needs edge weights in the dataset (got {weight_attr!r}, {missing} have none): "
                "convert a graph with edge_weight, weight or w"
            )
    weights = weight_attr is not None
    return HopSampler(
        num_neighbors, replace=replace, weights=weights, disjoint=disjoint, times=times, subgraph=subgraph
    )


def _tables(dataset: Dataset, features: Features, subgraph: Subgraph) -> list[TableKey]:
    """Return the tables asked for, by default all that there can be rows of."""
    nameless: list[EdgeType] = []
    if subgraph == "bidirectional":
        types = dataset.edge_types
        nameless = [etype for etype in types if reverse_type(etype, types) != etype]
    if features is None:
        return [key for key in every_table(dataset) if key.type not in nameless]
    tables = feature_tables(dataset, features)
    for key in tables:
        if key.type in nameless:
            raise ConfigError(
                f"features must not name {key.type} with subgraph_type='bidirectional': its reverse edges are of another "
                "type, and which of its edges they are is not known"
            )
    return tables


def _options(
    budget: int | str | None,
    device: torch.device | str | None,
    memory: MemoryOptions | None,
    given: TorchKeywords,
    storage: StorageOptions | str | None,
    shards: Sharding | None,
    seed: int,
    spill: SpillOptions | int | str | None,
) -> RuntimeOptions:
    return RuntimeOptions(
        budget=budget,
        memory=MemoryOptions() if memory is None else memory,
        pipeline=given.pipeline,
        storage=storage,
        output=given.output,
        shards=shards,
        device=None if device is None else torch.device(device),
        seed=seed,
        spill=spill,
    )
