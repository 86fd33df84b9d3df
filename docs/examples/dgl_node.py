"""Node classification with DGL: ``python docs/examples/dgl_node.py DATASET``.

Sampling, shuffling and features are gids'; blocks, models and the loop are DGL's.
"""

from __future__ import annotations

import sys

import dgl.nn
import torch
from torch.nn.functional import cross_entropy, relu

import gids
from gids.dgl import DataLoader, NeighborSampler


class SAGE(torch.nn.Module):
    """Two layers of GraphSAGE."""

    def __init__(self, in_dim: int, hidden_dim: int, out_dim: int):
        super().__init__()
        self.first = dgl.nn.SAGEConv(in_dim, hidden_dim, "mean")
        self.second = dgl.nn.SAGEConv(hidden_dim, out_dim, "mean")

    def forward(self, blocks: list[dgl.DGLGraph], x: torch.Tensor) -> torch.Tensor:
        """Return a row for each seed."""
        return self.second(blocks[1], relu(self.first(blocks[0], x)))


def main(path: str, epochs: int = 3) -> list[float]:
    """Train, and return the mean loss of every epoch."""
    dataset = gids.open(path)
    torch.manual_seed(0)
    model = SAGE(dataset.num_features, 32, dataset.num_classes)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    sampler = NeighborSampler([5, 5], prefetch_node_feats=["feat"], prefetch_labels=["label"])
    loader = DataLoader(dataset, "train", sampler, batch_size=128, shuffle=True, budget="64MiB")
    losses = []
    for epoch in range(epochs):
        total = 0.0
        for _input_nodes, _seeds, blocks in loader:
            loss = cross_entropy(model(blocks, blocks[0].srcdata["feat"]), blocks[-1].dstdata["label"])
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
