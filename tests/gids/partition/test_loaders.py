"""Batches from parts through every door: each seed once, from few parts; ranks, resuming, epochs, and the ratio in stats()."""

import pickle

import pytest
import torch

import gids
from gids import ConfigError, EdgeSeeds, OrderOptions
from gids.partition import PartitionOrder, make, redundancy_ratio, seed_parts
from tests.gids.loader.conftest import same

from .graphs import bipartite, blocks, cliques

COUNT, SIZE = 12, 9  # cliques of nine nodes, three of which train


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    """Cliques, with a stored partition that has found them."""
    dataset = cliques(tmp_path_factory.mktemp("parts") / "g", count=COUNT, size=SIZE)
    make(dataset, COUNT)
    return dataset


def loader(dataset, seeds="train", batch_size=6, parts=COUNT, parts_per_group=2, features="feat", **order):
    order = OrderOptions(parts=parts, parts_per_group=parts_per_group, **order)
    given = {"fanouts": [3, 3], "batch_size": batch_size, "budget": "32MiB", "features": features}
    return gids.Loader(dataset, seeds, order=order, **given)


def seeds_of(batches):
    return [batch.seeds.tolist() for batch in batches]


def flat(lists):
    return [item for items in lists for item in items]


def test_a_batch_is_a_group_of_parts(graph):
    with loader(graph) as one:
        first, second = list(one), list(one)
        stats = one.stats()
    assert sorted(flat(seeds_of(first))) == sorted(graph.split("train").tolist())
    assert all(len({seed % COUNT for seed in seeds}) == 2 for seeds in seeds_of(first))
    assert seeds_of(first) != seeds_of(second)
    assert stats.redundancy_ratio == redundancy_ratio(first + second) == stats.as_dict()["redundancy_ratio"]
    assert f"RR {stats.redundancy_ratio:.2f}" in str(stats)
    assert f"RR {stats.redundancy_ratio:.2f}" in stats._repr_html_()


def test_the_order_is_that_of_partition_order(graph):
    seeds = graph.split("train")
    with loader(graph, seed=3) as one:
        one.set_epoch(4)
        got = seeds_of(one)
    found = make(graph, COUNT, store=False)
    order = PartitionOrder(seed_parts(found, seeds), parts_per_group=2).arrange(3, 4)
    assert flat(got) == seeds[torch.from_numpy(order)].tolist()
    with loader(graph, seed=3, parts=found) as one:  # the partition itself, for its name
        one.set_epoch(4)
        assert seeds_of(one) == got


def test_batches_are_those_of_the_same_seeds_given_in_order(graph):
    with loader(graph, seed=3) as one:
        by_parts = list(one)
    arranged = torch.cat([batch.seeds for batch in by_parts])
    with gids.Loader(
        graph, arranged, fanouts=[3, 3], batch_size=6, order=OrderOptions(shuffle=False, seed=3), budget="32MiB"
    ) as plain:
        for got, expected in zip(by_parts, plain, strict=True):
            assert same(got, expected)


def test_ranks_share_the_order(graph):
    with loader(graph, batch_size=3, parts_per_group=1) as whole:
        expected = seeds_of(whole)
    got = [[], []]
    for rank in range(2):
        with loader(graph, batch_size=3, parts_per_group=1, rank=rank, world_size=2) as mine:
            got[rank] = seeds_of(mine)
    assert [seeds for pair in zip(*got, strict=True) for seeds in pair] == expected
    assert all(len({seed % COUNT for seed in seeds}) == 1 for seeds in expected)


def test_resumes_and_survives_pickling(graph):
    with loader(graph, seed=9) as whole:
        list(whole)
        expected = list(whole)
    with loader(graph, seed=9) as begun:
        begun.set_epoch(1)
        iterator = iter(begun)
        for _ in range(2):
            next(iterator)
        state, copied = begun.state_dict(), pickle.loads(pickle.dumps(begun))
    with loader(graph, seed=9) as resumed:
        resumed.load_state_dict(state)
        for got, due in zip(resumed, expected[2:], strict=True):
            assert same(got, due)
    copied.load_state_dict(state)
    assert seeds_of(copied) == seeds_of(expected[2:])
    copied.close()
    for other in ({"parts_per_group": 3}, {"parts": None, "parts_per_group": 1}):
        with loader(graph, seed=9, **other) as different, pytest.raises(ConfigError, match="parts must be"):
            different.load_state_dict(state)


def test_seed_edges_go_by_the_part_of_their_source(graph):
    source = torch.arange(COUNT * SIZE)
    edges = EdgeSeeds(source, (source + COUNT) % (COUNT * SIZE))
    with loader(graph, edges, batch_size=SIZE, parts_per_group=1) as links:
        for seeds in links.order():
            assert len(set((seeds.seeds.src % COUNT).tolist())) == 1
        assert len(list(links)) == COUNT


def test_several_node_types(tmp_path):
    dataset = bipartite(tmp_path / "g")
    make(dataset, 8, name="eight")
    with loader(dataset, {"paper": None, "author": None}, parts="eight", batch_size=25, features=None) as both:
        got = [(ntype, seed) for batch in both for ntype, ids in batch.seeds.items() for seed in ids.tolist()]
    assert len(got) == len(set(got)) == dataset.num_nodes()


