"""A job that is killed, or runs out of disk, leaves nothing that opens, and goes on when it is run again."""

import errno
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import time
import traceback

import numpy as np
import pytest
import torch

import gids
from gids import DatasetError, generate
from gids.convert import convert, edges, graph
from gids.dataset import checksum, table_writer
from gids.dataset import writer as dataset_writer
from gids.generate import tables

from .graphs import by_destination, random_edges, stored_edges, values

N, DIM, E = 4000, 16, 60_000


@pytest.fixture(scope="module", autouse=True)
def small_steps():
    """Make every step, bucket and checkpoint matter with a few hundred KiB."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(edges, "STEP_EDGES", 4096)
        patch.setattr(edges, "BUCKET_EDGES", 8192)
        patch.setattr(graph, "COPY_BYTES", 1 << 12)
        patch.setattr(dataset_writer, "COPY_BYTES", 1 << 12)
        patch.setattr(tables, "PIECE_BYTES", 1 << 14)
        patch.setattr(table_writer, "CHECKPOINT_BYTES", 1 << 14)
        patch.setattr(checksum, "CHUNK_BYTES", 1 << 10)
        yield


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    root = tmp_path_factory.mktemp("source")
    generator = np.random.default_rng(0)
    np.save(root / "x.npy", generator.standard_normal((N, DIM), np.float32))
    np.save(root / "y.npy", generator.integers(0, 9, N))
    np.save(root / "edge_index.npy", random_edges(N, N, E))
    np.save(root / "edge_weight.npy", generator.random(E, np.float32))
    np.save(root / "train.npy", np.arange(0, N, 3))
    return root


@pytest.fixture(scope="module")
def whole(source, tmp_path_factory):
    """The dataset that an undisturbed conversion makes."""
    return convert(source, tmp_path_factory.mktemp("whole") / "out")


def in_child(job, owner=None, name=None, call=0):
    """Run a job in a process of its own, which is killed in the ``call``-th call of a function; gives its end and log.

    The log has a line for every append to a table: name and number of rows.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)  # OpenMP's threads are not copied by fork
        append = table_writer.TableWriter.append

        def logged(self, rows):
            append(self, rows)
            os.write(writer, f"{self.table.name} {len(rows)}\n".encode())

        table_writer.TableWriter.append = logged
        if owner is not None:
            wrapped, calls = getattr(owner, name), [0]

            def lethal(*args, **keywords):
                calls[0] += 1
                if calls[0] == call:
                    os.kill(os.getpid(), signal.SIGKILL)
                return wrapped(*args, **keywords)

            setattr(owner, name, lethal)
        try:
            job()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        log = pipe.read()
    _, status = os.waitpid(child, 0)
    return status, log


def rows_written(log):
    return sum(int(line.split()[1]) for line in log.splitlines() if line.startswith("_N/feat"))


POINTS = [
    *[(os, "pwrite", call) for call in (1, 2, 7, 20, 60, 100, 150, 250)],
    *[(os, "fdatasync", call) for call in (1, 2, 3, 10, 31, 50, 77)],
    *[(os, "fsync", call) for call in (1, 2, 9)],
    *[(table_writer.TableWriter, "append", call) for call in (1, 5, 30, 60)],
    *[(os, "ftruncate", call) for call in (1, 5, 9)],
    *[(pathlib.Path, "rename", call) for call in (1, 2)],
]


@pytest.mark.parametrize(("owner", "name", "call"), POINTS)
def test_sigkill(source, whole, tmp_path, owner, name, call):
    out = tmp_path / "out"
    status, before = in_child(lambda: convert(source, out), owner, name, call)
    assert os.WIFSIGNALED(status), "the job ended before it could be killed: choose an earlier call"
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert not out.exists()
    if not (tmp_path / ".out.partial" / "manifest.json").exists():
        with pytest.raises(DatasetError, match="did not finish"):
            gids.open(tmp_path / ".out.partial")
    status, after = in_child(lambda: convert(source, out))
    assert status == 0
    dataset = gids.open(out)
    assert dataset.id == whole.id
    assert gids.dataset.verify(dataset) == []
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]
    checkpoint_rows = table_writer.CHECKPOINT_BYTES // (DIM * 4) + 64
    assert rows_written(after) <= N - rows_written(before) + checkpoint_rows, "the second run must go on"


def test_sigkill_again_and_again(source, whole, tmp_path):
    """Killed at every 40th write, the job still ends, because checkpoints only ever move forward."""
    out = tmp_path / "out"
    ends = []
    while not out.exists() and len(ends) < 30:
        ends.append(in_child(lambda: convert(source, out), os, "pwrite", 40)[0])
    assert len(ends) > 3
    assert ends[-1] == 0
    assert gids.open(out).id == whole.id


def test_sigkill_while_replacing(source, whole, tmp_path):
    """The old dataset opens until the moment the new one does."""
    out = tmp_path / "out"
    old = generate.communities(out, num_nodes=100, dim=4)
    job = gids.convert.ConvertOptions(overwrite=True)
    for call in (5, 50, 200):
        status, _ = in_child(lambda: convert(source, out, options=job), os, "pwrite", call)
        assert os.WIFSIGNALED(status)
        assert gids.open(out).id == old.id
    assert convert(source, out, options=job).id == whole.id == gids.open(out).id
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


