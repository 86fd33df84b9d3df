"""gids.kg.Loader: an iterable of batches of queries with their complete subgraphs, which stay on disk in slices."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import IterableDataset

from gids._native import ThreadPool
from gids.dataset import Dataset
from gids.errors import ConfigError, GidsError
from gids.kg.feed import FeedSource, QueriesOfEpoch, QueryFeed, QueryOptions, Through
from gids.kg.graph import Graph
from gids.kg.slices import Slices
from gids.kg.subgraphs import Batch
from gids.loader.epochs import EpochLoader, describe_ids
from gids.loader.graph import as_dataset
from gids.runtime.backend import Backend, CpuBackend
from gids.runtime.options import MemoryOptions, OrderOptions, OutputOptions, PipelineOptions, RuntimeOptions
from gids.sampling import SeedOrder
from gids.sampling.order import check_order
from gids.storage import StorageOptions

#: Memory for atoms of a graph on disk where the user names none, and what drives write its triples to.
ATOM_CACHE = "64MiB"
GRAPH_STAGING_BYTES = 4 << 20


class Loader(EpochLoader[Batch], IterableDataset[Batch]):
    """Yields queries of a knowledge graph with their complete subgraphs, sliced and read ahead within a memory budget.

    Parameters
    ----------
    graph : Dataset, path-like or Graph
        A dataset with triples; a :class:`Graph` is used as it is and stays open.
    split : str or int[n, 3]
        Queries: a split of the dataset, or (head, relation, tail) rows.
    batch_size : int
        Queries of a batch.
    hops : int
        Hops L of a subgraph.
    both_ends : bool
        Subgraphs of head and tail together, instead of the head's.
    remove_target : bool
        Leave the query's own triple and its reverse out of its subgraph, as training on the graph's own triples needs it.
    through : {"slices", "graph"}
        Slices that are made once and read in order, or exact extraction of every batch anew. Both give the same bits.
    slices : Slices, optional
        Slices to use; by default those in the dataset's scratch directory (one for each rank), made where they are
        missing.
    budget : int or str, optional
        Memory for everything this loader holds; by default half of what is available. A batch that does not fit is
        refused.
    device : torch.device or str, optional
        Where batches are delivered.
    order : OrderOptions, optional
        In which order queries come (shuffled by default), which part of them is ours, and the seed of all randomness.
        A partition is not taken: its parts are of nodes.
    memory : MemoryOptions, optional
        How the budget is used; by default ``MemoryOptions(topology="disk")``: triples are read from disk for slicing or
        extraction, and atoms of the entities with most triples stay in memory, up to ``topology_budget``.
    pipeline : PipelineOptions, optional
        How far ahead of training to work. The ``window`` is the superbatch: so many batches ahead are sliced, and known
        to the cache.
    storage : StorageOptions or str, optional
        How to read triples and slices; a string names the engine.
    output : OutputOptions, optional
        What a delivered batch is.

    Notes
    -----
    Epochs, resuming, statistics, failures and closing are those of :class:`gids.Loader`. A batch is a function of (seed,
    epoch, rank, world size, batch number) and of what a subgraph is; slices, budget, policy and threads change only how
    fast it comes. One process at a time may add slices to a directory.

    Examples
    --------
    >>> with gids.kg.Loader("wordnet", "train", hops=3, remove_target=True, budget="1GiB") as loader:
    ...     for batch in loader:
    ...         train_on(batch.subgraphs, batch.relations, batch.tail_positions)
    """

    def __init__(
        self,
        graph: Dataset | Graph | str | os.PathLike[str],
        split: str | NDArray[np.int32] | Tensor = "train",
        *,
        batch_size: int = 16,
        hops: int = 3,
        both_ends: bool = False,
        remove_target: bool = False,
        through: Through = "slices",
        slices: Slices | FeedSource | None = None,
        budget: int | str | None = None,
        device: torch.device | str | None = None,
        order: OrderOptions | None = None,
        memory: MemoryOptions | None = None,
        pipeline: PipelineOptions | None = None,
        storage: StorageOptions | str | None = None,
        output: OutputOptions | None = None,
    ) -> None:
        if through not in ("slices", "graph"):
            raise ConfigError(f"through must be 'slices' or 'graph' (got {through!r})")
        if slices is not None and (slices.hops != hops or through == "graph"):
            raise ConfigError(
                f"slices must be of {hops} hops and read through 'slices' (got {slices.hops} hops and {through!r})"
            )
        self._given_graph = graph if isinstance(graph, Graph) else None
        self._given_slices = slices
        self.dataset = graph.dataset if isinstance(graph, Graph) else as_dataset(graph)
        self.query_options = QueryOptions(hops, both_ends, remove_target, through)
        self.queries = _checked_queries(self.dataset, split)
        order = OrderOptions() if order is None else order
        if order.parts is not None:
            raise ConfigError(f"parts must be None for queries, which no partition divides (got {order.parts!r})")
        rank, world_size = order.resolved()
        check_order(batch_size=batch_size, rank=rank, world_size=world_size, uneven=order.uneven)
        self._order = {
            "batch_size": batch_size,
            "seed": order.seed or 0,
            "shuffle": order.shuffle is not False,
            "drop_last": order.drop_last,
            "rank": rank,
            "world_size": world_size,
            "uneven": order.uneven,
        }
        pipeline = PipelineOptions() if pipeline is None else pipeline
        if through == "graph":  # whole subgraphs wait: nothing is planned, so no window helps
            pipeline = replace(pipeline, window=0, sweep_batches=1)
        elif pipeline.sweep_batches is None:  # a batch alone has reads enough, and slices of one lie together
            pipeline = replace(pipeline, sweep_batches=1)
        if memory is not None and memory.history is not None:
            raise ConfigError("history must be None: queries have no embeddings of earlier batches")
        self.options = RuntimeOptions(
            budget=budget,
            memory=MemoryOptions(topology="disk") if memory is None else memory,
            pipeline=pipeline,
            storage=storage,
            output=OutputOptions() if output is None else output,
            device=None if device is None else torch.device(device),
            seed=order.seed or 0,
        )
        self._begin()
        self._open()

    def __len__(self) -> int:
        """Batches of an epoch on this rank."""
        return len(self.order(0))

    def order(self, epoch: int | None = None) -> SeedOrder:
        """Return the order of an epoch: which rows of :attr:`queries` every batch has.

        Parameters
        ----------
        epoch : int, optional
            By default the one that runs, or that the next ``iter()`` begins.
        """
        settings: dict[str, Any] = self._order
        return SeedOrder(torch.arange(len(self.queries)), epoch=self._epoch if epoch is None else epoch, **settings)

    def _piece(self, order: SeedOrder, epoch: int, index: int) -> QueriesOfEpoch:
        return QueriesOfEpoch(epoch, index, self.queries[order[index].nodes["_N"].numpy()])

    def _pieces(self, indices: Sequence[int]) -> Iterator[QueriesOfEpoch]:
        order, epoch = self.order(), self._epoch
        return (self._piece(order, epoch, index) for index in indices)

    def _open_backend(self, pool: ThreadPool) -> Backend:
        """Open the CPU's: subgraphs are put together there, whatever device they are delivered to."""
        return CpuBackend(self.options, pool)

    def _make_feed(self, backend: Backend, pool: ThreadPool) -> QueryFeed:
        first, prefetch = self._piece(self.order(0), 0, 0) if len(self) else None, self.options.pipeline.prefetch
        given = self._given_slices
        if given is not None and not isinstance(given, Slices):
            return given.make_feed(first, len(self), prefetch, backend)
        owned: list[Graph | Slices] = []
        try:
            graph = self._open_graph(pool, owned)
            slices = self._open_slices(graph, given, owned) if self.query_options.through == "slices" else None
            return QueryFeed(graph, slices, self.query_options, first, len(self), prefetch, backend, owned)
        except BaseException:
            while owned:
                owned.pop().close()
            raise

    def _open_graph(self, pool: ThreadPool, owned: list[Graph | Slices]) -> Graph:
        given = self._given_graph
        if given is not None:
            if given.pid != os.getpid():
                raise GidsError(
                    f"a Graph that process {given.pid} opened cannot be used in its forked child {os.getpid()}: "
                    "give the loader the dataset"
                )
            return given
        reading, memory = self.options.reading, self.options.memory
        graph = Graph(
            self.dataset,
            on_disk=memory.topology != "memory",
            atom_cache=ATOM_CACHE if memory.topology_budget is None else memory.topology_budget,
            storage=replace(reading, staging_bytes=min(reading.staging_bytes, GRAPH_STAGING_BYTES)),
            pool=pool,
        )
        owned.append(graph)
        return graph

    def _open_slices(self, graph: Graph, given: Slices | None, owned: list[Graph | Slices]) -> Slices:
        if given is not None:
            return given
        rank, world_size = self._order["rank"], self._order["world_size"]
        part = f"{rank}-of-{world_size}" if world_size != 1 else ""
        slices = Slices(graph, hops=self.query_options.hops, part=part)
        owned.append(slices)
        return slices

    @property
    def feed(self) -> QueryFeed:
        """Who makes the batches; its :attr:`~QueryFeed.slices` tell how well they were sliced."""
        feed = self._open().feed
        assert isinstance(feed, QueryFeed)
        return feed

    def _order_identity(self) -> dict[str, Any]:
        options = self.query_options
        subgraphs = {"hops": options.hops, "both_ends": options.both_ends, "remove_target": options.remove_target}
        queries = {"queries": describe_ids({"rows": torch.from_numpy(self.queries)})}
        return {"dataset": self.dataset.id} | queries | subgraphs | self._order

    def __repr__(self) -> str:
        hops, batch_size = self.query_options.hops, self._order["batch_size"]
        return f"gids.kg.Loader({str(self.dataset.path)!r}, {len(self)} batches of {batch_size} queries, {hops} hops)"


def _checked_queries(dataset: Dataset, split: str | NDArray[np.int32] | Tensor) -> NDArray[np.int32]:
    known = dataset.knowledge
    if isinstance(split, str):
        return known.queries(split)
    queries = np.ascontiguousarray(split, np.int32)
    if queries.ndim != 2 or queries.shape[1] != 3:
        raise ConfigError(f"split must be a name or rows of (head, relation, tail) (got {list(queries.shape)})")
    known.check_relations(queries[:, 1])
    for column, name in ((0, "head"), (2, "tail")):
        bad = queries[(queries[:, column] < 0) | (queries[:, column] >= known.num_entities), column]
        if len(bad):
            raise ConfigError(f"{name} must be an entity in [0, {known.num_entities}) (got {int(bad[0])})")
    return queries
