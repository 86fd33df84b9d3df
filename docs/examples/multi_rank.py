"""Several processes of one machine train one model: ``torchrun --nproc-per-node 2 docs/examples/multi_rank.py DATASET``.

The loader takes rank and world size from ``torch.distributed``: every seed is in one batch of one rank. The ranks share one
host buffer and one topology in memory.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import gids
from gids.models import GraphSAGE


def main(path: str, epochs: int = 2) -> float:
    """Train, and return the loss of the last batch; run by every rank, in a process group."""
    dataset = gids.open(path)
    torch.manual_seed(0)
    model = DistributedDataParallel(GraphSAGE(dataset.num_features, 32, dataset.num_classes, num_layers=2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with gids.Loader(dataset, "train", fanouts=[5, 5], batch_size=128, budget="64MiB") as loader:
        for epoch in range(epochs):
            loader.set_epoch(epoch)
            for batch in loader:
                own = batch.batch_size - batch.padding  # ranks have equally many batches: the last may be padded
                loss = cross_entropy(model(batch.blocks, batch.x)[:own], batch.y[:own])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            print(f"rank {dist.get_rank()} of {dist.get_world_size()}, epoch {epoch}: loss {loss:.3f}")
    return loss.item()


if __name__ == "__main__":
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    main(sys.argv[1])
    dist.destroy_process_group()
