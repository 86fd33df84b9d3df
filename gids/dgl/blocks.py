"""A sampled batch of gids as DGL's message flow graphs, over the same memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dgl
import torch
from torch import Tensor

from gids.sampling import Block, EdgeType, HistorySample, Sample

#: Name under which importance weights of edges (LADIES) are found in ``block.edata``.
WEIGHT = "w"


def to_dgl_blocks(sample: Sample) -> list[Any]:
    """Return one DGL block per layer, outermost first, with ids of nodes and (where sampled) edges.

    Parameters
    ----------
    sample : Sample
        What a sampler of :mod:`gids.sampling` made.
    """
    blocks = [to_dgl_block(block, sample.input_nodes) for block in sample.blocks]
    if isinstance(sample, HistorySample):  # the last one also has sources that no other block leads to
        blocks[-1] = to_dgl_block(sample.blocks[-1], sample.last_inputs)
        blocks[-1].history = sample.history
    return blocks


def to_dgl_block(block: Block, nodes: Mapping[str, Tensor]) -> Any:
    """Make a DGL block of one layer.

    Parameters
    ----------
    block : Block
        The layer.
    nodes : mapping of str to Tensor[int64]
        Node ids by type; those of this layer's sources are the first ``num_src``.
    """
    # Edges are numbered as they are stored. None given would mean the same, but gradients of edges (GATConv) fail then:
    # DGL's kernels for AVX-512 insist on numbers.
    edges = {
        etype: ("csc", (block.indptr[etype], block.src[etype], torch.arange(len(block.src[etype]))))
        for etype in block.edge_types
    }
    graph = dgl.create_block(
        edges,
        num_src_nodes=block.num_src,
        num_dst_nodes=block.num_dst,
    )
    for ntype in block.num_src:
        graph.srcnodes[ntype].data[dgl.NID] = nodes[ntype][: block.num_src[ntype]]
        graph.dstnodes[ntype].data[dgl.NID] = nodes[ntype][: block.num_dst[ntype]]
    for etype in block.edge_types:
        if block.edge_ids is not None:
            graph.edges[etype].data[dgl.EID] = block.edge_ids[etype]
        if block.weights is not None:
            graph.edges[etype].data[WEIGHT] = block.weights[etype]
    return graph


def without_edges(block: Block, excluded: Mapping[EdgeType, Tensor]) -> Block:
    """Leave out the edges with the given ids; nodes stay, so that layers still fit onto each other.

    Parameters
    ----------
    block : Block
        A layer with edge ids.
    excluded : mapping of EdgeType to Tensor[int64]
        Ids to leave out.
    """
    if block.edge_ids is None:
        raise ValueError("block must have edge ids for edges to be excluded (it was sampled without)")
    indptr, src, edge_ids = dict(block.indptr), dict(block.src), dict(block.edge_ids)
    weights = None if block.weights is None else dict(block.weights)
    for etype, ids in excluded.items():
        kept = ~torch.isin(edge_ids[etype], ids)
        running = torch.zeros(len(kept) + 1, dtype=torch.int64)
        torch.cumsum(kept, 0, out=running[1:])
        indptr[etype] = running[indptr[etype]]
        src[etype], edge_ids[etype] = src[etype][kept], edge_ids[etype][kept]
        if weights is not None:
            weights[etype] = weights[etype][kept]
    return Block(block.num_src, block.num_dst, indptr, src, edge_ids, weights)
