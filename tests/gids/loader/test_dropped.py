"""Loaders that are dropped without ``close()``: threads, descriptors, maps and shared memory go with them."""

import gc
import re
from collections import Counter
from pathlib import Path

import pytest

from tests.resources import left_behind, settled

from .conftest import make

SHARED = re.compile(r"/dev/shm/gids-[0-9a-f]{24}")


def maps(dataset):
    """What this process maps of shared memory and of a dataset, by path."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    paths = [line.split(maxsplit=5)[5] for line in lines if len(line.split(maxsplit=5)) == 6]
    return Counter(path for path in paths if SHARED.match(path) or path.startswith(str(dataset.path)))


def never_iterated(graph):
    """Prepare only."""
    return make(graph, host_buffer="60KiB", cache="20KiB").prepare()


def in_the_middle(graph):
    """Leave an iterator behind, with batches under way."""
    loader = never_iterated(graph)
    iterator = iter(loader)
    next(iterator)
    return loader, iterator


def at_the_end(graph):
    """Finish two epochs."""
    loader = never_iterated(graph)
    return loader, len(list(loader)), len(list(loader))


@pytest.mark.parametrize("use", [never_iterated, in_the_middle, at_the_end])
def test_a_dropped_loader_leaves_nothing(graph, use):
    before, mapped = settled(), maps(graph)
    for _ in range(3):
        dropped = use(graph)
        shared = [path for path in maps(graph) if SHARED.match(path)]
        assert len(shared) == 1, "the host buffer lies in shared memory: there is something to leave"
        assert any(SHARED.search(name) for name in settled()), "and its descriptor holds the lock on it"
        del dropped
        gc.collect()
        assert not left_behind(before)
        assert maps(graph) == mapped
        assert not Path(shared[0]).exists()


def test_several_are_dropped_at_once(graph):
    before, mapped = settled(), maps(graph)
    loaders = [make(graph, host_buffer=size, cache="20KiB").prepare() for size in ("60KiB", "60KiB", "40KiB")]
    shared = [path for path in maps(graph) if SHARED.match(path)]
    assert len(shared) == 2, "equal buffers are shared"
    del loaders[0]
    gc.collect()
    assert all(Path(path).exists() for path in shared), "the other loader still uses it"
    loaders.clear()
    gc.collect()
    assert not left_behind(before)
    assert maps(graph) == mapped
    assert not any(Path(path).exists() for path in shared)
