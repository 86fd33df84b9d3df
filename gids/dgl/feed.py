"""The feeds of DGL's door: any DGL sampler, observed as it samples; and samplers of gids, whose batches can be replayed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dgl
import torch
from dgl.dataloading.dataloader import _assign_for, _prefetch, restore_parent_storage_columns
from dgl.utils import recursive_apply, recursive_apply_pair
from torch import Tensor

from gids._native import ThreadPool
from gids.dgl.requests import batch_bytes, collect, frames_of, lazy_columns, num_inputs, num_seeds
from gids.dgl.sampler import DatasetGraph, Sampler, dgl_batch
from gids.dgl.source import Source
from gids.loader.feed import SamplerFeed
from gids.loader.packed import PackedFeed, PackedPiece
from gids.runtime.backend import Backend
from gids.runtime.options import RuntimeOptions
from gids.runtime.ranking import Ranker
from gids.runtime.work import Fetched, Work
from gids.sampling import HistorySample, HistorySampler, SampleKey
from gids.table import RowTable
from gids.tiers import HotRows
from gids.types import TableKey


@dataclass(frozen=True)
class Target:
    """What DGL's own fetching needs to know of a loader: it brings what the dataset does not have.

    Attributes
    ----------
    graph : DGLGraph or DatasetGraph
        Whose columns.
    device : torch.device
        Where graphs go.
    pin_prefetcher : bool
        Whether through page-locked memory.
    other_storages : dict
        What was attached with ``attach_data``.
    """

    graph: Any
    device: torch.device
    pin_prefetcher: bool
    other_storages: dict[str, Any]

    def fetch(self, batch: Any) -> Any:
        """Return the batch on the device, with the columns that are not ours."""
        batch, features, _ = _prefetch(batch, self, None)
        return recursive_apply_pair(batch, features, _assign_for)


class DglFeed:
    """Takes batches of any DGL sampler as they are sampled; see :class:`gids.runtime.feed.Feed`.

    Parameters
    ----------
    source : Source
        Where columns come from.
    target : Target
        Where batches go.
    sampler : dgl.dataloading.Sampler
        Who samples, for rankings; pieces of the order are batches that it made.
    seeds : callable
        Returns the nodes that sampling begins at, by type, for rankings.
    num_batches : int
        Batches of an epoch.
    on_consumer : bool
        Whether taking a piece samples on the thread that takes it, with the random state of that thread.
    beside : list of TableKey
        Node tables whose rows of all input nodes are delivered beside the batch, by node type.
    first : callable, optional
        Samples one batch that no epoch notices; None where the sampler has a state.
    options : RuntimeOptions
        What the user chose.
    backend : Backend
        Where rows are kept.
    pool : ThreadPool
        Threads for rankings.
    """

    replays = False

    def __init__(
        self,
        source: Source,
        target: Target,
        sampler: Any,
        seeds: Callable[[], Mapping[str, Tensor]],
        *,
        num_batches: int,
        on_consumer: bool,
        beside: list[TableKey],
        first: Callable[[], Any] | None,
        options: RuntimeOptions,
        backend: Backend,
        pool: ThreadPool,
    ):
        self._source, self._target, self._beside, self._first = source, target, beside, first
        self._options, self._backend = options, backend
        self._sampler, self.num_batches, self.samples_on_consumer = sampler, num_batches, on_consumer
        self.tables: dict[TableKey, RowTable] = source.tables
        self._asked = bool(beside)
        source.load_labels(backend)
        fanouts = _fanouts(getattr(sampler, "sampler", sampler), target.graph)
        self._ranker = Ranker(source.dataset, options.memory.host_rank, seeds, fanouts, seed=options.seed, pool=pool)

    @property
    def standing_bytes(self) -> tuple[int, int]:
        """Memory of the graph, which is DGL's, and of the labels."""
        graph = self._target.graph
        topology = graph.topology.resident_bytes() if isinstance(graph, DatasetGraph) else 0
        return topology, self._source.labels_bytes

    @property
    def borrowed_bytes(self) -> int:
        """Host memory of DGL's graph."""
        return graph_bytes(self._target.graph)

    def first(self) -> tuple[Work, int] | None:
        """Sample one batch, where that changes none of an epoch's."""
        return None if self._first is None else (self.sample(self._first()), 0)

    def sample(self, piece: Any) -> Work:
        """Say which rows a sampled batch needs; called where it was sampled."""
        batch = recursive_apply(piece, restore_parent_storage_columns, self._target.graph)
        requests = collect(batch, self._source.has)
        if requests.rows:
            self._asked = True
        elif not self._asked:
            self._asked = True
            self._source.say_what_to_prefetch()
        rows = {key: ids for key, ids in requests.rows.items() if key in self.tables}
        places: dict[TableKey, Tensor | None] = {}
        for key, ids in self._input_nodes(batch).items():
            asked = rows.setdefault(key, ids)
            # Where the sampler asks for the table in several places its rows are sorted, and these are among them.
            places[key] = None if torch.equal(asked, ids) else torch.searchsorted(asked, ids)
        placed = {key: self._backend.place(ids) for key, ids in rows.items()}
        size_bytes = batch_bytes(batch) + sum(ids.nbytes for ids in rows.values())
        return Work((batch, requests, places), placed, size_bytes, num_seeds(batch), num_inputs(batch))

    def _input_nodes(self, batch: Any) -> dict[TableKey, Tensor]:
        if not self._beside:
            return {}
        nodes = batch[0] if isinstance(batch[0], Mapping) else {self._source.graph.ntypes[0]: batch[0]}
        return {key: nodes[key.type].long() for key in self._beside if key.type in nodes}

    def finish(self, fetched: Fetched) -> Any:
        """Put fetched rows into their graphs and everything onto the device; returns what DGL returns."""
        batch, requests, places = fetched.work.payload
        batch = self._target.fetch(batch)
        labels = {key: self._source.labels(key, ids) for key, ids in requests.rows.items() if key not in fetched.rows}
        requests.deliver(batch, fetched.rows | labels)
        if not self._beside:
            return batch
        found = {}
        for key, place in places.items():
            rows = fetched.rows[key]
            found[key.type] = rows if place is None else rows[place.to(rows.device)]
        return with_features(batch, found)

    def profile(self) -> Iterator[Work]:
        """Yield nothing: batches of the run are observed."""
        return iter(())

    def is_ranked(self, key: TableKey) -> bool:
        """Whether the rows of a table have scores."""
        return self._ranker.is_ranked(key)

    def rankings(self) -> Mapping[TableKey, HotRows]:
        """Rank the rows of every table."""
        return self._ranker.rankings(list(self.tables))

    @property
    def identity(self) -> str | None:
        """What the batches are like; None with a sampler or scores of the user's own."""
        ranks = self._ranker.identity
        samplers = [self._sampler, getattr(self._sampler, "sampler", None)]
        if ranks is None or any(
            s is not None and not type(s).__module__.startswith(("dgl.", "gids.")) for s in samplers
        ):
            return None
        settings = [
            f"{type(s).__name__}({[f'{name}={value}' for name, value in sorted(vars(s).items()) if _is_setting(value)]})"
            for s in samplers
            if s is not None
        ]
        graph = self._target.graph
        edges = [] if isinstance(graph, DatasetGraph) else [graph.num_edges(e) for e in graph.canonical_etypes]
        return json.dumps(["dgl", ranks, settings, edges, self.num_batches, [str(key) for key in self._beside]])

    @property
    def scratch_dir(self) -> Path | None:
        """Where what was found out about the dataset is kept."""
        return self._source.dataset.scratch_dir

    def close(self) -> None:
        """Nothing is held open."""


