"""A trained model for every node, exactly and within a memory budget: ``python docs/examples/inference.py DATASET OUT``."""

from __future__ import annotations

import sys

import torch
from torch.nn.functional import cross_entropy

import gids
from gids.models import GraphSAGE


def train(dataset: gids.Dataset, epochs: int) -> torch.nn.Module:
    """Train on sampled neighbours."""
    torch.manual_seed(0)
    model = GraphSAGE(dataset.num_features, 32, dataset.num_classes, num_layers=2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with gids.Loader(dataset, "train", fanouts=[5, 5], batch_size=128, budget="64MiB") as loader:
        for _ in range(epochs):
            for batch in loader:
                loss = cross_entropy(model(batch.blocks, batch.x), batch.y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    return model


def main(path: str, out: str, epochs: int = 3) -> float:
    """Train, compute every node with all its neighbours, and return the accuracy on the split ``test``."""
    dataset = gids.open(path)
    model = train(dataset, epochs)
    answers = gids.infer(model, dataset, out, budget="64MiB", top_k=1)  # goes on where it was killed
    accuracy = gids.infer.accuracy(answers, dataset, "test")
    print(f"{answers.num_nodes():,} nodes, accuracy {accuracy.share:.3f}")
    return accuracy.share


if __name__ == "__main__":
    main(*sys.argv[1:3])
