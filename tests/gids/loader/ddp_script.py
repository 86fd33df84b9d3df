"""Run by torchrun in test_ranks.py: two ranks train one model, and say what they saw."""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gids


def train(path, uneven):
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(20, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen, counts = [], []
    with gids.Loader(
        path,
        torch.arange(161),
        fanouts=[4, 4],
        batch_size=8,
        budget="64MiB",
        order=gids.OrderOptions(uneven=uneven),
        memory=gids.MemoryOptions(host_buffer="60KiB"),
    ).prepare() as loader:
        for _ in range(2):
            epoch = []
            with model.join(enable=uneven == "join"):
                for batch in loader:
                    loss = nn.functional.cross_entropy(model(batch.x[: batch.batch_size]), batch.y)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    epoch.append(batch.seeds[: batch.batch_size - batch.padding].tolist())
            seen.append([node for batch in epoch for node in batch])
            counts.append(len(epoch))
        maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if "/dev/shm/gids-" in line]
        host = {"inodes": sorted({line[4] for line in maps}), "rows": loader.stats().tables["_N/feat"].host}
        dist.barrier()
    weights = [p.detach().flatten().tolist() for p in model.parameters()]
    return {"world": dist.get_world_size(), "seen": seen, "counts": counts, "host": host, "weights": weights}


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    results = {uneven: train(sys.argv[1], uneven) for uneven in ("pad", "join")}
    Path(sys.argv[2], f"rank{dist.get_rank()}.json").write_text(json.dumps(results))
    dist.destroy_process_group()
