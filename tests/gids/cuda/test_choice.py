"""Which way `auto` takes to a device: expected reads against curves written down here."""

from dataclasses import replace

import pytest

from gids.cuda.choice import QUEUE_PAIRS, Estimate, Workload, choose, choose_engine, choose_submit
from gids.errors import ConfigError, DeviceError
from gids.storage import StorageOptions
from gids.storage.curve import ReadCost, modelled_curve
from gids.table import RowTable, Stripe

SLOW = modelled_curve(ReadCost(per_read_s=5e-6, per_byte_s=1 / 3e9), latency_us=80)  # a virtual disk
FAST = modelled_curve(ReadCost(per_read_s=0.1e-6, per_byte_s=1 / 14e9), latency_us=60)  # a PCIe 5 drive


def workload(curve, row_bytes, coverage, drives=1, **options):
    return Workload(row_bytes, coverage, drives, curve, StorageOptions(**options))


def test_small_scattered_reads_stay_with_uring():
    """10 % of 1 KiB rows, gaps of 14 KiB bridged: the drive is the limit either way, so nothing is gained."""
    load = workload(SLOW, 1024, 0.1)
    choice = choose("uring", {"uring": load.uring(), "gds": load.gds()})
    assert choice.name == "uring"
    assert "limit: the drives, by their curve (defaults)" in choice.reason
    assert "rather than gds" in choice.reason
    assert "expected, not measured" in choice.reason


def test_large_reads_of_fast_drives_go_by_gds():
    """Four drives of 14 GB/s bring more than a core copies, and reads are long enough for cuFile's cost of each."""
    load = workload(FAST, 4096, 1.0, drives=4, max_io_bytes=1 << 20)
    uring, gds = load.uring(), load.gds()
    assert uring.bound == "copies in host memory"
    assert uring.rows_per_second == pytest.approx(10e9 / 4096)
    assert gds.mean_read_bytes > 200 << 10
    assert gds.rows_per_second > 1.05 * uring.rows_per_second
    assert choose("uring", {"uring": uring, "gds": gds}).name == "gds"


def test_small_reads_of_fast_drives_pay_for_every_call_of_cufile():
    load = workload(FAST, 4096, 0.001, drives=4)
    assert load.gds().bound == "cuFile's reads"
    assert load.gds().rows_per_second == pytest.approx(1 / 4e-6, rel=0.01)
    assert load.gds(batches=False).rows_per_second == pytest.approx(1 / 10e-6, rel=0.01)
    assert choose("uring", {"uring": load.uring(), "gds": load.gds()}).name == "uring"


def test_a_little_more_is_not_worth_leaving_the_default():
    even = {"a": Estimate(100.0, 4096, "x"), "b": Estimate(104.0, 4096, "y")}
    assert choose("a", even).name == "a"
    assert choose("a", even | {"c": Estimate(106.0, 4096, "z")}).name == "c"


def test_kernels_pay_for_each_command_on_its_queue_pair():
    """6.3 M commands a second and pair: no limit beside drives of today, but with drives and a link that cost nothing."""
    free = modelled_curve(ReadCost(per_read_s=1e-9, per_byte_s=1e-12), latency_us=60)
    loads = [replace(workload(free, 512, 1e-4, drives=drives), link_bytes_s=1e12) for drives in (1, 4)]
    few, many = (load.nvme("gpu") for load in loads)
    assert many.bound == "commands of kernels"
    assert many.rows_per_second == pytest.approx(4 * QUEUE_PAIRS / (0.133 * 1.2e-6), rel=1e-3)
    assert few.rows_per_second == pytest.approx(many.rows_per_second / 4, rel=1e-3)
    assert "the drives" in workload(FAST, 512, 1e-4, drives=4).nvme("gpu").bound


@pytest.fixture
def table(tmp_path):
    (tmp_path / "rows").write_bytes(bytes(4096 * 64))
    return RowTable("t", "float32", 1024, 64, 4096, (Stripe(tmp_path / "rows", 0, 64),), 64)


def test_the_reason_names_what_cannot_be_used(table):
    choice = choose_engine(table, 1 << 16, StorageOptions(), "nvidia-fs is not loaded")
    assert (choice.name, choice.reason) == ("uring", "gds cannot be used: nvidia-fs is not loaded")


def test_who_submits_by_estimate_or_as_asked(table):
    asked = choose_submit(table, 1 << 16, StorageOptions(submit="gpu"))
    assert (asked.name, asked.reason) == ("gpu", "submit='gpu' was asked for")
    # One drive with the default curve: neither threads nor the link are the limit, and threads need no kernel that waits.
    assert choose_submit(table, 1 << 16, StorageOptions()).name == "cpu"
    load = workload(FAST, 4096, 0.9, drives=4)
    assert choose("cpu", {way: load.nvme(way) for way in ("cpu", "gpu")}).name == "gpu"
    refused = choose_submit(table, 1 << 16, StorageOptions(), "no atomics")
    assert (refused.name, refused.reason) == ("cpu", "kernels cannot queue them: no atomics")
    with pytest.raises(DeviceError, match="submit='gpu' cannot be had: no atomics"):
        choose_submit(table, 1 << 16, StorageOptions(submit="gpu"), "no atomics")
    with pytest.raises(ConfigError, match=r"submit must be one of auto, gpu, cpu \(got 'tpu'\)"):
        StorageOptions(submit="tpu")