def _fanouts(sampler: Any, graph: Any) -> list[Any] | None:
    """Return the fan-outs of a sampler by canonical edge types, outermost layer first; None where it has none."""
    fanouts = sampler.inner if isinstance(sampler, Sampler) else sampler
    layers = getattr(fanouts, "fanouts", None)
    if layers is None:
        return None
    return [
        {tuple(graph.to_canonical_etype(etype)): int(count) for etype, count in layer.items()}
        if isinstance(layer, Mapping) and not isinstance(graph, DatasetGraph)
        else layer
        for layer in layers
    ]


def _is_setting(value: Any) -> bool:
    return isinstance(value, int | float | str | list | tuple | dict) and "tensor" not in str(value)[:1000]


class BlockFeed:
    """Samplers of gids with batches as DGL has them: the feed of :class:`gids.Loader`, other clothes.

    Parameters
    ----------
    inner : SamplerFeed or PackedFeed
        Samples, or reads what was sampled, and says what is known beforehand.
    sampler : Sampler
        Says which columns blocks have.
    source : Source
        Where columns come from.
    target : Target
        Where batches go.
    backend : Backend
        Where batches are delivered.
    beside : list of TableKey
        Node tables whose rows of all input nodes are delivered beside the batch, by node type.
    """

    samples_on_consumer = False
    replays = True

    def __init__(
        self,
        inner: SamplerFeed | PackedFeed,
        sampler: Sampler,
        source: Source,
        target: Target,
        backend: Backend,
        beside: list[TableKey],
    ):
        self._inner, self._sampler, self._source, self._target = inner, sampler, source, target
        self._backend, self._beside = backend, beside
        self.tables: dict[TableKey, RowTable] = inner.tables
        source.load_labels(backend)

    @property
    def standing_bytes(self) -> tuple[int, int]:
        """Memory of the graph, unless it is DGL's, and of the labels."""
        owned = isinstance(self._target.graph, DatasetGraph)
        return (self._inner.standing_bytes[0] if owned else 0), self._source.labels_bytes

    @property
    def borrowed_bytes(self) -> int:
        """Host memory of DGL's graph."""
        return graph_bytes(self._target.graph)

    @property
    def num_batches(self) -> int:
        """Batches of an epoch."""
        return self._inner.num_batches

    def first(self) -> tuple[Work, int] | None:
        """Sample the first batch of the profile."""
        return self._inner.first()

    def sample(self, piece: Any) -> Work:
        """Sample one batch where the backend samples, or read what was sampled."""
        return self._inner.sample(piece)

    def packed_pieces(self, epoch: int, stored: int, indices: Sequence[int]) -> Iterator[PackedPiece]:
        """Yield the pieces of stored batches."""
        assert isinstance(self._inner, PackedFeed)
        return self._inner.pieces(epoch, stored, indices)

    def finish(self, fetched: Fetched) -> Any:
        """Build DGL's blocks and put every column where the sampler wants it."""
        seeds = fetched.work.payload.piece.seeds.nodes
        made = self._inner.finish(fetched)
        assert made.sample is not None
        input_nodes, blocks = dgl_batch(made.sample)
        output_nodes = self._backend.deliver_tensors(
            seeds if isinstance(input_nodes, dict) else next(iter(seeds.values()))
        )
        batch = self._sampler.assign_lazy_features((input_nodes, output_nodes, blocks))
        ours = []
        for layer, block in enumerate(blocks):
            frames = frames_of(block)
            for column in [found for found in lazy_columns(block) if self._source.has(found.key)]:
                ids: Any = None if column.key.is_edge else frames[column.frame].get(dgl.NID)
                ours.append((layer, column, ids))
                del frames[column.frame][column.name]
        batch = self._target.fetch(batch)
        if isinstance(made.sample, HistorySample):
            batch[2][-1].history = made.sample.history  # a block that was moved is another object
        for layer, (frame, name, key, _), ids in ours:
            if key.is_edge:
                rows = made.edge_features[layer][key]
            elif key in made.features:
                rows = made.features[key][: len(ids)]  # nodes of every layer are the first of the input nodes
            else:
                rows = self._source.labels(key, ids)
            frames_of(batch[2][layer])[frame][name] = rows
        if not self._beside:
            return batch
        return with_features(batch, {key.type: made.features[key] for key in self._beside})

    def profile(self) -> Iterator[Work]:
        """Yield batches like those of an epoch."""
        return self._inner.profile()

    def is_ranked(self, key: TableKey) -> bool:
        """Whether the rows of a table have scores."""
        return self._inner.is_ranked(key)

    def rankings(self) -> Mapping[TableKey, HotRows]:
        """Rank the rows of every table."""
        return self._inner.rankings()

    @property
    def identity(self) -> str | None:
        """What profile and rankings are a function of."""
        found = self._inner.identity
        if found is None or isinstance(self._target.graph, DatasetGraph):
            return found
        assert isinstance(self._inner, SamplerFeed)  # packed epochs need no graph of DGL's
        digest = hashlib.sha256()  # the graph need not be the dataset's
        for relation in self._inner.topology.relations.values():
            digest.update(memoryview(relation.indptr[:: max(1, len(relation.indptr) >> 16)].copy()))
        return json.dumps([found, digest.hexdigest()])

    @property
    def scratch_dir(self) -> Path | None:
        """Where what was found out about the dataset is kept."""
        return self._inner.scratch_dir

    def close(self) -> None:
        """Close a graph on disk."""
        self._inner.close()


