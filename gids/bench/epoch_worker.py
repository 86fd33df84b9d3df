"""One contender of ``gids bench epoch``, in a process of its own: obeys one JSON line per round, answers with one."""

from __future__ import annotations

import itertools
import json
import mmap
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import gids
from gids import Batch
from gids.bench.options import loader_arguments
from gids.report.growth import MemoryMeter
from gids.sampling import Block, SeedOrder

#: Rows of each round that are compared with the file, byte by byte.
VERIFIED_ROWS = 512


def check_rows(dataset: gids.Dataset, nodes: Tensor, x: Tensor) -> None:
    """Compare some rows of a batch with what the file holds."""
    table = dataset.feature_table()
    for place in range(0, len(nodes), max(1, len(nodes) // VERIFIED_ROWS)):
        stripe, offset = table.locate(int(nodes[place]))
        fd = os.open(table.stripes[stripe].path, os.O_RDONLY)
        try:
            stored = os.pread(fd, table.row_bytes, offset)
        finally:
            os.close(fd)
        if stored != x[place].numpy().tobytes():
            raise gids.GidsError(f"row {int(nodes[place])} of a batch is not what {table.name} holds")


class Mapped:
    """DGL's NeighborSampler, and features from a memory-mapped file."""

    def __init__(self, spec: dict[str, Any]):
        import dgl

        self.dataset = gids.open(spec["data"])
        indices = self.dataset.indices_table()
        stripe = indices.stripes[0]
        sources = np.fromfile(stripe.path, dtype=indices.dtype, count=indices.num_rows, offset=stripe.data_offset)
        indptr = torch.from_numpy(np.array(self.dataset.indptr())).to(torch.from_numpy(sources).dtype)
        self.graph = dgl.graph(
            ("csc", (indptr, torch.from_numpy(sources), torch.empty(0, dtype=indptr.dtype))),
            num_nodes=self.dataset.num_nodes(),
        )
        # DGL 1.1.3's fused sampler carries ids from batch to batch on int32 graphs: nodes that came before go missing.
        self.sampler = dgl.dataloading.NeighborSampler(spec["fanouts"], fused=False)
        self.order = order_of(spec, self.dataset)
        table = self.dataset.feature_table()
        with table.stripes[0].path.open("rb") as file:
            # Private and writable: torch warns of arrays that it must not write to. Nothing is written.
            self.map = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE)
        if spec["advice"] == "random":
            self.map.madvise(mmap.MADV_RANDOM)
        raw = np.frombuffer(self.map, np.float32, table.num_rows * table.dim, table.stripes[0].data_offset)
        self.features = torch.from_numpy(raw.reshape(table.num_rows, table.dim))

    def round(self, number: int, batches: int, rows: int | None) -> dict[str, Any]:
        """Prepare some batches of an epoch, or only so many rows of each."""
        order, done, sampling = self.order(number), 0, 0.0
        begin = time.perf_counter()
        for index in range(batches):
            start = time.perf_counter()
            nodes, _, _ = self.sampler.sample(self.graph, order[index].nodes["_N"].to(self.graph.idtype))
            sampling += time.perf_counter() - start
            nodes = nodes.long()[:rows]
            x = self.features[nodes]
            done += len(nodes)
        seconds = time.perf_counter() - begin
        check_rows(self.dataset, nodes, x)
        return {"rows": done, "seconds": seconds, "sampling_seconds": sampling}


class Sage(nn.Module):
    """Two layers of mean aggregation: what a step of training costs."""

    def __init__(self, dim: int, hidden: int, classes: int):
        super().__init__()
        self.first, self.second = nn.Linear(2 * dim, hidden), nn.Linear(2 * hidden, classes)

    def forward(self, blocks: list[Block], x: Tensor) -> Tensor:
        """Give the logits of the seeds."""
        for layer, block in zip((self.first, self.second), blocks, strict=True):
            (num_dst,), (src,), (indptr,) = block.num_dst.values(), block.src.values(), block.indptr.values()
            mean = nn.functional.embedding_bag(src, x, indptr[:-1], mode="mean")
            x = layer(torch.cat([x[:num_dst], mean], 1))
            x = x.relu() if layer is self.first else x
        return x


class Ours:
    """gids.Loader under a budget."""

    def __init__(self, spec: dict[str, Any]):
        torch.set_num_threads(spec["torch_threads"])
        self.dataset = gids.open(spec["data"])
        self.meter = MemoryMeter(interval_s=0.05).__enter__()  # until the process ends
        self.loader = gids.Loader(
            self.dataset,
            "train",
            fanouts=spec["fanouts"],
            batch_size=spec["batch_size"],
            budget=spec["budget"],
            **loader_arguments(spec["options"]),
        ).prepare()
        dim = self.dataset.feature_table().dim
        torch.manual_seed(0)
        self.model = Sage(dim, spec["hidden"], self.dataset.num_classes or 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.kept: list[Batch] = []

    def _train(self, batch: Batch) -> None:
        loss = nn.functional.cross_entropy(self.model(batch.blocks, batch.x), batch.y)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    def _epoch(self, number: int, batches: int, step: Callable[[Batch], None] | None) -> dict[str, Any]:
        """Run the first batches of an epoch; what was read ahead of those that follow counts against us."""
        self.loader.set_epoch(number)
        self.loader.reset_stats()
        done = 0
        begin = time.perf_counter()
        for batch in itertools.islice(self.loader, batches):
            done += len(batch.input_nodes)
            if step is not None:
                step(batch)
        seconds = time.perf_counter() - begin
        check_rows(self.dataset, batch.input_nodes, batch.x)
        stats = self.loader.stats()
        (table,) = stats.as_dict()["tables"].values()
        return {"rows": done, "seconds": seconds, "table": table, "stall_s": stats.stall_s}

    def round(self, number: int, batches: int, rows: int | None) -> dict[str, Any]:
        """Prepare the data of some batches of an epoch."""
        return self._epoch(number, batches, None)

    def overlap(self, number: int, batches: int) -> dict[str, Any]:
        """Run the same batches three times: data only, compute only on batches in memory, and both."""
        if not self.kept:
            self.loader.set_epoch(0)
            for batch in self.loader:
                self.kept.append(batch)
                if len(self.kept) == 2:
                    break
            for batch in self.kept:
                self._train(batch)
        seconds = {}
        turns: list[tuple[str, Callable[[Batch], None] | None]] = [("data_s", None), ("both_s", self._train)]
        for name, step in turns if number % 2 == 0 else reversed(turns):
            seconds[name] = self._epoch(number, batches, step)["seconds"]
        begin = time.perf_counter()
        for index in range(batches):
            self._train(self.kept[index % len(self.kept)])
        return seconds | {"compute_s": time.perf_counter() - begin}


def order_of(spec: dict[str, Any], dataset: gids.Dataset) -> Callable[[int], SeedOrder]:
    """Give the very order that gids.Loader uses."""
    seeds = dataset.split("train")
    return lambda epoch: SeedOrder(seeds, batch_size=spec["batch_size"], seed=0, epoch=epoch)


def main() -> None:
    """Serve rounds until the input ends."""
    spec = json.loads(sys.argv[1])
    contender = Ours(spec) if spec["contender"] == "gids" else Mapped(spec)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        if order["what"] == "overlap":
            assert isinstance(contender, Ours)
            answer = contender.overlap(order["number"], order["batches"])
        else:
            answer = contender.round(order["number"], order["batches"], order["rows"])
        answer["peak_rss_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        if isinstance(contender, Ours):
            answer["memory"] = str(contender.loader.stats().memory)
            answer["reasons"] = contender.loader.stats().reasons
            answer["growth_bytes"] = contender.meter.growth_bytes
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
