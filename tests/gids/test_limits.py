"""A loader at the limits of a machine: the same batches, or an error that says what to raise. Each in its own process."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gids.generate import communities
from tests.resources import DEADLINE_S

SCRIPT = """
import hashlib, os, resource, sys
import gids
with gids.Loader(
    sys.argv[1], "train", fanouts=[3, 3], batch_size=64, budget="64MiB", storage=sys.argv[2],
    memory=gids.MemoryOptions(cache="32KiB", host_buffer="16KiB"),
) as loader:
    found = hashlib.sha256()
    for batch in loader.prepare():
        found.update(batch.input_nodes.numpy().tobytes() + batch.x.numpy().tobytes())
    print(found.hexdigest())
"""
LIMIT = """
import resource
resource.setrlimit(resource.RLIMIT_{name}, ({value}, {value}))
"""
FEWER = """
import os
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
"""
MANY = """
import os
os.sched_getaffinity = lambda pid: set(range(128))
os.cpu_count = lambda: 128
"""


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return communities(tmp_path_factory.mktemp("limits") / "d", num_nodes=3000, degree=5, dim=20, train=0.3)


def run(dataset, before="", engine="auto", command=(), preexec=None):
    return subprocess.run(
        [*command, sys.executable, "-c", before + SCRIPT, str(dataset.path), engine],
        capture_output=True, text=True, check=False, timeout=DEADLINE_S, preexec_fn=preexec,
    )  # fmt: skip


@pytest.fixture(scope="module")
def expected(dataset):
    done = run(dataset)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("engine", ["uring", "pread"])
@pytest.mark.parametrize(
    "before",
    [
        pytest.param(LIMIT.format(name="MEMLOCK", value=0), id="no locked memory"),
        pytest.param(LIMIT.format(name="NOFILE", value=64), id="64 files"),
        pytest.param(LIMIT.format(name="STACK", value=1 << 20), id="small stacks"),
        pytest.param(FEWER, id="one core"),
        pytest.param(MANY, id="128 cores"),
        pytest.param(LIMIT.format(name="FSIZE", value=1 << 20), id="small files"),
    ],
)
def test_it_works(dataset, expected, before, engine):
    done = run(dataset, before, engine)
    if engine == "uring" and "cannot be used" in done.stderr:
        pytest.skip("no io_uring here")
    assert (done.returncode, done.stdout) == (0, expected), done.stderr[-3000:]


@pytest.mark.parametrize("files", [8, 24])
def test_too_few_files_are_an_error_that_says_so(dataset, expected, files):
    """Python itself needs some; whatever is left, it is our error with the file, or it works."""
    done = run(
        dataset, "import torch, numpy, gids, gids.loader, gids.runtime\n" + LIMIT.format(name="NOFILE", value=files)
    )
    if done.returncode == 0:
        assert done.stdout == expected
        return
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("gids.errors."), done.stderr[-3000:]
    assert "Too many open files" in last


@pytest.fixture
def tasks():
    """A cgroup of version 1 or 2 that limits tasks; a function that sets the limit."""
    for place in (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup")):
        group = place / f"gids-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        if (group / "pids.max").exists():
            yield group
            group.rmdir()
            return
        group.rmdir()
    pytest.skip("no cgroup that limits tasks can be made here (needs root)")


LONG = [pytest.param(limit, marks=pytest.mark.long) for limit in (2, 3, 4, 6, 8)]


@pytest.mark.parametrize("engine", ["uring", "pread"])
@pytest.mark.parametrize("limit", [1, 5, 10, *LONG])
def test_few_threads(dataset, expected, tasks, limit, engine):
    """From the first import on there are at most so many: it works with fewer, or says what to raise; it never hangs."""
    (tasks / "pids.max").write_text("max")
    # Limited once everything is imported: the numerical libraries end the process where they get no threads.
    here = "import torch, gids, gids.loader, gids.runtime, sys\ntorch.set_num_threads(1)\n"
    here += f"open({str(tasks / 'cgroup.procs')!r}, 'w').write('0')\nopen({str(tasks / 'pids.max')!r}, 'w').write('{limit}')\n"
    done = run(dataset, here, engine)
    if done.returncode == 0:
        assert done.stdout == expected
        return
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("gids.errors."), done.stderr[-3000:]
    assert "RLIMIT_NPROC" in last
    assert limit < 10, "enough for the stages, one I/O thread and one that prepares"


def test_a_small_shared_memory(dataset, expected):
    command = ["unshare", "--map-root-user", "--mount", "sh", "-ec"]
    small = "mount -t tmpfs -o size=4k none /dev/shm; "
    if (
        shutil.which("unshare") is None
        or subprocess.run([*command, small], capture_output=True, check=False).returncode
    ):
        pytest.skip("mount namespaces are not allowed here (unshare --map-root-user --mount)")
    done = run(dataset, command=[*command, small + 'exec "$@"', "sh"])
    if done.returncode == 0:
        assert done.stdout == expected
        return
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("gids.errors.")
    assert "/dev/shm" in last
