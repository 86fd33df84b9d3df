"""A store over a tensor in memory, and the check that nothing of a loader is left behind."""

import gc
import threading
import time
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from pathlib import Path

import pytest
import torch

import gids
from gids.dataset.rows import as_tensor, read_rows


def gids_threads():
    return sorted(t.name for t in threading.enumerate() if t.name.startswith("gids"))


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def nothing_left():
    """Fail when a test leaves a thread or an open file of gids behind."""
    resource_tracker.ensure_running()  # multiprocessing keeps it, and its pipe, for the life of the process
    gc.collect()
    files = open_files()
    yield
    gc.collect()
    deadline = time.monotonic() + 30
    while (gids_threads() or open_files() > files) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert gids_threads() == []
    assert open_files() <= files


@dataclass
class MemoryPending:
    batches: list
    steps_left: int
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
    rotation: int = 1
    most_at_once: int = 0

    def plan(self, batches, lookahead):
        self.groups.append(len(batches))
        self.lookaheads.append(len(lookahead))
        return batches

    def fits(self, plan):
        return len([pending for pending in self.pendings if pending.steps_left]) < self.rotation

    def begin(self, plan):
        self.pendings.append(MemoryPending(plan, self.rotation))
        self.most_at_once = max(self.most_at_once, len([p for p in self.pendings if p.steps_left]))
        return self.pendings[-1]

    def _starting(self):
        return [pending for pending in self.pendings if pending.steps_left == self.rotation]

    def step_bytes(self):
        return sum(self.freed(pending) for pending in self._starting())

    def step(self):
        self.under_way += len(self._starting())
        self.most_under_way = max(self.most_under_way, self.under_way)
        for pending in self.pendings:
            pending.steps_left = max(0, pending.steps_left - 1)

    def underway(self, pending):
        return not pending.steps_left

    def freed(self, pending):
        return sum(len(batch) for batch in pending.batches) * 8

    def gather(self, pending, batch):
        if pending.cancelled.wait(self.delay_s):
            raise OSError("cancelled")
        if len(self.groups) > self.fail_at_group >= 0 and pending is self.pendings[self.fail_at_group]:
            raise OSError("the disk is broken")
        assert self.underway(pending), "nothing is gathered before its reads have begun"
        if batch == len(pending.batches) - 1:
            self.under_way -= 1
        return self.table[pending.batches[batch]]

    def reset(self):
        self.resets += 1


NODES, DIM = 3000, 20


@pytest.fixture(scope="session")
def graph(tmp_path_factory):
    """A small graph with skewed degrees; dim 20 float32 rows straddle sectors."""
    path = tmp_path_factory.mktemp("graph") / "small"
    generator = torch.Generator().manual_seed(1)
    degree = torch.randint(0, 12, (NODES,), generator=generator)
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), degree.cumsum(0)])
    popular = torch.rand(int(indptr[-1]), generator=generator) ** 3
    indices = (popular * NODES).long()
    with gids.DatasetWriter(path) as writer:
        writer.add_nodes(NODES)
        writer.add_features(torch.randn(NODES, DIM, generator=generator))
        writer.add_features(torch.arange(NODES).reshape(-1, 1), name="year")
        writer.add_csc(indptr, indices)
        writer.add_edge_features(torch.randn(len(indices), 6, generator=generator).half())
        writer.add_labels(torch.randint(0, 5, (NODES,), generator=generator))
        writer.add_split("train", torch.randperm(NODES, generator=generator)[:1000])
        writer.add_split("val", torch.arange(200))
    dataset = gids.open(path)
    dataset.indptr()  # stays mapped, and its file open, as long as the dataset: not something that a loader leaves
    return dataset


@pytest.fixture(scope="session")
def memory(graph):
    """The tables of ``graph`` as tensors."""
    edges = graph.edge_types[0]
    return {
        "feat": whole(graph.feature_table(None, "feat")),
        "year": whole(graph.feature_table(None, "year")).reshape(-1, 1),
        "edge": whole(graph.edge_feature_table(edges, "feat")),
        "labels": graph.labels(),
    }


def whole(table):
    return as_tensor(table, read_rows(table))
