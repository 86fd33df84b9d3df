"""Train on a table that is split over nodes, with Ray Train in the place of torchrun.

    python train_sharded_ray.py GRAPH WORKERS

Ray places one worker on each node and makes the process group; a worker's node is its world rank then, which is right where
every node has the whole dataset or sees it on a shared file system. Where a node has its part only, let it say which.
"""

import sys

import ray.train
import ray.train.torch
import torch
from torch import nn

import gids


def train(config):
    """Train an epoch, on one worker of several."""
    rank = ray.train.get_context().get_world_rank()
    dataset = gids.open(config["graph"])
    model = ray.train.torch.prepare_model(nn.Linear(dataset.num_features, dataset.num_classes))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    shards = gids.Shards(node=rank)
    with gids.Loader(dataset, "train", fanouts=[10, 10], batch_size=256, budget="256MiB", shards=shards) as loader:
        for batch in loader:
            loss = nn.functional.cross_entropy(model(batch.x[: batch.batch_size]), batch.y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"rank {rank}: loss {loss.item():.3f}, {loader.stats().exchange}")


if __name__ == "__main__":
    graph, workers = sys.argv[1], int(sys.argv[2])
    scaling = ray.train.ScalingConfig(num_workers=workers, placement_strategy="STRICT_SPREAD")
    ray.train.torch.TorchTrainer(train, train_loop_config={"graph": graph}, scaling_config=scaling).fit()
