"""The host buffer in shared memory: filled once, mapped by all, removed by the last or by who comes after a crash."""

import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from gids.errors import ConfigError
from gids.loader.engine import COUNTED_EPOCH
from gids.loader.shared import SharedTensor, sweep
from gids.tiers.budget import host_bytes

from .conftest import DIM
from .test_loader import make, same

pytestmark = pytest.mark.usefixtures("nothing_left")


def shared(tmp_path, value, identity="x", shape=(3, 4)):
    return SharedTensor(identity, shape, torch.float32, lambda tensor: tensor.fill_(value), tmp_path)


def test_the_first_fills_and_the_last_removes(tmp_path):
    first, second = shared(tmp_path, 1), shared(tmp_path, 2)
    assert (first.filled_here, second.filled_here) == (True, False)
    assert second.tensor.unique().tolist() == [1]
    first.tensor[0, 0] = 5
    assert second.tensor[0, 0] == 5, "one memory, not a copy"
    first.close()
    first.close()
    assert second.path.exists()
    second.close()
    assert not list(tmp_path.iterdir())
    assert second.tensor[0, 0] == 5, "what is mapped stays valid"


def test_other_contents_are_not_shared(tmp_path):
    buffers = [shared(tmp_path, 1), shared(tmp_path, 2, identity="y"), shared(tmp_path, 3, shape=(4, 3))]
    assert [b.tensor[0, 0].item() for b in buffers] == [1, 2, 3]
    for buffer in buffers:
        buffer.close()


def test_a_failed_fill_is_filled_again(tmp_path):
    def fail(tensor):
        tensor.fill_(9)
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        SharedTensor("x", (3, 4), torch.float32, fail, tmp_path)
    assert not list(tmp_path.iterdir())
    again = shared(tmp_path, 1)
    assert again.tensor.unique().tolist() == [1]
    again.close()


CRASHES = """
import os, signal, sys, torch
from pathlib import Path
from gids.loader.shared import SharedTensor
def kill():
    os.kill(os.getpid(), signal.SIGKILL)
def fill(tensor):
    tensor[:2] = 7
    kill()
used = SharedTensor("using", (3, 4), torch.float32, lambda tensor: tensor.fill_(7), Path(sys.argv[1]))
SharedTensor("filling", (3, 4), torch.float32, fill, Path(sys.argv[1]))
"""


def run_python(script, *arguments):
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """The files of a process killed while it used one buffer and filled another."""
    directory = tmp_path_factory.mktemp("killed")
    assert run_python(CRASHES, directory).returncode == -signal.SIGKILL
    assert len(list(directory.iterdir())) == 2
    return directory


@pytest.fixture
def left(killed, tmp_path):
    """A directory with what the killed process left."""
    for path in killed.iterdir():
        shutil.copy(path, tmp_path)
    return tmp_path


@pytest.mark.parametrize(("when", "value"), [("filling", 1), ("using", 7)])
def test_a_killed_process_leaves_no_lock(left, when, value):
    buffer = shared(left, 1, identity=when)
    assert buffer.tensor.unique().tolist() == [value]
    buffer.close()
    assert not list(left.iterdir())


def test_what_a_killed_process_left_is_removed_by_the_next_with_another_identity(left):
    buffer = shared(left, 1)
    assert list(left.iterdir()) == [buffer.path]
    buffer.close()


def test_a_sweep_leaves_what_is_locked_and_what_is_not_its_own(left, monkeypatch):
    (used, other), name = left.iterdir(), "gids-" + 24 * "0"
    (left / name).symlink_to(other)
    (left / "gids-of-somebody").touch()
    with used.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        sweep(left, keep=other.name)
        assert {path.name for path in left.iterdir()} == {used.name, other.name, name, "gids-of-somebody"}
    user = os.getuid()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getuid", lambda: user + 1)
        sweep(left, keep="")
    assert {used, other} < set(left.iterdir())
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", lambda path: (_ for _ in ()).throw(PermissionError("sticky")))
        sweep(left, keep="")
    sweep(left, keep="")
    assert {path.name for path in left.iterdir()} == {name, "gids-of-somebody"}


