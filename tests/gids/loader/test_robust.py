"""A loader in bad weather: left early, interrupted, with a failing disk, forked, spawned, beside others. Nothing leaks."""

import gc
import itertools
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

import gids
from gids._native import huge_bytes
from gids.errors import StorageError
from gids.report.growth import resident_bytes
from gids.storage import StorageOptions
from tests.resources import DEADLINE_S, gids_threads, held, threads_left

from .conftest import make, same

pytestmark = pytest.mark.usefixtures("nothing_left")
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def expected(graph):
    with make(graph) as loader:
        return [list(loader), list(loader)]


@pytest.mark.parametrize("taken", [0, 1, 5])
def test_leaving_early_leaves_no_stale_batch(graph, expected, taken):
    with make(graph, cache="100KiB").prepare() as loader:
        for _ in range(5):
            loader.set_epoch(1)
            iterator = iter(loader)
            for _ in range(taken):
                next(iterator)
            del iterator
            assert threads_left() == []
            loader.set_epoch(0)
            assert all(same(a, b) for a, b in zip(loader, expected[0], strict=True))


def test_break_then_next_epoch(graph, expected):
    with make(graph) as loader:
        for _ in loader:
            break
        assert all(same(a, b) for a, b in zip(loader, expected[1], strict=True))


def test_an_exception_in_the_training_loop(graph, expected):
    with make(graph) as loader:
        with pytest.raises(ZeroDivisionError):
            [1 / 0 for _ in loader]
        loader.set_epoch(0)
        assert all(same(a, b) for a, b in zip(loader, expected[0], strict=True))


def test_dropping_a_loader_in_the_middle_of_an_epoch(graph):
    iterator = iter(make(graph))
    next(iterator)
    del iterator
    gc.collect()
    assert threads_left() == []


LEFT_EARLY = """
import sys, psutil, gids
from tests.resources import left_behind, settled
with gids.Loader(sys.argv[1], "train", fanouts=[4, 4], batch_size=64, budget="16MiB") as loader:
    for number in range(60):
        iterator = iter(loader)
        next(iterator)
        del iterator
        if number == 9:
            before, rss = settled(), psutil.Process().memory_info().rss
    print(sum(before.values()), dict(left_behind(before)), psutil.Process().memory_info().rss - rss, sep=";")
"""


@pytest.mark.parametrize("taken", [3, None])
def test_a_closed_loader_holds_none_of_its_memory(graph, taken):
    """Though it is still referred to, as are an iterator and the statistics of its last epoch: gc finds no cycle."""
    gc.collect()
    gc.disable()
    try:
        loader = gids.Loader(graph, "train", fanouts=[3, 3], batch_size=32, budget="16MiB").prepare()
        iterator = iter(loader)
        for _ in itertools.islice(iterator, taken):
            pass
        (store,) = map(weakref.ref, loader.stores.values())
        topology = weakref.ref(loader.topology)
        del _
        loader.close()
        assert store() is None
        assert topology() is None
        assert loader.stats().stages
    finally:
        gc.enable()


def test_the_memory_of_a_graph_goes_back_to_the_system():
    before = resident_bytes()
    array = huge_bytes(64 << 20)
    array[:] = 1
    assert resident_bytes() - before > 60 << 20
    del array
    assert resident_bytes() - before < 4 << 20


