"""Dividing a budget by rule, with literal numbers; a device's memory; and that a refusal names exactly what would do."""

import re
from pathlib import Path

import pytest

from gids import RowTable, Stripe
from gids.budget import Demand, Memory, Pace, Request, TableDemand, divide
from gids.budget.parts import Allotment, cache_bytes, host_bytes, rows_within
from gids.errors import ConfigError
from gids.storage.curve import DEFAULT_CURVE
from gids.types import TableKey

FEAT = TableKey("_N", "feat")
GIB = 1 << 30


def table_of(num_rows, dim, dtype="uint8", item=1):
    stripes = (Stripe(Path("memory"), 0, num_rows),)
    return RowTable("feat", dtype, dim, num_rows, dim * item, stripes, num_rows)


SMALL = table_of(10_000, 10)
DEMAND = Demand(
    {FEAT: TableDemand(rows=100, row_bytes=10, out_row_bytes=20, num_rows=10_000)},
    sample_bytes=30,
    topology_bytes=300,
    labels_bytes=100,
)
ALONE = Pace(prefetch=1, groups_in_flight=1)
FIXED = Request(window=2, sweep_batches=1, staging=100)
# 300 of topology, 100 of labels, 100 of staging; 3 batches in delivery of 100 x 20 bytes; 11 samples of 30 bytes (2 of
# the window and the one that follows, 1 that shares reads, 1 in flight, 2 + 1 just made, 1 + 2 delivered), of which 5 wait with 60 bytes of
# each of their 100 rows.
NEEDED = 300 + 100 + 100 + 3 * 2000 + 11 * 30 + 5 * 100 * 60


def divided(budget, request=FIXED, demand=DEMAND, pace=ALONE, table=SMALL, device=None, **more):
    return divide(Memory(budget, device), demand, {FEAT: table}, request, pace, curve=DEFAULT_CURVE, **more)


def least_of(error):
    return int(re.search(r"\((\d+) bytes\)", str(error.value)).group(1))


def test_the_parts_are_what_they_are_said_to_be():
    got = divided(NEEDED + 1000 + 4000)
    parts = got.allotment
    assert (parts.topology, parts.labels, parts.staging, parts.outputs) == (300, 100, 100, 6000)
    assert (parts.samples, parts.groups, parts.cache, parts.host_buffer) == (30_330, 1000, 4000, 0)
    assert parts.total == parts.budget
    assert (got.window, got.group_batches, got.sweep_groups, got.prefetch, got.groups_in_flight) == (2, 1, 1, 1, 1)
    assert got.shares[FEAT].cache_rows == rows_within(4000, 10, 10_000)


def test_the_least_budget_holds_one_batch_and_no_cache():
    parts = divided(NEEDED + 1000).allotment
    assert (parts.groups, parts.cache) == (1000, 0)
    with pytest.raises(ConfigError, match=rf"budget must be at least .* \({NEEDED + 1000} bytes\).*topology 300 B"):
        divided(NEEDED + 999)


def test_explicit_numbers_win():
    request = Request(cache=1500, host_buffer=700, groups=1200, window=2, sweep_batches=1, staging=100)
    parts = divided(NEEDED + 9000, request).allotment
    assert (parts.cache, parts.host_buffer, parts.groups) == (1500, 700, 1200)
    with pytest.raises(ConfigError, match=r"cache 1\.5 KiB"):
        divided(NEEDED + 3000, request)


