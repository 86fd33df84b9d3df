"""gids.Loader: an iterable of mini-batches whose features stay on disk."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import IterableDataset

from gids._native import ThreadPool
from gids.dataset import Dataset
from gids.dataset.packed import Packed
from gids.errors import ConfigError
from gids.loader.beyond import PackedFirst
from gids.loader.feed import BatchBuilder, SamplerFeed, SeedsOfEpoch, followed
from gids.loader.graph import Features, Seeds
from gids.loader.history import open_history
from gids.loader.packed import PackedFeed, PackedPiece, StoredBlocks
from gids.loader.recipe import Recipe
from gids.runtime.backend import Backend, Sampler
from gids.runtime.batch import Batch
from gids.runtime.options import (
    MemoryOptions,
    OrderOptions,
    OutputOptions,
    PipelineOptions,
    SpillOptions,
)
from gids.runtime.peers import Sharding
from gids.sampling import EdgeSeeds, NeighborSampler, TimedSeeds, Topology
from gids.storage import StorageOptions


class Loader(Recipe, PackedFirst[Batch], IterableDataset[Batch]):
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
    features : str, sequence of str, mapping of type to those, or None
        Feature tables to fetch. Names alone are tables of nodes, of every type that has them. By type, node types and
        edge types: ``{"paper": "feat", ("author", "writes", "paper"): ["year"]}``, or, where a graph has one type of
        each, ``{gids.NODE: "feat", gids.EDGE: "weight"}``.
    budget : int or str, optional
        Memory for everything this loader holds, e.g. ``"2GiB"``; by default half of what is available.
    device : torch.device or str, optional
        Where batches are delivered. With ``"cuda"`` they are also sampled, planned and cached there; a sampler of your
        own, and topology that is read from disk, sample on the CPU, and :attr:`notes` says so. The batches are the same.
    order : OrderOptions, optional
        In which order seeds come (shuffled by default), which part of them is ours, and the seed of all randomness.
    memory : MemoryOptions, optional
        How the budget is used.
    pipeline : PipelineOptions, optional
        How far ahead of training to work.
    storage : StorageOptions or str, optional
        How to read; a string names the engine.
    output : OutputOptions, optional
        What a delivered batch is.
    shards : Shards, optional
        Feature tables are split over the nodes of a job (:class:`gids.Shards`): rows of other nodes come by the network.
    packed : Packed or path-like, optional
        What ``gids pack`` has made of this dataset: batches were sampled then, and their rows are read in order. It
        says what a batch is; seeds, sampler, batch size, order and tables may be left out, or must be the same.
    spill : SpillOptions, int or str, optional
        Disk space, e.g. ``"64GiB"``, through which rows of many batches may go where that costs less than random reads:
        one pass over the table copies them to disk in the order in which they are then read. The same batches.

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
        features: Features = "feat",
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
    ) -> None:
        Recipe.__init__(
            self,
            dataset,
            seeds,
            fanouts=fanouts,
            sampler=sampler,
            batch_size=batch_size,
            features=features,
            budget=budget,
            device=device,
            order=order,
            memory=memory,
            pipeline=pipeline,
            storage=storage,
            output=output,
            shards=shards,
            packed=packed,
            spill=spill,
        )
        self._begin()
        history = self.options.memory.history
        if history is not None:
            given, others = self._sampler, isinstance(self.seeds, EdgeSeeds | TimedSeeds)
            if packed is not None or not isinstance(given, NeighborSampler) or given.disjoint or others:
                raise ConfigError("history must be given with fanouts and with nodes as seeds, and without packed")
            assert isinstance(self.seeds, dict)
            history = self._with_nodes(history, self.dataset, self.seeds, given.fanouts, self.order(0, 0, 1))
            self._sampler, self.history = open_history(self.dataset, history, given, self.seeds, self.options)
            self.options = replace(self.options, embeddings_bytes=self.history.bytes)
        self._chosen = self.options
        self._open()

    def _make_feed(self, backend: Backend, pool: ThreadPool) -> SamplerFeed | PackedFeed:
        if self.packed is not None and self._stored_epoch is not None:
            labels = self.options.output.labels
            builder = BatchBuilder(self.dataset, self._node_tables, self._edge_tables, backend, labels)
            ranks = (self._order["rank"], self._order["world_size"])
            return PackedFeed(self.packed, StoredBlocks(builder), backend, *ranks)
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
        stored = self._stored_epoch
        if stored is not None:
            feed = self._open().feed
            assert isinstance(feed, PackedFeed)
            return feed.pieces(self._epoch, stored, indices)
        order, epoch = self.order(), self._epoch
        sampler = followed(self.sampler, self.order)
        return (SeedsOfEpoch(order[index], epoch, sampler) for index in indices)

    def __repr__(self) -> str:
        part = f", rank {self._order['rank']} of {self._order['world_size']}" if self._order["world_size"] != 1 else ""
        what = f"{self._named_seeds!r}" if self._named_seeds else "seeds"
        return f"Loader({str(self.dataset.path)!r}, {what}, {len(self)} batches of {self._order['batch_size']}{part})"
