"""How an iteration ends: told by another thread, in a forked child, by an error; and what a saved state then goes on with."""

import json
import os
import threading

import pytest
import torch

import gids
from gids.errors import ConfigError, GidsError, StorageError
from gids.sampling import LadiesSampler, NeighborSampler
from gids.storage import StorageOptions
from gids.storage.options import FaultOptions
from tests.resources import threads_left

from .conftest import NODES, make, same

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.fixture(scope="module")
def reference(graph):
    with make(graph) as loader:
        return [list(loader), list(loader)]


@pytest.mark.parametrize("taken", [0, 1, 3])
def test_closed_by_another_thread_it_is_an_error_and_never_an_end(graph, taken):
    for _ in range(5):
        loader = make(graph, batch_size=1, window=0, prefetch=1)  # more batches than are taken before it is closed
        running = iter(loader)
        for _ in range(taken):
            next(running)
        closing = threading.Thread(target=loader.close)
        closing.start()
        with pytest.raises(GidsError, match="this iteration has ended: the loader was closed"):
            [next(running) for _ in range(len(loader) + 1)]
        closing.join(60)
        with pytest.raises(GidsError, match="closed"):
            next(running)
        assert threads_left() == []


def test_an_epoch_that_has_ended_stays_ended(graph):
    with make(graph) as loader:
        running = iter(loader)
        assert len(list(running)) == 16
        with pytest.raises(StopIteration):
            next(running)


def test_a_forked_child_is_told_to_begin_its_own(graph):
    with make(graph) as loader:
        running = iter(loader)
        next(running)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                next(running)
            except GidsError as error:
                os.write(write, str(error).encode())
            finally:
                os._exit(0)
        os.close(write)
        with os.fdopen(read) as pipe:
            said = pipe.read()
        os.waitpid(child, 0)
        assert "cannot go on in its forked child" in said
        assert len(list(running)) == 15


def test_a_state_taken_after_an_error_goes_on_with_exactly_what_is_left(graph, reference):
    small = {"threads": 1, "staging_bytes": 1 << 20, "merge_gap_bytes": 0, "max_io_bytes": 4096}
    storage = StorageOptions(fault=FaultOptions(fail_at=150), **small)
    options = {"cache": 0, "host_buffer": 0, "groups": "60KiB", "sweep_batches": 2, "window": 0}
    delivered = []
    with make(graph, storage=storage, **options) as loader:
        with pytest.raises(StorageError):
            delivered.extend(loader)
        state = json.loads(json.dumps(loader.state_dict()))
    assert 0 < len(delivered) < 16
    with make(graph) as resumed:
        resumed.load_state_dict(state)
        rest = list(resumed)
        after = next(iter(resumed))
    assert [batch.index for batch in delivered + rest] == list(range(16))
    assert all(same(a, b) for a, b in zip(delivered + rest, reference[0], strict=True))
    assert same(after, reference[1][0])


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"fanouts": [4, 3]}, "sampler must be"),
        ({"fanouts": None, "sampler": NeighborSampler([4, 4], replace=True)}, "sampler must be"),
        ({"fanouts": None, "sampler": LadiesSampler([50, 50])}, "sampler must be"),
        ({"seeds": "val"}, "seeds must be"),
        ({"seeds": "reversed"}, "seeds must be"),
        ({"batch_size": 32}, "batch_size must be 64"),
        ({"shuffle": False}, "shuffle must be True"),
        ({"seed": 9}, "seed must be 0"),
        ({"drop_last": True}, "drop_last must be False"),
        ({"rank": 0, "world_size": 2}, "world_size must be 1"),
    ],
    ids=lambda value: None if isinstance(value, str) else "-".join(value),
)
def test_a_state_of_another_order_is_refused(graph, other, message):
    other = dict(other)
    if other.get("seeds") == "reversed":
        other["seeds"] = torch.flip(graph.split("train"), [0])
    if "fanouts" in other and other["fanouts"] is None:
        other.pop("fanouts")
        other = {"fanouts": None} | other
    with make(graph) as loader:
        state = loader.state_dict()
    with make(graph, **other) as loader, pytest.raises(ConfigError, match=message):
        loader.load_state_dict(state)


def test_a_state_of_another_dataset_is_refused(graph, tmp_path):
    """Which has the same seeds."""
    with gids.DatasetWriter(tmp_path / "other") as writer:
        writer.add_nodes(NODES)
        writer.add_features(torch.zeros(NODES, 1))
        writer.add_csc([0] * (NODES + 1), [])
        writer.add_split("train", graph.split("train"))
    with make(graph) as loader:
        state = loader.state_dict()
    with make(tmp_path / "other", labels=False) as loader, pytest.raises(ConfigError, match="dataset must be"):
        loader.load_state_dict(state)


def test_what_changes_only_speed_does_not_matter_to_a_state(graph, reference):
    with make(graph) as loader:
        running = iter(loader)
        next(running)
        state = loader.state_dict()
    with make(graph, budget="32MiB", cache=0, threads=3, window=2, storage="pread") as loader:
        loader.load_state_dict(state)
        assert all(same(a, b) for a, b in zip(loader, reference[0][1:], strict=True))
