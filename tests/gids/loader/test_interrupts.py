"""Ctrl-C at every line of making, using and closing an iterator: the loader then works or says that it is closed."""

import gc
import linecache
import random
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

import pytest
import torch

import gids
from gids.errors import GidsError
from gids.generate import communities
from tests.resources import threads_left

PACKAGE = str(Path(gids.__file__).parent)
#: What opens and closes threads, files and memory; arithmetic of the budget has nothing to leave behind.
MACHINE = tuple(f"{PACKAGE}/{part}" for part in ("loader", "runtime", "tiers/store", "tiers/shared"))


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    """Small: what counts is how often it can be begun."""
    dataset = communities(tmp_path_factory.mktemp("tiny") / "g", num_nodes=400, degree=4, dim=8, train=0.3)
    dataset.indptr()
    return dataset


def open_loader(graph):
    pipeline = gids.PipelineOptions(window=1, sweep_batches=2, threads=1)
    memory = gids.MemoryOptions(cache="4KiB", host_buffer="2KiB", groups="64KiB")
    return gids.Loader(
        graph, "train", fanouts=[2, 2], batch_size=24, budget="16MiB", pipeline=pipeline, memory=memory
    ).prepare()


@pytest.fixture(scope="module")
def expected(graph):
    with open_loader(graph) as loader:
        return [(batch.input_nodes, batch.x) for batch in loader]


def is_with(file, line):
    """Whether a line is a ``with``: tracing stops there again just before it is left, where no signal is ever handled.

    CPython handles signals after calls and at jumps. Between the body of a ``with lock`` and the call that releases it
    there is neither, so an exception there would show what cannot be.
    """
    return linecache.getline(file, line).lstrip().startswith("with ")


class Interrupt:
    """Raises KeyboardInterrupt at the n-th line that the calling thread runs of the given files; counts lines."""

    def __init__(self, at, files=(PACKAGE,)):
        self.at, self.files, self.lines, self.where = at, files, 0, None

    def _global(self, frame, event, argument):
        return self._local if frame.f_code.co_filename.startswith(self.files) else None

    def _local(self, frame, event, argument):
        if event == "line" and not is_with(frame.f_code.co_filename, frame.f_lineno):
            self.lines += 1
            if self.lines == self.at:
                self.where = f"{frame.f_code.co_filename.removeprefix(PACKAGE)}:{frame.f_lineno}"
                raise KeyboardInterrupt
        return self._local

    def __enter__(self):
        self._before = sys.gettrace()
        sys.settrace(self._global)
        return self

    def __exit__(self, *exception):
        sys.settrace(self._before)


def take_two(loader):
    batches = iter(loader)
    next(batches)
    next(batches)
    batches.close()


def whole_epoch(loader):
    for _ in loader:
        pass


def dropped(loader):
    next(iter(loader))


def left_for_another(loader):
    batches = iter(loader)
    next(batches)
    next(iter(loader))


SCENARIOS = [take_two, whole_epoch, dropped, left_for_another]


@pytest.fixture
def quiet(monkeypatch):
    """An interrupt inside a finalizer goes nowhere: Python only mentions it."""

    def mention(unraisable):
        if not isinstance(unraisable.exc_value, KeyboardInterrupt):
            sys.__unraisablehook__(unraisable)
            pytest.fail(f"in a finalizer: {unraisable.exc_value!r}")

    monkeypatch.setattr(sys, "unraisablehook", mention)


def still_running():
    """Where the threads of gids are that are left; one that was begun as its run ended may be on its way out."""
    names, frames = threads_left(), sys._current_frames()
    left = [thread for thread in threading.enumerate() if thread.name in names and thread.ident in frames]
    return [(thread.name, *traceback.format_stack(frames[thread.ident])) for thread in left]


def check_usable(loader, expected, where):
    """The next epoch is whole and right, or the loader says that it is closed; nothing of it is left running."""
    try:
        loader.set_epoch(0)
        got = [(batch.input_nodes, batch.x) for batch in loader]
    except GidsError as error:
        if "closed" not in str(error):
            raise AssertionError(f"after an interrupt at {where}") from error
        return False
    assert len(got) == len(expected), where
    for (nodes, x), (their_nodes, their_x) in zip(got, expected, strict=True):
        assert torch.equal(nodes, their_nodes), where
        assert torch.equal(x, their_x), where
    assert still_running() == [], where
    return True


def sweep_lines(graph, expected, scenario, first, step):
    """Interrupt at lines first, first + step, … until the scenario ends before; returns how often."""
    loader, tries, at = open_loader(graph), 0, first
    try:
        while True:
            try:
                with Interrupt(at) as interrupt:
                    scenario(loader)
            except KeyboardInterrupt:
                pass
            if interrupt.where is None:
                return tries
            tries += 1
            assert check_usable(loader, expected, interrupt.where), interrupt.where
            at += step
    finally:
        loader.close()
        assert still_running() == []


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_an_interrupt_at_many_lines(graph, expected, scenario):
    assert sweep_lines(graph, expected, scenario, first=1 + SCENARIOS.index(scenario), step=7) > 30


@pytest.mark.long
@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_an_interrupt_at_every_line(graph, expected, scenario):
    assert sweep_lines(graph, expected, scenario, first=1, step=1) > 200


@pytest.mark.long
@pytest.mark.usefixtures("quiet")
def test_an_interrupt_while_a_loader_is_made_or_closed(graph, expected):
    """Closing may be interrupted; it is then done by the next call, and nothing is left."""
    at, tries = 1, 0
    while True:
        loader = None
        try:
            with Interrupt(at, MACHINE) as interrupt:
                loader = open_loader(graph)
                next(iter(loader))
                loader.close()
        except KeyboardInterrupt:
            pass
        if interrupt.where is None:
            break
        tries += 1
        if loader is not None:
            check_usable(loader, expected, interrupt.where)
            loader.close()
        del loader
        gc.collect()
        assert still_running() == [], interrupt.where
        at += 17
    assert tries > 20


@pytest.mark.usefixtures("quiet")
@pytest.mark.timeout(method="thread")
@pytest.mark.parametrize("seconds", [3, pytest.param(60, marks=pytest.mark.long)])
def test_a_storm_of_signals(graph, expected, seconds):
    """A handler that raises, at any instruction, again and again."""

    def interrupted(number, frame):
        raise KeyboardInterrupt

    rng, before = random.Random(5), signal.signal(signal.SIGALRM, interrupted)
    loader, tries = open_loader(graph), 0
    deadline = time.monotonic() + seconds
    try:
        while tries < 24 or time.monotonic() < deadline:
            scenario = SCENARIOS[tries % len(SCENARIOS)]
            try:
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, 0.02))
                scenario(loader)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                pass
            except RuntimeError as error:
                # Python's own Condition.wait can be interrupted while it does not hold its lock, and says this instead.
                if not isinstance(error.__context__, KeyboardInterrupt) or "lock" not in str(error):
                    raise
            tries += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
            assert check_usable(loader, expected, tries)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        loader.close()
    assert still_running() == []
