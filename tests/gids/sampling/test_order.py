"""Seed order: a pure function of (seed, epoch, rank, world) that visits each seed once over all ranks."""

from collections import Counter
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gids.errors import ConfigError
from gids.sampling.order import Permutation, SeedOrder


def visited(count, world, **options):
    """Seeds of every batch, by rank."""
    seeds = torch.arange(100, 100 + count)
    orders = [SeedOrder(seeds, rank=rank, world_size=world, **options) for rank in range(world)]
    return [[order[index] for index in range(len(order))] for order in orders]


def test_unshuffled_batches_are_the_seeds_in_order():
    (batches,) = visited(7, 1, batch_size=3, shuffle=False)
    assert [b.seeds["_N"].tolist() for b in batches] == [[100, 101, 102], [103, 104, 105], [106]]
    assert [b.index for b in batches] == [0, 1, 2]


def test_last_chunk_is_split_evenly_between_ranks():
    ranks = visited(9, 2, batch_size=2, shuffle=False)
    assert [[b.seeds["_N"].tolist() for b in batches] for batches in ranks] == [
        [[100, 101], [104, 105], [108]],
        [[102, 103], [106, 107], [108]],
    ]
    assert [[b.padding for b in batches] for batches in ranks] == [[0, 0, 0], [0, 0, 1]]
    assert [[b.global_index for b in batches] for batches in ranks] == [[0, 2, 4], [1, 3, 5]]


def test_join_gives_no_seed_twice_and_one_batch_less():
    ranks = visited(9, 2, batch_size=2, shuffle=False, uneven="join")
    assert [len(batches) for batches in ranks] == [3, 2]
    assert all(b.padding == 0 for batches in ranks for b in batches)


def test_golden_order():
    order = SeedOrder(torch.arange(10), batch_size=5, seed=7, epoch=3)
    assert [order[i].seeds["_N"].tolist() for i in range(2)] == [[2, 3, 0, 6, 5], [4, 8, 9, 1, 7]]


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(0, 300),
    world=st.integers(1, 5),
    batch_size=st.integers(1, 40),
    epoch=st.integers(0, 2**40),
    drop_last=st.booleans(),
    shuffle=st.booleans(),
)
def test_each_seed_once_per_epoch_over_all_ranks(count, world, batch_size, epoch, drop_last, shuffle):
    ranks = visited(count, world, batch_size=batch_size, epoch=epoch, drop_last=drop_last, shuffle=shuffle, seed=5)
    assert len({len(batches) for batches in ranks}) == 1, "all ranks must have as many batches"
    everything = [b for batches in ranks for b in batches]
    once = Counter(s for b in everything for s in b.seeds["_N"][: len(b.seeds["_N"]) - b.padding].tolist())
    assert set(once.values()) <= {1}
    chunk = batch_size * world
    assert len(once) == (count // chunk * chunk if drop_last else count)
    assert all(1 <= len(b.seeds["_N"]) <= batch_size for b in everything)
    assert sum(b.padding for b in everything) < world
    assert sorted(b.global_index for b in everything) == list(range(len(everything)))


def test_epoch_and_seed_change_the_order_and_nothing_else_does():
    def flat(seed, epoch):
        order = SeedOrder(torch.arange(1000), batch_size=64, seed=seed, epoch=epoch)
        return torch.cat([order[i].seeds["_N"] for i in range(len(order))])

    assert torch.equal(flat(1, 0), flat(1, 0))
    for other in (flat(1, 1), flat(2, 0), flat(-1, 0)):
        assert (other == flat(1, 0)).sum() < 10  # one fixed point expected
        assert torch.equal(other.sort().values, torch.arange(1000))


def test_small_permutations_are_uniform():
    counts = Counter(tuple(Permutation(4, seed, 0)(np.arange(4)).tolist()) for seed in range(2400))
    assert set(counts) == set(permutations(range(4)))
    chi_square = sum((n - 100) ** 2 / 100 for n in counts.values())
    assert chi_square < 49.7  # 23 degrees of freedom, p = 0.001


@pytest.mark.parametrize("count", [Permutation.SORTED, Permutation.SORTED + 1, 2**18, 2**18 - 1, 300_000])
def test_large_permutations_are_permutations(count):
    got = Permutation(count, seed=9, epoch=4)(np.arange(count))
    assert np.array_equal(np.sort(got), np.arange(count))
    assert abs(np.corrcoef(got, np.arange(count))[0, 1]) < 0.02
    assert (got == np.arange(count)).sum() < 12  # a random permutation has one fixed point on average


def test_large_permutation_costs_no_memory_and_stays_in_range():
    huge = Permutation(10**11, seed=3, epoch=1)
    got = huge(np.arange(10**11 - 4096, 10**11))
    assert len(np.unique(got)) == 4096
    assert got.min() >= 0
    assert got.max() < 10**11


def test_typed_seeds_come_back_by_type():
    seeds = {"paper": torch.tensor([5, 6, 7]), "author": torch.tensor([1, 2])}
    order = SeedOrder(seeds, batch_size=4, shuffle=False)
    assert {k: v.tolist() for k, v in order[0].seeds.items()} == {"paper": [5, 6, 7], "author": [1]}
    assert {k: v.tolist() for k, v in order[1].seeds.items()} == {"author": [2]}


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"rank": 2, "world_size": 2}, "rank must be in"),
        ({"uneven": "hope"}, "uneven must be"),
    ],
)
def test_bad_arguments(bad, message):
    with pytest.raises(ConfigError, match=message):
        SeedOrder(torch.arange(3), **({"batch_size": 1} | bad))
