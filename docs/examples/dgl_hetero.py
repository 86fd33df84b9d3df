"""Node classification with DGL on a graph of several types: ``python docs/examples/dgl_hetero.py DATASET TYPE``.

TYPE is the node type that has labels and a split ``train``, for instance ``paper``.
"""

from __future__ import annotations

import sys

import dgl.nn
import torch
from torch.nn.functional import cross_entropy, relu

import gids
from gids.dgl import DataLoader, NeighborSampler


class RGCN(torch.nn.Module):
    """Every type is brought to one width, then two relational layers."""

    def __init__(self, dataset: gids.Dataset, hidden_dim: int, out_dim: int):
        super().__init__()
        dims = {ntype: dataset.feature_table(ntype).dim for ntype in dataset.node_types}
        self.project = torch.nn.ModuleDict({t: torch.nn.Linear(dim, hidden_dim) for t, dim in dims.items()})
        names = [name for _, name, _ in dataset.edge_types]
        self.layers = torch.nn.ModuleList(
            dgl.nn.HeteroGraphConv({n: dgl.nn.SAGEConv(hidden_dim, width, "mean") for n in names}, aggregate="sum")
            for width in (hidden_dim, out_dim)
        )

    def forward(self, blocks: list[dgl.DGLGraph], x: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return rows of the seeds, by type."""
        x = {ntype: relu(self.project[ntype](rows)) for ntype, rows in x.items()}
        x = {ntype: relu(rows) for ntype, rows in self.layers[0](blocks[0], x).items()}
        return self.layers[1](blocks[1], x)


def main(path: str, target: str, epochs: int = 3) -> list[float]:
    """Train, and return the mean loss of every epoch."""
    dataset = gids.open(path)
    torch.manual_seed(0)
    model = RGCN(dataset, 32, dataset.num_classes)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    feats = {ntype: ["feat"] for ntype in dataset.node_types}
    sampler = NeighborSampler([5, 5], prefetch_node_feats=feats, prefetch_labels={target: ["label"]})
    seeds = {target: dataset.split("train", target)}
    loader = DataLoader(dataset, seeds, sampler, batch_size=128, shuffle=True, budget="64MiB")
    losses = []
    for epoch in range(epochs):
        total = 0.0
        for _input_nodes, _seeds, blocks in loader:
            scores = model(blocks, blocks[0].srcdata["feat"])[target]
            loss = cross_entropy(scores, blocks[-1].dstnodes[target].data["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        losses.append(total / len(loader))
        print(f"epoch {epoch}: loss {losses[-1]:.3f}")
    loader.close()
    return losses


if __name__ == "__main__":
    main(*sys.argv[1:3])
