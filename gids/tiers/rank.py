"""Which rows are used most: expected visits of a sampler, reverse PageRank from the training nodes, degree, counts."""

from __future__ import annotations

import enum
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gids._native import ThreadPool, damp_ranks, push_ranks
from gids.dataset.rows import read_rows
from gids.dataset.scratch import load_array
from gids.errors import ConfigError
from gids.table import RowTable
from gids.types import EdgeType

Scores = NDArray[np.uint64]

RANK_UNIT = 1 << 62  # kRankUnit of kernels/pagerank.cuh: all rank together
DAMPING_UNIT = 1 << 16
#: A layer that takes more neighbours of a node, or all, counts as one that takes so many: keeps fixed point exact enough.
MOST_FANOUT = 64
EDGES_IN_CHUNK = 1 << 20  # 8 MiB of int64 neighbour ids; two chunks are in memory at a time


class Graph(Protocol):
    """What ranking needs of a dataset; :class:`gids.Dataset` has it."""

    @property
    def node_types(self) -> Sequence[str]:
        """Node types in order."""

    @property
    def edge_types(self) -> Sequence[EdgeType]:
        """Edge types in order."""

    @property
    def id(self) -> str:
        """Identity of the contents."""

    @property
    def scratch_dir(self) -> Path:
        """Where derived files go."""

    def num_nodes(self, ntype: str | None = None) -> int:
        """Count the nodes of one type."""

    def indptr(self, etype: EdgeType) -> NDArray[np.int64]:
        """Return the offsets of the in-edges."""

    def indices_table(self, etype: EdgeType) -> RowTable:
        """Say where the source nodes of the in-edges are."""


class Ranking(enum.Enum):
    """How rows are ranked."""

    VISITS = "visits"  # how often a sampler with given fan-outs is expected to ask for a node
    PAGERANK = "pagerank"  # weighted reverse PageRank from the training nodes
    DEGREE = "degree"  # edges that a node is the source of: how often a full neighbourhood contains it


def reverse_pagerank(
    graph: Graph,
    train: Mapping[str, Tensor],
    *,
    damping: float = 0.85,
    rounds: int = 5,
    pool: ThreadPool | None = None,
) -> dict[str, Scores]:
    """Rank nodes by weighted reverse PageRank: rank starts at the training nodes and flows against the edges.

    Neighbour lists are streamed from disk once a round; memory is three numbers a node.

    Parameters
    ----------
    graph : Graph
        A dataset.
    train : mapping of node type to Tensor[int64]
        Where the rank starts, in equal parts; a node named twice counts twice.
    damping : float
        Share of a node's rank that flows on, in [0, 1].
    rounds : int
        Steps that rank can flow; sampling reaches no farther than it has layers.
    pool : ThreadPool, optional
        Threads.

    Returns
    -------
    dict of str to uint64[nodes]
        Fixed point, all together about ``RANK_UNIT``. The same bits for any number of threads.
    """
    if not 0 <= damping <= 1:
        raise ConfigError(f"damping must be in [0, 1] (got {damping})")
    if rounds < 0:
        raise ConfigError(f"rounds must not be negative (got {rounds})")
    pool = pool or ThreadPool(len(os.sched_getaffinity(0)), "gids-rank")
    kept = round(damping * DAMPING_UNIT)
    restart = _starting_ranks(graph, train)
    rank = {ntype: start.copy() for ntype, start in restart.items()}
    for start in restart.values():  # from now on the part that restarts in every round
        start >>= np.uint64(16)
        start *= np.uint64(DAMPING_UNIT - kept)
    received = {ntype: np.zeros_like(start) for ntype, start in restart.items()}
    into = [destination for _, _, destination in graph.edge_types]
    for _ in range(rounds):
        for etype in graph.edge_types:
            source, _, destination = etype
            indptr = np.ascontiguousarray(graph.indptr(etype))
            for first, sources in stream_edges(graph.indices_table(etype)):
                push_ranks(pool, indptr, rank[destination], sources, first, into.count(destination), received[source])
        for ntype in graph.node_types:
            damp_ranks(pool, received[ntype], restart[ntype], kept, rank[ntype])
    return rank