def test_plenty_of_memory_takes_no_more_than_can_be_used():
    got = divided(10**9, Request(window=2, sweep_batches=8, staging=100))
    assert got.allotment.groups == 1000 * (8 // 2 + 2), "half of the batches that share each read, and two besides"
    assert got.allotment.cache == cache_bytes(10_000, 10)
    assert got.shares[FEAT].cache_rows == 10_000
    assert got.reasons == ("every table fits in the cache",)


def test_half_of_the_batches_that_share_each_read_are_held_and_two_besides():
    assert [Pace().held_batches(together) for together in (1, 2, 8, 9, 32)] == [1, 3, 6, 6, 18]
    assert [Pace(sweeps=False).held_batches(together) for together in (1, 2, 8)] == [2, 4, 16]


def test_window_and_groups_never_exceed_the_epoch():
    got = divided(10**9, Request(), Demand(DEMAND.tables, sample_bytes=30, batches=3))
    assert got.window <= 3
    assert got.group_batches * got.sweep_groups <= 3


def test_what_was_left_open_shrinks_before_a_budget_is_refused():
    """Down to the least there is: no window, one batch read at a time, the least staging, one batch ahead, one group."""
    pace = Pace(prefetch=4, groups_in_flight=3)
    roomy = divided(10**9, Request(), pace=pace)
    assert (roomy.window, roomy.prefetch, roomy.groups_in_flight) == (16, 4, 3)
    with pytest.raises(ConfigError, match="budget must be at least") as error:
        divided(10_000, Request(), pace=pace)
    least = least_of(error)
    got = divided(least, Request(), pace=pace)
    assert (got.window, got.group_batches, got.sweep_groups, got.prefetch, got.groups_in_flight) == (0, 1, 1, 1, 1)
    assert got.allotment.staging == 1 << 20
    with pytest.raises(ConfigError, match=rf"\({least} bytes\)"):
        divided(least - 1, Request(), pace=pace)
    windows = [divided(least + extra, Request(), pace=pace).window for extra in (0, 10**5, 10**6, 10**7)]
    assert windows == sorted(windows)
    assert windows[-1] == 16


def test_what_the_user_fixed_does_not_shrink():
    with pytest.raises(ConfigError, match="budget must be at least") as error:
        divided(10_000, Request(window=5, sweep_batches=4, staging=3 << 20))
    got = divided(least_of(error), Request(window=5, sweep_batches=4, staging=3 << 20))
    assert (got.window, got.group_batches * got.sweep_groups, got.allotment.staging) == (5, 4, 3 << 20)


# The paper's setting: batches of a million rows of 4 KiB from IGB-Full's 269 M, 8 GiB of cache, a device of 40 GB.
PAPER = table_of(269_000_000, 1024, "float32", 4)
PAPER_DEMAND = Demand({FEAT: TableDemand.of(PAPER, 1_000_000, 4)}, sample_bytes=100 << 20)
DEVICE = Pace(sweeps=False, plan_row_bytes=100, scratch_bytes=64 << 20, scratch_samples=4)


def paper(device=40 * 10**9, **request):
    return divided(256 * GIB, Request(**request), PAPER_DEMAND, DEVICE, PAPER, device)


def test_the_papers_setting_fits_in_a_device_of_40_gb():
    got = paper(cache=8 * GIB)
    parts = got.allotment
    assert parts.cache == 8 * GIB
    assert got.shares[FEAT].cache_rows > 2_000_000
    assert parts.samples + parts.outputs + parts.groups + parts.cache + parts.scratch <= 40 * 10**9
    assert parts.groups >= PAPER_DEMAND.batch_bytes, "a batch whole, for the cache may have none of it"
    assert got.window < 16, "the window shrank"
    assert got.group_batches < 32, "and the group"
    assert got.sweep_groups == 1


def test_on_a_device_the_host_buffer_has_memory_of_its_own_and_a_tenth_of_the_table_by_rule():
    parts = paper(cache=8 * GIB).allotment
    tenth = 0.1 * host_bytes(PAPER.num_rows, PAPER.row_bytes)
    assert parts.host_buffer == pytest.approx(min(tenth, 256 * GIB), rel=0.05)
    assert paper(cache=8 * GIB, host_buffer=0).allotment.host_buffer == 0


def test_a_device_that_is_too_small_is_refused_with_what_would_do():
    with pytest.raises(
        ConfigError, match=r"device_budget must be at least .*batches in delivery .*cache 8\.0 GiB"
    ) as error:
        paper(20 * 10**9, cache=8 * GIB)
    least = least_of(error)
    assert 20 * 10**9 < least < 40 * 10**9
    smallest = paper(least, cache=8 * GIB)
    assert (smallest.window, smallest.group_batches, smallest.prefetch, smallest.groups_in_flight) == (0, 1, 1, 1)
    with pytest.raises(ConfigError, match=rf"\({least} bytes\)"):
        paper(least - 1, cache=8 * GIB)


def test_more_device_memory_never_means_less_ahead():
    sizes = [paper(int(x * 10**9), cache=8 * GIB) for x in (30, 40, 60, 80, 160)]
    for name in ("window", "group_batches", "prefetch", "groups_in_flight"):
        values = [getattr(size, name) for size in sizes]
        assert values == sorted(values), name


def test_a_division_survives_json():
    import json

    got = divided(NEEDED + 5000)
    again = type(got).from_dict(json.loads(json.dumps(got.as_dict())))
    assert again == got


def test_an_allotment_says_its_parts():
    text = str(Allotment(4 << 20, topology=1 << 20, cache=2 << 20))
    assert text == "budget 4.0 MiB: topology 1.0 MiB, cache 2.0 MiB"
