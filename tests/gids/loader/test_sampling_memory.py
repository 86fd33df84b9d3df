"""What samples, and the work of sampling, hold stays within the part of the budget that is theirs, with every sampler."""

import re

import pytest
import torch

import gids
from gids._native import give_back_memory, sampling_memory
from gids.errors import ConfigError
from gids.generate import rmat
from gids.sampling import LadiesSampler, NeighborSampler, SampleKey, ShadowSampler, Topology

SAMPLERS = {
    "neighbours": NeighborSampler([10, 10]),
    "ladies": LadiesSampler([512, 256]),
    "ladies with ids": LadiesSampler([512, 256], edge_ids=True),
    "shadow": ShadowSampler([5, 5]),
}


@pytest.fixture(scope="module")
def hubs(tmp_path_factory):
    """A graph whose best-connected nodes have thousands of edges: LADIES and ShaDow look at far more than they keep."""
    path = tmp_path_factory.mktemp("hubs") / "graph"
    rmat(path, num_nodes=20_000, degree=25.0, dim=32, train=0.5)
    return gids.open(path)


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_sample_keeps_none_of_the_room_it_was_made_in(hubs, name):
    topology = Topology.from_dataset(hubs)
    seeds = hubs.split("train")[:128]
    SAMPLERS[name].sample(topology, seeds, SampleKey(batch=1))  # tables grow once
    held, _, _ = sampling_memory(mark=True)
    sample = SAMPLERS[name].sample(topology, seeds, SampleKey(batch=2))
    now, peak, _ = sampling_memory()
    arrays = [*sample.input_nodes.values(), *sample.seed_rows.values()]
    for block in sample.blocks:
        parts = (block.indptr, block.src, block.edge_ids or {}, block.weights or {})
        arrays += [array for part in parts for array in part.values()]
    needed = sum(array.nbytes for array in arrays)
    assert needed <= now - held < 2 * needed + 64 * len(arrays)
    assert peak >= now
    del sample, arrays, parts, block
    assert sampling_memory()[0] == held


def test_recycling_adds_nothing_to_the_most_that_was_held_at_once():
    give_back_memory()
    graph = torch.arange(2_000_000) % 1000
    topology = Topology.from_arrays(torch.arange(0, 2_000_001, 2000).numpy(), graph.numpy())
    for nodes in (1000, 500, 250, 900):  # pieces of different sizes
        kept = [NeighborSampler([-1]).sample(topology, torch.arange(nodes), SampleKey(batch=b)) for b in range(3)]
        held, _, retained = sampling_memory()
        del kept
        now, _, waiting = sampling_memory()
        assert now + waiting <= held + retained
    _, _, waiting = sampling_memory()
    assert waiting > 0
    give_back_memory()
    assert sampling_memory()[2] == 0


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_run_holds_no_more_samples_than_its_budget_has_room_for(hubs, name):
    options = {"seeds": hubs.split("train")[:1536], "sampler": SAMPLERS[name], "batch_size": 64}
    with pytest.raises(ConfigError, match=r"budget must be at least .* sampling ") as refused:
        gids.Loader(hubs, **options, budget="1MiB")
    least = int(re.search(r"\((\d+) bytes\)", str(refused.value)).group(1))
    for budget in (least, 3 * least):
        with gids.Loader(hubs, **options, budget=budget).prepare() as loader:
            held, _, _ = sampling_memory(mark=True)
            batches = sum(1 for _ in loader)
            assert batches == len(loader)
            memory = loader.stats().memory
            assert 0 < sampling_memory()[1] - held <= memory.samples + memory.scratch
            assert memory.total <= budget
