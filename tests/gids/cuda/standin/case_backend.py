"""The CUDA backend keeps the contract that the CPU's keeps, test for test; and where it holds a topology."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import gids
from gids._native import ThreadPool
from gids.cuda.backend import CudaBackend, HeldBytes, held_bytes
from gids.runtime.options import RuntimeOptions
from gids.sampling import NeighborSampler, Relation, SampleKey, Topology
from tests.gids.runtime.backend_contract import BackendContract

MIB = 1 << 20


class TestCuda(BackendContract):
    def open(self, options, pool):
        return CudaBackend(replace(options, device=torch.device("cuda")), pool)


def make_topology(nodes):
    """Two in-edges a node; two in three edges come from the first hundredth, so that their lists are read most."""
    rng = np.random.default_rng(1)
    indptr = np.arange(nodes + 1) * 2
    indices = np.where(
        rng.random(2 * nodes) < 2 / 3, rng.integers(0, nodes // 100, 2 * nodes), rng.integers(0, nodes, 2 * nodes)
    )
    return Topology({"_N": nodes}, {("_N", "_E", "_N"): Relation(indptr, indices.astype(np.int32))})


@pytest.mark.parametrize(
    ("nodes", "budget_mib", "offsets", "lists"),
    [
        (1000, 64, 8 * 1002, 4 * 2001),  # all of it
        (1 << 17, 17, 8 * ((1 << 17) + 2), 17 * MIB // 16),
        (1 << 17, 8, 0, 0),
    ],
)
def test_a_device_holds_offsets_and_the_hottest_lists_within_its_budget(nodes, budget_mib, offsets, lists, live):
    topology, sampler, before = make_topology(nodes), NeighborSampler([3, 3]), live()
    options = RuntimeOptions(device=torch.device("cuda:0"), memory=gids.MemoryOptions(device_budget=f"{budget_mib}MiB"))
    lists = min(lists, 4 * (2 * nodes + 1))
    backend = CudaBackend(options, ThreadPool(1))
    backend.expect(topology, sampler)
    assert held_bytes(topology, sampler, budget_mib * MIB) == HeldBytes(offsets, lists)
    assert backend.memory.device == budget_mib * MIB - offsets - lists  # what is left to divide
    sampled = backend.sample(topology, sampler, {"_N": torch.arange(20)}, SampleKey(1, 0, 0), [])
    expected = sampler.sample(topology, {"_N": torch.arange(20)}, SampleKey(1, 0, 0))
    np.testing.assert_array_equal(
        backend._sampling.download(sampled.input_nodes["_N"]), expected.input_nodes["_N"].numpy()
    )
    (pinned,), (used,) = (part.relations.values() for part in (backend._pinned[1], backend._sampled))
    assert (used.indptr.array.pointer != pinned.indptr.array.pointer) == bool(offsets)
    assert (used.indices.array.pointer != pinned.indices.array.pointer) == bool(lists)
    np.testing.assert_array_equal(backend._sampling.download(used.indptr.array), np.arange(nodes + 1) * 2)
    assert "neighbours" not in backend.notes
    del sampled, pinned, used
    backend.close()
    assert live() == before


def test_where_not_all_lists_fit_the_hottest_are_held(live):
    nodes, topology, sampler, before = 1 << 16, make_topology(1 << 16), NeighborSampler([3, 3]), live()
    options = RuntimeOptions(device=torch.device("cuda:0"), memory=gids.MemoryOptions(device_budget="64MiB"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gids.cuda.backend.LISTS_SHARE", 64 * MIB // (128 << 10))
        backend = CudaBackend(options, ThreadPool(1))
        backend.expect(topology, sampler)
    (etype,) = topology.relations
    seeds = torch.arange(5, nodes, 331)
    sampled = backend.sample(topology, sampler, {"_N": seeds}, SampleKey(1, 0, 0), [])
    expected = sampler.sample(topology, {"_N": seeds}, SampleKey(1, 0, 0))
    np.testing.assert_array_equal(
        backend._sampling.download(sampled.input_nodes["_N"]), expected.input_nodes["_N"].numpy()
    )
    assert backend.notes["neighbours"].startswith("128.0 KiB of 512.0 KiB are in device memory")
    held = backend._sampled.relations[etype].held
    assert 64 << 10 < held.pieces.nbytes + held.values.nbytes <= 128 << 10
    words = backend._sampling.download(held.pieces).reshape(-1, 2)
    bits = np.unpackbits(words[:, 0].copy().view(np.uint8), bitorder="little").astype(bool)
    hottest = 2 * (nodes // 100) * 4 // 64  # pieces of lists that two in three edges lead to
    assert bits[:hottest].all()
    flat = np.flatnonzero(bits)
    values = topology.relations[etype].indices.reshape(-1, 16)[flat].reshape(-1)
    np.testing.assert_array_equal(backend._sampling.download(held.values), values)
    del sampled, held
    backend.close()
    assert live() == before


def test_what_is_not_sampled_on_the_device_is_not_held_there():
    topology = make_topology(100)
    assert held_bytes(topology, object(), 64 * MIB).total == 0
    stored = Relation(np.arange(101), lambda positions: positions)
    graph = Topology({"_N": 100}, {("_N", "_E", "_N"): stored})
    assert held_bytes(graph, NeighborSampler([2]), 64 * MIB).total == 0
