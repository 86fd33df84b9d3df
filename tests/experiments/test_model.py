"""The performance model: limits by hand, and the paper's figures within the error bars it prints."""

import pytest

from experiments.figures import model_fig09, model_fig10, model_fig13
from experiments.model import Drive, Load, Machine, accumulated, effective_bandwidth, fetch_seconds, mmap_seconds

DRIVE = Drive("toy", iops=1e6, bandwidth=2e9, latency_s=100e-6)
MACHINE = Machine("toy", DRIVE, drives=1, pcie=8e9, hbm=1e12, overhead_s=50e-6, fault_s=10e-6)


@pytest.mark.parametrize(("row_bytes", "rows_per_second"), [(512, 1e6), (2000, 1e6), (4000, 5e5)])
def test_drive_is_limited_by_iops_or_bandwidth(row_bytes, rows_per_second):
    assert DRIVE.rows_per_second(row_bytes) == rows_per_second


def test_each_resource_can_be_the_slowest():
    assert fetch_seconds(MACHINE, Load(1e6, 1000)) == pytest.approx(1.0 + 150e-6)  # disk
    assert fetch_seconds(MACHINE, Load(1e6, 1000, host_share=1.0)) == pytest.approx(0.125)  # PCIe
    assert fetch_seconds(MACHINE, Load(1e6, 1000, cache_share=1.0)) == pytest.approx(2e-3)  # memory
    assert mmap_seconds(MACHINE, Load(1e6, 1000, cache_share=0.5)) == pytest.approx(55.0)


def test_a_larger_group_hides_latency():
    one = Load(100, 1000)
    assert effective_bandwidth(MACHINE, accumulated(one, 64)) > 2 * effective_bandwidth(MACHINE, one)


def test_figure_9_explains_the_papers_bars_without_the_accumulator():
    results = model_fig09.run(model_fig09.CONFIG["full"])
    for (low, high), paper in zip(results["ingress_gb_s"]["BaM"], results["paper"]["BaM"], strict=True):
        assert low * 0.95 <= paper <= high * 1.05
    for gains, paper in zip(results["gids_gain"], results["paper_gain_gids"], strict=True):
        assert gains[0] <= paper <= gains[-1]


def test_figure_10_reaches_the_papers_baseline_and_ordering():
    optane = model_fig10.run(model_fig10.CONFIG["full"])["predicted_gb_s"]["A100 + 1 Optane"]
    assert optane["none"][1] == pytest.approx(6.6, rel=0.01)
    assert optane["20 % reverse PageRank"][1] > optane["20 % random"][1] > optane["10 % random"][1]


def test_figures_13_and_14_have_the_papers_best_speedups_within_a_quarter_of_their_bars():
    results = model_fig13.run({})
    for machine, papers in results["paper"].items():
        for loader, paper in papers.items():
            low, _, high = results["speedup_of_gids"][machine][loader]
            assert low <= paper <= high * 1.25, (machine, loader)