def test_many_epochs_left_early_use_no_more_memory_threads_or_files(graph):
    # In a process of its own: threads and files are counted for the whole process, other tests' included.
    command = [sys.executable, "-c", LEFT_EARLY, str(graph.path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S, check=True)
    held, left, growth = done.stdout.split(";")
    assert int(held) > 5  # the standard streams, the loader's own threads and files
    assert left == "{}"
    assert int(growth) < 16 << 20


def test_two_loaders_on_one_dataset_in_turns(graph, expected):
    with make(graph) as train, make(graph, seeds="val") as validate, make(graph) as other:
        val = list(validate)
        for epoch in range(2):
            got = [(a, b) for a, b in zip(train, other, strict=True)]  # at the same time
            assert all(same(a, e) and same(b, e) for (a, b), e in zip(got, expected[epoch], strict=True))
            validate.set_epoch(0)
            assert all(same(a, b) for a, b in zip(validate, val, strict=True))


def damaged_copy(graph, tmp_path):
    """A copy of the dataset and its feature file."""
    shutil.copytree(graph.path, tmp_path / "copy")
    copy = gids.open(tmp_path / "copy")
    return copy, copy.feature_table(None, "feat").stripes[0].path


@pytest.mark.parametrize("engine", ["uring", "pread"])
def test_a_storage_error_reaches_next_and_the_loader_can_be_used_again(graph, expected, tmp_path, engine):
    copy, path = damaged_copy(graph, tmp_path)
    whole = path.read_bytes()
    with make(copy, storage=engine, sweep_batches=1) as loader:
        loader.prepare()
        os.truncate(path, len(whole) // 2)
        with pytest.raises(StorageError) as error:
            list(loader)
        assert error.value.path == str(path)
        assert threads_left() == []
        path.write_bytes(whole)
        loader.set_epoch(0)
        assert all(same(a, b) for a, b in zip(loader, expected[0], strict=True))


def test_a_failing_epoch_delivers_no_wrong_row(graph, memory, tmp_path):
    def check(batch):
        assert torch.equal(batch.x, memory["feat"][batch.input_nodes])

    copy, path = damaged_copy(graph, tmp_path)
    storage = StorageOptions(merge_gap_bytes=0)
    with make(copy, sweep_batches=1, cache="100KiB", host_buffer=0, storage=storage).prepare() as loader:
        iterator = iter(loader)
        next(iterator)
        os.truncate(path, path.stat().st_size // 3)
        with pytest.raises(StorageError):
            [check(batch) for batch in iterator]


INTERRUPTED = """
import signal, sys, time, gids
signal.signal(signal.SIGINT, signal.default_int_handler)  # a parent in the background may have it ignored
loader = None
if sys.argv[2] != "without":
    loader = gids.Loader(sys.argv[1], "train", fanouts=[4, 4], batch_size=4, budget="64MiB")
try:
    while True:
        for batch in loader or [None]:
            print("batch", flush=True)
            if sys.argv[2] != "loading":
                time.sleep(60)
except KeyboardInterrupt:
    import threading
    del batch
    if loader:
        loader.close()
    left = [t.name for t in threading.enumerate() if t.name.startswith("gids")]
    print("interrupted", left, flush=True)
"""


def interrupt_seconds(dataset, where):
    """Interrupt a loader's process; return how long the loader took to be closed, with no thread left."""
    command = [sys.executable, "-c", INTERRUPTED, str(dataset), where]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        late = threading.Timer(60, process.kill)
        try:
            assert process.stdout.readline() == "batch\n"
            late.start()
            begin = time.monotonic()
            process.send_signal(signal.SIGINT)
            last = next((line for line in process.stdout if line != "batch\n"), "")
            took = time.monotonic() - begin
            assert process.wait(60) == 0
        finally:
            late.cancel()
            process.kill()
    assert last == "interrupted []\n"
    return took


@pytest.mark.parametrize("where", ["training", "loading"])
def test_ctrl_c_returns_within_a_second(graph, where):
    """Left alone, the training would sleep a minute. On a busy machine, what an interrupt takes without a loader counts."""

    def in_time():
        took = interrupt_seconds(graph.path, where)
        return took < 1 or took < 1 + 10 * interrupt_seconds(graph.path, "without")

    assert any(in_time() for _ in range(3))


UNFINISHED = """
import sys, gids
loader = gids.Loader(sys.argv[1], "train", fanouts=[4, 4], batch_size=4, budget="64MiB")
iterator = iter(loader)
next(iterator)
print("end")
"""


def test_the_interpreter_ends_in_the_middle_of_an_epoch(graph):
    done = subprocess.run(
        [sys.executable, "-c", UNFINISHED, str(graph.path)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


@pytest.mark.parametrize(("method", "used_before"), [("fork", False), ("fork", True), ("spawn", True)])
def test_dataloader_workers_share_the_batches(graph, expected, method, used_before):
    with make(graph) as loader:
        if used_before:
            assert same(next(iter(loader)), expected[0][0])
            loader.set_epoch(0)
        workers = DataLoader(loader, batch_size=None, num_workers=2, multiprocessing_context=method)
        got = list(workers)
        assert all(same(a, b) for a, b in zip(got, expected[0], strict=True))
        del workers, got


def test_fork_while_an_epoch_runs(graph, expected):
    with make(graph) as loader:
        iterator = iter(loader)
        next(iterator)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                loader.set_epoch(0)
                good = all(same(a, b) for a, b in zip(loader, expected[0], strict=True))
                status = 0 if good else 2
            finally:
                os._exit(status)
        rest = list(iterator)
        deadline = time.monotonic() + 120
        done = (0, 0)
        while done[0] == 0 and time.monotonic() < deadline:
            done = os.waitpid(child, os.WNOHANG)
            time.sleep(0.01)
        if done[0] == 0:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            pytest.fail("the child hangs")
        assert os.waitstatus_to_exitcode(done[1]) == 0
        assert all(same(a, b) for a, b in zip(rest, expected[0][1:], strict=True))


def test_threads_have_names(graph):
    with make(graph, batch_size=1) as loader:
        iterator = iter(loader)
        next(iterator)
        named = {f"task {name}" for name in ("gids-sample", "gids-plan", "gids-fetch")}
        assert named <= {f"task {name}" for name in gids_threads()} | held().keys()
        del iterator
