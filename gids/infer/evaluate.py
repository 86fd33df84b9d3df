"""Exact evaluation of what inference wrote: accuracy of classes, ranks of links; rows are streamed, never all in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gids.budget import default_budget
from gids.dataset import Dataset
from gids.errors import ConfigError
from gids.loader.graph import Seeds, resolve_seeds
from gids.sampling import EdgeSeeds, TimedSeeds
from gids.storage import PendingRead, RowReader, StorageOptions
from gids.table import RowTable
from gids.types import NODE
from gids.units import parse_bytes

#: Of the budget, what rows of one block take: the next one is read meanwhile, and scores take as much again.
BLOCK_SHARE = 1 / 6
#: Memory of planning and placing one row.
PLANNED_ROW_BYTES = 64

#: ``score(heads, tails)``: ``[n, d]`` with ``[n, d]`` or ``[n, k, d]`` to ``[n]`` or ``[n, k]``; higher is likelier.
Score = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Accuracy:
    """How many nodes were given their own class."""

    correct: int
    total: int

    @property
    def share(self) -> float:
        """Correct ones over all."""
        return self.correct / max(1, self.total)


def accuracy(
    results: Dataset,
    dataset: Dataset,
    nodes: Seeds = "test",
    *,
    name: str = "embedding",
    budget: int | str | None = None,
    storage: StorageOptions | None = None,
) -> Accuracy:
    """Return the exact accuracy of what :func:`gids.infer` wrote: the class with the highest value against the label.

    Parameters
    ----------
    results : Dataset
        What it wrote: the table of classes of ``top_k``, or the rows themselves.
    dataset : Dataset
        Whose labels.
    nodes : str, Tensor or mapping
        A split of the dataset, or nodes, as for :class:`gids.Loader`. Nodes without a label (-1) are left out.
    name : str
        Of the table of results.
    budget : int or str, optional
        Memory for rows that are read; by default half of what is available.
    storage : StorageOptions, optional
        How to read.
    """
    memory = default_budget() if budget is None else parse_bytes(budget, "budget")
    correct = total = 0
    for ntype, (known, labels) in labelled(dataset, nodes).items():
        classes = f"{name}_class"
        stored = classes if classes in results.feature_names(ntype) else name
        table = results.feature_table(ntype, stored)
        step = max(1, int(memory * BLOCK_SHARE / (table.row_bytes + PLANNED_ROW_BYTES)))
        with RowReader(table, storage) as reader:
            pieces = (known[begin : begin + step] for begin in range(0, len(known), step))
            for piece, rows in _read_ahead(reader, pieces):
                guess = rows[:, 0] if stored == classes else rows.argmax(1)
                correct += int((guess.to(torch.int64) == labels[piece].to(torch.int64)).sum())
                total += len(piece)
    return Accuracy(correct, total)


def labelled(dataset: Dataset, nodes: Seeds) -> dict[str, tuple[Tensor, Tensor]]:
    """Return, by type, those of some nodes that have a class as label, and the labels of all; raise where a type has none."""
    chosen = resolve_seeds(dataset, nodes, "nodes")
    if isinstance(chosen, EdgeSeeds | TimedSeeds):
        raise ConfigError(f"nodes must be nodes or a split (got {type(chosen).__name__})")
    found = {}
    for ntype, ids in chosen.items():
        labels = dataset.labels(ntype)
        if labels is None or labels.ndim != 1 or labels.is_floating_point():
            raise ConfigError(f"{ntype!r} must have classes as labels for accuracy (it has none)")
        found[ntype] = (ids[labels[ids] >= 0], labels)
    return found


def _read_ahead(reader: RowReader, pieces: Iterator[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield ids with their rows; those of the next piece are read meanwhile."""
    coming: tuple[Tensor, PendingRead] | None = None
    for piece in pieces:
        out = torch.empty(len(piece), reader.table.dim, dtype=reader.table.torch_dtype)
        ahead = (piece, reader.submit(piece, out))
        if coming is not None:
            yield coming[0], coming[1].wait()
        coming = ahead
    if coming is not None:
        yield coming[0], coming[1].wait()


@dataclass(frozen=True)
class LinkRanks:
    """Ranks of true tails among negatives, summed up.

    Attributes
    ----------
    total : int
        Edges.
    mrr : float
        Mean of 1 / rank. A rank is 1 + negatives that score higher + half of those that score the same.
    hits : dict of int to float
        Share of edges whose rank is at most k, by k.
    """

    total: int
    mrr: float
    hits: dict[int, float]


def dot_product(heads: Tensor, tails: Tensor) -> Tensor:
    """Score pairs by the product of their rows."""
    return (heads * tails).sum(-1) if tails.ndim == 2 else torch.einsum("nd,nkd->nk", heads, tails)