def test_fewer_rows_are_asked_for(tmp_path):
    dataset = blocks(tmp_path / "g")
    make(dataset, 50)
    ratios = {}
    for name, options in (
        ("parts", {"parts": 50, "parts_per_group": 1}),
        ("chance", {"parts": None, "parts_per_group": 1}),
    ):
        with loader(dataset, batch_size=40, **options) as one:
            list(one)
            ratios[name] = one.stats().redundancy_ratio
    assert ratios["parts"] < 0.9 * ratios["chance"]


def test_what_is_refused(graph):
    with pytest.raises(ConfigError, match="shuffle=False"):
        loader(graph, shuffle=False)
    with pytest.raises(ConfigError, match="one of those stored"):
        loader(graph, parts="none")
    with pytest.raises(ConfigError, match="parts_per_group must be at least 1"):
        OrderOptions(parts=1, parts_per_group=0)
    with pytest.raises(ConfigError, match="without parts"):
        OrderOptions(parts_per_group=4)


def test_the_report_says_the_ratio(graph, tmp_path):
    with loader(graph) as one:
        list(one)
        run = gids_report().load_run(gids_report().record(one, tmp_path))
    assert run.headline["input nodes per seed (RR)"] == f"{one.stats().redundancy_ratio:.2f}"
    assert "12 parts in groups of 2" in str(run.settings["parts"])


def gids_report():
    import gids.report

    return gids.report


def test_through_pyg(graph):
    pyg = pytest.importorskip("gids.pyg")
    order = OrderOptions(parts=COUNT, parts_per_group=2)
    options = {"batch_size": 6, "shuffle": True, "order": order, "budget": "32MiB", "seed": 5}
    with pyg.NeighborLoader(graph, [3, 3], "train", **options) as one:
        batches = list(one)
        got = [batch.n_id[: batch.batch_size].tolist() for batch in batches]
        nodes = sum(batch.num_nodes for batch in batches)
        assert one.stats().redundancy_ratio == nodes / len(graph.split("train"))
        one.set_epoch(0)
        iterator = iter(one)
        next(iterator)
        state = one.state_dict()
    with pyg.NeighborLoader(graph, [3, 3], "train", **options) as resumed:
        resumed.load_state_dict(state)
        assert [batch.n_id[: batch.batch_size].tolist() for batch in resumed] == got[1:]
    with loader(graph, seed=5) as plain:
        assert seeds_of(plain) == got
    shared = []
    for rank in range(2):
        mine = OrderOptions(parts=COUNT, parts_per_group=2, rank=rank, world_size=2)
        with pyg.NeighborLoader(graph, [3, 3], "train", **(options | {"order": mine})) as one:
            shared.append([batch.n_id[: batch.batch_size].tolist() for batch in one])
    assert [batch for pair in zip(*shared, strict=True) for batch in pair][: len(got)] == got
    ends = torch.stack([torch.arange(COUNT * SIZE), torch.arange(COUNT * SIZE).roll(1)])
    options |= {"batch_size": SIZE, "order": OrderOptions(parts=COUNT)}
    with pyg.LinkNeighborLoader(graph, [3], ends, **options) as links:
        for batch in links:
            sources = batch.n_id[batch.edge_label_index[0]]
            assert len(set((sources % COUNT).tolist())) == 1


@pytest.mark.parametrize("sampler", ["gids", "dgl"])
def test_through_dgl(graph, sampler):
    dgl, door = pytest.importorskip("dgl"), pytest.importorskip("gids.dgl")
    options = {"batch_size": 6, "shuffle": True, "gids": graph, "budget": "32MiB"}
    options["order"] = OrderOptions(parts=COUNT, parts_per_group=2)
    source = graph
    if sampler == "gids":
        chosen = door.NeighborSampler([3, 3], prefetch_node_feats=["feat"])
    else:
        indptr, indices = graph.indptr(), graph.indices_table(graph.edge_types[0])
        sources = gids.dataset.rows.as_tensor(indices, gids.dataset.rows.read_rows(indices))
        source = dgl.graph(
            ("csc", (torch.from_numpy(indptr.copy()), sources.long(), torch.empty(0, dtype=torch.int64)))
        )
        chosen = dgl.dataloading.NeighborSampler([3, 3], prefetch_node_feats=["feat"])
    with door.DataLoader(source, "train", chosen, **options) as one:
        got = [output.tolist() for _, output, _ in one]
        inputs = [len(nodes) for nodes, _, _ in one]
        assert one.stats().input_nodes > sum(inputs)
    with loader(graph) as plain:
        assert seeds_of(plain) == got
    if sampler == "gids":
        with door.DataLoader(source, "train", chosen, **options) as begun:
            iterator = iter(begun)
            next(iterator)
            state = begun.state_dict()
        with door.DataLoader(source, "train", chosen, **options) as resumed:
            resumed.load_state_dict(state)
            assert [output.tolist() for _, output, _ in resumed] == got[1:]
    with pytest.raises(ConfigError, match="parts and parts_per_group only"):
        door.DataLoader(source, "train", chosen, **(options | {"order": OrderOptions(drop_last=True)}))
    with pytest.raises(ConfigError, match="shuffle=True"):
        door.DataLoader(source, "train", chosen, **(options | {"shuffle": False}))
