"""gids.Loader: an iterable of mini-batches whose features stay on disk."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import IterableDataset

from gids._native import ThreadPool
from gids.dataset import Dataset
from gids.dataset.packed import Packed
from gids.errors import ConfigError
from gids.loader.epochs import EpochLoader, describe_arrangement, describe_ids, describe_sampler
from gids.loader.feed import BatchBuilder, SamplerFeed, SeedsOfEpoch, followed
from gids.loader.graph import Seeds, arrangement_of, as_dataset, resolve_seeds
from gids.loader.history import open_history
from gids.loader.packed import PackedFeed, PackedPiece, as_packed, check_identity, open_packed_options, stored_epoch
from gids.runtime.backend import Backend, Sampler
from gids.runtime.batch import Batch
from gids.runtime.options import (
    HistoryOptions,
    MemoryOptions,
    OrderOptions,
    OutputOptions,
    PipelineOptions,
    RuntimeOptions,
    table_keys,
)
from gids.runtime.runtime import Runtime
from gids.sampling import EdgeSeeds, NeighborSampler, SeedOrder, TimedSeeds, Topology
from gids.sampling.order import by_type, check_order
from gids.storage import StorageOptions

#: What decides the order of an epoch, in the order in which it is described.
ORDER_NAMES = ("batch_size", "seed", "shuffle", "drop_last", "rank", "world_size", "uneven")


class Loader(EpochLoader[Batch], IterableDataset[Batch]):
    """Yields mini-batches of a dataset, sampled and read ahead of training within a memory budget.

    Parameters
    ----------
    dataset : Dataset or path-like
        What :func:`gids.open` returns, or where it is.
    seeds : str, Tensor, tuple, mapping, TimedSeeds, EdgeSeeds or None
        Where sampling starts: the name of a split, a mask, node ids, any of those by node type or as ``(type, …)`` on a
        heterograph, None for all nodes. With :class:`gids.EdgeSeeds` (link prediction) a batch has ``batch_size`` of its
        edges and their negatives: :attr:`Batch.pairs` says which rows of ``batch.seeds`` each pair connects, ``batch.y``
        which pairs are edges. With :class:`gids.TimedSeeds`, or :class:`gids.EdgeSeeds` with times, every seed has a time
        for a :class:`gids.TemporalSampler`.
    fanouts : sequence, optional
        For a :class:`gids.NeighborSampler`, outermost layer first.
    sampler : Sampler, optional
        Any other sampler.
    batch_size : int, optional
        Seeds in a batch; 1024 by default.
    shuffle : bool, optional
        As in PyTorch's DataLoader; True by default.
    seed : int, optional
        With epoch and batch number the only source of randomness; 0 by default.
    features, edge_features : str, sequence of str, or mapping of type to those, optional
        Feature tables to fetch, by name; a name alone means every type that has it.
    budget : int or str, optional
        Memory for everything this loader holds, e.g. ``"2GiB"``; by default half of what is available.
    device : torch.device or str, optional
        Where batches are delivered. With ``"cuda"`` they are also sampled, planned and cached there; a sampler of your
        own, and topology that is read from disk, sample on the CPU, and :attr:`notes` says so. The batches are the same.
    history : HistoryOptions, optional
        Use embeddings of the last batches instead of computing them again: fewer rows, approximate. Needs ``fanouts`` and
        node seeds; the model calls ``loader.history.exchange(h, batch)`` before its last layer.
    order : OrderOptions, optional
        Which part of the seeds is ours, and which of them meet in a batch.
    memory : MemoryOptions, optional
        How the budget is used.
    pipeline : PipelineOptions, optional
        How far ahead of training to work.
    storage : StorageOptions or str, optional
        How to read; a string names the engine.
    output : OutputOptions, optional
        What a delivered batch is.
    packed : Packed or path-like, optional
        What ``gids pack`` has made of this dataset: batches were sampled then, and their rows are read in order. It
        says what a batch is; seeds, sampler, batch size, order and tables may be left out, or must be the same.

    Notes
    -----
    Every ``iter()`` is one epoch; the epoch number then counts up by itself, or is set with :meth:`set_epoch`. A batch is
    a function of (seed, epoch, rank, world size, batch number) and the options that say what a batch is; budget, policy,
    storage engine and threads change only how fast it comes.

    The first batch comes as soon as it is sampled and read. What the budget is best spent on is found out meanwhile by a
    short profile, takes effect between groups of batches, and is kept beside the dataset for the next run;
    :meth:`prepare` waits for it, :meth:`stats` tells what was chosen and why.

    One iteration is active at a time: starting another ends the one before. Inside workers of a
    ``torch.utils.data.DataLoader`` (with ``batch_size=None``) every worker makes its share of the batches.

    Examples
    --------
    >>> with gids.Loader("my-graph", "train", fanouts=[10, 10], batch_size=1024, budget="2GiB") as loader:
    ...     for batch in loader:
    ...         train_on(batch.blocks, batch.x, batch.y)
    """

    def __init__(
        self,
        dataset: Dataset | str | os.PathLike[str],
        seeds: Seeds = None,
        *,
        fanouts: Sequence[Any] | None = None,
        sampler: Sampler | None = None,
        batch_size: int | None = None,
        shuffle: bool | None = None,
        seed: int | None = None,
        features: str | Sequence[str] | Mapping[str, str | Sequence[str]] | None = "feat",
        edge_features: Any = None,
        budget: int | str | None = None,
        device: torch.device | str | None = None,
        history: HistoryOptions | None = None,
        order: OrderOptions | None = None,
        memory: MemoryOptions | None = None,
        pipeline: PipelineOptions | None = None,
        storage: StorageOptions | str | None = None,
        output: OutputOptions | None = None,
        packed: Packed | str | os.PathLike[str] | None = None,
    ) -> None:
        self.dataset = as_dataset(dataset)
        self.packed = None if packed is None else as_packed(packed)
        if (fanouts is not None and sampler is not None) or (packed is None and fanouts is None and sampler is None):
            raise ConfigError("exactly one of fanouts and sampler must be given")
        self._named_seeds = seeds if isinstance(seeds, str) else None
        if fanouts is not None:
            sampler = NeighborSampler(fanouts, edge_ids=edge_features is not None)
        self._sampler = sampler
        self.order_options = OrderOptions() if order is None else order
        rank, world_size = self.order_options.resolved()
        of_order = {"drop_last": self.order_options.drop_last, "uneven": self.order_options.uneven}
        given: dict[str, Any] = {"batch_size": batch_size, "seed": seed, "shuffle": shuffle}
        given = {name: value for name, value in given.items() if value is not None}
        if self.packed is not None:
            known_seeds = seeds is not None or self.packed.beyond == "online"
            self.seeds = resolve_seeds(self.dataset, seeds) if known_seeds else {}
            self._arrangement = arrangement_of(self.dataset, order, self.seeds) if known_seeds else None
            given |= of_order if order is not None else {}
            given |= {"seeds": self._describe_seeds()} if known_seeds else {}
            given |= describe_arrangement(self._arrangement) if known_seeds and order is not None else {}
            given |= {} if sampler is None else {"sampler": describe_sampler(sampler)}
            check_identity(self.packed, self.dataset, given | {"world_size": world_size})
            names = ("batch_size", "seed", "shuffle", *of_order)
            given |= {name: self.packed.identity[name] for name in names}
            if self.packed.beyond == "online" and sampler is None:
                raise ConfigError(
                    "fanouts or sampler must be given to go on online beyond the packed epochs (got none)"
                )
        else:
            self.seeds = resolve_seeds(self.dataset, seeds)
            self._arrangement = arrangement_of(self.dataset, order, self.seeds)
            given = {"batch_size": 1024, "seed": 0, "shuffle": True} | of_order | given
        self._order: dict[str, Any] = given | {"rank": rank, "world_size": world_size}
        self._order = {name: self._order[name] for name in ORDER_NAMES}
        checked = {name: self._order[name] for name in ("batch_size", "rank", "world_size", "uneven")}
        check_order(**checked)
        stored = {ntype: self.dataset.feature_names(ntype) for ntype in self.dataset.node_types}
        self._node_tables = table_keys(features, stored, "features")
        stored_edges = {etype: self.dataset.edge_feature_names(etype) for etype in self.dataset.edge_types}
        self._edge_tables = table_keys(edge_features, stored_edges, "edge_features")
        if self.packed is not None:
            keys = list(self.packed.tables)
            if (features != "feat" or edge_features is not None) and keys != [*self._node_tables, *self._edge_tables]:
                raise ConfigError(f"features must be {keys}, as they were packed (got {features} and {edge_features})")
            self._node_tables = [key for key in keys if not key.is_edge]
            self._edge_tables = [key for key in keys if key.is_edge]
        self.options = RuntimeOptions(
            budget=budget,
            memory=MemoryOptions() if memory is None else memory,
            pipeline=PipelineOptions() if pipeline is None else pipeline,
            storage=storage,
            output=OutputOptions() if output is None else output,
            device=None if device is None else torch.device(device),
            seed=self._order["seed"],
        )
        self._begin()
        if history is not None:
            others = isinstance(self.seeds, EdgeSeeds | TimedSeeds)
            if packed is not None or not isinstance(sampler, NeighborSampler) or sampler.disjoint or others:
                raise ConfigError("history must be given with fanouts and with nodes as seeds, and without packed")
            assert isinstance(self.seeds, dict)
            history = self._with_nodes(history, self.dataset, self.seeds, sampler.fanouts, self.order(0, 0, 1))
            self._sampler, self.history = open_history(self.dataset, history, sampler, self.seeds, self.options)
            self.options = replace(self.options, embeddings_bytes=self.history.bytes)
        self._chosen = self.options  # by the user; with packed epochs, options say how the budget serves them best
        self._start()

    def _start(self) -> None:
        """Open what a first epoch needs; a budget that is too small is refused now."""
        self._open()

    @property
    def sampler(self) -> Sampler:
        """What makes samples; unknown where batches were packed and it was not given."""
        if self._sampler is None:
            raise ConfigError("sampler is not known: these epochs were packed, and none was given")
        return self._sampler

    def __len__(self) -> int:
        """Batches of an epoch on this rank."""
        return len(self.order()) if self.packed is None else self.packed.batches_of_rank[self._order["rank"]]

    def order(self, epoch: int | None = None, rank: int | None = None, world_size: int | None = None) -> SeedOrder:
        """Return the seeds of every batch of an epoch.

        Parameters
        ----------
        epoch : int, optional
            By default the one that runs, or that the next ``iter()`` begins.
        rank, world_size : int, optional
            Whose part; by default ours.
        """
        if self.packed is not None and not self.seeds:
            raise ConfigError("the order needs the seeds: these epochs were packed, and none were given")
        changed = {"rank": rank, "world_size": world_size}
        settings: dict[str, Any] = self._order | {name: value for name, value in changed.items() if value is not None}
        settings["epoch"] = self._epoch if epoch is None else epoch
        return SeedOrder(self.seeds, arrangement=self._arrangement, **settings)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next ``iter()``; ends one that runs.

        Parameters
        ----------
        epoch : int
            Its number, from 0; one that was not packed is refused unless the loader goes on online.
        """
        if self.packed is not None:
            stored_epoch(self.packed, epoch)
        super().set_epoch(epoch)

    def _open(self) -> Runtime:
        if self.packed is not None and not self._closed:
            stored = stored_epoch(self.packed, self._epoch)
            open_here = self._runtime is not None and self._runtime.pid == os.getpid()
            if open_here and isinstance(self._runtime.feed, PackedFeed) != (stored is not None):  # type: ignore[union-attr]
                self._runtime.close()  # type: ignore[union-attr]
                self._runtime = None
            if self._runtime is None:
                self.options = (
                    self._chosen if stored is None else open_packed_options(self.packed, self._chosen, self.dataset)
                )
        return super()._open()

    def _make_feed(self, backend: Backend, pool: ThreadPool) -> SamplerFeed | PackedFeed:
        if self.packed is not None and self.packed.stored_epoch(self._epoch) is not None:
            labels = self.options.output.labels
            builder = BatchBuilder(self.dataset, self._node_tables, self._edge_tables, backend, labels)
            ranks = (self._order["rank"], self._order["world_size"])
            return PackedFeed(self.packed, self.dataset, builder, backend, *ranks)
        return SamplerFeed(
            self.dataset,
            self.sampler,
            self.seeds,
            self._node_tables,
            self._edge_tables,
            self.order(0, rank=0, world_size=1),
            self.options,
            backend,
            pool,
        )

    @property
    def topology(self) -> Topology:
        """The graph that batches are sampled from, for tools that look inside."""
        feed = self._open().feed
        assert isinstance(feed, SamplerFeed)
        return feed.topology

    def _pieces(self, indices: Sequence[int]) -> Iterator[SeedsOfEpoch] | Iterator[PackedPiece]:
        stored = None if self.packed is None else self.packed.stored_epoch(self._epoch)
        if stored is not None:
            feed = self._open().feed
            assert isinstance(feed, PackedFeed)
            return feed.pieces(self._epoch, stored, indices)
        order, epoch = self.order(), self._epoch
        sampler = followed(self.sampler, self.order)
        return (SeedsOfEpoch(order[index], epoch, sampler) for index in indices)

    def _describe_seeds(self) -> dict[str, list[Any]]:
        seeds = self.seeds
        if isinstance(seeds, EdgeSeeds):
            parts = {"src": seeds.src, "dst": seeds.dst} | ({} if seeds.times is None else {"times": seeds.times})
        elif isinstance(seeds, TimedSeeds):
            times = {f"times of {ntype}": times for ntype, times in by_type(seeds.times).items()}
            parts = by_type(seeds.nodes) | times
        else:
            parts = seeds
        return describe_ids(parts)

    def _order_identity(self) -> dict[str, Any]:
        if self.packed is not None:
            return self.packed.identity | {"rank": self._order["rank"]}
        made_by = {"seeds": self._describe_seeds(), "sampler": describe_sampler(self.sampler)}
        return {"dataset": self.dataset.id} | made_by | self._order | describe_arrangement(self._arrangement)

    def __repr__(self) -> str:
        part = f", rank {self._order['rank']} of {self._order['world_size']}" if self._order["world_size"] != 1 else ""
        what = f"{self._named_seeds!r}" if self._named_seeds else "seeds"
        return f"Loader({str(self.dataset.path)!r}, {what}, {len(self)} batches of {self._order['batch_size']}{part})"