def test_changed_source_starts_clean(source, tmp_path):
    out = tmp_path / "out"
    status, before = in_child(lambda: convert(source, out), os, "pwrite", 250)
    assert rows_written(before) > 0
    os.utime(source / "x.npy", (0, 0))
    status, after = in_child(lambda: convert(source, out))
    assert status == 0
    assert rows_written(after) == N


def test_stripes_of_another_job_are_removed(source, tmp_path):
    drives = [tmp_path / "d0", tmp_path / "d1"]
    options = gids.convert.ConvertOptions(stripe_dirs=drives)
    in_child(lambda: convert(source, tmp_path / "out", options=options), os, "pwrite", 250)
    assert [len(list(drive.iterdir())) for drive in drives] == [1, 1]
    convert(source, tmp_path / "out")
    assert [len(list(drive.iterdir())) for drive in drives] == [0, 0]


def test_bad_input_leaves_nothing(source, tmp_path):
    (tmp_path / "bad").mkdir()
    np.save(tmp_path / "bad/edge_index.npy", random_edges(N, N, E))
    np.save(tmp_path / "bad/x.npy", np.zeros((N, DIM)))
    np.save(tmp_path / "bad/train.npy", np.array([N]))  # found after the edges are sorted
    with pytest.raises(gids.ConfigError, match="ids of split"):
        convert(tmp_path / "bad", tmp_path / "out")
    assert [entry.name for entry in tmp_path.iterdir()] == ["bad"]


def test_torn_journal_line(source, whole, tmp_path):
    in_child(lambda: convert(source, tmp_path / "out"), os, "pwrite", 250)
    with (tmp_path / ".out.partial" / "journal.jsonl").open("a") as journal:
        journal.write('{"key": "table nodes/_N')
    assert convert(source, tmp_path / "out").id == whole.id


def test_two_writers_at_once(source, tmp_path):
    with gids.DatasetWriter(tmp_path / "out") as writer:
        writer.add_nodes(1)
        with pytest.raises(DatasetError, match="being written by another process"):
            convert(source, tmp_path / "out")


@pytest.mark.parametrize("generator", [generate.communities, generate.rmat])
def test_generate_goes_on(tmp_path, generator):
    expected = generator(tmp_path / "whole", num_nodes=4000, dim=16, seed=3)
    for call in (3, 25, 60, 85):
        job = lambda out=tmp_path / f"out{call}": generator(out, num_nodes=4000, dim=16, seed=3)  # noqa: E731
        status, before = in_child(job, os, "pwrite", call)
        assert os.WIFSIGNALED(status)
        status, after = in_child(job)
        assert status == 0
        assert gids.open(tmp_path / f"out{call}").id == expected.id
        assert rows_written(after) <= 4000 - rows_written(before) + 300


def test_file_size_limit(source, tmp_path):
    """A write that the kernel refuses is a clear error; nothing appears, and a later run completes."""

    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        with pytest.raises(DatasetError, match=os.strerror(errno.EFBIG)):
            convert(source, tmp_path / "out")

    assert in_child(limited)[0] == 0
    assert not (tmp_path / "out").exists()
    dataset = convert(source, tmp_path / "out")
    assert np.array_equal(stored_edges(dataset), by_destination(random_edges(N, N, E)))
    assert len(values(dataset.feature_table())) == N


@pytest.fixture
def small_disk(tmp_path):
    """A file system of a few hundred KiB."""
    mount = tmp_path / "disk"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", mount]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("mounting a tmpfs needs root")
    yield mount
    subprocess.run(["umount", "-l", mount], check=True)


@pytest.mark.parametrize("when", ["before", "while"])
def test_disk_full(source, small_disk, when):
    with pytest.MonkeyPatch.context() as patch:
        if when == "while":  # another program takes the space after the check
            patch.setattr(table_writer.TableWriter, "_require_space", lambda self: None)
        message = "No space left on device: free some space" if when == "while" else r"which has .* free|No space left"
        with pytest.raises(DatasetError, match=message):
            convert(source, small_disk / "out")
    assert not (small_disk / "out").exists()
    subprocess.run(["mount", "-o", "remount,size=20m", small_disk], check=True)
    assert gids.dataset.verify(convert(source, small_disk / "out")) == []


def test_killed_command(source, tmp_path):
    """The real thing, once: the command is killed from outside and given again."""
    command = [sys.executable, "-m", "gids", "convert", source, tmp_path / "out", "--quiet"]
    for _ in range(10):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        while not (tmp_path / ".out.partial").exists() and process.poll() is None:
            time.sleep(0.001)
        process.kill()
        if process.wait() == -signal.SIGKILL:
            break
        shutil.rmtree(tmp_path / "out")  # on a busy machine it was done before we looked again
    assert process.returncode == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    assert subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode == 0
    assert gids.dataset.verify(gids.open(tmp_path / "out")) == []
