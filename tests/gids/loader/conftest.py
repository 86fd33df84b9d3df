"""A store over a tensor in memory, and the check that nothing of a loader is left behind."""

import gc
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch


def gids_threads():
    return sorted(t.name for t in threading.enumerate() if t.name.startswith("gids"))


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def nothing_left():
    """Fail when a test leaves a thread or an open file of gids behind."""
    gc.collect()
    files = open_files()
    yield
    gc.collect()
    deadline = time.monotonic() + 5
    while (gids_threads() or open_files() > files) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert gids_threads() == []
    assert open_files() <= files


@dataclass
class MemoryPending:
    batches: list
    cancelled: threading.Event = field(default_factory=threading.Event)

    def cancel(self):
        self.cancelled.set()


@dataclass
class MemoryStore:
    """The Store protocol over a tensor, recording what it was asked and failing where told."""

    table: torch.Tensor
    delay_s: float = 0.0
    fail_at_group: int = -1
    groups: list = field(default_factory=list)
    lookaheads: list = field(default_factory=list)
    pendings: list = field(default_factory=list)
    resets: int = 0
    group_bytes: int = 1 << 30
    under_way: int = 0
    most_under_way: int = 0

    def plan(self, batches, lookahead):
        self.groups.append(len(batches))
        self.lookaheads.append(len(lookahead))
        return batches

    def bytes_of(self, plan):
        return sum(len(batch) for batch in plan) * 8

    def start(self, plan):
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        self.pendings.append(MemoryPending(plan))
        return self.pendings[-1]

    def gather(self, pending, batch):
        if pending.cancelled.wait(self.delay_s):
            raise OSError("cancelled")
        if len(self.groups) > self.fail_at_group >= 0 and pending is self.pendings[self.fail_at_group]:
            raise OSError("the disk is broken")
        if batch == len(pending.batches) - 1:
            self.under_way -= 1
        return self.table[pending.batches[batch]]

    def reset(self):
        self.resets += 1
