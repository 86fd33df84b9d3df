"""What the window does not need stays by its popularity: same batches, more hits, memory counted and explained."""

import numpy as np
import pytest

from gids.budget.parts import cache_bytes
from gids.budget.split import POPULARITY_SHARE

from .conftest import make, same

OPTIONS = {"host_buffer": 0, "groups": "256KiB", "window": 1, "sweep_batches": 1, "batch_size": 16}


def run(graph, epochs=2, **options):
    """Batches of some epochs, the table's counters, rows of its cache, and what the loader says of it."""
    with make(graph, **OPTIONS | options).prepare() as loader:
        batches = [batch for _ in range(epochs) for batch in loader]
        stats = loader.stats()
        (store,) = loader.stores.values()
        return batches, stats.tables["_N/feat"], len(store.cache), "\n".join(stats.reasons), store.planner.memory_bytes


KNOWN, UNKNOWN = "popularity of rows beyond the window is known", "popularity of rows beyond the window is not known"


def test_same_batches_and_more_hits(graph):
    rows, row_bytes = graph.num_nodes(), graph.feature_table("_N").row_bytes
    memory = int(rows / POPULARITY_SHARE) + 1
    assert memory < cache_bytes(rows, row_bytes), "a cache that holds everything has nothing to choose"
    batches, counted, cached, said, held = run(graph, cache=memory)
    off, plain, plain_cached, plain_said, plain_held = run(graph, cache=memory, popularity=False)
    assert all(same(a, b) for a, b in zip(batches, off, strict=True))
    assert cached < plain_cached
    assert cached * (row_bytes + 64) + rows <= memory
    assert held - rows <= plain_held  # what it takes came out of the cache's rows
    assert counted.requests == plain.requests == counted.cache + counted.host + counted.disk + counted.duplicates
    assert counted.cache > plain.cache
    assert KNOWN in said
    assert "popularity" not in plain_said


def test_too_small_a_cache_goes_without_and_says_so(graph):
    assert UNKNOWN in run(graph, 1, cache="8KiB")[3]
    assert KNOWN in run(graph, 1, cache="8KiB", popularity=True)[3]


@pytest.mark.parametrize("options", [{"policy": "lru"}, {"host_rank": "random"}])
def test_nothing_to_know(graph, options):
    assert "popularity" not in run(graph, 1, cache="100KiB", **options)[3]


@pytest.mark.parametrize("host_rank", ["pagerank", "counted", "own"])
def test_any_ranking_will_do(graph, host_rank):
    given = np.arange(graph.num_nodes()) if host_rank == "own" else host_rank
    plain = run(graph, 1, cache="100KiB", popularity=False)
    ranked = run(graph, 1, cache="100KiB", host_rank=given)
    assert KNOWN in ranked[3]
    assert all(same(a, b) for a, b in zip(plain[0], ranked[0], strict=True))