def link_ranks(
    results: Dataset,
    src: Any,
    dst: Any,
    *,
    negatives: Any = 100,
    seed: int = 0,
    ks: Sequence[int] = (1, 3, 10),
    score: Score = dot_product,
    src_type: str = NODE,
    dst_type: str = NODE,
    name: str = "embedding",
    budget: int | str | None = None,
    storage: StorageOptions | None = None,
) -> LinkRanks:
    """Rank the tail of every edge among negatives by the rows that :func:`gids.infer` wrote.

    Parameters
    ----------
    results : Dataset
        What it wrote.
    src, dst : Tensor or array of int [n]
        Heads and tails of edges that exist.
    negatives : int or Tensor[int64, [n, k]]
        Tails to compare with: given, or so many for each edge, drawn evenly from all nodes of ``dst_type`` by (seed, number
        of the edge). A negative that is the true tail is not counted.
    seed : int
        Of the draw.
    ks : sequence of int
        For Hits@k.
    score : callable
        See :data:`Score`; the product of the rows by default.
    src_type, dst_type : str
        Node types.
    name, budget, storage
        As for :func:`accuracy`.
    """
    heads, tails = (torch.as_tensor(ids).to(torch.int64) for ids in (src, dst))
    if heads.ndim != 1 or heads.shape != tails.shape:
        raise ConfigError(f"src and dst must be as many ids (got shapes {list(heads.shape)} and {list(tails.shape)})")
    fixed = None if isinstance(negatives, int) else torch.as_tensor(negatives).to(torch.int64)
    if fixed is not None and (fixed.ndim != 2 or len(fixed) != len(heads)):
        raise ConfigError(f"negatives must have shape [{len(heads)}, k] (got {list(fixed.shape)})")
    if fixed is None and negatives < 1:
        raise ConfigError(f"negatives must be at least 1 (got {negatives})")
    width = negatives if fixed is None else fixed.shape[1]
    head_table, tail_table = results.feature_table(src_type, name), results.feature_table(dst_type, name)
    for ids, table, what in ((heads, head_table, "src"), (tails, tail_table, "dst"), (fixed, tail_table, "negatives")):
        if ids is not None and ids.numel() and not (int(ids.min()) >= 0 and int(ids.max()) < table.num_rows):
            raise ConfigError(f"{what} must be in [0, {table.num_rows}) (got {int(ids.min())} to {int(ids.max())})")
    memory = default_budget() if budget is None else parse_bytes(budget, "budget")
    each = (width + 2) * (tail_table.dim * 4 + PLANNED_ROW_BYTES)
    step = max(1, int(memory * BLOCK_SHARE / each))
    found, total = _Sums(ks, width), len(heads)
    with RowReader(head_table, storage) as of_heads, RowReader(tail_table, storage) as of_tails:
        coming: _Block | None = None
        for begin in range(0, total, step):
            end = min(begin + step, total)
            others = _drawn(seed, begin, end, width, tail_table.num_rows) if fixed is None else fixed[begin:end]
            ahead = _Block(of_heads, of_tails, heads[begin:end], tails[begin:end], others)
            if coming is not None:
                found.add(coming.ranks(score))
            coming = ahead
        if coming is not None:
            found.add(coming.ranks(score))
    return found.result()


class _Block:
    """Edges whose rows are read in two merged sweeps: one of their heads, one of their tails and negatives."""

    def __init__(self, of_heads: RowReader, of_tails: RowReader, heads: Tensor, tails: Tensor, others: Tensor):
        self._tails, self._others = tails, others
        distinct, self._places = torch.unique(torch.cat([tails[:, None], others], 1), return_inverse=True)
        self._heads = _submit(of_heads, heads)
        self._rows = _submit(of_tails, distinct)

    def ranks(self, score: Score) -> Tensor:
        heads, rows = self._heads.wait().float(), self._rows.wait().float()
        with torch.inference_mode():
            true = score(heads, rows[self._places[:, 0]]).unsqueeze(1)
            false = score(heads, rows[self._places[:, 1:]])
        counted = self._others != self._tails[:, None]
        higher = (~(false <= true) & counted).sum(1)  # a model that has diverged to NaN ranks last, not first
        equal = ((false == true) & counted).sum(1)
        return 1 + higher + equal / 2


class _Sums:
    """Counts of ranks, which are multiples of a half: the same whatever the blocks were."""

    def __init__(self, ks: Sequence[int], width: int):
        self._ks = ks
        self._counts = torch.zeros(2 * (width + 1) + 1, dtype=torch.int64)

    def add(self, ranks: Tensor) -> None:
        self._counts += torch.bincount((2 * ranks).to(torch.int64), minlength=len(self._counts))

    def result(self) -> LinkRanks:
        total, ranks = int(self._counts.sum()), torch.arange(len(self._counts)) / 2
        count = max(1, total)
        mrr = float((self._counts[2:] / ranks[2:].double()).sum()) / count
        return LinkRanks(total, mrr, {k: int(self._counts[ranks <= k].sum()) / count for k in self._ks})


def _submit(reader: RowReader, ids: Tensor) -> PendingRead:
    table: RowTable = reader.table
    return reader.submit(ids, torch.empty(len(ids), table.dim, dtype=table.torch_dtype))


def _drawn(seed: int, begin: int, end: int, width: int, nodes: int) -> Tensor:
    """Return negatives of some edges: a function of seed and edge alone, whatever the block is."""
    steps = -(-width // 4)  # of four numbers each
    generator = np.random.Philox(key=seed)
    generator.advance(begin * steps)
    raw: npt.NDArray[np.uint64] = generator.random_raw((end - begin) * steps * 4)
    drawn = (raw % np.uint64(nodes)).astype(np.int64).reshape(end - begin, steps * 4)[:, :width]
    return torch.from_numpy(np.ascontiguousarray(drawn))
