"""What a sampler returns: the blocks of a batch and the nodes whose rows it needs."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from gids.errors import ConfigError
from gids.types import EDGE, NODE, EdgeType

__all__ = ["EDGE", "NODE", "Block", "EdgeType", "Sample", "SampleKey", "SeedEdges"]


_BITS_32, _BITS_64 = 1 << 32, 1 << 64


@dataclass(frozen=True)
class SampleKey:
    """Names a batch: with the same key, graph and seeds every backend samples the same edges."""

    seed: int = 0
    epoch: int = 0
    batch: int = 0

    def __post_init__(self) -> None:
        if 0 <= self.seed < _BITS_64 and 0 <= self.epoch < _BITS_32 and 0 <= self.batch < _BITS_64:
            return
        for name, bits in (("seed", 64), ("epoch", 32), ("batch", 64)):
            value = getattr(self, name)
            if not 0 <= value < 1 << bits:
                raise ConfigError(f"{name} must be in [0, 2**{bits}) (got {value})")


@dataclass(frozen=True, repr=False)
class Block:
    """One layer: a bipartite graph from source to destination nodes, by edge type, compressed by destination.

    Attributes
    ----------
    num_src, num_dst : dict of str to int
        Nodes by type. The destinations are the first ``num_dst`` sources.
    indptr : dict of EdgeType to Tensor[int64]
        In-edges of destination ``i`` are ``indptr[i]:indptr[i + 1]``; length ``num_dst + 1``.
    src : dict of EdgeType to Tensor[int64]
        Source of each edge, numbered within this layer's source nodes of that type.
    edge_ids : dict of EdgeType to Tensor[int64], or None
        Ids of the edges in the graph, when the sampler was asked for them.
    weights : dict of EdgeType to Tensor[float32], or None
        Importance weights of the edges (LADIES).
    """

    num_src: dict[str, int]
    num_dst: dict[str, int]
    indptr: dict[EdgeType, Tensor]
    src: dict[EdgeType, Tensor]
    edge_ids: dict[EdgeType, Tensor] | None = None
    weights: dict[EdgeType, Tensor] | None = None

    def __repr__(self) -> str:
        src, dst = sum(self.num_src.values()), sum(self.num_dst.values())
        return f"Block({src} sources, {dst} destinations, {self.num_edges()} edges)"

    @property
    def edge_types(self) -> list[EdgeType]:
        """Edge types in the graph's order."""
        return list(self.indptr)

    def only(self, etype: EdgeType | None) -> EdgeType:
        """Return ``etype``, or the single edge type where it is None."""
        if etype is None:
            if len(self.indptr) != 1:
                raise ConfigError(f"edge type must be given where a graph has several (has {self.edge_types})")
            return next(iter(self.indptr))
        if etype not in self.indptr:
            raise ConfigError(f"edge type must be one of {self.edge_types} (got {etype!r})")
        return etype

    def num_edges(self, etype: EdgeType | None = None) -> int:
        """Count the edges of one type, or of all types where ``etype`` is None."""
        if etype is None:
            return sum(len(src) for src in self.src.values())
        return len(self.src[self.only(etype)])

    def dst(self, etype: EdgeType | None = None) -> Tensor:
        """Return the destination of each edge, numbered within this layer's destinations: Tensor[int64]."""
        indptr = self.indptr[self.only(etype)]
        every = torch.arange(len(indptr) - 1, device=indptr.device)
        return torch.repeat_interleave(every, indptr.diff(), output_size=int(indptr[-1]))

    def edge_index(self, etype: EdgeType | None = None) -> Tensor:
        """Return sources and destinations as Tensor[int64] of shape ``[2, edges]``."""
        etype = self.only(etype)
        return torch.stack([self.src[etype], self.dst(etype)])


@dataclass(frozen=True, repr=False)
class SeedEdges:
    """The pairs of a link-prediction batch, positive ones first.

    Attributes
    ----------
    src, dst : Tensor[int64]
        Rows among the sample's ``seeds`` of the source and of the destination type.
    labels : Tensor[float32]
        1 for positive pairs, 0 for negative ones.
    """

    src: Tensor
    dst: Tensor
    labels: Tensor

    def __repr__(self) -> str:
        return f"SeedEdges({int(self.labels.sum())} edges, {len(self.labels) - int(self.labels.sum())} negatives)"


@dataclass(frozen=True, repr=False)
class Sample:
    """A sampled batch.

    Attributes
    ----------
    seeds : dict of str to Tensor[int64]
        Distinct seed nodes by type, in order of first occurrence: the destinations of the last block.
    input_nodes : dict of str to Tensor[int64]
        Distinct nodes whose features the batch needs, by first occurrence, seeds first: the sources of the first block.
    blocks : list of Block
        Outermost layer first.
    seed_rows : dict of str to Tensor[int64]
        For each seed as given (duplicates included) its row among ``seeds``.
    edges : SeedEdges or None
        The pairs, where seeds were edges.
    trees : dict of str to Tensor[int64] or None
        By node type, the seed (in order, type after type) that each input node belongs to, where seeds share none.
    """

    seeds: dict[str, Tensor]
    input_nodes: dict[str, Tensor]
    blocks: list[Block]
    seed_rows: dict[str, Tensor] = field(repr=False)
    edges: SeedEdges | None = None
    trees: dict[str, Tensor] | None = None

    def __repr__(self) -> str:
        seeds, nodes = (sum(map(len, by_type.values())) for by_type in (self.seeds, self.input_nodes))
        return f"Sample({seeds} seeds, {nodes} input nodes, {len(self.blocks)} blocks, {self.num_edges} edges)"

    @property
    def num_edges(self) -> int:
        """Sampled edges over all blocks."""
        return sum(block.num_edges() for block in self.blocks)
