"""RED-GNN on complete subgraphs of a knowledge graph on disk: ``python docs/examples/knowledge_graph.py DATASET``.

``gids generate kg DATASET --entities 2000 --degree 5 --reverse --identity --train 0.1`` makes a graph.
"""

from __future__ import annotations

import sys

import torch

import gids
from gids.kg import Loader
from gids.models import RedGnn, ranking_loss

HOPS = 2


def main(path: str, queries: int = 256, epochs: int = 2) -> list[float]:
    """Train on the first queries of the split ``train``, and return the mean loss of every epoch."""
    dataset = gids.open(path)
    known = dataset.knowledge
    torch.manual_seed(0)
    model = RedGnn(known.num_relations, dim=16, layers=HOPS)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    options = {"hops": HOPS, "batch_size": 16, "remove_target": True, "budget": "64MiB"}
    with Loader(dataset, known.queries("train")[:queries].copy(), **options) as loader:
        for epoch in range(epochs):
            total = count = 0.0
            for batch in loader:
                scores = model(batch.subgraphs, batch.relations)
                loss = ranking_loss(scores, batch.subgraphs.node_ptr, batch.tail_positions, dataset.num_nodes())
                optimizer.zero_grad()
                (loss / len(batch)).backward()
                optimizer.step()
                total, count = total + loss.item(), count + len(batch)
            losses.append(total / count)
            print(f"epoch {epoch}: loss {losses[-1]:.3f}")
    return losses


if __name__ == "__main__":
    main(sys.argv[1])
