"""DGL's DataLoader with one more argument: ``gids=`` takes features from disk instead of from the graph."""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Hashable, Iterator
from typing import Any

import dgl.dataloading
import torch
from dgl.dataloading.dataloader import _assign_for, _prefetch, restore_parent_storage_columns
from dgl.utils import recursive_apply, recursive_apply_pair

from gids.dataset import Dataset
from gids.dgl.requests import collect
from gids.dgl.sampler import DatasetGraph, Sampler, wrap
from gids.errors import ConfigError
from gids.external import Options, TableKey, Tables, check_same_nodes, node_and_edge_tables
from gids.loader import Fetched, Work
from gids.loader.stats import TableStats

#: Names under which a dataset's labels are found where the graph has no such column.
LABEL_NAMES = ("label", "labels", "y")


class DataLoader(dgl.dataloading.DataLoader):  # type: ignore[misc] # DGL has no types
    """``dgl.dataloading.DataLoader`` that can read features from a gids dataset.

    Parameters
    ----------
    graph, indices, graph_sampler, *args, **kwargs
        As in DGL. ``graph`` may also be a dataset or the path of one and ``graph_sampler`` a sampler of
        :mod:`gids.sampling`; no DGL graph is needed then.
    gids : Dataset, path, Options or None
        Where node and edge features are. Columns that the sampler prefetches and the dataset has come from disk, all
        others from the graph as ever; labels that the graph does not have come from the dataset. None: exactly DGL.

    Notes
    -----
    With ``num_workers=0`` sampling runs on the thread that iterates, some batches ahead, so that batches are those that
    DGL makes from the same ``dgl.seed``; with workers it runs in them, as in DGL. Reading runs in the background.
    """

    def __init__(self, graph: Any, indices: Any, graph_sampler: Any, *args: Any, gids: Any = None, **kwargs: Any):
        self.gids = gids
        self._run: weakref.ref[Any] | None = None
        self._source: _Source | None = None
        if isinstance(graph, Dataset | str | os.PathLike):
            dataset = Options(graph).open()
            self.gids = gids = dataset if gids is None else gids
            graph = DatasetGraph(dataset)
        if gids is not None:
            self._source = _Source(gids if isinstance(gids, Options) else Options(gids), graph)
            graph_sampler = wrap(graph_sampler, self._source.dataset)
        super().__init__(graph, indices, graph_sampler, *args, **kwargs)

    def __iter__(self) -> Iterator[Any]:
        """Begin an epoch; one that is still under way ends."""
        sampler = getattr(self.graph_sampler, "sampler", self.graph_sampler)  # that of an edge prediction sampler
        if isinstance(sampler, Sampler):
            sampler.next_epoch()
        if self._source is None:
            return super().__iter__()  # type: ignore[no-any-return]
        self._end_run()
        if self.shuffle:
            self.dataset.shuffle()
        sampled = torch.utils.data.DataLoader.__iter__(self)
        run = self._source.tables.run(map(self.make_work, sampled), self.finish, here=self.num_workers == 0)
        self._run = weakref.ref(run)
        return run

    def make_work(self, batch: Any) -> Work:
        """Say which rows a sampled batch needs; called where it was sampled."""
        source = self._source
        assert source is not None
        batch = recursive_apply(batch, restore_parent_storage_columns, self.graph)
        requests = collect(batch, source.has)
        rows: dict[Hashable, torch.Tensor] = {key: ids for key, ids in requests.rows.items() if key in source.on_disk}
        if not rows:
            source.warn()
        return Work((batch, requests), rows)

    def finish(self, fetched: Fetched) -> Any:
        """Put fetched rows into their graphs and everything onto the device; gives what DGL gives."""
        source = self._source
        assert source is not None
        batch, requests = fetched.work.payload
        labels = {key: source.labels(key)[ids] for key, ids in requests.rows.items() if key not in fetched.rows}
        requests.deliver(fetched.rows | labels)
        batch, features, _ = _prefetch(batch, self, None)  # what stayed lazy, and the move to the device
        return recursive_apply_pair(batch, features, _assign_for)

    def stats(self) -> dict[str, TableStats]:
        """Tell for every table where its rows came from so far; empty without ``gids=``."""
        return {} if self._source is None else self._source.tables.stats()

    def close(self) -> None:
        """End the epoch that is under way and give files and memory back; the loader can still be iterated."""
        self._end_run()
        if self._source is not None:
            self._source.tables.close()

    def _end_run(self) -> None:
        run = self._run() if self._run is not None else None
        if run is not None:
            run.close()


class _Source:
    """What a dataset has for a graph: tables on disk, labels in memory."""

    def __init__(self, options: Options, graph: Any):
        self.dataset = options.open()
        self.on_disk = node_and_edge_tables(self.dataset)
        self.tables = Tables(self.on_disk, options)
        self._graph = graph
        self._labels: dict[str, torch.Tensor] = {}
        self.warned = False
        check_same_nodes(self.dataset, {ntype: graph.num_nodes(ntype) for ntype in graph.ntypes}, "graph")
        unknown = [key for key in options.host_rows if key not in self.on_disk]
        if unknown:
            raise ConfigError(f"host_rows must name tables among {list(self.on_disk)} (got {unknown})")

    def has(self, key: TableKey) -> bool:
        """Whether a column is served from here."""
        return key in self.on_disk or self._is_label(key)

    def _is_label(self, key: TableKey) -> bool:
        kind, type_, name = key
        if kind != "node" or name not in LABEL_NAMES or type_ not in self.dataset.node_types:
            return False
        frames = getattr(self._graph, "_node_frames", None)
        if frames is not None and name in frames[self._graph.get_ntype_id(type_)]:
            return False
        return type_ in self._labels or self.dataset.labels(type_) is not None

    def labels(self, key: TableKey) -> torch.Tensor:
        """Labels of a node type, all of them."""
        ntype = key[1]
        if ntype not in self._labels:
            labels = self.dataset.labels(ntype)
            assert labels is not None  # has() said so
            self._labels[ntype] = labels
        return self._labels[ntype]

    def warn(self) -> None:
        """Say once that the dataset is of no use to the sampler."""
        if not self.warned:
            self.warned = True
            known = ", ".join(sorted({str(name) for _, _, name in self.on_disk}))
            warnings.warn(
                f"gids= is set, but the sampler prefetches none of the dataset's features ({known})", stacklevel=2
            )
