"""gids.kg.Loader: slices give the same bits as exact extraction, over epochs, policies, ranks and failures."""

import re

import numpy as np
import pytest
import torch

from gids import ConfigError, DatasetError, GidsError, MemoryOptions, OrderOptions, PipelineOptions, StorageError
from gids.kg import Graph, Loader, Slices
from gids.kg.feed import SLICES
from gids.storage import StorageOptions
from gids.storage.options import FaultOptions
from tests.resources import threads_left

from .graphs import make, random_triples, same


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    triples = random_triples(400, 5, 3000, 4, hub=(11, 5))
    return make(tmp_path_factory.mktemp("loader"), triples, num_entities=400)


@pytest.fixture
def slices(dataset, tmp_path):
    with Graph(dataset, on_disk=True) as graph, Slices(graph, tmp_path / "slices", hops=2, slice_bytes=1024) as made:
        yield made


def options(**changed):
    queries = {"split": "train", "batch_size": 16, "hops": 2, "remove_target": True, "budget": "128MiB"}
    return queries | changed


def in_memory():
    return MemoryOptions(topology="memory")


def equal(left, right):
    parts = ("heads", "relations", "tails", "head_positions", "tail_positions")
    return same(left.subgraphs, right.subgraphs) and all(
        torch.equal(getattr(left, p), getattr(right, p)) for p in parts
    )


@pytest.mark.parametrize("both_ends", [False, True])
@pytest.mark.parametrize("policy", ["belady", "window(3)", "lru"])
def test_slices_give_the_bits_of_exact_extraction(dataset, slices, both_ends, policy):
    chosen = options(split=dataset.knowledge.queries("train")[:300], both_ends=both_ends)
    with (
        Loader(
            slices.graph,
            slices=slices,
            memory=MemoryOptions(policy=policy, cache="64KiB"),
            pipeline=PipelineOptions(window=5),
            **chosen,
        ) as through_slices,
        Loader(dataset, through="graph", memory=in_memory(), **chosen) as exact,
    ):
        through_slices.prepare()  # the cache opens
        for _ in range(2):
            pairs = list(zip(through_slices, exact, strict=True))
            assert len(pairs) == len(exact) == 19
            assert all(equal(left, right) for left, right in pairs)
        assert [batch.number for batch in through_slices] == list(range(19))
        stats = through_slices.stats().tables["slices"]
        assert 0 < stats.cache < stats.requests


def test_heads_and_tails_are_where_the_batch_says(dataset, slices):
    with Loader(slices.graph, slices=slices, **options(remove_target=False)) as loader:
        batch = next(iter(loader))
        entities = batch.subgraphs.entities
        assert torch.equal(entities[batch.head_positions].long(), batch.heads)
        assert torch.equal(entities[batch.tail_positions].long(), batch.tails)  # one hop away: always in the subgraph


def test_epochs_differ_and_repeat(dataset):
    with Loader(dataset, through="graph", memory=in_memory(), **options()) as loader:
        first = [batch.heads.tolist() for batch in loader]
        second = [batch.heads.tolist() for batch in loader]
        loader.set_epoch(0)
        again = [batch.heads.tolist() for batch in loader]
    assert first == again != second
    assert sorted(head for batch in first for head in batch) == sorted(
        dataset.knowledge.queries("train")[:, 0].tolist()
    )


def test_ranks_share_an_epoch(dataset):
    heads = []
    for rank in range(2):
        with Loader(
            dataset, through="graph", memory=in_memory(), **options(order=OrderOptions(rank=rank, world_size=2))
        ) as loader:
            heads += [head for batch in loader for head in batch.heads.tolist()]
    assert sorted(heads) == sorted(dataset.knowledge.queries("train")[:, 0].tolist())


def test_slices_are_made_once(dataset, slices):
    chosen = options(split=dataset.knowledge.queries("train")[:100])
    with Loader(slices.graph, slices=slices, **chosen) as loader:
        list(loader)
        made = slices.num_slices
        list(loader)
        assert slices.num_slices == made > 0
    with Loader(slices.graph, slices=slices, **chosen) as loader:
        list(loader)
    assert slices.num_slices == made


def test_default_slices_lie_in_the_scratch_directory(dataset, tmp_path, monkeypatch):
    monkeypatch.setenv("GIDS_SCRATCH", str(tmp_path))
    with Loader(dataset, **options(split=dataset.knowledge.queries("train")[:32])) as loader:
        assert len(list(loader)) == 2
        assert loader.feed.slices.path == tmp_path / dataset.id / "slices-2-4096"
        count = loader.feed.slices.num_slices
    assert (tmp_path / dataset.id / "slices-2-4096" / "slices.bin").stat().st_size == count * 4096


def test_a_batch_larger_than_the_budget_is_refused(dataset, slices):
    first = dataset.knowledge.queries("train")[:16]
    rule = r"budget must hold the subgraphs of batch 0: 16 queries have \d+ triples, and .* a budget of .* would hold"
    with pytest.raises(ConfigError, match=rule) as refused:
        Loader(slices.graph, slices=slices, **options(budget="64KiB", split=first))
    enough = re.search(r"a budget of (\S+ \S+), smaller", str(refused.value))[1]
    with Loader(slices.graph, slices=slices, **options(budget=enough, split=first)) as loader:
        assert len(list(loader)) == 1, "what is said to be enough is"
    rule = r"16 queries have \d+ triples and the budget holds \d+"
    with pytest.raises(ConfigError, match=rule):
        Loader(dataset, through="graph", memory=in_memory(), **options(budget="64KiB"))


