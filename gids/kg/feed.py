"""The feed of knowledge graphs: queries in, slices (or triples) looked up ahead, complete subgraphs out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gids import _native
from gids.budget.parts import HELD_BY_CONSUMER
from gids.errors import ConfigError
from gids.kg.graph import Graph
from gids.kg.slices import Slices
from gids.kg.subgraphs import Arrays, Batch, Subgraphs
from gids.runtime.backend import Backend
from gids.runtime.work import Fetched, Work
from gids.table import RowTable
from gids.tiers import HotRows
from gids.types import TableKey
from gids.units import format_bytes

Through = Literal["slices", "graph"]

#: The table whose rows are slices.
SLICES = TableKey("slices", "slices")
#: Bytes that a triple takes in a batch, with its share of the nodes (about one for two triples, 5 bytes each).
TRIPLE_BYTES = 12 + 3
#: Bytes that a triple takes while its batch is made: in its slice and in the walk.
TRIPLE_SCRATCH_BYTES = 8 + 12
#: Of the budget beside graph and lists, what subgraphs may take, of batches in delivery and of the one being made. Their
#: sizes differ by orders of magnitude and are known only once they are sliced, so that no first batch tells what the
#: others need.
SUBGRAPHS_SHARE = 1 / 2


@dataclass(frozen=True)
class QueriesOfEpoch:
    """One piece of the order: a batch of queries, ``int32[n, 3]`` of (head, relation, tail), and which batch it is."""

    epoch: int
    number: int
    queries: NDArray[np.int32]


@dataclass(frozen=True)
class QueryOptions:
    """What a query's subgraph is, and where it comes from; see :class:`gids.kg.Loader`."""

    hops: int
    both_ends: bool = False
    remove_target: bool = False
    through: Through = "slices"


@dataclass(frozen=True)
class Made:
    """A batch of queries with its subgraphs, before it is handed over."""

    piece: QueriesOfEpoch
    subgraphs: Subgraphs
    tail_positions: Tensor


def made_of(piece: QueriesOfEpoch, arrays: Arrays) -> Made:
    """Take over what native extraction returned for a piece."""
    return Made(piece, Subgraphs.of(arrays), torch.from_numpy(arrays[7]))


class FeedSource(Protocol):
    """Something that makes a feed of its own for a loader's queries, in the place of slices; benchmarks have one."""

    hops: int

    def make_feed(self, first: QueriesOfEpoch | None, num_batches: int, prefetch: int, backend: Backend) -> QueryFeed:
        """Return the feed of a loader with this first batch, so many batches an epoch and so many made ahead."""
        ...


