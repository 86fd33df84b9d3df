"""A loader over packed epochs behaves as every loader does: epochs, resume, early exit, faults, budgets, errors."""

import pickle
from dataclasses import replace

import pytest
import torch

import gids
from gids.errors import ConfigError, StorageError
from gids.storage.options import FaultOptions
from tests.loading import load

from .conftest import equal

pytestmark = pytest.mark.usefixtures("nothing_left")
ARGUMENTS = {"fanouts": [4, 4], "batch_size": 64}


@pytest.fixture(scope="module")
def packed(graph, tmp_path_factory):
    path = tmp_path_factory.mktemp("loading") / "packed"
    return gids.pack(graph, path, "train", epochs=2, hot="8KiB", **ARGUMENTS)


@pytest.fixture(scope="module")
def again(graph, tmp_path_factory):
    path = tmp_path_factory.mktemp("loading") / "again"
    return gids.pack(graph, path, "train", epochs=2, reuse=True, hot=0, **ARGUMENTS)


def online(graph, **options):
    return gids.Loader(graph, "train", budget="64MiB", **ARGUMENTS, **options)


def test_says_what_to_do_beyond_the_packed_epochs(graph, packed):
    with gids.Loader(graph, packed=packed.path, budget="64MiB") as loader:
        for _ in range(2):
            assert len(list(loader)) == 7
        with pytest.raises(ConfigError, match=r"epoch must be below 2, .* \(got 2\): pack more epochs"):
            iter(loader)
        with pytest.raises(ConfigError, match="epoch must be below 2"):
            loader.set_epoch(5)
        loader.set_epoch(1)
        assert len(list(loader)) == 7


def test_reuse_repeats_on_purpose(graph, again):
    with online(graph) as fresh, gids.Loader(graph, packed=again, budget="64MiB") as loader:
        loader.set_epoch(5)
        fresh.set_epoch(1)
        for one, two in zip(fresh, loader, strict=True):
            assert two.epoch == 5
            assert equal(one, replace(two, epoch=1))


def test_goes_on_online(graph, packed):
    beyond = gids.Packed(packed.path, beyond="online")
    with online(graph) as fresh, online(graph, packed=beyond) as loader:
        for _ in range(4):
            assert all(equal(one, two) for one, two in zip(fresh, loader, strict=True))
        loader.set_epoch(0)
        fresh.set_epoch(0)
        assert all(equal(one, two) for one, two in zip(fresh, loader, strict=True))
    with pytest.raises(ConfigError, match="fanouts or sampler must be given"):
        gids.Loader(graph, "train", packed=beyond)


def test_resumes_also_what_began_online(graph, packed):
    with online(graph) as loader:
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        state = loader.state_dict()
        rest = list(batches)
    with gids.Loader(graph, packed=packed, budget="64MiB") as loader:
        loader.load_state_dict(state)
        assert all(equal(one, two) for one, two in zip(rest, loader, strict=True))
        assert loader.epoch == 1


def test_an_epoch_left_early_leaves_nothing(graph, packed):
    with online(graph) as fresh, gids.Loader(graph, packed=packed, budget="64MiB") as loader:
        next(iter(loader))
        fresh.set_epoch(1)
        assert all(equal(one, two) for one, two in zip(fresh, loader, strict=True))


def test_another_process_opens_it_itself(graph, packed):
    with gids.Loader(graph, packed=packed, budget="64MiB") as loader:
        copy = pickle.loads(pickle.dumps(loader))
        with copy:
            assert all(equal(one, two) for one, two in zip(loader, copy, strict=True))


@pytest.mark.parametrize("engine", ["uring", "pread", "memory"])
def test_every_engine(graph, packed, engine):
    with online(graph) as fresh, gids.Loader(graph, packed=packed, budget="64MiB", storage=engine) as loader:
        assert all(equal(one, two) for one, two in zip(fresh, loader, strict=True))


def test_a_failed_read_fails_its_batch(graph, packed):
    storage = gids.StorageOptions(fault=FaultOptions(fail_at=3))
    with gids.Loader(graph, packed=packed, budget="64MiB", storage=storage) as loader:
        with pytest.raises(StorageError, match=r"rows-0\.bin"):
            list(loader)
        loader.set_epoch(0)
        assert len(list(loader)) == 7, "the loader is usable"


def test_memory_is_for_hot_rows(graph, packed):
    with gids.Loader(graph, packed=packed, budget="64MiB") as loader:
        loader.prepare()
        list(loader)
        stats = loader.stats()
        (table,) = stats.tables.values()
        assert stats.memory.cache == 0
        assert table.host > 0
        assert table.bytes_read > 0
        assert loader.stores[next(iter(packed.tables))].table.name == "packed _N/feat"
    with pytest.raises(ConfigError, match="budget must be at least"):
        gids.Loader(graph, packed=packed, budget="100KiB")


def test_refuses_what_was_not_packed(graph, papers, packed):
    with pytest.raises(ConfigError, match="packed must hold epochs of dataset"):
        gids.Loader(papers, packed=packed)
    for name, value in {"batch_size": 65, "seed": 1, "shuffle": False, "fanouts": [4, 5]}.items():
        with pytest.raises(ConfigError, match="as it was packed"):
            load(graph, packed=packed, **{name: value})
    with pytest.raises(ConfigError, match=r"seeds must be .* as it was packed"):
        gids.Loader(graph, torch.arange(10), packed=packed)
    with pytest.raises(ConfigError, match="world_size must be 1, as it was packed"):
        gids.Loader(graph, packed=packed, order=gids.OrderOptions(rank=0, world_size=2))
    with pytest.raises(ConfigError, match="features must be"):
        gids.Loader(graph, packed=packed, features="year")
    with gids.Loader(graph, "train", packed=packed, features="feat", **ARGUMENTS) as loader:
        assert len(loader) == 7, "what is the same may be said"
    with pytest.raises(ConfigError, match="beyond must be one of"):
        gids.Packed(packed.path, beyond="what")
