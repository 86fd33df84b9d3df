"""One contender of ``gids bench pack``, in a process of its own: obeys one JSON line per round, answers with one."""

from __future__ import annotations

import itertools
import json
import sys
import time
from typing import Any

import torch
import xxhash

import gids
from gids.bench.epoch_worker import Mapped, check_rows
from gids.bench.options import loader_arguments
from gids.loader.packed import PackedFeed
from gids.report.growth import peak_resident_bytes
from gids.runtime.batch import map_tensors


class Loading:
    """gids.Loader under a budget, online or over packed epochs."""

    def __init__(self, spec: dict[str, Any]):
        torch.set_num_threads(1)
        self.dataset = gids.open(spec["data"])
        options = loader_arguments(spec["options"] | {"budget": spec["budget"]})
        if spec["spill"] is not None:  # beside the table, on the disk that is measured
            options["spill"] = gids.SpillOptions(spec["spill"], spec["data"])
        begin = time.perf_counter()
        if spec["packed"] is None:
            seeds = self.dataset.split("train")[: spec["seeds"]]
            order = {"fanouts": spec["fanouts"], "batch_size": spec["batch_size"]}
            self.loader = gids.Loader(self.dataset, seeds, **order, **options)
        else:
            self.loader = gids.Loader(self.dataset, packed=spec["packed"], **options)
        self.loader.prepare()
        self.start_s = time.perf_counter() - begin

    def round(self, number: int, batches: int, rows: int | None) -> dict[str, Any]:
        """Prepare the data of an epoch, or of its first batches."""
        self.loader.set_epoch(number)
        self.loader.reset_stats()
        feed = self.loader._open().feed
        stored = feed.bytes_read if isinstance(feed, PackedFeed) else 0
        done = 0
        begin = time.perf_counter()
        for batch in itertools.islice(self.loader, batches or None):
            done += len(batch.input_nodes)
        seconds = time.perf_counter() - begin
        check_rows(self.dataset, batch.input_nodes, batch.x)
        stats = self.loader.stats()
        (table,) = stats.as_dict()["tables"].values()
        stored = (feed.bytes_read if isinstance(feed, PackedFeed) else 0) - stored
        found = {"rows": done, "seconds": seconds, "table": table, "stored_bytes": stored, "start_s": self.start_s}
        return found | {"memory": str(stats.memory), "reasons": list(stats.reasons)}

    def digest(self, number: int, batches: int) -> dict[str, Any]:
        """Hash every tensor of the first batches of an epoch."""
        digest = xxhash.xxh3_128()
        self.loader.set_epoch(number)

        def add(tensor: torch.Tensor) -> torch.Tensor:
            digest.update(tensor.contiguous().numpy().tobytes())
            return tensor

        for batch in itertools.islice(self.loader, batches):
            map_tensors(batch, add)
        return {"digest": digest.hexdigest()}


def main() -> None:
    """Serve rounds until the input ends."""
    spec = json.loads(sys.argv[1])
    contender = Loading(spec) if spec["contender"] == "gids" else Mapped(spec)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        if order["what"] == "digest":
            assert isinstance(contender, Loading)
            answer = contender.digest(order["number"], order["batches"])
        else:
            answer = contender.round(order["number"], order["batches"], order["rows"])
        answer["peak_rss_bytes"] = peak_resident_bytes()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
