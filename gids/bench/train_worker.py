"""One contender of ``gids bench train``, in a process of its own: obeys one JSON line per round, answers with one."""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import gids
from gids.bench.epoch_peers import PEERS, Peer, Prepared
from gids.bench.train_models import make_model
from gids.bench.train_peers import TYPED_PEERS, TypedPeer
from gids.bench.typed_graph import TARGET
from gids.report.growth import peak_resident_bytes

#: Batches whose accuracy is averaged; each is judged before the model learns from it.
ACCURACY_BATCHES = 8


@dataclass(frozen=True)
class Step:
    """What one step of training takes; logits of the seeds are the first rows of what a model returns."""

    graph: Any
    x: Any
    y: Tensor


class Source(Protocol):
    """Who prepares the batches."""

    under_way: int

    def steps(self, epoch: int) -> Iterator[Step]:
        """Yield the batches of an epoch."""

    def rest(self) -> None:
        """Let go of what another contender would find in memory."""


class Ours:
    """gids, through one of its doors.

    Parameters
    ----------
    spec : dict
        ``door``, ``typed``, ``fanouts``, ``batch_size`` and ``budget``.
    dataset : Dataset
        What to load.
    """

    under_way = 1

    def __init__(self, spec: dict[str, Any], dataset: gids.Dataset):
        self.door, self.typed = spec["door"], spec["typed"]
        fanouts, size, budget = spec["fanouts"], spec["batch_size"], spec["budget"]
        options = {"budget": budget, "pipeline": gids.PipelineOptions(**spec["pipeline"])}
        seeds: Any = (TARGET, "train") if self.typed else "train"
        self.loader: Any
        if self.door == "plain":
            self.loader = gids.Loader(dataset, seeds, fanouts=fanouts, batch_size=size, **options)
        elif self.door == "pyg":
            from gids.pyg import NeighborLoader

            self.loader = NeighborLoader(dataset, fanouts[::-1], seeds, batch_size=size, shuffle=True, **options)
        else:
            from gids.dgl import DataLoader, NeighborSampler

            feats, labels = (
                ({t: ["feat"] for t in dataset.node_types}, {TARGET: ["label"]})
                if self.typed
                else (["feat"], ["label"])
            )
            sampler = NeighborSampler(fanouts, prefetch_node_feats=feats, prefetch_labels=labels)
            self.loader = DataLoader(dataset, seeds, sampler, batch_size=size, shuffle=True, **options)

    def steps(self, epoch: int) -> Iterator[Step]:
        """Yield the batches of an epoch."""
        if hasattr(self.loader, "set_epoch"):
            self.loader.set_epoch(epoch)
        for batch in self.loader:
            yield getattr(self, f"_of_{self.door}")(batch)

    def _of_plain(self, batch: gids.Batch) -> Step:
        return Step(batch.blocks, batch.x, batch.y[TARGET] if self.typed else batch.y)

    def _of_dgl(self, batch: Any) -> Step:
        blocks = batch[2]
        last = blocks[-1].dstnodes[TARGET] if self.typed else blocks[-1].dstnodes
        labels = last.data["label"] if self.typed else blocks[-1].dstdata["label"]
        return Step(blocks, blocks[0].srcdata["feat"], labels)

    def _of_pyg(self, data: Any) -> Step:
        if self.typed:
            seeds = data[TARGET]
            return Step(data.edge_index_dict, data.x_dict, seeds.y[: seeds.batch_size])
        return Step(data.edge_index, data.x, data.y[: data.batch_size])

    def rest(self) -> None:
        """Keep everything: the budget is the loader's."""


class Theirs:
    """A peer of ``gids bench epoch``, or one for several node types, with labels added to what it prepares."""

    def __init__(self, spec: dict[str, Any], dataset: gids.Dataset):
        self.peer: Peer | TypedPeer = (
            TYPED_PEERS[spec["door"]][0](spec) if spec["typed"] else PEERS[spec["kind"]][0](spec)
        )
        self.under_way = self.peer.under_way
        labels = dataset.labels(TARGET if spec["typed"] else None)
        assert labels is not None
        self.labels = labels

    def steps(self, epoch: int) -> Iterator[Step]:
        """Yield the batches of an epoch."""
        prepared: Iterator[Prepared] = self.peer.prepared(epoch)
        for batch in prepared:
            yield Step(batch.graph, batch.rows, self.labels[batch.seeds])

    def rest(self) -> None:
        """Unmap the pages."""
        self.peer.rest()


