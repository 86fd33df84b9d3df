"""Merged reads and the kernel that unpacks them: whatever the gaps, stripes and limits, every row is where it belongs."""

from pathlib import Path

import numpy as np
import pytest

from gids.cuda.arena import SlotAllocator
from gids.cuda.array import DeviceArray
from gids.cuda.device_reader import pack_rounds, unpack
from gids.cuda.gds import prepare_reads, split_plan
from gids.storage import PlanLimits, plan_reads
from gids.table import RowTable, Stripe

NONE = np.empty(0, np.int64)


def make(row_bytes, stride, files, stripe_rows, rows=400):
    """Return a table and the bytes of its files, which need not exist."""
    counts = [sum(1 for r in range(rows) if r // stripe_rows % files == f) for f in range(files)]
    stripes = tuple(Stripe(Path(f"/nowhere/{f}"), 100 * f, count) for f, count in enumerate(counts))
    table = RowTable("t", "uint8", row_bytes, rows, stride, stripes, stripe_rows)
    random = np.random.default_rng(row_bytes)
    return table, [random.integers(0, 256, s.data_offset + s.num_rows * stride + 8192, np.uint8) for s in stripes]


def expected(table, contents, rows):
    out = np.empty((len(rows), table.row_bytes), np.uint8)
    for i, row in enumerate(rows):
        unit, within = divmod(int(row), table.stripe_rows)
        local, file = divmod(unit, len(table.stripes))
        at = table.stripes[file].data_offset + (local * table.stripe_rows + within) * table.row_stride
        out[i] = contents[file][at : at + table.row_bytes]
    return out


def fill(contents, file, offset, length, target, to):
    for f, at, count, place in zip(file, offset, length, target, strict=True):
        to[place : place + count] = contents[f][at : at + count]


@pytest.mark.parametrize("gap", [0, 700])
@pytest.mark.parametrize(
    ("row_bytes", "stride", "files", "stripe_rows"),
    [(64, 64, 1, 400), (100, 128, 1, 400), (37, 37, 3, 16), (9000, 9000, 2, 10)],
)
def test_every_row_is_unpacked(session, row_bytes, stride, files, stripe_rows, gap):
    table, contents = make(row_bytes, stride, files, stripe_rows)
    rows = np.unique(np.random.default_rng(gap).integers(0, 400, 90))
    plan = plan_reads(table, rows, PlanLimits(512, gap, 8192))
    to = np.random.default_rng(9).permutation(len(rows)) * row_bytes
    rounds = pack_rounds(table, plan, np.arange(plan.num_reads), to, 32 << 10, 512)
    assert all(r.region_bytes <= 32 << 10 for r in rounds)
    assert sum(len(r.offset) for r in rounds) == plan.num_reads
    out = session.upload(np.full(rows.size * row_bytes, 0xEE, np.uint8))
    for r in rounds:
        region = np.full(32 << 10, 0xDD, np.uint8)
        fill(contents, r.file, r.offset, r.length, r.target, region)
        unpack(session, r, session.upload(region), out)
    got = session.download(out).reshape(-1, row_bytes)[to // row_bytes]
    assert np.array_equal(got, expected(table, contents, rows))


@pytest.mark.parametrize(
    ("row_bytes", "stride", "files", "stripe_rows", "gap", "straight"),
    [
        (4096, 4096, 1, 400, 0, "all"),
        (1024, 1024, 1, 400, 0, "some"),  # runs of rows that are whole pages
        (4096, 4096, 1, 400, 9000, "some"),  # not what was read over gaps
        (4096, 4096, 3, 16, 0, "some"),  # the rows of two files begin at bytes 100 and 200
        (32768, 32768, 1, 400, 0, "all"),  # each row in two reads
        (3072, 4096, 1, 400, 0, "none"),
        (20_000, 20_000, 2, 10, 700, "none"),
        (100, 128, 1, 400, 700, "none"),
    ],
)
def test_whole_pages_of_rows_go_straight_to_their_slots(session, row_bytes, stride, files, stripe_rows, gap, straight):
    table, contents = make(row_bytes, stride, files, stripe_rows)
    rows = np.unique(np.concatenate([np.arange(40, 60), np.random.default_rng(1).integers(0, 400, 40)]))
    prepared = prepare_reads(table, rows, PlanLimits(4096, gap, 16384))
    slots = SlotAllocator(100)
    slots.take(3, NONE, NONE)
    to = np.empty(len(rows), np.int64)
    to[prepared.plan.positions] = slots.take(len(rows), prepared.run_begin, prepared.run_length, prepared.unit)
    to *= row_bytes
    direct, rest = split_plan(table, prepared.plan, DeviceArray(0, (100 * row_bytes,), np.uint8, None), to)
    assert len(direct.file) + len(rest) == prepared.plan.num_reads
    assert (straight != "none") == (len(direct.file) > 0)
    assert (straight != "all") == (len(rest) > 0)
    assert not ((direct.offset | direct.length | direct.target) % 4096).any()
    out = np.full(100 * row_bytes, 0xEE, np.uint8)
    fill(contents, direct.file, direct.offset, direct.length, direct.target, out)
    on_device = session.upload(out)
    for r in pack_rounds(table, prepared.plan, rest, to, 64 << 10, 4096):
        region = np.empty(64 << 10, np.uint8)
        fill(contents, r.file, r.offset, r.length, r.target, region)
        unpack(session, r, session.upload(region), on_device)
    got = session.download(on_device).reshape(-1, row_bytes)[to // row_bytes]
    assert np.array_equal(got, expected(table, contents, rows))
