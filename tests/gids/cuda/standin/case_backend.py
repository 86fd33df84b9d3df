"""The CUDA backend keeps the contract that the CPU's keeps, test for test; and where it holds a topology."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import gids
from gids._native import ThreadPool
from gids.cuda.backend import CudaBackend, offsets_bytes
from gids.runtime.options import RuntimeOptions
from gids.sampling import NeighborSampler, Relation, SampleKey, Topology
from tests.gids.runtime.backend_contract import BackendContract

MIB = 1 << 20


class TestCuda(BackendContract):
    def open(self, options, pool):
        return CudaBackend(replace(options, device=torch.device("cuda")), pool)


def make_topology(nodes):
    indptr = np.arange(nodes + 1) * 2
    return Topology({"_N": nodes}, {("_N", "_E", "_N"): Relation(indptr, np.arange(2 * nodes) % nodes)})


@pytest.mark.parametrize(("nodes", "held_bytes"), [(1000, 8 * 1002), (1 << 20, 0)])
def test_offsets_are_on_the_device_where_they_are_a_small_part_of_its_budget(nodes, held_bytes, live):
    topology, sampler, before = make_topology(nodes), NeighborSampler([3, 3]), live()
    options = RuntimeOptions(device=torch.device("cuda:0"), memory=gids.MemoryOptions(device_budget="64MiB"))
    backend = CudaBackend(options, ThreadPool(1))
    backend.expect(topology, sampler)
    assert backend.memory.device == 64 * MIB - held_bytes  # what is left to divide
    assert offsets_bytes(topology, sampler, 64 * MIB) == held_bytes
    sampled = backend.sample(topology, sampler, {"_N": torch.arange(20)}, SampleKey(1, 0, 0), [])
    assert sampled.input_nodes["_N"].shape[0] > 20
    (pinned,), (used,) = (part.relations.values() for part in (backend._pinned[1], backend._sampled))
    assert (used.indptr.array.pointer != pinned.indptr.array.pointer) == bool(held_bytes)
    assert used.indices is pinned.indices
    np.testing.assert_array_equal(backend._sampling.download(used.indptr.array), np.arange(nodes + 1) * 2)
    del sampled, pinned, used
    backend.close()
    assert live() == before


def test_what_is_not_sampled_on_the_device_has_no_offsets_there():
    topology = make_topology(100)
    assert offsets_bytes(topology, object(), 64 * MIB) == 0
    stored = Relation(np.arange(101), lambda positions: positions)
    assert offsets_bytes(Topology({"_N": 100}, {("_N", "_E", "_N"): stored}), NeighborSampler([2]), 64 * MIB) == 0
