"""Where the scores of the host buffer's ranking come from: the graph, a count, chance, or the user."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gids._native import ThreadPool
from gids.dataset import Dataset
from gids.dataset.in_place import NpyHeader, read_npy_header
from gids.errors import ConfigError, DatasetError, StorageError
from gids.storage.system import read_into
from gids.tiers import EdgeScores, HotRows, RowScores
from gids.tiers.rank import Ranking, rank_nodes
from gids.types import TableKey

#: Computed by the loader itself: chance is the baseline, a count of one sampled epoch the best that is known.
RANDOM, COUNTED = "random", "counted"
NAMES = (*(ranking.value for ranking in Ranking), RANDOM, COUNTED)

Scores = NDArray[Any]


def check_host_rank(value: object) -> None:
    """Refuse what cannot be a ranking, before anything is opened."""
    if isinstance(value, Mapping):
        for scores in value.values():
            if isinstance(scores, str) and not scores.endswith(".npy"):
                raise ConfigError(f"host_rank of a node type must be scores or a .npy file (got {scores!r})")
    elif isinstance(value, str) and value not in NAMES and not value.endswith(".npy"):
        raise ConfigError(f"host_rank must be one of {', '.join(NAMES)}, a .npy file or scores (got {value!r})")


class Ranker:
    """Ranks the rows of a dataset's tables: nodes by their scores, edges by those of the nodes they lead to.

    Parameters
    ----------
    dataset : Dataset
        The graph.
    host_rank : object
        As in :class:`gids.MemoryOptions`.
    seeds : callable
        Returns where sampling starts, by node type.
    fanouts : sequence, optional
        Of neighbour sampling; None for samplers without.
    seed : int
        For ``"random"``.
    pool : ThreadPool
        Threads for the rankings of the graph.
    count : callable, optional
        Counts the accesses of a sampled epoch, for ``"counted"``.
    """

    def __init__(
        self,
        dataset: Dataset,
        host_rank: Any,
        seeds: Callable[[], Mapping[str, Tensor]],
        fanouts: Sequence[Any] | None,
        *,
        seed: int,
        pool: ThreadPool,
        count: Callable[[], dict[str, Scores]] | None = None,
    ):
        self._dataset, self._host_rank, self._seeds, self._fanouts = dataset, host_rank, seeds, fanouts
        self._seed, self._pool, self._count = seed, pool, count
        if host_rank is not None and not (isinstance(host_rank, str) and host_rank in NAMES):
            _own(dataset, host_rank)  # what is wrong with them is said now
        if isinstance(host_rank, str) and host_rank == Ranking.VISITS.value and fanouts is None:
            raise ConfigError("host_rank 'visits' needs a NeighborSampler (got a sampler without fan-outs)")
        if isinstance(host_rank, str) and host_rank == COUNTED and count is None:
            raise ConfigError("host_rank 'counted' needs a sampler of gids (got a framework's own)")

    def is_ranked(self, key: TableKey) -> bool:
        """Whether the rows of a table have scores.

        Not those of edges whose ids are not their positions, nor of a dataset without edges that does not rank by chance
        or scores of the user's own.
        """
        named = self._host_rank is None or (isinstance(self._host_rank, str) and self._host_rank in NAMES)
        if named and self._host_rank not in (RANDOM, COUNTED) and not self._dataset.edge_types:
            return False
        if isinstance(key.type, str):
            return True
        return self._dataset.edge_ids_table(key.type) is None

    def rankings(self, keys: Sequence[TableKey]) -> dict[TableKey, HotRows]:
        """Rank the rows of every table that can be ranked."""
        ranked: dict[TableKey, HotRows] = {}
        keys = [key for key in keys if self.is_ranked(key)]
        scores = self._scores() if keys else {}
        for key in keys:
            if isinstance(key.type, str):
                ranked[key] = RowScores(scores[key.type])
            else:
                ranked[key] = EdgeScores(scores[key.type[2]], self._dataset.indptr(key.type))
        return ranked

    def _scores(self) -> Mapping[str, Scores]:
        def uncounted() -> dict[str, Scores]:
            raise AssertionError("checked when the ranker was made")

        return host_scores(
            self._dataset,
            self._host_rank,
            self._seeds(),
            self._fanouts,
            seed=self._seed,
            pool=self._pool,
            count=self._count or uncounted,
        )

    @property
    def identity(self) -> str | None:
        """What the rankings are a function of; None for scores of the user's own, which may be any."""
        if self._host_rank is not None and not isinstance(self._host_rank, str):
            return None
        digest = hashlib.sha256()
        for ntype, ids in self._seeds().items():
            digest.update(f"{ntype} {len(ids)} ".encode() + ids.numpy().tobytes())
        return f"{self._dataset.id} {self._host_rank} {self._fanouts} {self._seed} {digest.hexdigest()}"


