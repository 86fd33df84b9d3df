"""The host buffer in shared memory: filled once, mapped by all, removed by the last or by who comes after a crash."""

import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gids.errors import ConfigError
from gids.tiers.shared import SharedTensor, sweep
from tests.resources import DEADLINE_S

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
from gids.tiers.shared import SharedTensor
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
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=DEADLINE_S)


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
from gids.tiers.shared import SharedTensor
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
