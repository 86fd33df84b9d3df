"""Link prediction with PyG: ``python docs/examples/pyg_link.py DATASET``."""

from __future__ import annotations

import sys

import torch
from torch.nn.functional import binary_cross_entropy_with_logits
from torch_geometric.nn import GraphSAGE

import gids
from gids.dataset.rows import as_tensor, read_rows
from gids.pyg import LinkNeighborLoader


def first_edges(dataset: gids.Dataset, count: int) -> torch.Tensor:
    """Return the first edges of the graph, int64 ``[2, count]``."""
    table = dataset.indices_table()
    sources = as_tensor(table, read_rows(table)).flatten()[:count].long()
    ends = torch.searchsorted(torch.tensor(dataset.indptr()), torch.arange(len(sources)), right=True) - 1
    return torch.stack([sources, ends])


def main(path: str, edges: int = 4096, epochs: int = 3) -> list[float]:
    """Train on the first ``edges`` edges, and return the mean loss of every epoch."""
    dataset = gids.open(path)
    torch.manual_seed(0)
    model = GraphSAGE(dataset.num_features, 32, num_layers=2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    options = {"neg_sampling": "binary", "batch_size": 256, "shuffle": True, "budget": "64MiB"}
    losses = []
    with LinkNeighborLoader(dataset, [5, 5], first_edges(dataset, edges), **options) as loader:
        for epoch in range(epochs):
            total = 0.0
            for data in loader:
                rows = model(data.x, data.edge_index)
                src, dst = data.edge_label_index
                loss = binary_cross_entropy_with_logits((rows[src] * rows[dst]).sum(1), data.edge_label.float())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.item()
            losses.append(total / len(loader))
            print(f"epoch {epoch}: loss {losses[-1]:.3f}")
    return losses


if __name__ == "__main__":
    main(sys.argv[1])
