"""The training loop of the demo: it sees batches and cannot tell where they come from."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from gids.models import MLP

#: Blocks, input rows and labels of one batch.
Triple = tuple[Sequence[Any], Tensor, Tensor]
Tick = Callable[[], None]


@dataclass(frozen=True)
class EpochResult:
    """What one epoch of training did. ``losses`` are those of every batch, to compare runs bit by bit."""

    seconds: float
    losses: tuple[float, ...]
    accuracy: float


def train_epoch(
    model: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterable[Triple], tick: Tick
) -> EpochResult:
    """Train one epoch; ``accuracy`` is that on the training seeds while it ran."""
    model.train()
    losses, right, seen = [], 0, 0
    begin = time.perf_counter()
    for blocks, x, y in batches:
        logits = model(blocks, x)
        loss = functional.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
        right += int((logits.argmax(1) == y).sum())
        seen += len(y)
        tick()
    return EpochResult(time.perf_counter() - begin, tuple(losses), right / max(seen, 1))


@torch.no_grad()
def accuracy(model: nn.Module, batches: Iterable[Triple], tick: Tick) -> float:
    """Share of seeds that the model classifies rightly."""
    model.eval()
    right = seen = 0
    for blocks, x, y in batches:
        right += int((model(blocks, x).argmax(1) == y).sum())
        seen += len(y)
        tick()
    return right / max(seen, 1)


def train_mlp(model: MLP, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, batch_size: int, seed: int) -> float:
    """Train the graph-blind model one epoch on the seeds' own rows; gives the mean loss."""
    model.train()
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    total = 0.0
    for part in torch.split(order, batch_size):
        loss = functional.cross_entropy(model(x[part]), y[part])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        total += loss.item() * len(part)
    return total / len(y)
