"""RED-GNN and NBFNet, small and in plain torch: what answers queries on complete subgraphs of a knowledge graph.

Sums over a node's triples go through an embedding bag, as in :mod:`gids.models.sage`, so that training on a CPU is
reproducible to the last bit.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional


class QuerySubgraphs(Protocol):
    """What a model needs of subgraphs; :class:`gids.kg.Subgraphs` has it."""

    @property
    def node_ptr(self) -> Tensor:
        """Nodes of query ``i`` are ``node_ptr[i]..node_ptr[i + 1]``; the first one is the query's entity."""

    @property
    def distance(self) -> Tensor:
        """Hops of every node from its query's entity."""

    @property
    def heads(self) -> Tensor:
        """Node of every triple's head."""

    @property
    def relations(self) -> Tensor:
        """Relation of every triple."""

    @property
    def tails(self) -> Tensor:
        """Node of every triple's tail."""


class _Incoming:
    """Triples by tail: sums messages of triples into nodes in a fixed order."""

    def __init__(self, tails: Tensor, num_nodes: int):
        self._order = torch.argsort(tails, stable=True)
        self._offsets = torch.zeros(num_nodes + 1, dtype=torch.int64, device=tails.device)
        torch.cumsum(torch.bincount(tails, minlength=num_nodes), 0, out=self._offsets[1:])

    def sum(self, messages: Tensor) -> Tensor:
        """Return ``[nodes, dim]``: the sum of the messages of every node's triples."""
        return functional.embedding_bag(self._order, messages, self._offsets, mode="sum", include_last_offset=True)


def _rows(table: Tensor, index: Tensor) -> Tensor:
    """Return ``table[index]``; its gradient is added up in a fixed order, which that of indexing is not."""
    return functional.embedding(index, table)


def _query_of_nodes(node_ptr: Tensor) -> Tensor:
    return torch.repeat_interleave(torch.arange(len(node_ptr) - 1, device=node_ptr.device), node_ptr.diff())


class RedGnn(nn.Module):
    """RED-GNN (Zhang and Yao, WWW 2022): attention by relation and query, layer by layer away from the query's entity.

    Parameters
    ----------
    num_relations : int
        Relations, reverses and identity included.
    dim, attention_dim : int
        Sizes.
    layers : int
        Layers; as many as the subgraphs have hops.
    """

    def __init__(self, num_relations: int, dim: int = 32, attention_dim: int = 5, layers: int = 3):
        super().__init__()
        self.relation = nn.ModuleList(nn.Embedding(num_relations, dim) for _ in range(layers))
        self.from_head = nn.ModuleList(nn.Linear(dim, attention_dim, bias=False) for _ in range(layers))
        self.from_relation = nn.ModuleList(nn.Linear(dim, attention_dim, bias=False) for _ in range(layers))
        self.from_query = nn.ModuleList(nn.Linear(dim, attention_dim) for _ in range(layers))
        self.attention = nn.ModuleList(nn.Linear(attention_dim, 1) for _ in range(layers))
        self.message = nn.ModuleList(nn.Linear(dim, dim, bias=False) for _ in range(layers))
        self.gate = nn.GRUCell(dim, dim)
        self.score = nn.Linear(dim, 1, bias=False)
        self.dim = dim

    def forward(self, subgraphs: QuerySubgraphs, query_relations: Tensor) -> Tensor:
        """Return a score for every node, ``float[nodes]``."""
        num_nodes = len(subgraphs.distance)
        query = _query_of_nodes(subgraphs.node_ptr)
        hidden = torch.zeros(num_nodes, self.dim, device=query.device)
        heads, relations, tails = (part.long() for part in (subgraphs.heads, subgraphs.relations, subgraphs.tails))
        from_hop = subgraphs.distance[heads]
        for layer in range(len(self.message)):
            chosen = from_hop <= layer  # triples whose head was reached before
            head, relation, tail = heads[chosen], relations[chosen], tails[chosen]
            rows = self.relation[layer](relation)
            before = _rows(hidden, head)
            asked = self.from_query[layer](self.relation[layer](query_relations))
            mixed = self.from_head[layer](before) + self.from_relation[layer](rows) + _rows(asked, query[head])
            weight = torch.sigmoid(self.attention[layer](torch.relu(mixed)))
            summed = _Incoming(tail, num_nodes).sum(weight * (before + rows))
            hidden = self.gate(torch.relu(self.message[layer](summed)), hidden)
        scores: Tensor = self.score(hidden).squeeze(1)
        return scores


class NbfNet(nn.Module):
    """NBFNet (Zhu et al., NeurIPS 2021): generalised Bellman-Ford from the query's entity, DistMult messages, sums.

    Parameters
    ----------
    num_relations : int
        Relations, reverses and identity included.
    dim : int
        Size.
    layers : int
        Layers; as many as the subgraphs have hops.
    """

    def __init__(self, num_relations: int, dim: int = 32, layers: int = 3):
        super().__init__()
        self.query = nn.Embedding(num_relations, dim)
        self.relation = nn.ModuleList(nn.Linear(dim, num_relations * dim) for _ in range(layers))
        self.combine = nn.ModuleList(nn.Linear(2 * dim, dim) for _ in range(layers))
        self.norm = nn.ModuleList(nn.LayerNorm(dim) for _ in range(layers))
        self.score = nn.Sequential(nn.Linear(2 * dim, dim), nn.ReLU(), nn.Linear(dim, 1))
        self.num_relations, self.dim = num_relations, dim

    def forward(self, subgraphs: QuerySubgraphs, query_relations: Tensor) -> Tensor:
        """Return a score for every node, ``float[nodes]``."""
        num_nodes = len(subgraphs.distance)
        query = _query_of_nodes(subgraphs.node_ptr)
        asked = self.query(query_relations)
        boundary = torch.zeros(num_nodes, self.dim, device=query.device).index_put((subgraphs.node_ptr[:-1],), asked)
        heads, tails = subgraphs.heads.long(), subgraphs.tails.long()
        incoming = _Incoming(tails, num_nodes)
        place = query[heads] * self.num_relations + subgraphs.relations.long()
        hidden = boundary
        for relation, combine, norm in zip(self.relation, self.combine, self.norm, strict=True):
            rows = relation(asked).view(-1, self.dim)  # [queries * relations, dim]
            summed = incoming.sum(_rows(hidden, heads) * _rows(rows, place)) + boundary
            hidden = torch.relu(norm(combine(torch.cat([hidden, summed], dim=1)))) + hidden
        scores: Tensor = self.score(torch.cat([hidden, _rows(asked, query)], dim=1)).squeeze(1)
        return scores


def ranking_loss(scores: Tensor, node_ptr: Tensor, targets: Tensor, num_candidates: int) -> Tensor:
    """Return the multi-class log loss of queries, summed; candidates outside a subgraph have score 0.

    Parameters
    ----------
    scores : float[nodes]
        Of a model.
    node_ptr : int64[queries + 1]
        Nodes of each query.
    targets : int64[queries]
        Node of the answer, -1 where it is not in the subgraph.
    num_candidates : int
        Entities that could be the answer.
    """
    losses, ends = [], node_ptr.tolist()
    for query, target in enumerate(targets.tolist()):
        own = scores[ends[query] : ends[query + 1]]
        outside = num_candidates - len(own)
        if outside > 0:
            own = torch.cat([own, scores.new_full((1,), float(outside)).log()])
        answer = scores[target] if target >= 0 else scores.new_zeros(())
        losses.append(torch.logsumexp(own, 0) - answer)
    return torch.stack(losses).sum()