def expected_visits(
    graph: Graph,
    train: Mapping[str, Tensor],
    fanouts: Sequence[int | Mapping[EdgeType, int]],
    *,
    pool: ThreadPool | None = None,
) -> dict[str, Scores]:
    """Rank nodes by how often neighbour sampling from the training nodes is expected to visit them.

    Every layer takes ``min(fanout, degree)`` in-neighbours of all nodes there are so far, so a node passes that part of
    its own visits on to each of them and keeps its own. Reverse PageRank instead passes on the same from every node,
    whatever its degree, and goes on past the last layer. Streams and takes memory as :func:`reverse_pagerank` does.

    Parameters
    ----------
    graph : Graph
        A dataset.
    train : mapping of node type to Tensor[int64]
        Where sampling starts, each as often; a node named twice counts twice.
    fanouts : sequence of int or mapping of EdgeType to int
        As for :class:`gids.sampling.NeighborSampler`, outermost first; -1 takes all, and no entry none.
    pool : ThreadPool, optional
        Threads.

    Returns
    -------
    dict of str to uint64[nodes]
        Fixed point, in a unit of its own. The same bits for any number of threads.
    """
    pool = pool or ThreadPool(len(os.sched_getaffinity(0)), "gids-rank")
    visits = _starting_ranks(graph, train)
    received = {ntype: np.zeros_like(own) for ntype, own in visits.items()}
    for layer in reversed(list(fanouts)):
        most = {etype: _capped_fanout(layer, etype) for etype in graph.edge_types}
        passed_on = [sum(most[etype] for etype in most if etype[2] == ntype) for ntype in graph.node_types]
        for own in visits.values():  # all together they stay within RANK_UNIT
            own //= np.uint64(1 + max(passed_on))
        for etype in graph.edge_types:
            source, _, destination = etype
            indptr = np.ascontiguousarray(graph.indptr(etype))
            taken = np.diff(indptr)
            np.minimum(taken, most[etype], out=taken)
            given = taken.view(np.uint64)
            given *= visits[destination]
            for first, sources in stream_edges(graph.indices_table(etype)):
                push_ranks(pool, indptr, given, sources, first, 1, received[source])
        for ntype, own in visits.items():
            own += received[ntype]
            received[ntype].fill(0)
    return visits


def _capped_fanout(layer: int | Mapping[EdgeType, int], etype: EdgeType) -> int:
    fanout = layer if isinstance(layer, int) else layer.get(etype, 0)
    return MOST_FANOUT if fanout < 0 else min(fanout, MOST_FANOUT)


