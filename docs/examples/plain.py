"""Node classification in plain PyTorch: ``python docs/examples/plain.py DATASET``.

``gids generate communities DATASET --nodes 50k --dim 64 --classes 8`` makes a graph that can be learned from.
"""

from __future__ import annotations

import sys

import torch
from torch.nn.functional import cross_entropy

import gids
from gids.models import GraphSAGE


def main(path: str, epochs: int = 3) -> float:
    """Train, and return the accuracy on the split ``val``."""
    dataset = gids.open(path)
    torch.manual_seed(0)
    model = GraphSAGE(dataset.num_features, 32, dataset.num_classes, num_layers=2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    options = {"fanouts": [5, 5], "batch_size": 128, "budget": "64MiB"}
    with gids.Loader(dataset, "train", **options) as loader:
        for epoch in range(epochs):
            loader.set_epoch(epoch)
            for batch in loader:
                loss = cross_entropy(model(batch.blocks, batch.x), batch.y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            print(f"epoch {epoch}: loss {loss:.3f}")

    model.eval()
    right = seen = 0
    with gids.Loader(dataset, "val", **options) as loader, torch.no_grad():
        for batch in loader:
            right += int((model(batch.blocks, batch.x).argmax(1) == batch.y).sum())
            seen += len(batch.y)
    print(f"accuracy {right / seen:.3f}")
    return right / seen


if __name__ == "__main__":
    main(sys.argv[1])
