"""What a batch costs the thread that trains: two capsules and one call for all views, beside a capsule for every array."""

import statistics
import time

import numpy as np
import pytest
import torch

import gids
from gids._native import ThreadPool
from gids.cuda.backend import CudaBackend
from gids.cuda.interop import to_torch
from gids.runtime.options import RuntimeOptions
from gids.runtime.work import Fetched, Work
from gids.sampling import NeighborSampler, Relation, SampleKey, Topology
from gids.types import TableKey

pytestmark = pytest.mark.pooled
TABLE, ROUNDS = TableKey("_N", "feat"), 100


@pytest.fixture
def backend():
    options = RuntimeOptions(device=torch.device("cuda:0"), memory=gids.MemoryOptions(device_budget="64MiB"))
    backend = CudaBackend(options, ThreadPool(1))
    yield backend
    backend.close()


@pytest.fixture
def batch(backend):
    """Return a sampled batch of three hops with edge ids, and rows for it."""
    rng, nodes = np.random.default_rng(1), 2000
    indptr = np.concatenate([[0], np.cumsum(rng.integers(0, 9, nodes))])
    topology = Topology({"_N": nodes}, {("_N", "_E", "_N"): Relation(indptr, rng.integers(0, nodes, indptr[-1]))})
    sampler = NeighborSampler([5, 5, 5], edge_ids=True)
    sampled = backend.sample(topology, sampler, {"_N": torch.arange(20)}, SampleKey(1, 0, 0), [])
    rows = backend._fetching.empty((len(sampled.input_nodes["_N"]), 16), np.float32)
    backend._fetching.fill(rows, 0)
    rows.ready = backend._fetching.record()
    return sampled, rows


def arrays_of(sample):
    blocks = [part for block in sample.blocks for part in (block.indptr, block.src, block.edge_ids)]
    return [array for part in (sample.seeds, sample.input_nodes, sample.seed_rows, *blocks) for array in part.values()]


def test_a_batch_is_handed_over_as_two_pieces(backend, batch, fake, benchmark):
    sampled, rows = batch

    def prepare():  # as the threads that sample and gather do
        sampled.sample.packed.memory.export()
        rows.export()

    def hand_over():
        sample, _ = backend.deliver_sample(sampled)
        return sample, backend.deliver(Fetched(Work(None, {}), {TABLE: rows}))

    prepare()
    sample, fetched = hand_over()
    assert len(fake.handed) == 2
    apart = [to_torch(array, backend._target) for array in (*arrays_of(sampled.sample), rows)]
    together = [*sample.seeds.values(), *sample.input_nodes.values(), *sample.seed_rows.values()]
    together += [
        part["_N", "_E", "_N"] for block in sample.blocks for part in (block.indptr, block.src, block.edge_ids)
    ]
    assert all(torch.equal(a, b) for a, b in zip(apart, [*together, fetched.rows[TABLE]], strict=True))

    fake.copies = False  # no real hand-over copies
    try:
        benchmark.pedantic(hand_over, setup=prepare, rounds=ROUNDS, warmup_rounds=5)
        before = []
        for _ in range(ROUNDS):
            begin = time.perf_counter()
            for array in (*arrays_of(sampled.sample), rows):
                to_torch(array, backend._target)
            before.append(time.perf_counter() - begin)
    finally:
        fake.copies = True
    now, before = benchmark.stats.stats.median, statistics.median(before)
    benchmark.extra_info["array by array, us"] = 1e6 * before
    print(f"\nhand-over of a batch: {1e6 * now:.0f} us, array by array {1e6 * before:.0f} us")
    assert now < before / 2
