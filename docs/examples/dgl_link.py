"""Link prediction with DGL: ``python docs/examples/dgl_link.py DATASET``.

Your own DGL graph and DGL's own samplers, with one more argument, ``gids=``: features come from disk. Here the graph is
made of the dataset's, so that edge ids are the same.
"""

from __future__ import annotations

import sys

import dgl
import dgl.nn
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, relu

import gids
from gids.dataset.rows import as_tensor, read_rows
from gids.dgl import DataLoader, NeighborSampler, as_edge_prediction_sampler, negative_sampler


class Encoder(torch.nn.Module):
    """Two layers of GraphSAGE."""

    def __init__(self, in_dim: int, hidden_dim: int):
        super().__init__()
        self.first = dgl.nn.SAGEConv(in_dim, hidden_dim, "mean")
        self.second = dgl.nn.SAGEConv(hidden_dim, hidden_dim, "mean")

    def forward(self, blocks: list[dgl.DGLGraph], x: torch.Tensor) -> torch.Tensor:
        """Return a row for each end of the pairs."""
        return self.second(blocks[1], relu(self.first(blocks[0], x)))


def scores(pairs: dgl.DGLGraph, rows: torch.Tensor) -> torch.Tensor:
    """Return the dot product of both ends of every pair."""
    src, dst = pairs.edges()
    return (rows[src] * rows[dst]).sum(1)


def open_graph(dataset: gids.Dataset) -> dgl.DGLGraph:
    """Return the dataset's graph as DGL's."""
    table = dataset.indices_table()
    indices = as_tensor(table, read_rows(table)).flatten().long()
    indptr = torch.tensor(dataset.indptr())
    return dgl.graph(("csc", (indptr, indices, [])), num_nodes=dataset.num_nodes())


def main(path: str, edges: int = 4096, epochs: int = 3) -> list[float]:
    """Train on the first ``edges`` edges, and return the mean loss of every epoch."""
    dataset = gids.open(path)
    graph = open_graph(dataset)
    torch.manual_seed(0)
    dgl.seed(0)
    model = Encoder(dataset.num_features, 32)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    sampler = as_edge_prediction_sampler(
        NeighborSampler([5, 5], prefetch_node_feats=["feat"]),
        exclude="self",
        negative_sampler=negative_sampler.Uniform(1),
    )
    seeds = torch.arange(min(edges, graph.num_edges()))
    loader = DataLoader(graph, seeds, sampler, batch_size=256, shuffle=True, gids=dataset, budget="64MiB")
    losses = []
    for epoch in range(epochs):
        total = 0.0
        for _input_nodes, positive, negative, blocks in loader:
            rows = model(blocks, blocks[0].srcdata["feat"])
            logits = torch.cat([scores(positive, rows), scores(negative, rows)])
            wanted = torch.cat([torch.ones(positive.num_edges()), torch.zeros(negative.num_edges())])
            loss = binary_cross_entropy_with_logits(logits, wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        losses.append(total / len(loader))
        print(f"epoch {epoch}: loss {losses[-1]:.3f}")
    loader.close()
    return losses


if __name__ == "__main__":
    main(sys.argv[1])
