"""The read planner: literals for every rule, and a NumPy oracle for arbitrary rows."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gids import ConfigError, RowTable, Stripe
from gids.storage import PlanLimits, plan_reads


def table(dim=256, num_rows=1000, stride=None, offset=0, dtype="float32", files=1, stripe_rows=None):
    item = {"float32": 4, "float16": 2, "int32": 4}[dtype]
    stripe_rows = stripe_rows or max(num_rows, 1)
    counts = [0] * files
    for row in range(0, num_rows, stripe_rows):
        counts[row // stripe_rows % files] += min(stripe_rows, num_rows - row)
    stripes = tuple(Stripe(Path(f"f{i}"), offset, count) for i, count in enumerate(counts))
    return RowTable("t", dtype, dim, num_rows, stride or dim * item, stripes, stripe_rows)


def ranges(plan):
    return [(read.file, read.offset, read.length) for read in plan.reads]


def test_no_rows():
    plan = plan_reads(table(), [])
    assert (plan.num_reads, plan.num_rows, plan.num_unique) == (0, 0, 0)


def test_sorted_and_deduplicated():
    plan = plan_reads(table(), [7, 2, 7])
    assert plan.reads == [(0, 2048, 1024, 0, 1), (0, 7168, 1024, 1, 2)]
    assert plan.rows.tolist() == [2, 7, 7]
    assert plan.positions.tolist() == [1, 0, 2]
    assert plan.num_unique == 2


def test_neighbours_become_one_read():
    assert ranges(plan_reads(table(), [3, 4, 5])) == [(0, 3072, 3072)]


@pytest.mark.parametrize(("gap", "expected"), [(2047, [(0, 0, 1024), (0, 3072, 1024)]), (2048, [(0, 0, 4096)])])
def test_gap_decides(gap, expected):
    assert ranges(plan_reads(table(), [0, 3], PlanLimits(merge_gap_bytes=gap))) == expected


def test_split_at_the_longest_read():
    plan = plan_reads(table(), range(7), PlanLimits(max_io_bytes=3072))
    assert ranges(plan) == [(0, 0, 3072), (0, 3072, 3072), (0, 6144, 1024)]
    assert plan.count.tolist() == [3, 3, 1]


def test_rows_straddle_blocks():
    # 100-byte rows: row 5 is bytes 500..600, which touch blocks 0 and 1.
    plan = plan_reads(table(dim=25), [5])
    assert ranges(plan) == [(0, 0, 1024)]
    assert ranges(plan_reads(table(dim=25), [0])) == [(0, 0, 512)]


def test_rows_that_share_a_block_share_a_read():
    assert ranges(plan_reads(table(dim=25), [0, 4])) == [(0, 0, 512)]


def test_header_is_honoured():
    assert ranges(plan_reads(table(dim=128, offset=128), [0])) == [(0, 0, 1024)]


def test_stride_is_honoured():
    assert ranges(plan_reads(table(dim=100, stride=4096), [2])) == [(0, 8192, 512)]


def test_block_of_one_byte_reads_exactly_the_row():
    assert ranges(plan_reads(table(dim=25, offset=3), [2], PlanLimits(block_bytes=1))) == [(0, 203, 100)]


def test_long_rows_are_cut():
    # 6000-byte rows, reads of at most 2048 bytes: row 1 is bytes 6000..12000.
    plan = plan_reads(table(dim=1500), [1], PlanLimits(max_io_bytes=2048))
    assert ranges(plan) == [(0, 5632, 2048), (0, 7680, 2048), (0, 9728, 2048), (0, 11776, 512)]
    assert plan.row_begin.tolist() == [0, 1680, 3728, 5776]
    assert plan.row_end.tolist() == [1680, 3728, 5776, 6000]


def test_values_are_never_cut():
    # The data begins at an odd byte, so block boundaries fall inside values; the cut moves back to a multiple of 8.
    plan = plan_reads(table(dim=1500, offset=3), [0], PlanLimits(max_io_bytes=2048))
    assert (plan.row_begin % 8 == 0).all()
    assert plan.row_begin[1:].tolist() == plan.row_end[:-1].tolist()


def test_stripes_take_turns():
    striped = table(num_rows=8, files=2, stripe_rows=2)
    # File 0 has rows 0 1 4 5, file 1 has rows 2 3 6 7; a 2048-byte limit keeps pairs apart.
    plan = plan_reads(striped, range(8), PlanLimits(max_io_bytes=2048))
    assert ranges(plan) == [(0, 0, 2048), (1, 0, 2048), (0, 2048, 2048), (1, 2048, 2048)]
    assert plan.rows.tolist() == [0, 1, 4, 5, 2, 3, 6, 7]


def test_units_of_one_stripe_merge_across_the_others():
    assert ranges(plan_reads(table(num_rows=8, files=2, stripe_rows=2), [1, 4])) == [(0, 1024, 2048)]


@pytest.mark.parametrize("row", [-1, 1000, 2**62])
def test_refuses_rows_outside(row):
    with pytest.raises(ConfigError, match=rf"\[0, 1000\).*got {row} at position 1"):
        plan_reads(table(), [0, row])


@pytest.mark.parametrize(
    ("limits", "word"),
    [
        (PlanLimits(block_bytes=500), "power of two"),
        (PlanLimits(max_io_bytes=1024), "at least 4 blocks"),
        (PlanLimits(max_io_bytes=4097), "multiple of the block"),
    ],
)
def test_refuses_limits(limits, word):
    with pytest.raises(ConfigError, match=word):
        plan_reads(table(), [0], limits)


@pytest.mark.parametrize("rows", [np.zeros((2, 2), int), np.array([0.5]), ["a"]])
def test_refuses_what_is_no_row_list(rows):
    with pytest.raises(ConfigError, match="one-dimensional integers"):
        plan_reads(table(), rows)


@settings(max_examples=150, deadline=None)
@given(
    rows=st.lists(st.integers(0, 299), max_size=120),
    dim=st.sampled_from([1, 3, 25, 100, 128, 700]),
    offset=st.sampled_from([0, 3, 128]),
    block=st.sampled_from([1, 512, 4096]),
    gap=st.sampled_from([0, 600, 20000]),
    max_io=st.sampled_from([16384, 65536]),
    files=st.integers(1, 3),
)
def test_every_byte_of_every_row_is_served(rows, dim, offset, block, gap, max_io, files):
    rowtable = table(dim=dim, num_rows=300, offset=offset, files=files, stripe_rows=7 if files > 1 else 300)
    plan = plan_reads(rowtable, rows, PlanLimits(block, gap, max_io))
    assert sorted(rows) == sorted(plan.rows.tolist())
    assert [rows[p] for p in plan.positions] == plan.rows.tolist()
    assert plan.num_unique == len(set(rows))
    served = np.zeros(len(rows), dtype=int)
    for i in range(plan.num_reads):
        begin, end = plan.offset[i], plan.offset[i] + plan.length[i]
        assert begin % block == 0
        assert plan.length[i] % block == 0
        assert plan.length[i] <= max_io
        for entry in range(plan.first[i], plan.first[i] + plan.count[i]):
            file, at = rowtable.locate(int(plan.rows[entry]))
            assert file == plan.file[i]
            assert begin <= at + plan.row_begin[i]
            assert at + plan.row_end[i] <= end
            served[entry] += plan.row_end[i] - plan.row_begin[i]
    assert (served == rowtable.row_bytes).all()


@pytest.mark.parametrize("spread", [200, 10**6, 10**12])
def test_many_rows_sort_like_numpy(spread):
    rows = np.random.default_rng(0).integers(0, spread, 300_000)
    plan = plan_reads(table(dim=1, num_rows=spread), rows, PlanLimits(merge_gap_bytes=4096))
    order = np.argsort(rows, kind="stable")
    np.testing.assert_array_equal(plan.rows, rows[order])
    np.testing.assert_array_equal(plan.positions, order)


def test_skewed_rows_sort_like_numpy():
    generator = np.random.default_rng(1)
    rows = np.concatenate([generator.integers(0, 5000, 200_000), generator.integers(0, 10**9, 100)])
    plan = plan_reads(table(dim=1, num_rows=10**9), rows)
    np.testing.assert_array_equal(plan.rows, np.sort(rows))
