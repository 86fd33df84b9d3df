"""Node classification with PyG: ``python docs/examples/pyg_node.py DATASET``. pyg-lib is not needed."""

from __future__ import annotations

import sys

import torch
from torch.nn.functional import cross_entropy
from torch_geometric.nn import GraphSAGE

import gids
from gids.pyg import NeighborLoader


def main(path: str, epochs: int = 3) -> list[float]:
    """Train, and return the mean loss of every epoch."""
    dataset = gids.open(path)
    torch.manual_seed(0)
    model = GraphSAGE(dataset.num_features, 32, num_layers=2, out_channels=dataset.num_classes)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    with NeighborLoader(dataset, [5, 5], "train", batch_size=128, shuffle=True, budget="64MiB") as loader:
        for epoch in range(epochs):
            total = 0.0
            for data in loader:
                seeds = slice(data.batch_size)  # the first nodes of a batch
                loss = cross_entropy(model(data.x, data.edge_index)[seeds], data.y[seeds])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.item()
            losses.append(total / len(loader))
            print(f"epoch {epoch}: loss {losses[-1]:.3f}")
    return losses


if __name__ == "__main__":
    main(sys.argv[1])
