"""Sampling for historical embeddings: which nodes are left out follows from keys and seeds, and from nothing else."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from gids import ConfigError, _native
from gids.sampling import EdgeSeeds, HistorySampler, NeighborSampler, Relation, SampleKey, Topology

FANOUTS = [3, 4]


def topology(nodes=400, seed=0):
    rng = np.random.default_rng(seed)
    degrees = rng.integers(0, 12, nodes)
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    return Topology.from_arrays(indptr, (rng.random(indptr[-1]) ** 3 * nodes).astype(np.int64))


def seeds_of(epoch, batch):
    return torch.from_numpy(np.random.default_rng([epoch, batch]).permutation(400)[:20])


def sampler(max_age=3, candidates=None, world_size=1, fanouts=FANOUTS):
    chosen = torch.arange(0, 400, 2) if candidates is None else candidates
    return HistorySampler(fanouts, chosen, 400, max_age=max_age, seeds_of=seeds_of, world_size=world_size)


def sample(history, graph, epoch, batch, pool=None):
    return history.sample(graph, seeds_of(epoch, batch), SampleKey(5, epoch, batch), pool)


def assert_equal(a, b):
    for name in ("seeds", "input_nodes", "seed_rows"):
        for ntype, ids in getattr(a, name).items():
            assert torch.equal(ids, getattr(b, name)[ntype])
    assert len(a.blocks) == len(b.blocks)
    for one, other in zip(a.blocks, b.blocks, strict=True):
        assert one.num_src == other.num_src
        for etype in one.src:
            assert torch.equal(one.indptr[etype], other.indptr[etype])
            assert torch.equal(one.src[etype], other.src[etype])


@pytest.mark.parametrize("fanouts", [[3, 4], [2, 3, 4]])
def test_without_age_samples_are_exact(fanouts):
    graph = topology()
    for batch in range(3):
        found = sample(sampler(max_age=0, fanouts=fanouts), graph, 1, batch)
        exact = NeighborSampler(fanouts).sample(graph, seeds_of(1, batch), SampleKey(5, 1, batch))
        assert_equal(found, exact)
        assert len(found.history.pulled["_N"]) == 0
        # No candidates, no history either.
        none = sampler(max_age=5, candidates=torch.empty(0, dtype=torch.int64), fanouts=fanouts)
        assert_equal(sample(none, graph, 1, batch), exact)


def test_who_is_left_out_by_definition():
    graph, history = topology(), sampler(max_age=3)
    last, left_out = NeighborSampler(FANOUTS[-1:]), 0
    for batch in range(9):
        found = sample(history, graph, 0, batch)
        step = found.history
        inputs = last.sample(graph, seeds_of(0, batch), SampleKey(5, 0, batch)).input_nodes["_N"]
        window = range(batch - batch % 4, batch)
        met = {
            int(node)
            for earlier in window
            for node in last.sample(graph, seeds_of(0, earlier), SampleKey(5, 0, earlier)).input_nodes["_N"]
        }
        seeds = set(seeds_of(0, batch).tolist())
        expected = [
            row for row, node in enumerate(inputs.tolist()) if node in met and node % 2 == 0 and node not in seeds
        ]
        assert step.pulled["_N"].tolist() == expected
        left_out += len(expected)
        assert sorted([*expected, *step.fresh["_N"].tolist()]) == list(range(len(inputs)))
        assert step.num_inputs == {"_N": len(inputs)}
        assert (step.pulled_slots["_N"] * 2).tolist() == inputs[expected].tolist()
        fresh = inputs[step.fresh["_N"]]
        assert (step.pushed_slots["_N"] * 2).tolist() == fresh[step.pushed["_N"]].tolist()
        assert (step.since, step.stamp) == (batch - batch % 4, batch)
        # What is left out is neither a destination of the layer before nor, but as a neighbour of others, a row.
        assert found.blocks[0].num_dst["_N"] == len(fresh)
        assert torch.equal(found.input_nodes["_N"][: len(fresh)], fresh)
        exact = NeighborSampler(FANOUTS).sample(graph, seeds_of(0, batch), SampleKey(5, 0, batch))
        assert len(found.input_nodes["_N"]) <= len(exact.input_nodes["_N"])
        assert set(found.input_nodes["_N"].tolist()) <= set(exact.input_nodes["_N"].tolist())
        assert torch.equal(found.blocks[-1].src["_N", "_E", "_N"], exact.blocks[-1].src["_N", "_E", "_N"])
    assert left_out > 40


def test_neither_order_nor_threads_nor_a_copy_change_a_sample():
    graph = topology()
    expected = [sample(sampler(), graph, 2, batch) for batch in range(8)]
    one = sampler()
    for batch in reversed(range(8)):
        assert_equal(sample(one, graph, 2, batch, _native.ThreadPool(3)), expected[batch])
    with ThreadPoolExecutor(4) as threads:
        shared = sampler()
        for found, wanted in zip(threads.map(lambda b: sample(shared, graph, 2, b), range(8)), expected, strict=True):
            assert_equal(found, wanted)
    copied = pickle.loads(pickle.dumps(one))
    assert_equal(sample(copied, graph, 2, 7), expected[7])


def test_epochs_and_ranks_have_windows_of_their_own():
    graph, history = topology(), sampler(max_age=3, world_size=2)
    assert len(sample(history, graph, 1, 0).history.pulled["_N"]) == 0
    assert len(sample(history, graph, 1, 1).history.pulled["_N"]) == 0  # the first batch of rank 1
    third = sample(history, graph, 1, 3)  # the second one of rank 1: what it left out was met by batch 1
    inputs = NeighborSampler(FANOUTS[-1:]).sample(graph, seeds_of(1, 3), SampleKey(5, 1, 3)).input_nodes["_N"]
    met = NeighborSampler(FANOUTS[-1:]).sample(graph, seeds_of(1, 1), SampleKey(5, 1, 1)).input_nodes["_N"]
    assert len(third.history.pulled["_N"]) > 0
    assert set(inputs[third.history.pulled["_N"]].tolist()) <= set(met.tolist())
    assert third.history.stamp == (1 << 32) + 1
    assert len(sample(history, graph, 1, 8).history.pulled["_N"]) == 0  # batch 4 of rank 0: a new window


def test_several_node_types():
    rng = np.random.default_rng(1)
    counts = {"author": 60, "paper": 80}
    relations = {
        ("author", "writes", "paper"): Relation(np.arange(81) * 4, rng.integers(0, 60, 320)),
        ("paper", "cites", "paper"): Relation(np.arange(81) * 3, rng.integers(0, 80, 240)),
        ("paper", "by", "author"): Relation(np.arange(61) * 2, rng.integers(0, 80, 120)),
    }
    graph = Topology(counts, relations)

    def papers(_, batch):
        return {"paper": torch.arange(10) + 10 * batch}

    history = HistorySampler([2, 2], {"author": torch.arange(60)}, counts, max_age=4, seeds_of=papers)
    found = history.sample(graph, papers(0, 1), SampleKey(0, 0, 1))
    assert len(found.history.pulled["author"]) > 0
    assert len(found.history.pulled["paper"]) == 0  # no candidates of that type
    assert found.blocks[0].num_dst["author"] == len(found.history.fresh["author"])
    assert found.blocks[-1].num_src["author"] == found.history.num_inputs["author"]


@pytest.mark.parametrize(
    ("wrong", "rule"),
    [
        ({"fanouts": [3]}, "at least two layers"),
        ({"max_age": -1}, "max_age must not be negative"),
        ({"world_size": 0}, "world_size must be at least 1"),
        ({"candidates": torch.tensor([400])}, r"candidates of _N must be in \[0, 400\)"),
        ({"candidates": torch.tensor([1, 1])}, "must be distinct"),
    ],
)
def test_wrong_arguments(wrong, rule):
    with pytest.raises(ConfigError, match=rule):
        sampler(**wrong)


def test_what_it_cannot_sample_is_refused():
    graph = topology()
    alone = HistorySampler(FANOUTS, torch.arange(3), 400, max_age=1)
    with pytest.raises(ConfigError, match="seeds_of must be set"):
        alone.sample(graph, torch.arange(3), SampleKey())
    with pytest.raises(ConfigError, match="must be nodes"):
        sampler().sample(graph, EdgeSeeds(torch.arange(2), torch.arange(2)), SampleKey())
    with pytest.raises(ConfigError, match="node types of candidates"):
        HistorySampler(FANOUTS, {"x": torch.arange(3)}, 400, max_age=1)