def test_the_table_grows_while_batches_are_made(dataset, tmp_path, monkeypatch):
    monkeypatch.setattr("gids.kg.slices.LEAST_ROWS", 8)
    with (
        Graph(dataset, on_disk=True) as graph,
        Slices(graph, tmp_path / "grows", hops=2, slice_bytes=1024) as slices,
        Loader(slices.graph, slices=slices, **options()) as loader,
        Loader(dataset, through="graph", memory=in_memory(), **options()) as exact,
    ):
        first = loader.stores[SLICES].table.num_rows
        assert all(equal(left, right) for left, right in zip(loader, exact, strict=True))
        assert loader.stores[SLICES].table.num_rows >= slices.num_slices > first
        usage = loader.stats().usage["topology"]
        assert usage.used == usage.allotted >= slices.graph.memory_bytes


def test_an_epoch_resumes_where_it_was_left(dataset, slices):
    with Loader(slices.graph, slices=slices, **options()) as loader:
        expected = [batch.heads.tolist() for batch in loader]
        loader.set_epoch(0)
        epoch = iter(loader)
        taken = [next(epoch).heads.tolist() for _ in range(3)]
        state = loader.state_dict()
    with Loader(slices.graph, slices=slices, **options()) as loader:
        loader.load_state_dict(state)
        assert taken + [batch.heads.tolist() for batch in loader] == expected
    other = Loader(slices.graph, slices=slices, **options(both_ends=True))
    with other, pytest.raises(ConfigError, match="both_ends must be False"):
        other.load_state_dict(state)


def test_a_graph_of_another_process_is_refused(dataset):
    with Graph(dataset) as graph:
        graph.pid += 1
        with pytest.raises(GidsError, match="cannot be used in its forked child"):
            Loader(graph, **options(through="graph"))


def test_ranks_slice_into_directories_of_their_own(dataset, tmp_path, monkeypatch):
    monkeypatch.setenv("GIDS_SCRATCH", str(tmp_path))
    few = dataset.knowledge.queries("train")[:64]
    ranks = [OrderOptions(rank=rank, world_size=2) for rank in range(2)]
    with (
        Loader(dataset, **options(split=few, order=ranks[0])) as left,
        Loader(dataset, **options(split=few, order=ranks[1])) as right,
    ):
        assert len(list(left)) == len(list(right)) == 2
        names = [loader.feed.slices.path.name for loader in (left, right)]
    assert names == ["slices-2-4096-0-of-2", "slices-2-4096-1-of-2"]


def test_a_failed_read_fails_its_batch_and_the_loader_stays_usable(dataset, slices):
    chosen = options(split=dataset.knowledge.queries("train")[:100])
    storage = StorageOptions(fault=FaultOptions(fail_at=3))
    faulty = Loader(slices.graph, slices=slices, storage=storage, memory=MemoryOptions(cache="64KiB"), **chosen)
    with faulty, pytest.raises(StorageError, match="Input/output error"):
        list(faulty)
    assert threads_left() == []
    with Loader(slices.graph, slices=slices, **chosen) as loader, Loader(dataset, through="graph", **chosen) as exact:
        assert all(equal(left, right) for left, right in zip(loader, exact, strict=True))
    assert threads_left() == []


def test_a_dropped_epoch_leaves_no_thread(dataset, slices):
    with Loader(slices.graph, slices=slices, **options()) as loader:
        loader.prepare()
        assert threads_left() == []
        epoch = iter(loader)
        next(epoch)
        epoch.close()
        assert threads_left() == []
        assert len(list(loader)) == len(loader)


def test_damaged_slices_are_not_trained_on(dataset, slices):
    chosen = options(split=dataset.knowledge.queries("train")[:64], order=OrderOptions(shuffle=False))
    with Loader(slices.graph, slices=slices, **chosen) as loader:
        list(loader)
    path = slices.path / "slices.bin"
    with path.open("r+b") as file:
        file.write(np.array([1, -1, 3, 500], np.int32).tobytes())
    with Loader(slices.graph, slices=slices, **chosen) as loader, pytest.raises(DatasetError, match="damaged"):
        list(loader)


def test_refusals(dataset):
    queries = np.array([[0, 0, 1], [1, 10, 2]])
    with pytest.raises(ConfigError, match=r"relation must be in \[0, 10\) \(got 10\)"):
        Loader(dataset, split=queries)
    with pytest.raises(ConfigError, match=r"tail must be an entity in \[0, 400\) \(got 400\)"):
        Loader(dataset, split=np.array([[0, 0, 400]]))
    with pytest.raises(ConfigError, match="split must be one of train"):
        Loader(dataset, split="nope")
    with pytest.raises(ConfigError, match="through must be 'slices' or 'graph'"):
        Loader(dataset, through="magic")
    with pytest.raises(ConfigError, match="parts must be None for queries"):
        Loader(dataset, order=OrderOptions(parts="8"))


def test_the_order_says_whether_and_how_queries_are_shuffled(dataset):
    queries = torch.from_numpy(dataset.knowledge.queries("train")[:40].astype(np.int64))

    def heads(**given):
        with Loader(dataset, through="graph", **options(split=queries, order=OrderOptions(**given))) as loader:
            return torch.cat([torch.column_stack([b.heads, b.relations, b.tails]) for b in loader])

    assert torch.equal(heads(shuffle=False), queries)
    assert torch.equal(heads(seed=0), heads())
    assert not torch.equal(heads(seed=1), heads(seed=2))