class QueryFeed:
    """Orders queries and makes their subgraphs; see :class:`gids.runtime.feed.Feed`.

    Parameters
    ----------
    graph : Graph
        Where triples come from.
    slices : Slices, optional
        Where slices are, and are added; None: every batch is extracted anew.
    options : QueryOptions
        What a subgraph is.
    first_piece : QueriesOfEpoch, optional
        The first batch of epoch 0; None where there is none.
    num_batches : int
        Batches of an epoch.
    prefetch : int
        Batches that are made ahead.
    backend : Backend
        Delivers; its memory is what a batch must fit in.
    owned : list
        What is closed with this.
    """

    samples_on_consumer = False
    replays = False
    identity = None

    def __init__(
        self,
        graph: Graph,
        slices: Slices | None,
        options: QueryOptions,
        first_piece: QueriesOfEpoch | None,
        num_batches: int,
        prefetch: int,
        backend: Backend,
        owned: list[Graph | Slices],
    ):
        self.graph, self.slices, self.options = graph, slices, options
        self.num_batches = num_batches
        self._first_piece, self._backend, self._owned = first_piece, backend, owned
        self._budget_bytes = backend.memory.host
        self._triple_bytes = TRIPLE_SCRATCH_BYTES + TRIPLE_BYTES * (prefetch + HELD_BY_CONSUMER)
        self._begun_bytes = sum(self.standing_bytes)
        room = int((self._budget_bytes - self._begun_bytes) * SUBGRAPHS_SHARE)
        #: Most triples of a batch.
        self.max_triples = max(1, room // self._triple_bytes)

    @property
    def tables(self) -> Mapping[TableKey, RowTable]:
        """The slices; they become more while batches are sampled."""
        return {} if self.slices is None else {SLICES: self.slices.table}

    @property
    def standing_bytes(self) -> tuple[int, int]:
        """Memory of the graph and of the lists of slices; there are no labels."""
        return self.graph.memory_bytes + (0 if self.slices is None else self.slices.memory_bytes), 0

    def first(self) -> tuple[Work, int] | None:
        """Make the first batch of epoch 0; the memory that it may take, and works in, is that of the largest allowed."""
        if self._first_piece is None:
            return None
        work, scratch_bytes = self.sample(self._first_piece), self.max_triples * TRIPLE_SCRATCH_BYTES
        if not work.rows:  # extracted already: what waits is the subgraphs themselves
            return work, scratch_bytes
        return replace(work, made_bytes=self.max_triples * TRIPLE_BYTES), scratch_bytes

    def sample(self, piece: QueriesOfEpoch) -> Work:
        """Say which slices hold the subgraphs of a batch, and slice those that never were; or extract them."""
        if self.slices is None:
            queries = self.native_queries(piece.queries, self.max_triples)
            roots = self._roots(piece.queries).reshape(-1)
            made = made_of(piece, self.graph.extract_arrays(queries, roots, self.options.hops))
            return Work(made, {}, made.subgraphs.nbytes, len(piece.queries))
        roots = self._roots(piece.queries).reshape(-1)
        self.slices.ensure(roots)
        ptr, slices, triples = self.slices.of(roots)
        self._check_fits(piece, int(triples.sum()))
        rows, inverse = np.unique(slices, return_inverse=True)
        places = inverse.astype(np.int32)

        def assemble(fetched: Mapping[TableKey, Any]) -> Made:
            assert self.slices is not None
            words, slice_words = fetched[SLICES].numpy().reshape(-1), self.slices.slice_words
            arrays = self.graph.extractor.from_slices(
                self.native_queries(piece.queries), words, slice_words, ptr, places, triples, self.graph.pool
            )
            return made_of(piece, arrays)

        return Work(
            None,
            {SLICES: torch.from_numpy(rows.astype(np.int64))},
            ptr.nbytes + places.nbytes + triples.nbytes + piece.queries.nbytes,
            len(piece.queries),
            assemble=assemble,
            made_bytes=int(triples.sum()) * TRIPLE_BYTES,
        )

    def finish(self, fetched: Fetched) -> Batch:
        """Add the queries to their subgraphs, and hand them over."""
        made: Made = fetched.work.payload
        piece, subgraphs = made.piece, made.subgraphs
        heads, relations, tails = (torch.from_numpy(piece.queries[:, i].astype(np.int64)) for i in range(3))
        batch = Batch(
            piece.epoch,
            piece.number,
            heads,
            relations,
            tails,
            subgraphs,
            subgraphs.node_ptr[:-1],
            made.tail_positions,
        )
        return self._backend.deliver_tensors(batch)

    def _roots(self, queries: NDArray[np.int32]) -> NDArray[np.int32]:
        return np.ascontiguousarray(queries[:, [0, 2]] if self.options.both_ends else queries[:, :1])

    def native_queries(self, queries: NDArray[np.int32], max_triples: int = 0) -> _native.KgQueries:
        """Make queries ready for native extraction, which is to say where their tails are."""
        return self.graph.queries(
            queries[:, 0],
            queries[:, 2] if self.options.both_ends else None,
            hops=self.options.hops,
            remove=queries if self.options.remove_target else None,
            max_triples=max_triples,
            wanted=np.ascontiguousarray(queries[:, 2]),
        )

    def _check_fits(self, piece: QueriesOfEpoch, triples: int) -> None:
        if triples > self.max_triples:
            # Of the lists as they are now, and as they may be when the loader is opened again; whole MiB, as it is told.
            enough = int(1.25 * sum(self.standing_bytes)) + int(triples * self._triple_bytes / SUBGRAPHS_SHARE)
            enough = -(-enough // (1 << 20)) << 20
            raise ConfigError(
                f"budget must hold the subgraphs of batch {piece.number}: {len(piece.queries)} queries have {triples} "
                f"triples, and {format_bytes(self._budget_bytes)} holds {self.max_triples} in a batch; a budget of "
                f"{format_bytes(enough)}, smaller batches or fewer hops would hold them"
            )

    def profile(self) -> Iterator[Work]:
        """Yield nothing: subgraphs are sliced once, by the run that needs them."""
        yield from ()

    def is_ranked(self, key: TableKey) -> bool:
        """Slices are not ranked: which ones there will be is not known."""
        return False

    def rankings(self) -> Mapping[TableKey, HotRows]:
        """Return none."""
        return {}

    @property
    def scratch_dir(self) -> Path | None:
        """Where what was found out about the dataset is kept."""
        return self.graph.dataset.scratch_dir

    def close(self) -> None:
        """Close what was opened for this."""
        while self._owned:
            self._owned.pop().close()
