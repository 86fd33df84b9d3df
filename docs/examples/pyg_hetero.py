"""Node classification with PyG on a graph of several types: ``python docs/examples/pyg_hetero.py DATASET TYPE``.

TYPE is the node type that has labels and a split ``train``, for instance ``paper``.
"""

from __future__ import annotations

import sys

import torch
from torch.nn.functional import cross_entropy, relu
from torch_geometric.nn import HeteroConv, SAGEConv

import gids
from gids.pyg import NeighborLoader


class Model(torch.nn.Module):
    """Two layers with a convolution for each edge type; one that no edge reaches keeps its own projection."""

    def __init__(self, dataset: gids.Dataset, hidden_dim: int, out_dim: int, target: str):
        super().__init__()
        dims = {ntype: dataset.feature_table(ntype).dim for ntype in dataset.node_types}
        self.project = torch.nn.ModuleDict({t: torch.nn.Linear(dim, hidden_dim) for t, dim in dims.items()})
        self.layers = torch.nn.ModuleList(
            HeteroConv({etype: SAGEConv(hidden_dim, hidden_dim) for etype in dataset.edge_types}) for _ in range(2)
        )
        self.out = torch.nn.Linear(hidden_dim, out_dim)
        self.target = target

    def forward(self, x: dict, edge_index: dict) -> torch.Tensor:
        """Return a row for each node of the type that has labels."""
        x = {ntype: relu(self.project[ntype](rows)) for ntype, rows in x.items()}
        for layer in self.layers:
            x = x | {ntype: relu(rows) for ntype, rows in layer(x, edge_index).items()}
        return self.out(x[self.target])


def main(path: str, target: str, epochs: int = 3) -> list[float]:
    """Train, and return the mean loss of every epoch."""
    dataset = gids.open(path)
    torch.manual_seed(0)
    model = Model(dataset, 32, dataset.num_classes, target)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    seeds = (target, "train")
    with NeighborLoader(dataset, [5, 5], seeds, batch_size=128, shuffle=True, budget="64MiB") as loader:
        for epoch in range(epochs):
            total = 0.0
            for data in loader:
                count = data[target].batch_size
                scores = model(data.x_dict, data.edge_index_dict)[:count]
                loss = cross_entropy(scores, data[target].y[:count])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.item()
            losses.append(total / len(loader))
            print(f"epoch {epoch}: loss {losses[-1]:.3f}")
    return losses


if __name__ == "__main__":
    main(*sys.argv[1:3])
