"""Contenders of ``gids bench kg``: the same batches by exact extraction, from whole copies, and from slices, one runtime."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gids.kg.feed import TRIPLE_BYTES, QueriesOfEpoch, QueryFeed, QueryOptions, made_of
from gids.kg.graph import Graph
from gids.kg.loader import Loader
from gids.kg.slices import Slices
from gids.kg.subgraphs import Subgraphs
from gids.runtime.backend import Backend
from gids.runtime.work import Work
from gids.table import RowTable, Stripe
from gids.tiers import Counters, Planner
from gids.types import TableKey

#: The table whose rows are slices of equal length.
EQUAL = TableKey("slices", "equal")


class EqualSlices:
    """The paper's *Ginex*: every subgraph stored whole, in slices of equal length that are not used again.

    Parameters
    ----------
    graph : Graph
        Where subgraphs are extracted from.
    path : Path
        Directory to write to.
    hops, slice_triples : int
        Of subgraphs, and of a slice.
    """

    def __init__(self, graph: Graph, path: Path, hops: int, slice_triples: int):
        self.graph, self.path, self.hops, self.slice_triples = graph, path, hops, slice_triples
        self.first_row: dict[int, int] = {}
        self.counts: dict[int, int] = {}
        self.num_rows = 0

    def prepare(self, heads: NDArray[np.int32], max_queries: int = 4) -> None:
        """Extract the subgraph of every head once and write it."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir(parents=True)
        self.first_row, self.counts, self.num_rows = {}, {}, 0
        entities = np.array(list(dict.fromkeys(heads.tolist())), np.int32)
        with (self.path / "triples.bin").open("wb") as file:
            for begin in range(0, len(entities), max_queries):
                chosen = entities[begin : begin + max_queries]
                self._write(file, chosen, self.graph.extract(chosen, hops=self.hops))
            file.flush()
            os.fdatasync(file.fileno())

    def _write(self, file: Any, heads: NDArray[np.int32], found: Subgraphs) -> None:
        entities = found.entities.numpy()
        columns = (entities[found.heads.numpy()], found.relations.numpy(), entities[found.tails.numpy()])
        triples = np.column_stack(columns)
        for i, head in enumerate(heads.tolist()):
            own = triples[int(found.edge_ptr[i]) : int(found.edge_ptr[i + 1])]
            rows = -(-len(own) // self.slice_triples)
            padded = np.zeros((rows * self.slice_triples, 3), np.int32)
            padded[: len(own)] = own
            padded.tofile(file)
            self.first_row[head], self.counts[head] = self.num_rows, len(own)
            self.num_rows += rows

    def make_feed(self, first: QueriesOfEpoch | None, num_batches: int, prefetch: int, backend: Backend) -> QueryFeed:
        """Return what reads the copies; see :class:`gids.kg.feed.FeedSource`."""
        feed = EqualFeed(self.graph, None, QueryOptions(self.hops), first, num_batches, prefetch, backend, [])
        feed.equal = self
        return feed

    @property
    def disk_bytes(self) -> int:
        """Bytes of all slices."""
        return self.num_rows * self.slice_triples * 12

    @property
    def table(self) -> RowTable:
        """The slices as rows."""
        dim, stride = 3 * self.slice_triples, 12 * self.slice_triples
        stripe = Stripe(self.path / "triples.bin", 0, self.num_rows)
        return RowTable("equal slices", "int32", dim, self.num_rows, stride, (stripe,), self.num_rows)


class EqualFeed(QueryFeed):
    """As :class:`QueryFeed`, from whole copies."""

    equal: EqualSlices

    @property
    def tables(self) -> Mapping[TableKey, RowTable]:
        """The copies."""
        return {EQUAL: self.equal.table}

    def sample(self, piece: QueriesOfEpoch) -> Work:
        """Say which slices hold the subgraphs of a batch."""
        equal, heads = self.equal, piece.queries[:, 0].tolist()
        counts = np.array([equal.counts[head] for head in heads])
        begins = np.array([equal.first_row[head] for head in heads])
        lengths = -(-counts // equal.slice_triples)
        rows = np.unique(np.concatenate([np.arange(b, b + n) for b, n in zip(begins, lengths, strict=True)]))
        first = np.searchsorted(rows, begins) * equal.slice_triples
        spans = np.column_stack([first, first + counts]).astype(np.int64).reshape(-1)

        def assemble(fetched: Mapping[TableKey, Any]) -> Any:
            words, queries = fetched[EQUAL].numpy().reshape(-1), self.native_queries(piece.queries)
            return made_of(piece, self.graph.extractor.from_triples(queries, words, spans, self.graph.pool))

        made_bytes = int(counts.sum()) * TRIPLE_BYTES
        wanted = {EQUAL: torch.from_numpy(rows.astype(np.int64))}
        return Work(None, wanted, spans.nbytes, len(heads), assemble=assemble, made_bytes=made_bytes)


def equal_loader(equal: EqualSlices, queries: NDArray[np.int32], **options: Any) -> Loader:
    """Return a :class:`gids.kg.Loader` that reads whole copies.

    Parameters
    ----------
    equal : EqualSlices
        The copies.
    queries : int[n, 3]
        Queries.
    **options : Any
        Of the loader.
    """
    return Loader(equal.graph, queries, hops=equal.hops, slices=equal, **options)


def hit_ratios(
    slices: Slices, batches: list[NDArray[np.int32]], cache_bytes: int, policies: tuple[str, ...]
) -> dict[str, float]:
    """Return the hit ratio of every policy on the same batches, by planning alone."""
    rows = [torch.from_numpy(np.unique(slices.of(heads)[1]).astype(np.int64)) for heads in batches]
    found = {}
    for policy in policies:
        planner = Planner(slices.table.num_rows, cache_bytes // slices.slice_bytes, policy, pool=slices.graph.pool)
        counters = Counters()
        for i, part in enumerate(rows):
            counters += planner.plan_group([part], rows[i + 1 :]).batches[0].counters
        found[policy] = counters.hit_ratio
    return found
