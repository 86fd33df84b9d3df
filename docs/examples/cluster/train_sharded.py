"""Train on a table that is split over nodes; the same script for torchrun, Slurm and Kubernetes.

    torchrun --nnodes 2 --nproc-per-node 1 --node-rank K --master-addr HOST0 --master-port 29500 train_sharded.py GRAPH

Goes on where it was after a restart: every rank keeps the state of its loader beside the weights, once per batch here,
less often in earnest.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gids


def main(graph, checkpoints, epochs=2):
    """Train a linear model on the seeds' own features: the loader is what is shown."""
    dist.init_process_group("gloo")  # of training; with GPUs "nccl". Rows go through a group of their own.
    rank = dist.get_rank()
    dataset = gids.open(graph)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(dataset.num_features, dataset.num_classes))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept = Path(checkpoints) / f"rank{rank}.pt"
    options = {"fanouts": [10, 10], "batch_size": 256, "budget": "256MiB"}
    with gids.Loader(dataset, "train", **options, shards=gids.Shards()) as loader:
        if kept.exists():
            state = torch.load(kept, weights_only=True)
            model.load_state_dict(state["model"])
            loader.load_state_dict(state["loader"])
        while loader.epoch < epochs:
            for batch in loader:
                loss = nn.functional.cross_entropy(model(batch.x[: batch.batch_size]), batch.y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                torch.save({"model": model.state_dict(), "loader": loader.state_dict()}, kept)
        print(f"rank {rank}: loss {loss.item():.3f}, {loader.stats().exchange}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:3])
