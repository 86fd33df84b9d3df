"""Shared memory on a machine with other users, and with programs that forget to close: nothing taken, nothing left."""

import errno
import gc
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gids.errors import ConfigError, StorageError
from gids.tiers.shared import SharedTensor
from tests.resources import DEADLINE_S

SHAPE = (3, 4)


def shared(directory, value=1.0, identity="x"):
    return SharedTensor(identity, SHAPE, torch.float32, lambda tensor: tensor.fill_(value), directory)


def descriptors():
    return {int(entry.name) for entry in Path("/proc/self/fd").iterdir()}


@pytest.fixture
def name(tmp_path):
    """The path that a buffer of this identity has."""
    buffer = shared(tmp_path)
    buffer.close()
    return buffer.path


def test_dropped_without_close(tmp_path):
    before = descriptors()
    for _ in range(3):
        buffer = shared(tmp_path)
        assert stat.S_IMODE(buffer.path.stat().st_mode) == 0o600
        del buffer
        gc.collect()
    assert descriptors() <= before
    assert list(tmp_path.iterdir()) == []


def test_rows_outlive_a_dropped_buffer(tmp_path):
    buffer = shared(tmp_path, 5.0)
    rows = buffer.tensor[1]
    del buffer
    gc.collect()
    assert rows.tolist() == [5.0] * 4


def test_a_forked_child_does_not_take_the_parents_file(tmp_path):
    script = """
import os, sys, torch
from pathlib import Path
from gids.tiers.shared import SharedTensor
buffer = SharedTensor("x", (3, 4), torch.float32, lambda tensor: tensor.fill_(2), Path(sys.argv[1]))
child = os.fork()
if child == 0:
    buffer.close()
    os._exit(0 if buffer.path.exists() else 3)
assert os.waitpid(child, 0)[1] == 0
assert buffer.path.exists()
other = SharedTensor("x", (3, 4), torch.float32, lambda tensor: tensor.fill_(9), Path(sys.argv[1]))
assert not other.filled_here
other.close()
"""
    command = [sys.executable, "-c", script, str(tmp_path)]
    result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=DEADLINE_S)
    assert (result.returncode, result.stderr) == (0, "")
    assert list(tmp_path.iterdir()) == [], "what was still open goes when the program ends"


def test_a_link_is_not_followed(tmp_path, name):
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    name.symlink_to(victim)
    with pytest.raises(ConfigError, match=r"must be a private file of user \d+ .*: remove it"):
        shared(tmp_path)
    assert victim.read_bytes() == b"precious"
    assert name.is_symlink()


def test_a_second_name_of_another_file_is_not_truncated(tmp_path, name):
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    victim.chmod(0o600)
    name.hardlink_to(victim)
    with pytest.raises(ConfigError, match="it has 2 names"):
        shared(tmp_path)
    assert victim.read_bytes() == b"precious"


def test_a_file_that_others_may_write_is_not_used(tmp_path, name):
    name.write_bytes(b"planted")
    name.chmod(0o666)
    with pytest.raises(ConfigError, match="others may use it: mode 666"):
        shared(tmp_path)
    assert name.read_bytes() == b"planted"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a file of another user")
def test_a_file_of_another_user_is_not_used(tmp_path, name):
    name.write_bytes(b"planted")
    name.chmod(0o600)
    os.chown(name, 12345, -1)
    with pytest.raises(ConfigError, match="belongs to user 12345"):
        shared(tmp_path)
    assert name.read_bytes() == b"planted"


def test_a_directory_that_cannot_be_written(tmp_path, monkeypatch):
    opened = os.open

    def refuse(path, flags, *rest, **more):
        if flags & os.O_CREAT and Path(path).parent == tmp_path:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        return opened(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(StorageError, match=f"needs a writable {tmp_path}.*Read-only file system") as caught:
        shared(tmp_path)
    assert caught.value.errno == errno.EROFS
