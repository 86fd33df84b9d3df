"""The real VFIO code in a booted guest: the kernel's driver gives the drive up, a table is read end to end."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from guest import boot
from nvme_qemu import needs_qemu

pytestmark = [needs_qemu, pytest.mark.nvme, pytest.mark.slow, pytest.mark.xdist_group("nvme")]


def check(said, rows):
    text = "\n".join(said)
    assert "drive 0000:00:04.0 serial gids-guest mdts 524288 queues 4 depth 256 notes []" in said, text
    assert "unaligned target: own buffers" in said, text
    assert any(line.startswith(f"rows {rows + 100} threads 1 ") for line in said), text
    # Rows that lie apart are read one by one: the drive really answered that many commands.
    scattered = next(line for line in said if " threads 2 " in line).split()
    assert int(scattered[scattered.index("reads") + 1]) >= rows // 5, text
    assert "unmapped memory stayed as it was" in said, text
    assert "closed: closed" in said, text


def test_a_table_is_read_through_vfio(tmp_path):
    check(boot(tmp_path, rows=3000, row_bytes=4100, drive_offset=1 << 20), 3000)


@pytest.mark.long
def test_a_larger_table_is_read_through_vfio(tmp_path):
    check(boot(tmp_path, rows=40_000, row_bytes=4100, drive_offset=7 << 20), 40_000)