def _starting_ranks(graph: Graph, train: Mapping[str, Tensor]) -> dict[str, Scores]:
    """Share RANK_UNIT out between the training nodes."""
    unknown = set(train) - set(graph.node_types)
    if unknown:
        raise ConfigError(f"node types of train must be among {list(graph.node_types)} (got {sorted(unknown)})")
    starts = sum(len(nodes) for nodes in train.values())
    if starts == 0:
        raise ConfigError("train must name at least one node (got none)")
    ranks = {ntype: np.zeros(graph.num_nodes(ntype), np.uint64) for ntype in graph.node_types}
    for ntype, nodes in train.items():
        if len(nodes) and not 0 <= int(nodes.min()) <= int(nodes.max()) < graph.num_nodes(ntype):
            raise ConfigError(
                f"train nodes of {ntype} must be in [0, {graph.num_nodes(ntype)}) (got {int(nodes.min())} to {int(nodes.max())})"
            )
        np.add.at(ranks[ntype], nodes.numpy(), np.uint64(RANK_UNIT // starts))
    return ranks


def stream_edges(table: RowTable) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield a neighbour list chunk by chunk as (first position, ids); the next chunk is read meanwhile."""

    def read(begin: int) -> NDArray[Any]:
        end = min(begin + EDGES_IN_CHUNK, table.num_rows)
        return read_rows(table, begin, end).reshape(-1).view(np.dtype(table.dtype))

    begins = range(0, table.num_rows, EDGES_IN_CHUNK)
    with ThreadPoolExecutor(1, "gids-rank-read") as executor:
        coming = executor.submit(read, 0) if begins else None
        for begin in begins:
            assert coming is not None
            chunk = coming.result()
            after = begin + EDGES_IN_CHUNK
            coming = executor.submit(read, after) if after < table.num_rows else None
            yield begin, chunk


def source_degrees(graph: Graph) -> dict[str, Scores]:
    """Count, for every node, the edges that it is the source of; neighbour lists are streamed."""
    degrees = {ntype: np.zeros(graph.num_nodes(ntype), np.uint64) for ntype in graph.node_types}
    for etype in graph.edge_types:
        counts = degrees[etype[0]]
        for _, sources in stream_edges(graph.indices_table(etype)):
            np.add.at(counts, sources, np.uint64(1))
    return degrees


def count_accesses(batches: Iterable[Tensor], num_rows: int) -> Scores:
    """Count how many batches of a profile ask for each row."""
    counts = np.zeros(num_rows, np.uint64)
    for rows in batches:
        counts[rows.numpy()] += np.uint64(1)
    return counts


def rank_nodes(
    graph: Graph,
    train: Mapping[str, Tensor] | None = None,
    *,
    by: Ranking | str = Ranking.PAGERANK,
    fanouts: Sequence[int | Mapping[EdgeType, int]] | None = None,
    damping: float = 0.85,
    rounds: int = 5,
    pool: ThreadPool | None = None,
) -> dict[str, NDArray[np.uint64]]:
    """Return a ranking of all nodes, from a file beside the dataset where it was computed before.

    Parameters
    ----------
    graph : Graph
        A dataset; the file is in its ``scratch_dir`` and named after everything that the ranking depends on.
    train : mapping of node type to Tensor[int64], optional
        Training nodes, for ``visits`` and ``pagerank``.
    by : Ranking or str
        ``"visits"``, ``"pagerank"`` or ``"degree"``.
    fanouts : sequence of int or mapping of EdgeType to int, optional
        Of the sampler, for ``visits``.
    damping, rounds, pool
        As for :func:`reverse_pagerank`.

    Returns
    -------
    dict of str to uint64[nodes]
        In memory.
    """
    by = Ranking(by)
    made_from: dict[str, object] = {"version": 1, "dataset": graph.id, "by": by.value}
    if by is not Ranking.DEGREE:
        if train is None:
            raise ConfigError(f"train must be given to rank by {by.value} (got None)")
        seeds = {
            ntype: hashlib.sha256(nodes.sort().values.numpy().tobytes()).hexdigest() for ntype, nodes in train.items()
        }
        made_from["train"] = dict(sorted(seeds.items()))
    if by is Ranking.PAGERANK:
        made_from |= {"damping": round(damping * DAMPING_UNIT), "rounds": rounds}
    elif by is Ranking.VISITS:
        if fanouts is None:
            raise ConfigError("fanouts must be given to rank by visits (got None)")
        made_from["fanouts"] = [[_capped_fanout(layer, etype) for etype in graph.edge_types] for layer in fanouts]
    digest = hashlib.sha256(json.dumps(made_from, sort_keys=True).encode()).hexdigest()[:20]
    paths = {
        ntype: graph.scratch_dir / f"rank-{by.value}-{digest}-{number}.npy"
        for number, ntype in enumerate(graph.node_types)
    }
    stored = _stored_scores(paths, {ntype: graph.num_nodes(ntype) for ntype in paths})
    if stored is not None:
        return stored
    if by is Ranking.VISITS:
        scores = expected_visits(graph, train or {}, fanouts or (), pool=pool)
    elif by is Ranking.PAGERANK:
        scores = reverse_pagerank(graph, train or {}, damping=damping, rounds=rounds, pool=pool)
    else:
        scores = source_degrees(graph)
    for ntype, path in paths.items():
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with temporary.open("wb") as file:
                np.save(file, scores[ntype])
            temporary.replace(path)
        except OSError:  # a full disk costs the next run time, not this one its ranking
            temporary.unlink(missing_ok=True)
    return {ntype: scores[ntype].astype(np.uint64, copy=False) for ntype in paths}


def _stored_scores(paths: Mapping[str, Path], counts: Mapping[str, int]) -> dict[str, NDArray[np.uint64]] | None:
    """Load rankings that were computed before; None where one is missing or is not what it should be."""
    found = {}
    for ntype, path in paths.items():
        scores = load_array(path)
        if scores is None or scores.shape != (counts[ntype],) or scores.dtype != np.uint64:
            return None
        found[ntype] = scores
    return found