def tables_asked_for(sampler: Sampler, source: Source, seeds: Mapping[str, Tensor]) -> list[TableKey]:
    """Return the tables and labels that a sampler of gids puts into blocks; looks at the batch of one seed."""
    one = next(({ntype: ids[:1]} for ntype, ids in seeds.items() if len(ids)), None)
    if one is None:
        return []
    inner = sampler.inner
    if isinstance(inner, HistorySampler):
        inner = inner.following(lambda epoch, batch: one)
    sample = inner.sample(sampler.topology(source.graph), one, SampleKey(sampler.seed))
    input_nodes, blocks = dgl_batch(sample)
    sampler.assign_lazy_features((input_nodes, one, blocks))
    asked = dict.fromkeys(column.key for block in blocks for column in lazy_columns(block) if source.has(column.key))
    return list(asked)


def graph_bytes(graph: Any) -> int:
    """Return the host memory of a DGL graph's edges in the formats that it has; numbers that it gives edges not included."""
    if isinstance(graph, DatasetGraph) or graph.device.type != "cpu":
        return 0
    found = 0
    for kind in graph.formats()["created"]:
        for source, name, target in graph.canonical_etypes:
            edges, rows = graph.num_edges((source, name, target)), graph.num_nodes(source if kind == "csr" else target)
            found += graph.idtype.itemsize * (2 * edges if kind == "coo" else edges + rows + 1)
    return found


def with_features(batch: Any, features: Mapping[Any, Tensor]) -> Any:
    """Return the batch with features of its input nodes as its last part, as the research code has it."""
    hetero = isinstance(batch[0], Mapping)
    return (*batch, dict(features) if hetero else next(iter(features.values())))
