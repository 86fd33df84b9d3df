"""gids.Loader end to end on a small graph: the right rows, the same batches whatever the budget, policy or engine."""

import inspect
import json
import pickle

import pytest
import torch

import gids
from gids.errors import ConfigError, GidsError
from gids.loader.graph import feature_tables
from gids.sampling import NeighborSampler, SampleKey, Topology
from gids.storage import StorageOptions
from tests.resources import gids_threads, threads_left

from .conftest import DIM, make, same

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.fixture(scope="module")
def reference(graph):
    with make(graph) as loader:
        return list(loader)


def test_batches_are_the_samplers_with_the_tables_rows(graph, memory, reference):
    topology = Topology.from_dataset(graph)
    sampler = NeighborSampler([4, 4])
    with make(graph) as loader:
        order = loader.order(0)
    assert len(reference) == len(order) == 16
    for number, batch in enumerate(reference):
        sample = sampler.sample(topology, order[number].seeds, SampleKey(0, 0, number))
        assert torch.equal(batch.input_nodes, sample.input_nodes["_N"])
        assert torch.equal(batch.x, memory["feat"][batch.input_nodes])
        assert torch.equal(batch.y, memory["labels"][batch.seeds])
        assert torch.equal(batch.seeds, batch.input_nodes[: len(batch.seeds)])
        assert batch.x.shape == (len(batch.input_nodes), DIM)
    assert torch.equal(torch.cat([b.seeds for b in reference]).sort().values, graph.split("train").sort().values)