def test_who_opened_a_file_that_a_sweep_then_removed_begins_anew(tmp_path, monkeypatch):
    """A sweep that comes between another's `open` and its lock."""
    removed, lock = [], fcntl.flock

    def flock(fd, how):
        if how == fcntl.LOCK_SH and not removed:
            removed.extend(tmp_path.iterdir())
            sweep(tmp_path, keep="")
            assert not list(tmp_path.iterdir())
        lock(fd, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    buffer = shared(tmp_path, 5)
    assert removed == list(tmp_path.iterdir()) == [buffer.path]
    assert buffer.tensor.unique().tolist() == [5]
    buffer.close()


def test_a_sweep_that_comes_late_leaves_the_new_file_of_that_name(tmp_path, monkeypatch):
    """Another process removes the file and makes it anew between the sweep's `open` and its lock."""
    first, lock, made = shared(tmp_path, 1), fcntl.flock, []
    first.close()
    first.path.touch()

    def flock(fd, how):
        monkeypatch.setattr(fcntl, "flock", lock)
        first.path.unlink()
        made.append(shared(tmp_path, 2))
        lock(fd, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    sweep(tmp_path, keep="")
    (second,) = made
    assert list(tmp_path.iterdir()) == [second.path] == [first.path]
    second.close()


CROWD = """
import os, random, signal, sys, time, torch
from pathlib import Path
from gids.loader.shared import SharedTensor
torch.set_num_threads(1)
directory = Path(sys.argv[1])

def make(identity, value):
    def fill(tensor):
        tensor[:500] = value
        time.sleep(random.random() / 500)
        tensor[500:] = value
    buffer = SharedTensor(identity, (1000,), torch.float32, fill, directory)
    assert (buffer.tensor == value).all(), (identity, buffer.tensor.unique())
    assert buffer.path.exists()
    return buffer

def child(number):
    random.seed(number)
    for turn in range(15):
        same, own = make("same", 3), make(f"{number} {turn}", number)
        time.sleep(random.random() / 500)
        assert own.path.exists() and same.path.exists()
        if turn == 14 and number % 3 == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        for buffer in random.sample([same, own], 2):
            buffer.close()

children = []
for number in range(12):
    pid = os.fork()
    if not pid:
        try:
            child(number)
            os._exit(0)
        finally:
            os._exit(1)
    children.append(pid)
codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
assert codes == [-9 if number % 3 == 0 else 0 for number in range(12)], codes
last = make("last", 1)
assert list(directory.iterdir()) == [last.path]
last.close()
"""


def test_many_processes_at_once_share_one_file_and_sweep_beside_each_other(tmp_path):
    result = run_python(CROWD, tmp_path)
    assert result.returncode == 0, result.stderr


def test_no_room_says_how_much(tmp_path):
    if os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize > 1 << 45:
        pytest.skip("/dev/shm is larger than this test can ask for")
    with pytest.raises(ConfigError, match=r"host_buffer must fit in /dev/shm"):
        SharedTensor("too large", (1 << 35, 1024), torch.float32, lambda tensor: None, Path("/dev/shm"))


def test_no_room_leaves_no_file(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(ConfigError, match=r"57 B cannot be had \(No space left on device\)"):
        shared(tmp_path, 1)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("rank_by", ["pagerank", "degree", "counted"])
def test_loaders_share_their_host_buffer_and_deliver_the_same_batches(graph, rank_by):
    options = {"host_buffer": "60KiB", "host_rank": rank_by, "cache": "20KiB"}
    with make(graph) as plain, make(graph, **options) as one, make(graph, **options) as two:
        for a, b, c in zip(plain, one, two, strict=True):
            assert same(a, b)
            assert same(a, c)
        table = one.stats().tables["_N/feat"]
        assert table.host > 0.1 * table.requests
        assert table.requests == table.cache + table.host + table.disk + table.duplicates
        stores = [next(iter(loader._engine.table_set.stores.values())) for loader in (one, two)]
        assert [store.shared.filled_here for store in stores] == [True, False]
        assert stores[0].shared.nbytes <= 60 << 10
        path = stores[0].shared.path
        assert path.exists()
        del stores
    assert not path.exists()


def held_rows(loader):
    (store,) = loader.prepare()._engine.table_set.stores.values()
    return store.store.host_buffer.index.rows.tolist()


@pytest.mark.parametrize("kind", ["tensor", "array", "file", "by type"])
def test_own_scores_choose_the_rows(graph, tmp_path, kind):
    scores = torch.zeros(graph.num_nodes(), dtype=torch.float64)
    scores[[5, 17, 2999, 400]] = torch.tensor([0.5, 3.0, 1.0, 2.0], dtype=torch.float64)
    np.save(tmp_path / "scores.npy", scores.numpy())
    given = {
        "tensor": scores,
        "array": scores.numpy(),
        "file": str(tmp_path / "scores.npy"),
        "by type": {"_N": tmp_path / "scores.npy"},
    }[kind]
    room = host_bytes(3, DIM * 4)
    with make(graph) as plain, make(graph, host_buffer=room, host_rank=given) as loader:
        assert held_rows(loader) == [17, 400, 2999]
        assert all(same(a, b) for a, b in zip(plain, loader, strict=True))
    with make(graph, host_buffer="60KiB", host_rank=given) as loader:
        assert held_rows(loader) == [5, 17, 400, 2999]  # score 0 stays out however much room there is


def test_random_rows_depend_on_the_seed_alone_and_serve_less_than_ranked_ones(graph):
    served, held = {}, {}
    for name, rank, seed in [("a", "random", 1), ("b", "random", 1), ("c", "random", 2), ("best", "counted", 1)]:
        with make(graph, host_buffer="60KiB", host_rank=rank, seed=seed, cache=0) as loader:
            held[name] = held_rows(loader)
            for _ in loader:
                pass
            served[name] = loader.stats().tables["_N/feat"].host
    assert held["a"] == held["b"] != held["c"]
    assert served["best"] > 1.5 * served["a"]


def test_counted_rows_are_those_that_most_batches_of_the_counted_epoch_ask_for(graph):
    counts = torch.zeros(graph.num_nodes(), dtype=torch.int64)
    with make(graph, features=None) as loader:
        loader.set_epoch(COUNTED_EPOCH)
        for batch in loader:
            counts[batch.input_nodes] += 1
    with make(graph, host_buffer="8KiB", host_rank="counted") as loader:
        held = held_rows(loader)
    others = torch.ones(graph.num_nodes(), dtype=torch.bool)
    others[held] = False
    assert 50 < len(held) < 110
    assert counts[held].min() >= counts[others].max()


@pytest.mark.parametrize(
    ("rank", "message"),
    [
        ("taste", "host_rank must be one of"),
        ({"_N": "pagerank"}, "must be scores or a .npy file"),
        ("no-such.npy", "must be a readable .npy file"),
        ([1.0, 2.0], "must be 3000 numbers, one per node"),
        ({"paper": [1.0]}, "must name node types among"),
        (-torch.ones(3000), "must not be negative"),
    ],
)
def test_bad_ranking(graph, rank, message):
    with pytest.raises(ConfigError, match=message), make(graph, host_rank=rank, host_buffer="8KiB") as loader:
        loader.prepare()


def test_edge_features_come_from_the_host_buffer(graph, memory):
    """Edge rows that the host buffer holds are served from it, bit for bit."""
    etype = graph.edge_types[0]
    options = {"edge_features": "feat", "cache": 0, "groups": "200KiB", "max_group": 2}
    with make(graph, host_buffer="80KiB", **options) as loader, make(graph, host_buffer=0, **options) as plain:
        for batch, expected in zip(loader, plain, strict=True):
            assert batch.edge_features[0].keys() == {(etype, "feat")}
            for block, rows, others in zip(batch.blocks, batch.edge_features, expected.edge_features, strict=True):
                assert torch.equal(rows[etype, "feat"], memory["edge"][block.edge_ids[etype]])
                assert torch.equal(rows[etype, "feat"], others[etype, "feat"])
        name = graph.edge_feature_table(etype, "feat").name
        table, without = (each.stats().tables[name] for each in (loader, plain))
        held = loader._engine.table_set.stores[etype, "feat"].store.host_buffer.index.rows
    assert without.host == 0
    assert table.host > 0.05 * table.requests
    assert table.requests == table.cache + table.host + table.disk + table.duplicates
    # Whole neighbourhoods are held: every edge of a destination, or none.
    destinations = np.searchsorted(graph.indptr(), held.numpy(), side="right") - 1
    nodes, edges = np.unique(destinations, return_counts=True)
    assert np.array_equal(edges, np.diff(graph.indptr())[nodes])
