"""``gids bench partition``: rows and test accuracy with batches from parts, and with embeddings of the last batches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.nn import functional

import gids
from gids.bench.harness import Bar, Report
from gids.dataset import Dataset
from gids.models import GAT, GCN, BlockModel, GraphSAGE
from gids.partition import make

# Floors of the issue: OUTRE (table IV) keeps accuracy within half a point of exact training at a fifth of the nodes.
FLOOR_ROWS = 0.85
FLOOR_POINTS = 0.5
SHARE = 0.2
MODELS = {"GraphSAGE": GraphSAGE, "GCN": GCN, "GAT": GAT}


@dataclass(frozen=True)
class Training:
    """How a model is trained with and without history: the demo's task, or a user's dataset.

    The paper trains with batches of a thousand. Embeddings of ``max_age`` of them are as old as so many steps. The steps
    become smaller to the end, so that what is compared has settled.
    """

    model: str = "GraphSAGE"
    fanouts: tuple[int, ...] = (4, 4, 4)
    batch: int = 1024
    epochs: int = 10
    learning_rate: float = 0.007
    hidden: int = 64
    max_age: int = 16
    seeds: int = 3
    budget: str = "256MiB"


@dataclass(frozen=True)
class Outcome:
    """What one training did: rows it asked for, mean loss of every epoch, test accuracy where it was taken, the last at the end."""

    rows: int
    losses: tuple[float, ...]
    accuracies: tuple[float, ...]

    @property
    def accuracy(self) -> float:
        """Test accuracy of the trained model."""
        return self.accuracies[-1]


def train(
    dataset: Dataset,
    training: Training,
    seed: int,
    history: gids.HistoryOptions | None = None,
    order: gids.OrderOptions | None = None,
    test_every_epoch: bool = False,
) -> Outcome:
    """Train a model, and test it with exact batches in a plain order."""
    torch.manual_seed(seed)
    table = dataset.feature_table(None, "feat")
    labels = dataset.labels()
    assert labels is not None
    layers = len(training.fanouts)
    model = MODELS[training.model](table.dim, training.hidden, int(labels.max()) + 1, layers, dropout=0.1)
    optimizer = torch.optim.Adam(model.parameters(), training.learning_rate)
    steps = training.epochs * -(-len(dataset.split("train")) // training.batch)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / steps))
    losses, accuracies = [], []
    memory = gids.MemoryOptions(history=history)
    order = replace(gids.OrderOptions() if order is None else order, seed=seed)
    with gids.Loader(dataset, "train", memory=memory, order=order, **_asked(training)) as loader:
        for epoch in range(1, training.epochs + 1):
            total, batches = 0.0, 0
            model.train()
            for batch in loader:
                kept = loader.history
                exchange = None if kept is None else lambda h, kept=kept, batch=batch: kept.exchange(h, batch)
                loss = functional.cross_entropy(model(batch.blocks, batch.x, exchange=exchange), batch.y)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                schedule.step()
                total, batches = total + loss.item(), batches + 1
            losses.append(total / max(batches, 1))
            if test_every_epoch or epoch == training.epochs:
                accuracies.append(test_accuracy(dataset, model, training, seed))
        rows = loader.stats().input_nodes
    return Outcome(rows, tuple(losses), tuple(accuracies))


def test_accuracy(dataset: Dataset, model: BlockModel, training: Training, seed: int) -> float:
    """Return the share of test nodes that a model puts into their class, from exact batches."""
    model.eval()
    right = seen = 0
    asked = _asked(training) | {"batch_size": 1024, "order": gids.OrderOptions(shuffle=False, seed=seed)}
    with gids.Loader(dataset, "test", **asked) as batches, torch.no_grad():
        for batch in batches:
            right += int((model(batch.blocks, batch.x).argmax(1) == batch.y).sum())
            seen += len(batch.y)
    return right / max(seen, 1)


def _asked(training: Training) -> dict[str, Any]:
    """Return what loaders for training and testing have in common."""
    asked: dict[str, Any] = {"fanouts": list(training.fanouts), "batch_size": training.batch}
    return asked | {"budget": training.budget, "output": gids.OutputOptions(dtype=torch.float32)}


def history_section(report: Report, name: str, dataset: Dataset, training: Training, bar: bool = True) -> None:
    """Train with and without, several seeds each, and compare rows and accuracy."""
    options = gids.HistoryOptions(dim=training.hidden, max_age=training.max_age, nodes=SHARE)
    pairs = [
        (train(dataset, training, seed), train(dataset, training, seed, history=options))
        for seed in range(training.seeds)
    ]
    rows = float(np.mean([with_.rows / exact.rows for exact, with_ in pairs]))
    exact_points, points = (100 * float(np.mean([pair[i].accuracy for pair in pairs])) for i in (0, 1))
    report.extra[f"{name}: history, accuracy in %, exact and with"] = (round(exact_points, 2), round(points, 2))
    report.extra[f"{name}: history, mean loss by epoch, exact and with"] = [
        [[round(value, 4) for value in outcome.losses] for outcome in pair] for pair in pairs
    ]
    report.extra[f"{name}: history, rows over exact"] = round(rows, 3)
    if bar:
        report.bars.append(Bar(f"{name}: rows requested with history of 20 % of nodes", rows, FLOOR_ROWS, True))
        lost = max(0.0, exact_points - points)
        report.bars.append(Bar(f"{name}: points of accuracy lost with history", lost, FLOOR_POINTS, True))


def order_section(report: Report, name: str, dataset: Dataset, training: Training, parts: int) -> None:
    """Train in the order of parts, from groups of one part to groups of many, and by chance; print rows and accuracy."""
    partition = make(dataset, parts, store=False)
    found = {}
    for size in (1, 4, 16, None):
        order = None if size is None else gids.OrderOptions(parts=partition, parts_per_group=size)
        outcomes = [train(dataset, training, seed, order=order) for seed in range(training.seeds)]
        points = [100 * outcome.accuracy for outcome in outcomes]
        label = "by chance" if size is None else f"groups of {size}"
        spread = float(np.max(points) - np.min(points))
        found[label] = {
            "rows": round(float(np.mean([outcome.rows for outcome in outcomes]))),
            "accuracy in %": round(float(np.mean(points)), 2),
            "between seeds": round(spread, 2),
        }
    report.extra[f"{name}: order by parts, rows and accuracy"] = found
