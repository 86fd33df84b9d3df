"""The triples of a dataset, in memory or on disk, and exact extraction of complete subgraphs: the oracle of everything else."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from types import TracebackType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gids import _native
from gids.dataset import Dataset, Knowledge
from gids.dataset.knowledge_writer import BLOCK_TRIPLES
from gids.dataset.rows import read_rows
from gids.errors import ConfigError, DatasetError
from gids.kg.subgraphs import Arrays, Subgraphs
from gids.storage import RowReader, StorageOptions
from gids.table import RowTable, Stripe
from gids.units import parse_bytes

#: Bytes of a triple in memory: relation and tail.
TRIPLE_BYTES = 8
#: Triples that are read at a time to fill the cache of atoms.
FILL_TRIPLES = 1 << 20

Entities = Tensor | NDArray[np.int32] | list[int]


class Graph:
    """A knowledge graph to extract subgraphs from. Close it, or use it in a ``with`` statement.

    An entity's triples (as head) are its *atom*. The L-hop subgraph of an entity has the atoms of all entities within
    L - 1 hops; give the dataset reverse relations to follow relations both ways.

    Parameters
    ----------
    dataset : Dataset
        A dataset with triples, as :func:`gids.open` returns it.
    on_disk : bool
        Keep only offsets (8 bytes an entity) and the atom cache in memory, and read atoms as they are needed.
    atom_cache : int or str
        Memory for atoms of the entities with most triples, on disk only; it never changes.
    storage : StorageOptions, optional
        How a graph on disk is read.
    threads : int, optional
        Threads; each holds 8 bytes an entity. All cores by default.
    pool : ThreadPool, optional
        Threads of somebody else, instead.
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        on_disk: bool = False,
        atom_cache: int | str = 0,
        storage: StorageOptions | None = None,
        threads: int | None = None,
        pool: _native.ThreadPool | None = None,
    ):
        self.dataset, self.pid = dataset, os.getpid()
        self.known: Knowledge = dataset.knowledge
        self.on_disk = on_disk
        self.pool = pool or _native.ThreadPool(threads or len(os.sched_getaffinity(0)), "gids-kg")
        self.indptr: NDArray[np.int64] = self.known.indptr()
        if self.indptr[-1] != self.known.num_triples or bool((np.diff(self.indptr) < 0).any()):
            raise DatasetError(
                f"offsets of {dataset.path} must rise to {self.known.num_triples}: gids verify says more"
            )
        self.extractor = _native.KgExtractor(self.known.num_entities, self.pool.threads)
        self._triples: NDArray[np.int32] | None = None
        self._reader: RowReader | None = None
        self._cache: _native.AtomCache | None = None
        self._lock = threading.Lock()
        self._held: list[Tensor] = []  # what the gather points into; guarded by _lock, as is the gather
        self.cached_bytes = 0
        if not on_disk:
            table = self.known.triples_table
            self._triples = read_rows(table).reshape(-1).view(np.int32)
        else:
            self._reader = RowReader(block_table(self.known.triples_table), storage, self.pool)
            cache_bytes = parse_bytes(atom_cache, "atom_cache")
            if cache_bytes:
                self._cache = self._fill_cache(cache_bytes // TRIPLE_BYTES)
        self._gather = _native.AtomGather(self.indptr, self._cache)

    def _fill_cache(self, max_triples: int) -> _native.AtomCache:
        """Take in the largest atoms that fit together."""
        assert self._reader is not None
        weights = np.diff(self.indptr)
        order = np.argsort(-weights, kind="stable")
        fits = np.cumsum(weights[order]) <= max_triples
        entities = np.sort(order[: int(fits.sum())]).astype(np.int32)
        counts = weights[entities]
        triples = np.empty((int(counts.sum()), 2), np.int32)
        ends = np.cumsum(counts)
        begin = at = 0
        while begin < len(entities):
            end = max(begin + 1, int(np.searchsorted(ends, at + FILL_TRIPLES, "right")))
            wanted = _ranges(self.indptr[entities[begin:end]], counts[begin:end])
            blocks = np.unique(wanted // BLOCK_TRIPLES)
            found = self._reader.read(torch.from_numpy(blocks)).numpy().reshape(-1, 2)
            places = np.searchsorted(blocks, wanted // BLOCK_TRIPLES) * BLOCK_TRIPLES + wanted % BLOCK_TRIPLES
            triples[at : int(ends[end - 1])] = found[places]
            begin, at = end, int(ends[end - 1])
        self.cached_bytes = triples.nbytes
        return _native.AtomCache(self.known.num_entities, entities, self.indptr, triples.reshape(-1))

    @property
    def num_entities(self) -> int:
        """Entities."""
        return self.known.num_entities

    def weights(self, entities: NDArray[np.int32]) -> NDArray[np.int64]:
        """Count the triples of entities."""
        return self.indptr[entities.astype(np.int64) + 1] - self.indptr[entities]

    def extract(
        self,
        heads: Entities,
        tails: Entities | None = None,
        *,
        hops: int,
        remove: Tensor | NDArray[np.int32] | None = None,
        max_triples: int = 0,
    ) -> Subgraphs:
        """Return the complete subgraphs of queries.

        Parameters
        ----------
        heads : int[n]
            Query entities.
        tails : int[n], optional
            A second root of every query: the subgraph is the union of both.
        hops : int
            Hops L.
        remove : int[n, 3], optional
            A triple of every query that it must not see, nor its reverse; what only they lead to is not in the subgraph.
        max_triples : int
            Refuse batches with more triples; 0 is no limit.
        """
        roots = _roots(heads, tails).reshape(-1)
        return Subgraphs.of(
            self.extract_arrays(
                self.queries(heads, tails, hops=hops, remove=remove, max_triples=max_triples), roots, hops
            )
        )

    def extract_arrays(self, queries: _native.KgQueries, roots: NDArray[np.int32], hops: int) -> Arrays:
        """Return what native extraction returns for queries with these roots and hops."""
        if self._triples is not None:
            return self.extractor.from_memory(queries, self.indptr, self._triples, self.pool)
        with self.gathered(roots, hops) as gather:
            return self.extractor.from_gather(queries, gather, self.pool)

    def queries(
        self,
        heads: Entities,
        tails: Entities | None = None,
        *,
        hops: int,
        remove: Tensor | NDArray[np.int32] | None = None,
        max_triples: int = 0,
        wanted: NDArray[np.int32] | None = None,
    ) -> _native.KgQueries:
        """Check queries and make them ready for native extraction; parameters as for :meth:`extract`.

        ``wanted`` has an entity of every query whose node is asked for.
        """
        if hops < 1:
            raise ConfigError(f"hops must be at least 1 (got {hops})")
        roots = _roots(heads, tails)
        four = None
        if remove is not None:
            triples = np.asarray(remove, np.int32).reshape(-1, 3)
            if len(triples) != len(roots):
                raise ConfigError(f"remove must have a triple for each of {len(roots)} queries (got {len(triples)})")
            self.known.check_relations(triples[:, 1])
            base = self.known.base_relations
            reverse = (triples[:, 1] + base) % (2 * base) if self.known.has_reverse else np.full(len(triples), -1)
            columns = (triples[:, 0], triples[:, 1], reverse, triples[:, 2])
            four = np.ascontiguousarray(np.column_stack(columns), np.int32).reshape(-1)
        return _native.KgQueries(roots.reshape(-1), roots.shape[1], hops, four, max_triples, wanted)

    @contextlib.contextmanager
    def gathered(self, roots: NDArray[np.int32], hops: int) -> Iterator[_native.AtomGather]:
        """Read the atoms of all entities within ``hops - 1`` hops of the roots, for as long as the context lasts."""
        with self._lock:
            try:
                self._gather.start(roots if hops else roots[:0])
                for hop in range(hops):
                    self._take(self._gather)
                    if hop + 1 < hops:
                        self._gather.advance()
                yield self._gather
            finally:
                self._gather.clear()
                self._held.clear()

    def read_instead(self, gather: _native.AtomGather, entities: NDArray[np.int32]) -> None:
        """Read the atoms of other entities, within :meth:`gathered`; those before are dropped."""
        gather.clear()
        self._held.clear()
        gather.start(entities)
        self._take(gather)

    def _take(self, gather: _native.AtomGather) -> None:
        blocks = gather.blocks()
        if self._triples is not None:
            data = torch.from_numpy(self._triples.reshape(-1, 2 * BLOCK_TRIPLES)[blocks])
        else:
            assert self._reader is not None
            data = self._reader.read(blocks)
        self._held.append(data)
        gather.take(data.numpy().reshape(-1))

    @property
    def memory_bytes(self) -> int:
        """Bytes that stay: offsets, triples or cached atoms, and what walks know of every entity."""
        per_entity = 8 * self.pool.threads + 8 + 1 + (8 if self._cache is not None else 0)
        triples = 0 if self._triples is None else self._triples.nbytes
        return self.indptr.nbytes + self.cached_bytes + triples + per_entity * self.num_entities

    def stats(self) -> dict[str, int]:
        """Return what was read from disk so far; empty where triples are in memory."""
        return {} if self._reader is None else self._reader.stats()

    def close(self) -> None:
        """Close the files."""
        if self._reader is not None:
            self._reader.close()

    def __enter__(self) -> Graph:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def block_table(triples: RowTable) -> RowTable:
    """View a table of triples as rows of :data:`gids.dataset.knowledge_writer.BLOCK_TRIPLES` triples."""
    stripe = triples.stripes[0]
    rows = triples.num_rows // BLOCK_TRIPLES
    stride = BLOCK_TRIPLES * triples.row_stride
    return RowTable(
        triples.name,
        "int32",
        2 * BLOCK_TRIPLES,
        rows,
        stride,
        (Stripe(stripe.path, stripe.data_offset, rows),),
        max(rows, 1),
    )


def _ranges(begins: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the numbers ``begins[i] .. begins[i] + counts[i]`` of every i, one after the other."""
    ends = np.cumsum(counts)
    numbers: NDArray[np.int64] = np.arange(int(ends[-1])) + np.repeat(begins - (ends - counts), counts)
    return numbers


def _roots(heads: Entities, tails: Entities | None) -> NDArray[np.int32]:
    first = _entities(heads, "heads")
    if tails is None:
        return first.reshape(-1, 1)
    second = _entities(tails, "tails")
    if len(first) != len(second):
        raise ConfigError(f"tails must be as many as heads, {len(first)} (got {len(second)})")
    return np.ascontiguousarray(np.column_stack([first, second]))


def _entities(values: Entities, name: str) -> NDArray[np.int32]:
    array = values.numpy() if isinstance(values, torch.Tensor) else np.asarray(values)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and len(array)):
        raise ConfigError(f"{name} must be a list of entities (got {array.dtype} {list(array.shape)})")
    if len(array) and not (array.min() >= 0 and array.max() < 2**31):
        raise ConfigError(f"{name} must be in [0, 2^31) (got {array.min()} to {array.max()})")
    return np.ascontiguousarray(array, np.int32)
