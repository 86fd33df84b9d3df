"""Where rows go, with literals: hot rows, segments, the order within a cache, regions, and sizes found by counting."""

import numpy as np
import pytest

from gids import _native
from gids.errors import ConfigError
from gids.pack import layout
from gids.pack.maker import disk_limit
from gids.pack.materialise import Episode, plan_episodes


def ids(*rows):
    return np.array(rows, np.uint32)


def test_hot_rows_are_those_wanted_most():
    counts = np.array([1, 5, 2, 0, 5, 9, 2], np.uint32)
    assert layout.choose_hot(counts, 10).tolist() == [5, 1, 4, 2, 6], "once is not worth memory"
    assert layout.choose_hot(counts, 4).tolist() == [5, 1, 4, 2], "ties by id"
    assert layout.choose_hot(counts, 1).tolist() == [5]
    assert layout.choose_hot(counts, 0).tolist() == []


@pytest.mark.parametrize("dtype", [np.uint32, np.int64])
def test_uses_are_counted_and_ids_beyond_the_table_refused(dtype):
    counts = np.zeros(5, np.uint32)
    for batch in ([0, 3, 4], [3]):
        _native.count_uses(np.array(batch, dtype), counts)
    assert counts.tolist() == [1, 0, 0, 2, 1]
    with pytest.raises(IndexError, match="ids must be rows of the table"):
        _native.count_uses(np.array([0, 5], dtype), counts)
    with pytest.raises(IndexError, match="ids must be rows of the table"):
        _native.mark_rows(np.array([5], dtype), 0, np.zeros(5, np.int32))


def test_rows_on_disk_by_segment():
    batches = [ids(0, 1, 2), ids(1, 2, 3), ids(0, 1), ids(1, 5)]
    hot = np.array([1])
    assert layout.distinct_rows(batches, 1, hot, 6) == 6
    assert layout.distinct_rows(batches, 2, hot, 6) == 5  # {0, 2, 3} and {0, 5}
    assert layout.distinct_rows(batches, 4, hot, 6) == 4


def test_the_smallest_segment_that_fits():
    sizes = {1: 100, 2: 80, 3: 70, 4: 60, 5: 55, 6: 52, 7: 51, 8: 50}
    asked = []

    def size_bytes(segment):
        asked.append(segment)
        return sizes[segment]

    assert layout.smallest_segment(8, size_bytes, None) == 1
    for limit, wanted in ((100, 1), (99, 2), (79, 3), (60, 4), (55, 5), (51, 7), (50, 8)):
        assert layout.smallest_segment(8, size_bytes, limit) == wanted
    with pytest.raises(ConfigError, match=r"disk must be at least 50 B \(50 bytes\)"):
        layout.smallest_segment(8, size_bytes, 49)


def test_rows_that_batches_share():
    batches = [ids(0, 1, 2, 9), ids(1, 2, 3), ids(2, 9)]
    assert layout.shared_rows(batches, 10).tolist() == [1, 2, 9]
    assert layout.shared_rows(batches[:1], 10).tolist() == []


def test_order_puts_rows_of_the_same_batches_together():
    batches = [ids(0, 2, 4, 6), ids(1, 3, 5, 7), ids(0, 2, 4, 6), ids(1, 3, 5, 7)]
    shared = layout.shared_rows(batches, 8)
    order, groups = layout.minhash_order(shared, batches, seed=0)
    assert groups.tolist() == [0, 4], "two signatures"
    assert {frozenset(shared[order][:4]), frozenset(shared[order][4:])} == {
        frozenset({0, 2, 4, 6}),
        frozenset({1, 3, 5, 7}),
    }
    assert (np.diff(shared[order][:4].astype(int)) > 0).all(), "rows of one signature ascend"


def test_a_segment_holds_every_row_where_its_positions_say():
    generator = np.random.default_rng(1)
    batches = [np.sort(generator.choice(200, 60, replace=False)).astype(np.uint32) for _ in range(5)]
    segment = layout.Segment(batches, 200, seed=3)
    sources = [segment.cached]
    positions = []
    for rows in batches:
        where, own = segment.add(rows)
        positions.append(where)
        sources.append(own)
    sources = np.concatenate(sources)
    assert segment.cached.tolist() != sorted(segment.cached), "in an order of its own"
    assert sorted(segment.cached) == layout.shared_rows(batches, 200).tolist()
    assert len(np.unique(sources)) == len(sources) == segment.rows == len(np.unique(np.concatenate(batches)))
    for rows, where in zip(batches, positions, strict=True):
        assert (sources[where] == rows).all()
    for begin, end in zip(segment.groups, [*segment.groups[1:], len(sources)], strict=True):
        assert (np.diff(sources[begin:end]) > 0).all(), "what is appended ascends"


def test_regions_are_cut_at_large_groups():
    large = layout.APPENDED_BYTES // 1024
    groups = np.array([0, 3, 5, 5 + large, 5 + 2 * large])
    end = 5 + 2 * large + 4
    assert layout.regions_of(10, groups, 10 + end, 1024) == [
        (10, True),  # two small groups, in any order
        (15, False),
        (15 + large, False),
        (15 + 2 * large, False),  # alone: it ascends however small it is
    ]
    many = np.arange(0, 3000)
    step = layout.PLACED_BYTES // 1024
    assert layout.regions_of(0, many, 3000, 1024) == [(0, True), (step, True), (2 * step, True)]
    assert layout.regions_of(7, np.empty(0, np.int64), 7, 8) == []


@pytest.mark.parametrize(
    ("row_bytes", "rows", "pages"),
    [
        (1024, [0, 1, 2, 3], 1),
        (1024, [0, 4, 5, 9], 3),
        (5000, [0, 1], 3),
        (80, [51], 2),
        (80, [], 0),
        (80, [50, 51], 2),
    ],
)
def test_pages(row_bytes, rows, pages):
    assert layout.pages_bytes(np.array(rows[::-1], np.int64), row_bytes) == pages * 4096


def test_episodes_are_as_few_as_the_memory_allows():
    regions = [(1000 * n, 1000 * (n + 1), False) for n in range(100)]  # about 1 MB each
    assert plan_episodes(regions, 1024, 1 << 30, "t") == [Episode(0, 100, 1 << 20)]
    few = plan_episodes(regions, 1024, 16 << 20, "t")
    assert few == [Episode(0, 100, 64 << 10)], "smaller buffers rather than another pass"
    several = plan_episodes(regions, 1024, 6 << 20, "t")
    assert len(several) > 1
    assert [e.first for e in several[1:]] == [e.last for e in several[:-1]]
    with pytest.raises(ConfigError, match="memory must be at least"):
        plan_episodes([(0, 100_000, True)], 1024, 8 << 20, "t")


def test_disk_limits():
    assert disk_limit(None, 10) is None
    assert disk_limit("3x", 10) == 30
    assert disk_limit("1.5X", 10) == 15
    assert disk_limit("1MiB", 10) == 1 << 20
    with pytest.raises(ConfigError, match="disk must be a size or a multiple"):
        disk_limit("ax", 10)