def host_scores(
    dataset: Dataset,
    host_rank: Any,
    seeds: Mapping[str, Tensor],
    fanouts: Sequence[Any] | None,
    *,
    seed: int,
    pool: ThreadPool,
    count: Callable[[], dict[str, Scores]],
) -> Mapping[str, Scores]:
    """Return the scores of the nodes, by node type; the host buffer takes those that score highest.

    Parameters
    ----------
    dataset : Dataset
        The graph.
    host_rank : str, path-like, array, Tensor, or mapping of node type to those, optional
        As in :class:`gids.MemoryOptions`.
    seeds : mapping of node type to Tensor[int64]
        Where sampling starts, for ``"visits"`` and ``"pagerank"``.
    fanouts : sequence, optional
        Of the neighbour sampling whose visits are expected, for ``"visits"``.
    seed : int
        For ``"random"``.
    pool : ThreadPool
        Threads for the rankings of the graph.
    count : callable
        Counts the accesses of a sampled epoch, for ``"counted"``.
    """
    if host_rank is None:
        host_rank = Ranking.PAGERANK.value if fanouts is None else Ranking.VISITS.value
    if isinstance(host_rank, str) and host_rank in NAMES:
        if host_rank == RANDOM:
            drawn = enumerate(dataset.node_types)
            return {t: np.random.default_rng([seed, n]).permutation(dataset.num_nodes(t)) + 1 for n, t in drawn}
        if host_rank == COUNTED:
            return count()
        if host_rank == Ranking.VISITS.value and fanouts is None:
            raise ConfigError("host_rank 'visits' needs a NeighborSampler (got a sampler without fan-outs)")
        return rank_nodes(dataset, seeds, by=host_rank, fanouts=fanouts, pool=pool)
    own = _own(dataset, host_rank)
    scores = {ntype: _read(value) if isinstance(value, NpyHeader) else value for ntype, value in own.items()}
    return {ntype: scores.get(ntype, np.zeros(dataset.num_nodes(ntype), np.uint8)) for ntype in dataset.node_types}


def _own(dataset: Dataset, host_rank: Any) -> dict[str, NpyHeader | Scores]:
    """Return a user's own scores by node type, checked; of those in files only the header is read."""
    if isinstance(host_rank, Mapping):
        unknown = [ntype for ntype in host_rank if ntype not in dataset.node_types]
        if unknown:
            raise ConfigError(f"host_rank must name node types among {dataset.node_types} (got {unknown})")
        given = dict(host_rank)
    elif len(dataset.node_types) == 1:
        given = {dataset.node_types[0]: host_rank}
    else:
        raise ConfigError(f"host_rank must be given by node type where a graph has several (has {dataset.node_types})")
    return {ntype: _own_scores(ntype, value, dataset.num_nodes(ntype)) for ntype, value in given.items()}


def _own_scores(
    ntype: str, value: str | os.PathLike[str] | Tensor | Scores | Sequence[float], nodes: int
) -> NpyHeader | Scores:
    scores: NpyHeader | Scores
    if isinstance(value, str | os.PathLike):
        try:
            scores = read_npy_header(Path(value))
        except (DatasetError, StorageError) as error:
            if isinstance(error, StorageError) and error.errno != errno.ENOENT:
                raise  # the file may be right: it could not be read
            raise ConfigError(f"host_rank of {ntype} must be a readable .npy file (got {value!s}: {error})") from error
    else:
        scores = value.numpy(force=True) if isinstance(value, Tensor) else np.asarray(value)
    if scores.shape != (nodes,) or scores.dtype.kind not in "iuf":
        raise ConfigError(
            f"host_rank of {ntype} must be {nodes} numbers, one per node (got {scores.dtype}, shape {scores.shape})"
        )
    return scores


def _read(header: NpyHeader) -> Scores:
    scores = np.empty(header.shape, header.dtype)
    read_into(header.path, header.data_offset, scores)
    return scores if header.dtype.isnative else scores.astype(header.dtype.newbyteorder("="))
