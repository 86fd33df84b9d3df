"""A loader starts at once: profile, ranking and host buffer come while training goes on, are kept, and change no batch."""

import os
import tempfile
import threading
from pathlib import Path

import pytest

import gids
from gids.errors import GidsError, StorageError
from gids.generate import communities
from gids.runtime.runtime import Runtime
from gids.storage import RowReader
from tests.loading import load
from tests.resources import threads_left

from .conftest import same

pytestmark = pytest.mark.usefixtures("no_thread_left")
OPTIONS = {"seeds": "train", "fanouts": [3, 3], "batch_size": 16, "budget": "3MiB"}


@pytest.fixture
def no_thread_left():
    """Fail when a test leaves a thread of gids behind."""
    yield
    assert threads_left() == []


@pytest.fixture
def graph(tmp_path):
    """Of its own for each test: what was found out about it is kept beside it."""
    dataset = communities(tmp_path / "g", num_nodes=4000, degree=6, dim=64, train=0.2)
    dataset.indptr()
    return dataset


@pytest.fixture
def held_back(monkeypatch):
    """Let nothing be found out before the event is set; the second is set once somebody begins to."""
    monkeypatch.setattr("gids.runtime.runtime.EXPECT_DIVISION_S", 0.01)
    allowed, begun, find_out = threading.Event(), threading.Event(), Runtime._find_out

    def later(self, preparation):
        begun.set()
        preparation.wait_for(allowed)
        return find_out(self, preparation)

    monkeypatch.setattr(Runtime, "_find_out", later)
    return allowed, begun


def kept_files(directory):
    return sorted(path.name for path in Path(directory).rglob("prepared-*.npz"))


def test_batches_come_before_the_profile_has_ended_and_stay_the_same_when_it_has(graph, held_back):
    allowed, begun = held_back
    with load(graph, **OPTIONS) as loader, load(graph, **OPTIONS, storage="memory") as reference:
        running = iter(loader)
        got = [next(running) for _ in range(4)]
        assert begun.wait(60)
        assert not loader.stats().prepared
        assert loader.stats().tables["_N/feat"].cache == loader.stats().tables["_N/feat"].host == 0
        with pytest.raises(GidsError, match="prepare must be called before an epoch"):
            loader.prepare()
        allowed.set()
        got += list(running)
        assert len(got) == 50
        assert all(same(a, b) for a, b in zip(got, reference, strict=True))
        for _ in range(100):  # tiers are replaced between two groups, of whichever epoch it is
            assert all(same(a, b) for a, b in zip(loader, reference, strict=True))
            if loader.stats().prepared:
                break
        list(loader)
        stats = loader.stats()
        assert stats.prepared
        assert stats.memory.cache + stats.memory.host_buffer > 0
        assert stats.tables["_N/feat"].cache + stats.tables["_N/feat"].host > 0, "what was found out took effect"


def test_what_was_found_out_is_used_by_the_next_loader(graph, monkeypatch):
    with load(graph, **OPTIONS) as loader:
        first = loader.prepare().stats()
        expected = list(loader)
    assert len(kept_files(graph.scratch_dir)) == 1

    def never(self, preparation):
        raise AssertionError("it was found out before")

    monkeypatch.setattr(Runtime, "_find_out", never)
    with load(graph, **OPTIONS) as loader:
        second = loader.prepare().stats()
        assert (second.memory, second.reasons) == (first.memory, first.reasons)
        assert all(same(a, b) for a, b in zip(loader, expected, strict=True))
    with load(graph, **OPTIONS | {"batch_size": 8}) as other, pytest.raises(AssertionError, match="found out before"):
        other.prepare()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 not really", None])
def test_damaged_results_are_found_out_anew(graph, content):
    with load(graph, **OPTIONS) as loader:
        expected = loader.prepare().stats()
    (path,) = Path(graph.scratch_dir).rglob("prepared-*.npz")
    path.write_bytes(path.read_bytes()[:-100] if content is None else content)
    with load(graph, **OPTIONS) as loader:
        assert loader.prepare().stats().memory == expected.memory


def test_beside_a_read_only_dataset_results_are_kept_in_the_cache_directory(graph, monkeypatch):
    make = tempfile.TemporaryFile

    def refuse(*arguments, **options):
        """Refuse the dataset's directory, as permissions do for who is not root."""
        if Path(options["dir"]).is_relative_to(graph.path):
            raise PermissionError(13, "Permission denied")
        return make(*arguments, **options)

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    with load(graph, **OPTIONS) as loader:
        loader.prepare()
    assert kept_files(graph.path) == []
    assert len(kept_files(os.environ["XDG_CACHE_HOME"])) == 1


def test_a_preparation_that_fails_is_raised_by_next(graph, monkeypatch):
    def fail(self, preparation):
        raise StorageError("the drive is gone", "/dev/x", 4096, 512, 5)

    monkeypatch.setattr(Runtime, "_find_out", fail)
    with load(graph, **OPTIONS) as loader, pytest.raises(StorageError, match="the drive is gone"):
        [list(loader) for _ in range(3)]


def test_a_host_buffer_that_cannot_be_filled_is_raised_by_next(graph, monkeypatch):
    read = RowReader.submit
    failing = threading.Event()

    def submit(self, rows, out, *arguments, **more):
        if threading.current_thread().name == "gids-prepare":
            failing.set()
            raise StorageError("read failed", str(graph.path), 0, 0, 5)
        return read(self, rows, out, *arguments, **more)

    monkeypatch.setattr(RowReader, "submit", submit)
    options = OPTIONS | {"host_buffer": "200KiB", "cache": 0, "groups": "400KiB"}
    with load(graph, **options) as loader, pytest.raises(StorageError, match="read failed"):
        [list(loader) for _ in range(3)]
    assert failing.is_set()


def test_two_loaders_that_open_at_once_divide_as_each_does_alone(graph):
    with load(graph, **OPTIONS) as loader:
        alone = loader.prepare().stats()
    for path in Path(graph.scratch_dir).rglob("prepared-*.npz"):
        path.unlink()
    together, barrier = [], threading.Barrier(2)

    def open_one():
        barrier.wait(60)
        with load(graph, **OPTIONS) as loader:
            stats = loader.prepare().stats()
            together.append((stats.memory, stats.reasons, sum(len(batch.x) for batch in loader)))

    threads = [threading.Thread(target=open_one) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(together) == 2
    assert together[0] == together[1]
    assert together[0][:2] == (alone.memory, alone.reasons)


def test_a_budget_that_was_accepted_stays_accepted(graph):
    """Though later batches are larger than the first."""
    with pytest.raises(gids.ConfigError, match="budget must be at least") as error:
        load(graph, **OPTIONS | {"budget": "100KiB"})
    least = int(str(error.value).split("(")[1].split(" bytes")[0])
    del error
    with load(graph, **OPTIONS | {"budget": least}) as loader:
        rows = sum(len(batch.x) for batch in loader)
        assert loader.prepare().stats().memory.total <= least
        assert sum(len(batch.x) for batch in loader) > 0
    assert rows > 0


def test_closing_while_things_are_found_out(graph, held_back):
    _, begun = held_back
    loader = load(graph, **OPTIONS)
    next(iter(loader))
    assert begun.wait(60)
    loader.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "gids-prepare"]
