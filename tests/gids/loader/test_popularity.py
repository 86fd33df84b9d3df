"""What the window does not need stays by its popularity: same batches, more hits, memory counted and explained."""

import numpy as np
import pytest

from gids.tiers.budget import POPULARITY_SHARE, cache_bytes

from .test_loader import make, same

OPTIONS = {"host_buffer": 0, "groups": "256KiB", "window": 1, "max_group": 1, "batch_size": 16}


def run(graph, epochs=2, **options):
    """Batches of some epochs, the table's counters, its share of the budget, and what the loader says of it."""
    with make(graph, **OPTIONS | options) as loader:
        batches = [batch for _ in range(epochs) for batch in loader]
        stats = loader.stats()
        (store,) = loader._engine.table_set.stores.values()
        (share,) = loader._engine.division.shares.values()
        held = store.store.planner.memory_bytes
        return batches, stats.tables["_N/feat"], share, "\n".join(stats.reasons), held


def test_same_batches_and_more_hits(graph):
    rows, row_bytes = graph.num_nodes(), graph.feature_table("_N").row_bytes
    memory = int(rows / POPULARITY_SHARE) + 1
    assert memory < cache_bytes(rows, row_bytes), "a cache that holds everything has nothing to choose"
    batches, counted, share, said, held = run(graph, cache=memory)
    off, plain, plain_share, plain_said, plain_held = run(graph, cache=memory, popularity=False)
    assert all(same(a, b) for a, b in zip(batches, off, strict=True))
    assert (share.popular, plain_share.popular) == (True, False)
    assert share.cache_rows * (row_bytes + 64) + rows <= memory
    assert held - rows <= plain_held  # what it takes came out of the cache's rows
    assert counted.requests == plain.requests == counted.cache + counted.host + counted.disk + counted.duplicates
    assert counted.cache > plain.cache
    assert "popularity of rows beyond the window is known" in said
    assert "popularity" not in plain_said


def test_too_small_a_cache_goes_without_and_says_so(graph):
    _, _, share, said, _ = run(graph, 1, cache="8KiB")
    assert not share.popular
    assert "popularity of rows beyond the window is not known" in said
    _, _, share, said, _ = run(graph, 1, cache="8KiB", popularity=True)
    assert share.popular
    assert "is known" in said


@pytest.mark.parametrize("options", [{"policy": "lru"}, {"host_rank": "random"}])
def test_nothing_to_know(graph, options):
    _, _, share, said, _ = run(graph, 1, cache="100KiB", **options)
    assert not share.popular
    assert "popularity" not in said


@pytest.mark.parametrize("host_rank", ["pagerank", "counted", "own"])
def test_any_ranking_will_do(graph, host_rank):
    given = np.arange(graph.num_nodes()) if host_rank == "own" else host_rank
    plain = run(graph, 1, cache="100KiB", popularity=False)
    ranked = run(graph, 1, cache="100KiB", host_rank=given)
    assert ranked[2].popular
    assert all(same(a, b) for a, b in zip(plain[0], ranked[0], strict=True))
