"""What queries get: complete subgraphs, numbered within the batch, and doors to PyG and DGL."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

#: The arrays that native extraction returns: those of :class:`Subgraphs`, and the nodes of entities that were asked for.
Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Subgraphs:
    """Subgraphs of a batch of queries, one after the other. The same queries give the same bits, wherever triples come from.

    Attributes
    ----------
    node_ptr, edge_ptr : int64[queries + 1]
        Nodes and triples of query ``i`` are ``node_ptr[i]..node_ptr[i + 1]`` and ``edge_ptr[i]..edge_ptr[i + 1]``.
    entities : int32[nodes]
        Entity of every node; of a query the roots first, then by distance and first occurrence.
    distance : uint8[nodes]
        Hops from the nearest root.
    heads, tails : int32[triples]
        Nodes of the batch; in the order of heads, and for one head in the order of (relation, tail).
    relations : int32[triples]
        Relations.
    """

    node_ptr: Tensor
    edge_ptr: Tensor
    entities: Tensor
    distance: Tensor
    heads: Tensor
    relations: Tensor
    tails: Tensor

    @classmethod
    def of(cls, arrays: Arrays) -> Subgraphs:
        """Take over what native extraction returned, without a copy."""
        return cls(*(torch.from_numpy(array) for array in arrays[:7]))

    def __len__(self) -> int:
        return len(self.node_ptr) - 1

    @property
    def num_nodes(self) -> int:
        """Nodes of all queries."""
        return len(self.entities)

    @property
    def num_triples(self) -> int:
        """Triples of all queries."""
        return len(self.heads)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(tensor.nbytes for tensor in self.tensors())

    @property
    def edge_index(self) -> Tensor:
        """``int64[2, triples]`` of heads and tails, as PyG has it."""
        return torch.stack([self.heads, self.tails]).long()

    def query_of_nodes(self) -> Tensor:
        """Return ``int64[nodes]``: the query that every node belongs to."""
        return torch.repeat_interleave(torch.arange(len(self), device=self.node_ptr.device), self.node_ptr.diff())

    def positions(self, entities: Tensor) -> Tensor:
        """Return ``int64[queries]``: the node of one entity in each query's subgraph, -1 where it is not in it."""
        query = self.query_of_nodes()
        found = torch.nonzero(self.entities == entities.to(torch.int32)[query]).reshape(-1)
        positions = torch.full((len(self),), -1, dtype=torch.int64, device=found.device)
        positions[query[found]] = found
        return positions

    def to(self, device: torch.device | str) -> Subgraphs:
        """Return the same subgraphs on a device."""
        return Subgraphs(*(tensor.to(device, non_blocking=True) for tensor in self.tensors()))

    def tensors(self) -> tuple[Tensor, ...]:
        """Return the seven arrays, in the order of the attributes."""
        return (self.node_ptr, self.edge_ptr, self.entities, self.distance, self.heads, self.relations, self.tails)

    def to_pyg(self) -> Any:
        """Return a PyG ``Data``: ``edge_index``, ``edge_type``, ``entity``, ``distance``, ``batch`` (query of nodes)."""
        from torch_geometric.data import Data

        return Data(
            edge_index=self.edge_index,
            edge_type=self.relations.long(),
            entity=self.entities.long(),
            distance=self.distance,
            batch=self.query_of_nodes(),
            num_nodes=self.num_nodes,
        )

    def to_dgl(self) -> Any:
        """Return a DGL graph of 32 bits: ``ndata`` has ``entity`` and ``distance``, ``edata`` has ``relation``."""
        import dgl

        graph = dgl.graph((self.heads, self.tails), num_nodes=self.num_nodes, idtype=torch.int32)
        graph.ndata["entity"], graph.ndata["distance"] = self.entities, self.distance
        graph.edata["relation"] = self.relations
        graph.set_batch_num_nodes(self.node_ptr.diff())
        graph.set_batch_num_edges(self.edge_ptr.diff())
        return graph


@dataclass(frozen=True)
class Batch:
    """Queries with their subgraphs.

    Attributes
    ----------
    epoch, number : int
        Which batch it is.
    heads, relations, tails : int64[queries]
        The queries (head, relation, ?) and their answers.
    subgraphs : Subgraphs
        Complete subgraphs of the heads (or of heads and tails).
    head_positions, tail_positions : int64[queries]
        Nodes of heads and tails; -1 where a tail is not in its query's subgraph.
    """

    epoch: int
    number: int
    heads: Tensor
    relations: Tensor
    tails: Tensor
    subgraphs: Subgraphs
    head_positions: Tensor
    tail_positions: Tensor

    def __len__(self) -> int:
        return len(self.heads)

    def to(self, device: torch.device | str) -> Batch:
        """Return the same batch on a device."""
        parts = ("heads", "relations", "tails", "head_positions", "tail_positions")
        moved = {name: getattr(self, name).to(device, non_blocking=True) for name in parts}
        return replace(self, subgraphs=self.subgraphs.to(device), **moved)