class Trainer:
    """A model of a framework, and one step of its training."""

    def __init__(self, framework: str, kind: str, dataset: gids.Dataset, hidden: int):
        torch.manual_seed(0)
        self.model: nn.Module = make_model(framework, kind, dataset, hidden)
        self.optimizer: torch.optim.Optimizer | None = None

    def step(self, step: Step) -> float:
        """Train on one batch, and return how many of its seeds were right before that."""
        logits = self.model(step.graph, step.x)[: len(step.y)]
        if self.optimizer is None:  # layers of some frameworks get their widths from the first batch
            self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.003)
        loss = cross_entropy(logits, step.y)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return float((logits.argmax(1) == step.y).float().mean())


class Contender:
    """A source of batches and the models that are trained on them.

    Parameters
    ----------
    spec : dict
        What a :class:`Source` takes, and ``contender``, ``data`` and ``torch_threads``.
    """

    def __init__(self, spec: dict[str, Any]):
        torch.set_num_threads(spec["torch_threads"])
        self.spec, self.dataset = spec, gids.open(spec["data"])
        self.source: Source = Ours(spec, self.dataset) if spec["contender"] == "gids" else Theirs(spec, self.dataset)
        self.trainers: dict[tuple[str, int], Trainer] = {}

    def trainer(self, model: str, hidden: int) -> Trainer:
        """Return the model of that kind and width, the same one in every round."""
        if (model, hidden) not in self.trainers:
            self.trainers[model, hidden] = Trainer(self.spec["door"], model, self.dataset, hidden)
        return self.trainers[model, hidden]

    def round(self, number: int, model: str, hidden: int, lead_s: float, least_s: float) -> dict[str, Any]:
        """Train by the clock, after some seconds and all batches that were under way, which are not measured."""
        trainer = self.trainer(model, hidden)
        steps = self.source.steps(number)
        begin, led = time.perf_counter(), 0
        while led < self.source.under_way or time.perf_counter() - begin < lead_s:
            trainer.step(next(steps))
            led += 1
        seeds = count = 0
        begin = time.perf_counter()
        while not count or time.perf_counter() - begin < least_s:
            step = next(steps)
            trainer.step(step)
            seeds += len(step.y)
            count += 1
        seconds = time.perf_counter() - begin
        del steps, step
        self.source.rest()
        return {"seeds": seeds, "seconds": seconds, "batches": count}

    def to_accuracy(self, model: str, hidden: int, accuracy: float, patience_s: float) -> dict[str, Any]:
        """Train a new model until seeds it has not seen are told apart well enough, or time is over."""
        trainer = Trainer(self.spec["door"], model, self.dataset, hidden)
        last: deque[float] = deque(maxlen=ACCURACY_BATCHES)
        begin, count, reached = time.perf_counter(), 0, 0.0
        for step in self.source.steps(0):  # within one epoch, every seed is new
            last.append(trainer.step(step))
            count += 1
            reached = sum(last) / ACCURACY_BATCHES  # the first batches count as if those before had told nothing
            if reached >= accuracy or time.perf_counter() - begin > patience_s:
                break
        seconds = time.perf_counter() - begin
        self.source.rest()
        return {"seconds": seconds, "batches": count, "accuracy": reached, "reached": reached >= accuracy}


def main() -> None:
    """Serve rounds until the input ends."""
    contender = Contender(json.loads(sys.argv[1]))
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        model, hidden = order["model"], order["hidden"]
        if order["what"] == "accuracy":
            answer = contender.to_accuracy(model, hidden, order["accuracy"], order["patience_s"])
        else:
            answer = contender.round(order["number"], model, hidden, order["lead_s"], order["least_s"])
        print(json.dumps(answer | {"peak_rss_bytes": peak_resident_bytes()}), flush=True)


if __name__ == "__main__":
    main()
