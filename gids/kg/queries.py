"""Queries in both directions, and ranks of their answers among all candidates that are not known to be true."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gids.dataset import Knowledge
from gids.kg.subgraphs import Batch


def with_reverse(known: Knowledge, queries: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return queries (h, r, t), each followed by the one that asks for its head: (t, reverse of r, h)."""
    base = known.base_relations
    known.reverse_of(0)  # refuses a graph without reverses
    both = np.repeat(np.asarray(queries), 2, axis=0)
    both[1::2] = both[1::2, ::-1]
    both[1::2, 1] = (both[1::2, 1] + base) % (2 * base)
    return np.ascontiguousarray(both)


class Answers:
    """Every tail that is known for (head, relation), in the graph and in splits: what filtered ranks leave out.

    Parameters
    ----------
    known : Knowledge
        The graph, with reverses.
    splits : sequence of str
        Splits whose queries are true as well, e.g. all of them.
    """

    def __init__(self, known: Knowledge, splits: Sequence[str]):
        indptr, triples = known.indptr(), known.triples()
        heads = np.repeat(np.arange(known.num_entities, dtype=np.int32), np.diff(indptr))
        parts = [np.column_stack([heads, triples])]
        parts += [with_reverse(known, known.queries(split)) for split in splits]
        every = np.unique(np.concatenate(parts), axis=0)
        self._keys = every[:, 0].astype(np.int64) * known.num_relations + every[:, 1]
        self._tails = every[:, 2]
        self._relations = known.num_relations

    def of(self, head: int, relation: int) -> NDArray[np.int32]:
        """Return the known tails, ascending."""
        key = head * self._relations + relation
        begin, end = np.searchsorted(self._keys, [key, key + 1])
        return self._tails[begin:end]


def filtered_ranks(batch: Batch, scores: Tensor, answers: Answers, num_candidates: int) -> Tensor:
    """Return ``float[queries]`` on the CPU: the rank of every answer, from 1, among candidates that are not known answers.

    Candidates outside the subgraph have score 0. Ties count half, so that a model that cannot tell gets the middle.

    Parameters
    ----------
    batch : Batch
        Queries and subgraphs.
    scores : float[nodes]
        Of a model.
    answers : Answers
        What is known to be true.
    num_candidates : int
        Entities that could be the answer.
    """
    ranks = torch.empty(len(batch))
    node_ptr, entities = batch.subgraphs.node_ptr.tolist(), batch.subgraphs.entities.cpu().numpy()
    heads, relations, targets = batch.heads.tolist(), batch.relations.tolist(), batch.tail_positions.tolist()
    values = scores.detach().cpu()  # counted on the host, beside the known answers
    for i in range(len(batch)):
        own = values[node_ptr[i] : node_ptr[i + 1]]
        target = targets[i]
        score = float(values[target]) if target >= 0 else 0.0
        true = answers.of(heads[i], relations[i])
        left = torch.from_numpy(~np.isin(entities[node_ptr[i] : node_ptr[i + 1]], true))
        rivals = own[left]
        known_outside = len(true) - (len(own) - int(left.sum()))
        outside = max(num_candidates - len(own) - known_outside, 0)
        above = int((rivals > score).sum()) + (outside if score < 0 else 0)
        equal = int((rivals == score).sum()) + (outside if score == 0 else 0)
        ranks[i] = 1 + above + equal / 2
    return ranks