@pytest.mark.parametrize(
    "options",
    [
        {"cache": 0},
        {"cache": 4000, "policy": "lru"},
        {"policy": "random", "window": 0},
        {"policy": "belady", "window": 100},
        {"cache": "1MiB", "groups": "1MiB", "sweep_batches": 1},
        {"threads": 1, "prefetch": 1, "groups_in_flight": 1},
        {"threads": 5, "sweep_batches": 100},
        {"storage": "pread"},
        {"storage": StorageOptions(queue_depth=1, staging_bytes=1 << 20)},
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_nothing_but_speed_depends_on_memory_policy_engine_and_threads(graph, reference, options):
    with make(graph, **options) as loader:
        assert all(same(a, b) for a, b in zip(loader, reference, strict=True))


def test_an_epoch_has_other_batches_and_can_be_repeated(graph, reference):
    with make(graph) as loader:
        first, second = list(loader), list(loader)
        assert [b.epoch for b in (first[0], second[0])] == [0, 1]
        assert not torch.equal(first[0].seeds, second[0].seeds)
        loader.set_epoch(0)
        assert all(same(a, b) for a, b in zip(loader, reference, strict=True))
        loader.set_epoch(1)
        assert all(same(a, b) for a, b in zip(loader, second, strict=True))


@pytest.mark.parametrize("options", [{}, {"topology": "disk"}], ids=["memory", "disk"])
def test_several_workers_deliver_in_order(graph, reference, options):
    with make(graph, sample_workers=3, **options) as loader:
        assert all(same(a, b) for a, b in zip(loader, reference, strict=True))


def test_out_of_order_gives_the_same_batches(graph, reference):
    with make(graph, in_order=False, sample_workers=3) as loader:
        got = sorted(loader, key=lambda batch: batch.index)
    assert all(same(a, b) for a, b in zip(got, reference, strict=True))


@pytest.mark.parametrize("taken", [0, 1, 7, 16])
@pytest.mark.parametrize("in_order", [True, False])
def test_resume_goes_on_with_exactly_what_is_left(graph, reference, taken, in_order):
    with make(graph, in_order=in_order) as loader:
        iterator = iter(loader)
        head = [next(iterator).index for _ in range(taken)]
        state = json.loads(json.dumps(loader.state_dict()))
    with make(graph) as resumed:
        resumed.load_state_dict(state)
        rest = list(resumed)
        after = next(iter(resumed))
    assert sorted(head + [b.index for b in rest]) == list(range(16))
    assert all(same(b, reference[b.index]) for b in rest)
    assert (after.epoch, after.index) == (1, 0)


def test_resume_refuses_the_state_of_another_order(graph):
    with make(graph) as loader, make(graph, batch_size=32) as other:
        with pytest.raises(ConfigError, match=r"batch_size must be 64.*got 32"):
            other.load_state_dict(loader.state_dict())
        with pytest.raises(ConfigError, match="version"):
            loader.load_state_dict({"version": 99})


def test_ranks_share_the_seeds(graph):
    seen = []
    for rank in range(3):
        with make(graph, rank=rank, world_size=3, batch_size=50) as loader:
            batches = list(loader)
            assert len(batches) == len(loader) == 7
            seen.append(torch.cat([b.seeds for b in batches]))
    assert torch.equal(torch.cat(seen).sort().values, graph.split("train").sort().values)


def test_several_tables_edge_features_and_dtypes(graph, memory):
    topology = Topology.from_dataset(graph)
    sampler = NeighborSampler([4, 4], edge_ids=True)
    with make(graph, features={gids.NODE: ["feat", "year"], "_E": "feat"}, dtype=torch.float64) as loader:
        order = loader.order(0)
        for number, batch in enumerate(loader):
            sample = sampler.sample(topology, order[number].seeds, SampleKey(0, 0, number))
            assert batch.x.dtype == torch.float64
            assert torch.equal(batch.x, memory["feat"][batch.input_nodes].double())
            assert torch.equal(batch.features["_N", "year"], memory["year"][batch.input_nodes])
            for block, rows in zip(sample.blocks, batch.edge_features, strict=True):
                ((etype, ids),) = block.edge_ids.items()
                assert torch.equal(rows[etype, "feat"], memory["edge"][ids].double())


def test_without_features_or_labels(graph):
    with make(graph, features=None, labels=False) as loader:
        batch = next(iter(loader))
    assert batch.x is None
    assert batch.y is None
    assert len(batch.input_nodes)


def test_seeds_instead_of_a_split(graph, memory):
    with make(graph, seeds=torch.tensor([5, 9, 5]), shuffle=False, batch_size=8) as loader:
        (batch,) = loader
    assert batch.seeds.tolist() == [5, 9]
    assert torch.equal(batch.y, memory["labels"][[5, 9]])
    assert batch.batch_size == 2


def test_to_moves_everything_and_shares_what_is_there(reference):
    batch = reference[0]
    assert batch.to("cpu").x is batch.x
    moved = batch.to("meta")
    assert moved.x.device.type == moved.y.device.type == moved.seeds.device.type == "meta"
    assert moved.blocks[0].src[moved.blocks[0].edge_types[0]].device.type == "meta"
    assert moved.x is moved.features["_N", "feat"]
    assert moved.index == batch.index


def test_device_option_delivers_there(graph):
    with make(graph, device="meta") as loader:
        assert next(iter(loader)).x.device.type == "meta"


def test_batches_are_not_overwritten_while_somebody_holds_them(graph, reference):
    with make(graph, prefetch=1, groups="1MiB") as loader:
        for _ in range(3):
            loader.set_epoch(0)
            held = list(loader)
            assert all(same(a, b) for a, b in zip(held, reference, strict=True))


def test_budget_too_small_says_the_minimum_and_the_minimum_works(graph, reference):
    with pytest.raises(ConfigError, match="budget must be at least") as error:
        make(graph, budget="1MiB")
    least = int(str(error.value).split("(")[1].split(" bytes")[0])
    with pytest.raises(ConfigError, match="got"):
        make(graph, budget=least - 1)
    with make(graph, budget=least) as loader:
        assert all(same(a, b) for a, b in zip(loader, reference, strict=True))
        assert loader.stats().memory.total <= least


def test_stats_add_up(graph):
    with make(graph, cache="40KiB", groups="100KiB", host_buffer="20KiB", record=True) as loader:
        loader.prepare()
        rows = sum(len(batch.input_nodes) for batch in loader)
        stats = loader.stats(optimum=True)
        table = stats.tables["_N/feat"]
        assert table.requests == rows == table.cache + table.host + table.disk + table.duplicates
        assert table.bytes_delivered == rows * DIM * 4
        assert table.reads > 0
        assert table.bytes_read >= table.disk * DIM * 4 / 2
        assert 0 < table.hit_ratio <= table.optimum < 1
        assert stats.batches == 16
        assert stats.seeds == 1000
        assert set(stats.stages) == {"sample", "plan", "fetch"}
        assert stats.stages["sample"].items >= 16
        json.dumps(stats.as_dict())
        assert "_N/feat" in str(stats)
        assert "best possible" in str(stats)
        assert "<table>" in loader._repr_html_()
        loader.reset_stats()
        assert loader.stats().tables["_N/feat"].requests == 0
        next(iter(loader))
        assert loader.stats().batches == 1


def test_optimum_needs_a_recording(graph):
    with make(graph) as loader, pytest.raises(ConfigError, match="record=True"):
        loader.stats(optimum=True)


def test_profile_opens_in_perfetto(graph, tmp_path):
    path = tmp_path / "trace.json"
    with make(graph) as loader, loader.tracing(path):
        list(loader)
    events = json.loads(path.read_text())["traceEvents"]
    names = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {"gids-sample", "gids-plan", "gids-fetch", "MainThread"} <= names
    spans = [e for e in events if e["ph"] == "X"]
    assert {"sample", "plan", "start", "fetch", "wait for batch"} == {e["name"] for e in spans}
    assert sum(e["name"] == "sample" for e in spans) == 16
    assert all(e["dur"] >= 0 and {"ts", "pid", "tid"} <= e.keys() for e in spans)


def test_progress_bar(graph, capsys):
    with make(graph, progress=True) as loader:
        list(loader)
    assert "epoch 0" in capsys.readouterr().out


def test_a_pickled_loader_gives_the_same_batches(graph, reference):
    with make(graph) as loader:
        loader.prepare()
        copied = pickle.loads(pickle.dumps(loader))
    with copied:
        assert all(same(a, b) for a, b in zip(copied, reference, strict=True))


def test_a_second_iteration_ends_the_first(graph):
    with make(graph) as loader:
        first = iter(loader)
        next(first)
        second = iter(loader)
        with pytest.raises(GidsError, match="another iteration"):
            next(first)
        assert next(second).epoch == 1
        assert len(gids_threads()) <= 4


def test_a_closed_loader_says_so(graph):
    loader = make(graph)
    iterator = iter(loader)
    loader.close()
    loader.close()
    assert threads_left() == []
    with pytest.raises(GidsError, match="closed"):
        next(iterator)
    with pytest.raises(GidsError, match="closed"):
        iter(loader)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"sampler": NeighborSampler([1])}, "exactly one of fanouts and sampler"),
        ({"seeds": "nope"}, "seeds must be one of the splits train, val .got .nope"),
        ({"features": "nope"}, "features must be among"),
        ({"features": {"author": "feat"}}, "features must name types"),
        ({"features": {gids.EDGE: "nope"}}, "features of .*_E.* must be among"),
        ({"features": {("a", "b", "c"): "feat"}}, "features must name types"),
        ({"batch_size": 0}, "batch_size"),
        ({"threads": 0}, "threads"),
        ({"seed": -1}, "seed"),
        ({"budget": "lots"}, "budget"),
        ({"rank": 1}, "rank and world_size"),
        ({"prefetch": 0}, "prefetch"),
        ({"policy": "magic"}, "policy"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_bad_options(graph, bad, message):
    with pytest.raises(ConfigError, match=message):
        make(graph, **bad)


def test_names_mean_nodes_and_types_say_more(graph, tmp_path):
    """A name alone never means a table of edges: the error says how that is asked for."""
    with gids.DatasetWriter(tmp_path / "g") as writer:
        writer.add_nodes(2)
        writer.add_features(torch.zeros(2, 1))
        writer.add_csc(torch.tensor([0, 1, 2]), torch.tensor([1, 0]))
        writer.add_edge_features(torch.zeros(2, 1), name="w")
    dataset = gids.open(tmp_path / "g")
    with pytest.raises(ConfigError, match=r"named by type, features={\('_N', '_E', '_N'\): 'w', ...}"):
        gids.Loader(dataset, fanouts=[1], features=["feat", "w"])
    both = {gids.EDGE: "feat", gids.NODE: ["year", "feat"]}
    assert [str(key) for key in feature_tables(graph, both)] == ["_N/year", "_N/feat", "_N:_E:_N/feat"]
    assert feature_tables(graph, {"_E": "feat"}) == [(gids.EDGE, "feat")]
    assert feature_tables(graph, None) == []


def test_no_more_arguments_than_these():
    """What belongs together stands in a group of options."""
    assert len(inspect.signature(gids.Loader).parameters) <= 16
