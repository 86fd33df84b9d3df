"""What a loader samples: the graph in memory or on disk, from nodes or from edges with negatives; the same batches."""

import pytest
import torch

import gids
from gids.errors import ConfigError
from gids.sampling import EdgeSeeds, Exclude, NeighborSampler, SampleKey, Topology
from tests.loading import load
from tests.resources import open_files

from .conftest import make, same

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.mark.parametrize("topology_budget", [0, "8MiB", "64MiB"])
@pytest.mark.parametrize("sampler", ["neighbours", "edge ids"])
def test_a_graph_on_disk_gives_the_same_batches(graph, topology_budget, sampler):
    options = {"features": {gids.NODE: "feat", gids.EDGE: "feat"}} if sampler == "edge ids" else {}
    with (
        make(graph, **options) as in_memory,
        make(graph, topology="disk", topology_budget=topology_budget, **options) as on_disk,
    ):
        for a, b in zip(in_memory, on_disk, strict=True):
            assert same(a, b)
            for one, two in zip(a.edge_features, b.edge_features, strict=True):
                assert all(torch.equal(one[key], two[key]) for key in one)
        (read,) = on_disk.topology.disk_stats().values()
        assert read["reads"] > 0
        assert (read["hot_lists"] > 0) == (topology_budget != 0)


def test_a_graph_on_disk_counts_what_it_keeps_in_memory_and_closes_its_files(graph):
    with make(graph, topology="disk", topology_budget=0) as loader:
        memory = loader.prepare().stats().memory
        assert memory.topology == loader.topology.resident_bytes()
    files = open_files()
    with pytest.raises(ConfigError, match="budget must be at least"):
        make(graph, topology="disk", budget="100KiB")
    assert open_files() == files


def test_lists_of_a_graph_on_disk_are_drawn_from_the_one_budget(graph):
    with make(graph) as reference, make(graph, topology="disk", budget="5MiB", cache=0, window=2) as loader:
        assert loader.topology.lists.bytes == 0, "the first batch waits for no pass over the edges"
        stats = loader.prepare().stats()
        assert all(same(a, b) for a, b in zip(reference, loader, strict=True))
        (read,) = loader.topology.disk_stats().values()
        lists = loader.topology.lists.bytes
        assert read["hot_bytes"] == lists > 0
        assert stats.memory.total <= stats.memory.budget
        assert stats.memory.topology > lists
        assert stats.usage["topology"].used == stats.memory.topology
        assert any(reason.startswith("neighbour lists") for reason in stats.reasons)


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({}, "memory"),
        ({"budget": "8MiB"}, "memory"),
        ({"budget": "8MiB", "topology_budget": 0}, "disk"),
        ({"budget": "300KiB"}, "refused"),
    ],
)
def test_auto_takes_memory_where_the_graph_fits(graph, options, where):
    if where == "refused":
        with pytest.raises(ConfigError, match="budget must be at least"):
            make(graph, topology=None, **options)
        return
    with make(graph, topology=None, **options) as loader:
        assert (loader.topology.disk_memory is None) == (where == "memory")
        next(iter(loader))


def edges_of(graph, count=300):
    (etype,) = graph.edge_types
    dst = torch.repeat_interleave(torch.arange(graph.num_nodes()), torch.from_numpy(graph.indptr(etype).copy()).diff())
    table = graph.indices_table(etype)
    from gids.dataset.rows import as_tensor, read_rows

    src = as_tensor(table, read_rows(table)).view(-1).long()
    chosen = torch.randperm(len(src), generator=torch.Generator().manual_seed(3))[:count]
    return src[chosen], dst[chosen]


