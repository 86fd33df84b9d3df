"""Sample two epochs before training, lay their rows out as they will be read, and train from them.

``python docs/examples/packed_epochs.py DATASET PACKED``; PACKED is made where it does not exist.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

import gids
from gids.models import GraphSAGE

EPOCHS = 2


def main(path: str, packed: str) -> list[float]:
    """Train, and return the loss of every batch: the same as without packing, to the bit."""
    dataset = gids.open(path)
    if not Path(packed).exists():
        gids.pack(dataset, packed, "train", fanouts=[5, 5], batch_size=128, epochs=EPOCHS, budget="64MiB")
    torch.manual_seed(0)
    model = GraphSAGE(dataset.num_features, 32, dataset.num_classes, num_layers=2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    with gids.Loader(dataset, packed=packed, budget="64MiB") as loader:
        for epoch in range(EPOCHS):
            loader.set_epoch(epoch)
            for batch in loader:
                loss = cross_entropy(model(batch.blocks, batch.x), batch.y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            print(f"epoch {epoch}: loss {losses[-1]:.3f}")
    return losses


if __name__ == "__main__":
    main(*sys.argv[1:3])
