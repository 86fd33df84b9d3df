"""DGL's DataLoader with one more argument: ``gids=`` takes features from disk instead of from the graph."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import dgl.dataloading
import torch
from dgl.dataloading.dataloader import CollateWrapper, DDPTensorizedDataset, TensorizedDataset
from torch import Tensor

from gids import sampling
from gids._native import ThreadPool
from gids.dataset import Dataset
from gids.dataset.packed import Packed
from gids.dgl.feed import BlockFeed, DglFeed, Target, tables_asked_for
from gids.dgl.first import can_sample_first, sample_first
from gids.dgl.sampler import DatasetGraph, Sampler, wrap
from gids.dgl.source import Source, resolve_indices
from gids.errors import ConfigError
from gids.loader.epochs import EpochLoader, describe_arrangement, describe_ids, describe_sampler
from gids.loader.feed import BatchBuilder, SamplerFeed, SeedsOfEpoch
from gids.loader.graph import arrangement_of, as_dataset, feature_tables
from gids.loader.history import open_history
from gids.loader.packed import PackedFeed, StoredBlocks, as_packed, check_identity, open_packed_options, stored_epoch
from gids.runtime.backend import Backend
from gids.runtime.options import (
    HistoryOptions,
    MemoryOptions,
    OrderOptions,
    OutputOptions,
    PipelineOptions,
    RuntimeOptions,
    SpillOptions,
)
from gids.runtime.peers import Sharding
from gids.sampling import SeedBatch, SeedOrder
from gids.storage import StorageOptions
from gids.types import TableKey

if TYPE_CHECKING:
    from gids.partition import PartitionOrder

#: Keywords that DGL's DataLoader, or PyTorch's under it, cannot honour beside ``gids=``, and what to give instead.
REFUSED = {
    "gpu_cache": "memory=MemoryOptions(cache=...) caches rows on the device, memory=MemoryOptions(device_budget=...) bounds it",
    "collate_fn": "the sampler makes the batches; a sampler of your own may return anything",
    "sampler": "indices= says which seeds there are and in which order, shuffle= whether it changes",
    "batch_sampler": "batch_size=, shuffle= and drop_last= decide the batches",
    "pin_memory": "pin_prefetcher= pins what DGL fetches, output=OutputOptions(pin_memory=True) what gids does",
}


class DataLoader(EpochLoader[Any], dgl.dataloading.DataLoader):  # type: ignore[misc] # DGL has no types
    """``dgl.dataloading.DataLoader`` that can read features from a gids dataset.

    Parameters
    ----------
    graph : DGLGraph, Dataset or path-like
        What is sampled from. With a dataset, or the path of one, no DGL graph is needed; ``graph_sampler`` is then a
        sampler of :mod:`gids.sampling` or of :mod:`gids.dgl`.
    indices : str, Tensor, tuple, mapping or None
        Seeds: the name of a split, a mask, node ids, any of those by node type or as ``(type, …)`` on a heterograph, None
        for all nodes; edges with an edge prediction sampler. Without ``gids=`` as in DGL.
    graph_sampler : dgl.dataloading.Sampler, or a sampler of :mod:`gids.sampling`
        Makes the batches.
    device : torch.device or str, optional
        Where batches are delivered. With ``"cuda"`` rows are planned, cached and gathered there, and a sampler of gids
        samples there.
    use_ddp, ddp_seed, batch_size, drop_last, shuffle
        As in DGL.
    use_prefetch_thread, use_alternate_streams, pin_prefetcher
        As in DGL, for columns that come from the graph; rows of the dataset are read ahead in any case.
    use_uva : bool
        As in DGL; rows for ids that are on the device are planned there.
    gpu_cache : dict, optional
        Without ``gids=`` as in DGL.
    gids : Dataset, path-like or None
        Where node and edge features are. Columns that the sampler prefetches and the dataset has come from disk, all
        others from the graph as ever; labels that the graph does not have come from the dataset. None: exactly DGL.
    budget : int or str, optional
        Memory for everything this loader holds, e.g. ``"2GiB"``, and for ``graph`` where there is room for it too; by
        default half of what is available beside it.
    memory : MemoryOptions, optional
        How the budget is used. A ``history`` needs ``gids=``, :class:`gids.dgl.NeighborSampler` and ``num_workers=0``;
        ``exchange`` takes what the loader yields, or its blocks.
    pipeline : PipelineOptions, optional
        How far ahead of training to work.
    storage : StorageOptions or str, optional
        How to read; a string names the engine.
    output : OutputOptions, optional
        What a delivered batch is.
    shards : Shards, optional
        Feature tables are split over the nodes of a job (:class:`gids.Shards`): rows of other nodes come by the network.
    packed : Packed or path-like, optional
        What :func:`gids.pack` has made of the dataset, which takes the place of the graph, with these seeds, this
        sampler (its ``inner``, where it is one of :mod:`gids.dgl`) and batch size: nothing is sampled, rows are read in
        order. Batches and their order are those of :class:`gids.Loader`.
    input_features : str, optional
        Name of a table of nodes in ``gids=`` whose rows for all input nodes are the last part of every batch (by node
        type on a heterograph), whatever the sampler prefetches.
    order : OrderOptions, optional
        Which seeds meet in a batch, by ``parts`` and ``parts_per_group``; needs ``gids=`` and ``shuffle=True``. Ranks and
        incomplete batches are as ``use_ddp`` and ``drop_last`` say: each rank orders its own seeds.
    spill : SpillOptions, int or str, optional
        Disk space, e.g. ``"64GiB"``, through which rows may go where that costs less, as in :class:`gids.Loader`.
    **kwargs
        Of PyTorch's DataLoader, as in DGL: ``num_workers``, ``persistent_workers``, ``prefetch_factor``,
        ``worker_init_fn``, ``timeout``, ...

    Notes
    -----
    With a DGL sampler and ``num_workers=0`` sampling runs on the thread that iterates, some batches ahead, so that batches
    are those that DGL makes from the same ``dgl.seed``; with workers it runs in them, as in DGL. A sampler of gids runs
    on threads of its own with ``num_workers=0``. Reading runs in the background.

    The order of the seeds is DGL's, unless it is by parts. Epochs resume (:meth:`state_dict`) with a sampler of gids and
    ``num_workers=0``, whose batches are a function of their number and seeds. A budget that is too small is refused in the
    constructor; with a sampler of your own, one of DGL's that has a state (LABOR) or a graph on a device, by the first
    batch of an epoch.
    """

    graph_sampler: Any

    def __init__(
        self,
        graph: Any,
        indices: Any,
        graph_sampler: Any,
        device: torch.device | str | None = None,
        use_ddp: bool = False,
        ddp_seed: int = 0,
        batch_size: int = 1,
        drop_last: bool = False,
        shuffle: bool = False,
        use_prefetch_thread: bool | None = None,
        use_alternate_streams: bool | None = None,
        pin_prefetcher: bool | None = None,
        use_uva: bool = False,
        gpu_cache: Mapping[str, Any] | None = None,
        *,
        gids: Dataset | str | os.PathLike[str] | None = None,
        budget: int | str | None = None,
        memory: MemoryOptions | None = None,
        pipeline: PipelineOptions | None = None,
        storage: StorageOptions | str | None = None,
        output: OutputOptions | None = None,
        shards: Sharding | None = None,
        packed: Packed | str | os.PathLike[str] | None = None,
        input_features: str | None = None,
        order: OrderOptions | None = None,
        spill: SpillOptions | int | str | None = None,
        **kwargs: Any,
    ):
        self._begin()
        self.packed = None if packed is None else as_packed(packed)
        if self.packed is not None and not isinstance(graph, Dataset | str | os.PathLike):
            raise ConfigError("packed needs the dataset in the place of the graph (got a DGL graph)")
        self._source: Source | None = None
        self._permutation: tuple[Tensor | None, bool] | None = (
            None  # restored: the order, and whether it is this epoch's
        )
        self.options = RuntimeOptions(
            budget=budget,
            memory=MemoryOptions() if memory is None else memory,
            pipeline=PipelineOptions() if pipeline is None else pipeline,
            storage=storage,
            output=OutputOptions() if output is None else output,
            shards=shards,
            device=_device(device, graph, use_uva),
            seed=getattr(graph_sampler, "seed", 0) if isinstance(graph_sampler, Sampler) else 0,
            spill=spill,
        )
        if isinstance(graph, Dataset | str | os.PathLike):
            dataset = as_dataset(graph)
            gids = dataset if gids is None else gids
            graph = DatasetGraph(dataset, self.options)
        elif not isinstance(graph, dgl.DGLGraph | DatasetGraph):
            as_dataset(graph)  # raises, and says which call converts it
        elif self.options.memory.topology == "disk":
            raise ConfigError("topology 'disk' needs the dataset in the place of the graph (got a DGL graph)")
        self.gids = None if gids is None else as_dataset(gids)
        self._beside: list[TableKey] = []
        if self.gids is None and input_features is not None:
            raise ConfigError(f"input_features must be given with gids= (got {input_features!r} without)")
        if self.gids is not None:
            self._beside = feature_tables(self.gids, input_features, "input_features")
            given = {"gpu_cache": gpu_cache} | kwargs
            for name, why in REFUSED.items():
                if given.get(name) is not None and not isinstance(given[name], CollateWrapper):
                    raise ConfigError(f"{name} must not be given with gids=: {why}")
            self._source = Source(self.gids, graph)
            graph_sampler = wrap(graph_sampler, self.gids)
            self._check_sampler(graph, graph_sampler)
            indices = resolve_indices(self.gids, graph, indices, _seeds_are_edges(graph_sampler))
        dgl.dataloading.DataLoader.__init__(
            self,
            graph,
            indices,
            graph_sampler,
            # On a torch without CUDA that shares memory with a device (the tests' stand-in) batches are on the CPU.
            device=device if self.options.device is None or torch.cuda.is_available() else "cpu",
            use_ddp=use_ddp,
            ddp_seed=ddp_seed,
            batch_size=batch_size,
            drop_last=drop_last,
            shuffle=shuffle,
            use_prefetch_thread=use_prefetch_thread,
            use_alternate_streams=use_alternate_streams,
            pin_prefetcher=pin_prefetcher,
            use_uva=use_uva,
            gpu_cache=gpu_cache,
            **kwargs,
        )
        self._order, self._parts = order, self._by_parts(order)
        if self.options.memory.history is not None:
            self._open_history(self.options.memory.history)
        if self.gids is not None:
            if isinstance(graph_sampler, Sampler):
                self._epoch = graph_sampler.epoch
            if self.packed is not None:
                self._check_packed()
                self.options = open_packed_options(self.packed, self.options, self.gids)
            self._open()

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next ``iter()``; ends one that runs.

        Parameters
        ----------
        epoch : int
            Its number, from 0; one that was not packed is refused.
        """
        if self.packed is not None:
            stored_epoch(self.packed, epoch)
        super().set_epoch(epoch)

    def _check_packed(self) -> None:
        """Refuse packed epochs that are not what the other arguments ask for."""
        assert self.packed is not None
        assert self.gids is not None
        if not self._replays:
            raise ConfigError("packed needs a sampler of gids and num_workers=0 (got others)")
        if self.packed.beyond != "error":
            raise ConfigError(
                "packed must end with its last epoch: DGL's shuffling goes on in another order (gids.Loader goes on online)"
            )
        sampler, dataset = self.graph_sampler, self.dataset
        given = {
            "seeds": describe_ids(self._starting_nodes()),
            "sampler": describe_sampler(sampler.inner),
            "seed": sampler.seed,
            "batch_size": dataset.batch_size,
            "shuffle": self.shuffle,
            "drop_last": self.drop_last,
            "world_size": getattr(dataset, "num_replicas", 1),
        }
        check_identity(self.packed, self.gids, given | describe_arrangement(self._parts))

    def _open_history(self, options: HistoryOptions) -> None:
        """Let the sampler leave out what the history has."""
        inner = self.graph_sampler.inner if isinstance(self.graph_sampler, Sampler) else None
        if self.gids is None or not self._replays or not isinstance(inner, sampling.NeighborSampler):
            raise ConfigError("history must be given with gids=, gids.dgl.NeighborSampler and num_workers=0")
        seeds = self._starting_nodes()
        options = self._with_nodes(options, self.gids, seeds, inner.fanouts, self._profile_order(seeds))
        pruning, self.history = open_history(self.gids, options, inner, seeds, self.options)
        self.graph_sampler = copy.copy(self.graph_sampler)  # the user's stays as it is
        self.graph_sampler.inner = pruning
        self.options = replace(self.options, embeddings_bytes=self.history.bytes)

    def _by_parts(self, order: OrderOptions | None) -> PartitionOrder | None:
        """Return the order of this rank's seeds by parts, where that is asked for."""
        if order is None:
            return None
        if replace(order, parts=None, parts_per_group=1) != OrderOptions():
            raise ConfigError(
                "order must have parts and parts_per_group only: use_ddp=, shuffle=, drop_last= and the sampler say the rest"
            )
        if order.parts is None:
            return None
        seeds = self.dataset
        if self.gids is None or not self.shuffle or not isinstance(seeds, TensorizedDataset | DDPTensorizedDataset):
            raise ConfigError("parts must be given with gids=, shuffle=True and seeds as tensors")
        if _seeds_are_edges(self.graph_sampler):
            raise ConfigError("parts must be given with node seeds (got an edge prediction sampler)")
        ids = seeds._id_tensor[: self._num_local].cpu().long()
        if seeds._mapping_keys is None:
            return arrangement_of(self.gids, order, {self.graph.ntypes[0]: ids})
        by_type = {ntype: ids[ids[:, 0] == number, 1] for number, ntype in enumerate(seeds._mapping_keys)}
        return arrangement_of(self.gids, order, by_type)

    @property
    def _num_local(self) -> int:
        """Seeds of this rank, without those that DGL repeats."""
        return int(getattr(self.dataset, "local_num_indices", len(self.dataset._indices)))

    def _arrange(self) -> None:
        """Put this rank's seeds into the order of the epoch."""
        if self._parts is None:
            self.dataset.shuffle()
            return
        places, count = self.dataset._indices, self._num_local
        places[:count] = torch.from_numpy(self._parts.arrange(self.options.seed, self._epoch))
        places[count:] = places[: len(places) - count].clone()  # DDP repeats the first ones

    @staticmethod
    def _check_sampler(graph: Any, sampler: Any) -> None:
        if isinstance(graph, DatasetGraph) and not isinstance(sampler, Sampler):
            raise ConfigError(
                "graph_sampler must be a sampler of gids where a dataset takes the place of the graph "
                f"(got {type(sampler).__name__}): use gids.dgl.NeighborSampler, or give a DGL graph and gids="
            )

    @property
    def _replays(self) -> bool:
        """Whether batches are sampled here by a sampler of gids, and so a function of their number and seeds."""
        tensorized = isinstance(self.dataset, TensorizedDataset | DDPTensorizedDataset)
        return isinstance(self.graph_sampler, Sampler) and self.num_workers == 0 and tensorized

    def _make_feed(self, backend: Backend, pool: ThreadPool) -> BlockFeed | DglFeed:
        source = self._source
        assert source is not None
        target = Target(self.graph, self.device, bool(self.pin_prefetcher), self.other_storages)
        if not self._replays:
            known = len(self) > 0 and can_sample_first(self.graph, self.graph_sampler)
            return DglFeed(
                source,
                target,
                self.graph_sampler,
                self._starting_nodes,
                num_batches=len(self),
                on_consumer=self.num_workers == 0,
                beside=self._beside,
                first=self._sample_first if known and isinstance(self.indices, Tensor | Mapping) else None,
                options=self.options,
                backend=backend,
                pool=pool,
            )
        if self.packed is not None:
            node_tables = [key for key in self.packed.tables if not key.is_edge]
            edge_tables = [key for key in self.packed.tables if key.is_edge]
            builder = BatchBuilder(source.dataset, node_tables, edge_tables, backend, labels=False)
            ranks = (getattr(self.dataset, "rank", 0), getattr(self.dataset, "num_replicas", 1))
            stored = PackedFeed(self.packed, StoredBlocks(builder), backend, *ranks)
            return BlockFeed(stored, self.graph_sampler, source, target, backend, self._beside)
        sampler, seeds = self.graph_sampler, self._starting_nodes()
        asked = self._beside + [key for key in tables_asked_for(sampler, source, seeds) if key not in self._beside]
        if not asked and len(self):
            source.say_what_to_prefetch()
        inner = SamplerFeed(
            source.dataset,
            sampler.inner,
            seeds,
            [key for key in asked if key in source.tables and not key.is_edge],
            [key for key in asked if key in source.tables and key.is_edge],
            self._profile_order(seeds),
            # Labels that blocks carry are those of the source: a graph may have its own.
            replace(self.options, output=replace(self.options.output, labels=False)),
            backend,
            pool,
            sampler.topology(self.graph),
        )
        return BlockFeed(inner, sampler, source, target, backend, self._beside)

    def _sample_first(self) -> Any:
        return sample_first(self.graph, self.graph_sampler, self.indices, max(1, self.dataset.batch_size))

    def _profile_order(self, seeds: Mapping[str, Tensor]) -> SeedOrder:
        """Return batches like those of an epoch, the same on all ranks."""
        assert self.gids is not None
        return SeedOrder(
            seeds,
            batch_size=max(1, self.dataset.batch_size),
            seed=self.options.seed,
            shuffle=self.shuffle,
            drop_last=self.drop_last,
            arrangement=arrangement_of(self.gids, self._order, seeds),
        )

    def _starting_nodes(self) -> dict[str, Tensor]:
        """Return the nodes that sampling starts from, by types that the dataset has."""
        assert self.gids is not None
        indices = self.indices
        if not isinstance(indices, Mapping | Tensor):
            return {ntype: torch.arange(self.gids.num_nodes(ntype)) for ntype in self.gids.node_types}
        if _seeds_are_edges(self.graph_sampler):
            by_type = indices if isinstance(indices, Mapping) else {self.graph.canonical_etypes[0]: indices}
            ends: dict[str, list[Tensor]] = {}
            for etype, ids in by_type.items():
                kind = self.graph.to_canonical_etype(etype)
                for ntype, nodes in zip((kind[0], kind[2]), self.graph.find_edges(ids, etype=kind), strict=True):
                    ends.setdefault(ntype, []).append(nodes)
            found = {ntype: torch.unique(torch.cat(parts)) for ntype, parts in ends.items()}
        else:
            found = dict(indices) if isinstance(indices, Mapping) else {self.graph.ntypes[0]: indices}
        return {ntype: ids.cpu().long() for ntype, ids in found.items() if ntype in self.gids.node_types}

    def __len__(self) -> int:
        """Batches of an epoch on this rank."""
        if self.packed is not None:
            return self.packed.batches_of_rank[getattr(self.dataset, "rank", 0)]
        return int(torch.utils.data.DataLoader.__len__(self))

    def __iter__(self) -> Iterator[Any]:
        """Begin an epoch, or go on with the one that :meth:`load_state_dict` restored; one under way ends."""
        if self._source is not None:
            return EpochLoader.__iter__(self)
        sampler = _inner_sampler(self.graph_sampler)
        if isinstance(sampler, Sampler):
            sampler.next_epoch()
        return dgl.dataloading.DataLoader.__iter__(self)  # type: ignore[no-any-return]

    def _pieces(self, indices: Sequence[int]) -> Iterator[Any]:
        if self.packed is not None:
            feed, stored = self._open().feed, stored_epoch(self.packed, self._epoch)
            assert isinstance(feed, BlockFeed)
            assert stored is not None
            return feed.packed_pieces(self._epoch, stored, indices)
        restored, self._permutation = self._permutation, None
        if restored is not None and restored[0] is not None:
            self.dataset._indices.copy_(restored[0])
        if self.shuffle and not (restored is not None and restored[1]):
            self._arrange()
        if not self._replays:
            sampler = _inner_sampler(self.graph_sampler)
            if isinstance(sampler, Sampler):
                sampler.set_epoch(self._epoch)
            return iter(torch.utils.data.DataLoader.__iter__(self))
        # PyTorch's iterator draws a seed for its workers, and DGL's batches depend on the state that this leaves.
        torch.empty((), dtype=torch.int64).random_(generator=self.generator)
        nodes = self._nodes_of_batches(iter(self.dataset), self.graph.ntypes[0])
        if self.history is None:
            return self._seeds_of_batches(nodes, set(indices), self._epoch)
        every = list(nodes)  # a batch asks which nodes those before it had
        sampler = self.graph_sampler.inner.following(lambda epoch, batch: every[batch])
        return self._seeds_of_batches(iter(every), set(indices), self._epoch, sampler)

    @staticmethod
    def _nodes_of_batches(batches: Iterator[Any], only_type: str) -> Iterator[dict[str, Tensor]]:
        for seeds in batches:
            by_type = seeds if isinstance(seeds, Mapping) else {only_type: seeds}
            yield {ntype: ids.cpu().long() for ntype, ids in by_type.items()}

    @staticmethod
    def _seeds_of_batches(
        batches: Iterator[dict[str, Tensor]], wanted: set[int], epoch: int, sampler: Any = None
    ) -> Iterator[SeedsOfEpoch]:
        for index, nodes in enumerate(batches):
            if index in wanted:
                yield SeedsOfEpoch(SeedBatch(index, index, nodes), epoch, sampler)

    def _order_identity(self) -> dict[str, Any]:
        if self._source is None or not self._replays:
            raise ConfigError(
                "an epoch resumes only with gids=, a sampler of gids and num_workers=0, whose batches are a function of "
                f"their number and seeds (got {type(self.graph_sampler).__name__}, num_workers={self.num_workers})"
            )
        if self.packed is not None:
            return self.packed.identity | {"rank": getattr(self.dataset, "rank", 0)}
        sampler = self.graph_sampler
        made_by = {"sampler": describe_sampler(sampler.inner), "seed": sampler.seed, "prob": sampler.prob}
        order = {"batch_size": self.dataset.batch_size, "shuffle": self.shuffle, "drop_last": self.drop_last}
        ddp = {"rank": getattr(self.dataset, "rank", 0), "world_size": getattr(self.dataset, "num_replicas", 1)}
        seeds = {"dataset": self._source.dataset.id, "seeds": describe_ids(self._starting_nodes())}
        return seeds | made_by | order | ddp | describe_arrangement(self._parts)

    def state_dict(self) -> dict[str, Any]:
        """Return what :meth:`load_state_dict` needs to go on with exactly the batches that are left of this epoch.

        DGL shuffles with NumPy's global state, so the state holds the order of the seeds where they are shuffled; save
        NumPy's state too for the epochs after this one.
        """
        state = super().state_dict()
        order = self.dataset._indices.clone() if self.shuffle and self.packed is None else None
        return state | {"permutation": order, "begun": self._begun or bool(self._delivered)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where :meth:`state_dict` was taken, with the next ``iter()``.

        Parameters
        ----------
        state : mapping
            What :meth:`state_dict` returned, of a loader with the same order of the same seeds.
        """
        super().load_state_dict(state)
        self._permutation = (state["permutation"], bool(state["begun"]))

    def __repr__(self) -> str:
        where = "" if self.gids is None else f", gids={str(self.gids.path)!r}"
        sampler = _inner_sampler(self.graph_sampler)
        name = type(sampler.inner if type(sampler) is Sampler else sampler).__name__
        batches = f"{len(self)} batches of {getattr(self.dataset, 'batch_size', '?')}"
        return f"{type(self).__name__}({batches}, {name}{where})"


def _inner_sampler(sampler: Any) -> Any:
    return getattr(sampler, "sampler", sampler)  # that of an edge prediction sampler


def _seeds_are_edges(sampler: Any) -> bool:
    return isinstance(sampler, dgl.dataloading.EdgePredictionSampler)


def _device(device: torch.device | str | None, graph: Any, use_uva: bool) -> torch.device | None:
    """Return the CUDA device that batches are delivered to; None for the CPU."""
    if device is None:
        device = torch.device("cuda") if use_uva else getattr(graph, "device", torch.device("cpu"))
    chosen = torch.device(device)
    if chosen.type == "cpu":
        return None
    index: int | None = chosen.index  # torch's types say that there always is one
    if chosen.type == "cuda" and index is None and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return chosen
