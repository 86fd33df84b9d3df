"""One rank of ``gids bench cluster``, in a process of its own: obeys one JSON line per round, answers with one."""

from __future__ import annotations

import itertools
import json
import sys
import time
from typing import Any

import torch
import torch.distributed as dist

import gids
from gids.bench.epoch_worker import check_rows

#: As in a loader that does nothing ahead: a batch is asked for when the one before it was taken.
ASK_AND_WAIT = gids.PipelineOptions(window=0, sweep_batches=1, groups_in_flight=1, prefetch=1)


class Rank:
    """A rank and its loaders, one for every contender.

    Parameters
    ----------
    spec : dict
        Of the rank.
    """

    def __init__(self, spec: dict[str, Any]):
        torch.set_num_threads(1)
        rank = spec["rank"]
        dist.init_process_group("gloo", init_method=spec["meet"], rank=rank, world_size=spec["world"])
        self.dataset = gids.open(spec["data"])
        self.loaders: dict[str, gids.Loader] = {}
        for contender in spec["contenders"]:
            self.loaders[contender] = gids.Loader(
                self.dataset,
                "train",
                fanouts=spec["fanouts"],
                batch_size=spec["batch_size"],
                budget=spec["budget"],
                memory=gids.MemoryOptions(cache=spec["cache"], host_buffer=spec["host_buffer"]),
                pipeline=ASK_AND_WAIT if contender == "ask and wait" else None,
                shards=None if contender == "replicated" else gids.Shards(node=rank, memory=spec["shard_memory"]),
            ).prepare()

    def round(self, contender: str, number: int, batches: int) -> dict[str, Any]:
        """Take the first batches of an epoch, beginning together with the other ranks."""
        loader = self.loaders[contender]
        loader.set_epoch(number)
        loader.reset_stats()
        before = loader.stats().exchange or {}
        dist.barrier()
        rows, begin = 0, time.perf_counter()
        for batch in itertools.islice(loader, batches):
            rows += len(batch.input_nodes)
        seconds = time.perf_counter() - begin
        check_rows(self.dataset, batch.input_nodes, batch.x)
        after = loader.stats()
        exchange = {name: value - before.get(name, 0) for name, value in (after.exchange or {}).items()}
        table = next(iter(after.tables.values()))
        counted = {"requests": table.requests, "disk": table.disk, "bytes_read": table.bytes_read}
        return {"rows": rows, "seconds": seconds, "exchange": exchange, "table": counted}

    def close(self) -> None:
        """Part with the other ranks."""
        for loader in self.loaders.values():
            loader.close()
        dist.destroy_process_group()


def main() -> None:
    """Obey."""
    rank = Rank(json.loads(sys.argv[1]))
    print("{}", flush=True)
    for line in sys.stdin:
        print(json.dumps(rank.round(**json.loads(line))), flush=True)
    rank.close()


if __name__ == "__main__":
    main()
