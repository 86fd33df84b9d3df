"""One contender of ``gids bench epoch``, in a process of its own: obeys one JSON line per round, answers with one."""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

import gids
from gids import Batch
from gids.bench.epoch_peers import PEERS, Peer, Rows
from gids.bench.epoch_peers import Mapped as Mapped
from gids.bench.epoch_peers import check_rows as check_rows
from gids.bench.options import loader_arguments
from gids.bench.page_cache import forget_pages
from gids.report.growth import MemoryMeter, peak_resident_bytes
from gids.sampling import Block


class Sage(nn.Module):
    """Two layers of mean aggregation: what a step of training costs."""

    def __init__(self, dim: int, hidden: int, classes: int):
        super().__init__()
        self.first, self.second = nn.Linear(2 * dim, hidden), nn.Linear(2 * hidden, classes)

    def forward(self, blocks: list[Block], x: Tensor) -> Tensor:
        """Return the logits of the seeds."""
        for layer, block in zip((self.first, self.second), blocks, strict=True):
            (num_dst,), (src,), (indptr,) = block.num_dst.values(), block.src.values(), block.indptr.values()
            mean = nn.functional.embedding_bag(src, x, indptr[:-1], mode="mean")
            x = layer(torch.cat([x[:num_dst], mean], 1))
            x = x.relu() if layer is self.first else x
        return x


class Ours:
    """gids.Loader under a budget."""

    under_way = 1
    as_float16 = False

    def __init__(self, spec: dict[str, Any]):
        torch.set_num_threads(spec["torch_threads"])
        self.dataset = gids.open(spec["data"])
        torch.manual_seed(0)
        self.model = Sage(self.dataset.feature_table().dim, spec["hidden"], self.dataset.num_classes or 2)
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), lr=0.01
        )  # its import grows the process by 90 MB, none of it the loader's
        self.meter = MemoryMeter(interval_s=0.05).__enter__()  # until the process ends
        self.loader = gids.Loader(
            self.dataset,
            "train",
            fanouts=spec["fanouts"],
            batch_size=spec["batch_size"],
            budget=spec["budget"],
            **loader_arguments(spec["options"]),
        ).prepare()
        self.kept: list[Batch] = []

    def _train(self, batch: Batch) -> None:
        loss = nn.functional.cross_entropy(self.model(batch.blocks, batch.x), batch.y)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    def batches(self, epoch: int) -> Iterator[Rows]:
        """Yield the batches of an epoch."""
        self.loader.set_epoch(epoch)
        for batch in self.loader:
            yield batch.input_nodes, batch.x

    def count_anew(self) -> None:
        """Begin to count: the clock runs from here."""
        self.loader.reset_stats()

    def counts(self) -> dict[str, Any]:
        """Return what the loader counted since."""
        stats = self.loader.stats()
        (table,) = stats.as_dict()["tables"].values()
        return {"table": table, "stall_s": stats.stall_s}

    def rest(self) -> None:
        """Keep everything: the budget is the loader's."""

    def _epoch(self, number: int, batches: int, step: Callable[[Batch], None] | None) -> float:
        """Return the seconds of the first batches of an epoch; what is read ahead of others counts against us."""
        self.loader.set_epoch(number)
        begin = time.perf_counter()
        for batch in itertools.islice(self.loader, batches):
            if step is not None:
                step(batch)
        return time.perf_counter() - begin

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
            seconds[name] = self._epoch(number, batches, step)
        begin = time.perf_counter()
        for index in range(batches):
            self._train(self.kept[index % len(self.kept)])
        return seconds | {"compute_s": time.perf_counter() - begin}


def clocked(
    contender: Ours | Peer, number: int, batches: int, lead_s: float = 0.0, least_s: float = 0.0
) -> dict[str, Any]:
    """Take batches of an epoch by the clock, after so many seconds of them that are not measured.

    Both ends of what is measured lie where the contender works at its pace: what was read ahead before is as much as what
    is read ahead afterwards.
    """
    taken = iter(contender.batches(number))
    begin, led = time.perf_counter(), 0
    if lead_s:
        while led < contender.under_way or time.perf_counter() - begin < lead_s:
            next(taken)
            led += 1
    contender.count_anew()
    done = count = 0
    begin = time.perf_counter()
    while count < max(batches, contender.under_way) or time.perf_counter() - begin < least_s:
        nodes, rows = next(taken)
        done += len(nodes)
        count += 1
    seconds = time.perf_counter() - begin
    found = {"rows": done, "seconds": seconds, "batches": count, **contender.counts()}
    check_rows(contender.dataset, nodes, rows, as_float16=contender.as_float16)
    del taken, nodes, rows
    contender.rest()
    return found


def verified(contender: Ours | Peer, number: int, batches: int) -> dict[str, Any]:
    """Compare rows of every batch of a round with the file; what that reads does not stay in the page cache."""
    done = 0
    for nodes, rows in itertools.islice(contender.batches(number), batches):
        check_rows(contender.dataset, nodes, rows, as_float16=contender.as_float16)
        for stripe in contender.dataset.feature_table().stripes:
            forget_pages(stripe.path)
        done += 1
    contender.rest()
    return {"verified_batches": done}


def make(spec: dict[str, Any]) -> Ours | Peer:
    """Return the contender of that name."""
    if spec["contender"] == "gids":
        return Ours(spec)
    torch.set_num_threads(spec["torch_threads"])
    return Mapped(spec) if spec["contender"] == "dgl" else PEERS[spec["contender"]][0](spec)


def main() -> None:
    """Serve rounds until the input ends."""
    spec = json.loads(sys.argv[1])
    contender = make(spec)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        what, number, batches = order["what"], order["number"], order["batches"]
        if what == "overlap":
            assert isinstance(contender, Ours)
            answer = contender.overlap(number, batches)
        elif what == "verify":
            answer = verified(contender, number, batches)
        elif isinstance(contender, Mapped) and order["rows"] is not None:
            answer = contender.round(number, batches, order["rows"])
        else:
            answer = clocked(contender, number, batches, order.get("lead_s", 0.0), order.get("least_s", 0.0))
        answer["peak_rss_bytes"] = peak_resident_bytes()
        if isinstance(contender, Ours):
            answer["memory"] = str(contender.loader.stats().memory)
            answer["reasons"] = contender.loader.stats().reasons
            answer["growth_bytes"] = contender.meter.growth_bytes
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
