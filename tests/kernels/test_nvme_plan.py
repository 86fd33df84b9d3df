"""From rows to commands of drives, lane by lane: every byte is read once and goes where its row belongs, whatever the map."""

from pathlib import Path

import numpy as np
import pytest

from gids import StorageError
from gids._native import NvmeFileMap
from gids.cuda.nvme import PARTS, GroupCommands, TablePlan
from gids.cuda.nvme_queues import READ
from gids.table import RowTable, Stripe

BLOCK = 512


class Disks:
    """Two drives, the files of a table on them, and a session's plan to read them."""

    def __init__(self, session, *, row_bytes, stride, files, stripe_rows, pieces, rows=400, **limits):
        counts = [sum(1 for r in range(rows) if r // stripe_rows % files == f) for f in range(files)]
        stripes = tuple(Stripe(Path(f"/nowhere/{f}"), 100 * f, count) for f, count in enumerate(counts))
        self.table = RowTable("t", "uint8", row_bytes, rows, stride, stripes, stripe_rows)
        random = np.random.default_rng(row_bytes)
        self.drives = [random.integers(0, 256, 1 << 20, np.uint8) for _ in range(2)]
        self.files, maps, used = [], [], [8 * BLOCK, 16 * BLOCK]
        for f, stripe in enumerate(stripes):
            size = -(-(stripe.data_offset + stripe.num_rows * stride) // BLOCK) * BLOCK
            content, extents = np.zeros(size, np.uint8), []
            for at in range(0, size, pieces):  # extents that take turns, with holes between them
                drive, length = (at // pieces + f) % 2, min(pieces, size - at)
                extents.append((at, length, used[drive], drive, 1 + drive))
                content[at : at + length] = self.drives[drive][used[drive] : used[drive] + length]
                used[drive] += length + BLOCK * (at // pieces % 3 == 0)
            self.files.append(content)
            maps.append(NvmeFileMap(extents))
        limits = {"block_bytes": BLOCK, "gap_bytes": 0, "max_bytes": 8 * BLOCK, "part_bytes": 32 * BLOCK} | limits
        self.limits = limits
        self.plan = TablePlan(session, self.table, maps, [[(7, 12), (1, 9)], [(2, 9)]], **limits)

    def rows(self, numbers):
        files, begins = self.table.places(numbers)
        return np.stack(
            [self.files[f][b : b + self.table.row_bytes] for f, b in zip(files.tolist(), begins.tolist(), strict=True)]
        )


def read(session, disks, numbers, first_part=0):
    """Make the commands, play the drives round by round, and unpack; returns the commands and the rows."""
    commands = GroupCommands(session, disks.plan, session.upload(numbers), first_part)
    reads, ranges = session.download(commands.reads).view(READ), session.download(commands.ranges)
    assert (ranges[0], ranges[-1]) == (0, commands.count)
    assert reads["bytes"].sum() == commands.bytes
    out = session.empty((len(numbers), disks.table.row_bytes), np.uint8)
    part_bytes = disks.limits["part_bytes"]
    for number in range(commands.rounds):
        staging = session.upload(np.full(PARTS * part_bytes, 0xEE, np.uint8))
        mine = reads[ranges[number] : ranges[number + 1]]
        begin = (first_part + number) % PARTS * part_bytes
        ends = mine["offset"] + mine["bytes"]
        assert (mine["offset"] >= begin).all()
        assert (ends <= begin + part_bytes).all()
        assert (mine["offset"][1:] >= ends[:-1]).all()  # no two overlap
        for one in mine:
            at, size = int(one["lba"]) * BLOCK, int(one["bytes"])
            session._bytes(staging)[int(one["offset"]) :][:size] = disks.drives[one["drive"]][at : at + size]
        commands.unpack(session, number, staging.pointer, out)
    assert (reads["nsid"] == reads["drive"] + 1).all()
    assert (reads["blocks"] * BLOCK == reads["bytes"]).all()
    assert reads["bytes"].max(initial=0) <= disks.limits["max_bytes"]
    return reads, session.download(out)


@pytest.mark.parametrize("gap", [0, 2 * BLOCK])
@pytest.mark.parametrize(
    "shape",
    [
        {"row_bytes": 64, "stride": 64, "files": 1, "stripe_rows": 400, "pieces": 5 * BLOCK},
        {"row_bytes": 100, "stride": 128, "files": 1, "stripe_rows": 400, "pieces": 1 << 20},
        {"row_bytes": 37, "stride": 37, "files": 3, "stripe_rows": 16, "pieces": BLOCK},
        {"row_bytes": 1024, "stride": 1024, "files": 2, "stripe_rows": 10, "pieces": 3 * BLOCK},
        {"row_bytes": 9000, "stride": 9000, "files": 1, "stripe_rows": 60, "pieces": 11 * BLOCK, "rows": 60},
    ],
    ids=["small", "padded", "striped", "cut by extents", "longer than a command"],
)
def test_every_row_arrives(session, shape, gap):
    disks = Disks(session, gap_bytes=gap, **shape)
    total = disks.table.num_rows
    numbers = np.unique(np.random.default_rng(gap).integers(0, total, total // 4))
    reads, got = read(session, disks, numbers, first_part=gap // BLOCK % 2)
    np.testing.assert_array_equal(got, disks.rows(numbers))
    assert len(reads) < (len(numbers) if shape["row_bytes"] < BLOCK else 10 * len(numbers))


def test_reads_are_merged_over_gaps_within_the_longest_command(session):
    """Rows of one block on one extent: windows of the drive are as long as a command less a row's block and one more."""
    disks = Disks(
        session, row_bytes=BLOCK, stride=BLOCK, files=1, stripe_rows=400, pieces=1 << 20, gap_bytes=BLOCK,
        part_bytes=1 << 20,
    )  # fmt: skip
    numbers = np.array([0, 2, 5, 6, 7, 20, 21, 22, 23, 24, 25, 26, 399])
    reads, got = read(session, disks, numbers)
    np.testing.assert_array_equal(got, disks.rows(numbers))
    # The extent begins at block 8, windows at multiples of 6 blocks: 8 to 10 | 13 and, from 14, 15 | 28, 29 | 30 on | ...
    begin = (reads["lba"] - 8).tolist()
    assert begin == [0, 5, 20, 22, 399]
    assert (reads["bytes"] // BLOCK).tolist() == [3, 3, 2, 5, 1]
    narrow = Disks(
        session, row_bytes=BLOCK, stride=BLOCK, files=1, stripe_rows=400, pieces=1 << 20, max_bytes=2 * BLOCK
    )
    assert len(read(session, narrow, numbers)[0]) == len(numbers)  # a window of nothing: none is merged


def test_one_row(session):
    disks = Disks(session, row_bytes=64, stride=64, files=1, stripe_rows=400, pieces=BLOCK)
    reads, got = read(session, disks, np.array([399]))
    assert len(reads) == 1
    np.testing.assert_array_equal(got, disks.rows(np.array([399])))


def test_a_map_that_ends_early_or_is_not_aligned_is_refused(session):
    table = RowTable("t", "uint8", 64, 100, 64, (Stripe(Path("/nowhere/f"), 0, 100),), 100)
    limits = {"block_bytes": BLOCK, "gap_bytes": 0, "max_bytes": 8 * BLOCK, "part_bytes": 32 * BLOCK}
    for extents in ([(0, 6000, 0, 0, 1)], [(0, 8192, 100, 0, 1)], [(0, 700, 0, 0, 1), (700, 8192, 1024, 0, 1)]):
        with pytest.raises(StorageError, match=r"ends early, or is not aligned.*nowhere/f"):
            TablePlan(session, table, [NvmeFileMap(extents)], [[(1, 9)]], **limits)


def test_a_row_that_is_not_there(session):
    disks = Disks(session, row_bytes=64, stride=64, files=1, stripe_rows=400, pieces=BLOCK)
    with pytest.raises(StorageError, match="must have every row"):
        GroupCommands(session, disks.plan, session.upload(np.array([3, 1 << 40])), 0)
