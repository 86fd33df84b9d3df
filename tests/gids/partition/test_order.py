"""Seeds part by part: every seed once, groups by hand, a function of (seed, epoch), fewer rows; and the ratio."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gids import ConfigError
from gids.partition import PartitionOrder, Redundancy, make, parts_per_batch, redundancy_ratio, seed_parts
from gids.sampling import NeighborSampler, SampleKey, Topology

from .graphs import bipartite, blocks, cliques


@given(
    st.lists(st.integers(0, 12), max_size=200),
    st.integers(1, 8),
    st.integers(0, 2**64 - 1),
    st.integers(0, 1000),
)
def test_every_seed_once_and_groups_together(parts, parts_per_group, seed, epoch):
    order = PartitionOrder(np.array(parts, np.int64), parts_per_group=parts_per_group)
    arranged = order.arrange(seed, epoch)
    assert np.array_equal(np.sort(arranged), np.arange(len(parts)))
    assert np.array_equal(arranged, PartitionOrder(parts, parts_per_group=parts_per_group).arrange(seed, epoch))
    # Going through the order, a part that was left is not met again beyond its group.
    met = np.array(parts, np.int64)[arranged]
    groups, current = 0, set()
    seen: set[int] = set()
    for part in met:
        if part not in current:
            assert part not in seen
            if len(current) == parts_per_group:
                current = set()
            groups += not current
            current.add(part)
            seen.add(part)
    assert groups == order.num_groups


def test_epochs_and_seeds_differ():
    order = PartitionOrder(np.repeat(np.arange(50), 8), parts_per_group=5)
    assert not np.array_equal(order.arrange(0, 0), order.arrange(0, 1))
    assert not np.array_equal(order.arrange(0, 0), order.arrange(1, 0))


def test_literal_order():
    order = PartitionOrder([7, 7, 3, 3, 9], parts_per_group=1)
    assert (order.num_parts, order.num_groups) == (3, 3)
    assert order.arrange(1, 2).tolist() == [4, 1, 0, 3, 2]


def test_one_group_mixes_everything():
    order = PartitionOrder(np.repeat(np.arange(10), 100), parts_per_group=10)
    part = np.repeat(np.arange(10), 100)[order.arrange(3, 0)]
    follows_itself = (part[1:] == part[:-1]).mean()
    assert abs(follows_itself - 0.1) < 0.03


def test_batches_come_from_the_parts_of_a_group(tmp_path):
    dataset = cliques(tmp_path / "g", count=12, size=9)
    partition = make(dataset, 12, store=False)
    seeds = dataset.split("train")
    order = PartitionOrder(seed_parts(partition, seeds), parts_per_group=2)
    arranged = seeds[torch.from_numpy(order.arrange(5, 1))]
    assert torch.equal(arranged.sort().values, seeds.sort().values)
    for batch in arranged.split(6):  # 3 of each clique train: a batch is a group
        assert sorted((batch % 12).unique(return_counts=True)[1].tolist()) == [3, 3]


def test_parts_of_seeds_of_several_types(tmp_path):
    dataset = bipartite(tmp_path / "g")
    partition = make(dataset, 8, store=False)
    papers, authors = torch.tensor([5, 6]), torch.tensor([0])
    found = seed_parts(partition, {"paper": papers, "author": authors})
    assert found.tolist() == [*partition.parts["paper"][[5, 6]], partition.parts["author"][0]]
    with pytest.raises(ConfigError, match="by node type"):
        seed_parts(partition, papers)
    with pytest.raises(ConfigError, match="must be among"):
        seed_parts(partition, {"venue": papers})


def test_batches_from_parts_ask_for_fewer_rows(tmp_path):
    dataset = blocks(tmp_path / "g", num_nodes=20_000, blocks=200, degree=10, train=0.3)
    partition = make(dataset, 200, store=False)
    topology, sampler, seeds = Topology.from_dataset(dataset), NeighborSampler([5, 5]), dataset.split("train")
    parts = seed_parts(partition, seeds)
    assert parts_per_batch(parts, 300) == 10

    def ratio(positions):
        chosen = seeds[torch.from_numpy(positions)].split(300)
        return redundancy_ratio(sampler.sample(topology, ids, SampleKey(0, 0, i)) for i, ids in enumerate(chosen))

    by_parts = ratio(PartitionOrder(parts, parts_per_group=10).arrange(0, 0))
    by_chance = ratio(PartitionOrder(parts, parts_per_group=200).arrange(0, 0))
    assert by_parts < 0.75 * by_chance


def test_the_ratio_by_hand():
    total = Redundancy()
    assert total.ratio == 0
    total.add(SimpleNamespace(seeds=torch.zeros(2), input_nodes=torch.zeros(9)))
    total.add(SimpleNamespace(seeds={"a": [1], "b": [1, 2]}, input_nodes={"a": range(4), "b": range(7)}))
    assert (total.input_nodes, total.seeds, total.ratio) == (20, 5, 4.0)


@pytest.mark.parametrize(("parts", "group", "rule"), [([1], 0, "parts_per_group"), ([[1]], 1, "one dimension")])
def test_wrong_arguments(parts, group, rule):
    with pytest.raises(ConfigError, match=rule):
        PartitionOrder(parts, parts_per_group=group)