@pytest.mark.parametrize("topology", ["memory", "disk"])
@pytest.mark.parametrize("exclude", list(Exclude))
def test_edges_as_seeds_come_with_their_negatives_and_rows(graph, memory, topology, exclude):
    src, dst = edges_of(graph)
    seeds = EdgeSeeds(src, dst, negatives=2, exclude=exclude)
    walked = Topology.from_dataset(graph)
    sampler = NeighborSampler([4, 4])
    seen = []
    with make(graph, seeds=seeds, batch_size=64, topology=topology) as loader:
        order = loader.order(0)
        assert len(order) == 5
        for number, batch in enumerate(loader):
            expected = sampler.sample(walked, order[number].seeds, SampleKey(0, 0, number))
            assert torch.equal(batch.input_nodes, expected.input_nodes["_N"])
            for ours, theirs in zip(batch.blocks, expected.blocks, strict=True):
                assert all(torch.equal(ours.src[etype], theirs.src[etype]) for etype in ours.src)
            pairs, count = batch.pairs, batch.batch_size
            assert torch.equal(pairs.dst, expected.edges.dst)
            assert torch.equal(batch.y, torch.cat([torch.ones(count), torch.zeros(2 * count)]))
            assert torch.equal(batch.x, memory["feat"][batch.input_nodes])
            assert torch.equal(batch.seeds[pairs.src[count:]], batch.seeds[pairs.src[:count]].repeat_interleave(2))
            seen += list(
                zip(batch.seeds[pairs.src[:count]].tolist(), batch.seeds[pairs.dst[:count]].tolist(), strict=True)
            )
        assert sorted(seen) == sorted(zip(src.tolist(), dst.tolist(), strict=True)), "every edge once"
        assert loader.stats().seeds == 300


def test_edges_as_seeds_resume_and_are_shared_between_ranks(graph):
    src, dst = edges_of(graph, 150)
    seeds = EdgeSeeds(src, dst, negatives=1)
    with make(graph, seeds=seeds, batch_size=32) as loader:
        whole = list(loader)
        loader.set_epoch(0)
        running = iter(loader)
        first = [next(running), next(running)]
        state = loader.state_dict()
        loader.load_state_dict(state)
        rest = list(loader)
    assert all(same(a, b) for a, b in zip(whole, first + rest, strict=True))
    with make(graph, seeds=EdgeSeeds(src, dst + 0 * src, negatives=1), batch_size=16, rank=1, world_size=2) as other:
        with pytest.raises(ConfigError, match="batch_size must be 32"):
            other.load_state_dict(state)
        mine = sum(batch.batch_size for batch in other)
    with make(graph, seeds=seeds, batch_size=16, rank=0, world_size=2) as zero:
        assert mine + sum(batch.batch_size for batch in zero) == 150


def test_edge_seeds_of_a_heterograph_name_their_type(tmp_path):
    with gids.DatasetWriter(tmp_path / "h") as writer:
        for ntype in ("user", "item"):
            writer.add_nodes(40, ntype)
            writer.add_features(torch.rand(40, 3), ntype)
        indptr = torch.arange(0, 41 * 3, 3)
        for etype in (("user", "buys", "item"), ("item", "bought by", "user")):
            writer.add_csc(indptr, torch.arange(120) * 7 % 40, etype)
    pairs = torch.arange(20), torch.arange(20, 40)
    with pytest.raises(ConfigError, match="etype of EdgeSeeds must be given"):
        gids.Loader(tmp_path / "h", seeds=EdgeSeeds(*pairs), fanouts=[2])
    with pytest.raises(ConfigError, match="etype of EdgeSeeds must be among"):
        gids.Loader(tmp_path / "h", seeds=EdgeSeeds(*pairs, etype=("user", "sells", "item")), fanouts=[2])
    seeds = EdgeSeeds(*pairs, etype=("user", "buys", "item"), negatives=1)
    with load(tmp_path / "h", seeds=seeds, fanouts=[2], batch_size=8, host_buffer="1KiB", budget="64MiB") as loader:
        batches = list(loader)
    assert [batch.batch_size for batch in batches] == [8, 8, 4]
    found = torch.cat([batch.seeds["user"][batch.pairs.src[: batch.batch_size]] for batch in batches])
    assert sorted(found.tolist()) == list(range(20))


def test_bad_topology(graph):
    with pytest.raises(ConfigError, match=r"topology must be one of .memory., .disk., None"):
        make(graph, topology="tape")
