"""Virtual time of a trace with known costs; the benchmark itself runs with the long tests."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gids.bench.cuda import SETTINGS, shares_of_the_link, ways
from gids.bench.cuda_profiles import PROFILES
from gids.bench.cuda_time import Call, Clock, Scale, stage_of, stages_of_streams

PROFILE = PROFILES["a100-pcie4"]
COUNTS = {
    "hbm_load_sectors": 32.0, "hbm_store_sectors": 32.0, "host_load_sectors": 0.0, "host_store_sectors": 0.0,
    "host_sectors_per_access": 0.0, "instructions": 0.0, "hbm_atomics": 0.0, "hottest_address_share": 0.0,
    "host_chain": 0,
}  # fmt: skip


def play(*lines, scale=Scale()):  # noqa: B008
    return Clock(PROFILE, {"gather_rows_32": COUNTS}, scale).play([Call.parse(line) for line in lines])


def test_a_wait_ends_when_the_stream_has_ended():
    timeline = play("launch|0|3|set_values|10|1x256|", "sync stream|0|3|cuStreamSynchronize|0|")
    kernel, wait = timeline.spans[0], timeline.spans[2]
    assert (kernel.begin_us, kernel.end_us) == (7.5, 7.5 + 3.8)
    assert wait.end_us == pytest.approx(7.5 + 3.8 + 15.0)
    assert timeline.counts == {"launches": 1, "host waits": 1}


def test_streams_overlap_unless_an_event_orders_them():
    copy = "copy h2d pinned|0|{}|cuMemcpyAsync|258000000|"  # 10 ms on the link
    apart = play(copy.format(1), copy.format(2))
    assert max(span.end_us for span in apart.spans) == pytest.approx(10000 + 2 * 7.5 + 3.8)
    ordered = play(copy.format(1), "record event|0|1|r|0|5:1", "wait event|0|2|w|0|5:1", copy.format(2))
    assert max(span.end_us for span in ordered.spans) == pytest.approx(20000 + 7.5 + 2 * 3.8)
    assert ordered.link_bytes == 516e6


def test_work_grows_with_the_rows_and_their_bytes():
    launch = "launch|0|1|gather_rows_32|1000|1x256|device=1,host=1"
    (small, _), (large, _) = (play(launch, scale=scale).spans for scale in (Scale(1), Scale(100, 4096)))
    seconds = 1000 * 100 * 4 * 64 * 32 / (PROFILE.hbm_bytes_s * PROFILE.hbm_share)
    assert small.end_us - small.begin_us == pytest.approx(3.8)
    assert large.end_us - large.begin_us == pytest.approx(seconds * 1e6)


@pytest.mark.parametrize(
    ("counts", "seconds"),
    [
        ({"hbm_atomics": 2.0, "hottest_address_share": 0.5}, 1_000_000 / PROFILE.atomics_s),  # one of two hits the same
        ({"host_chain": 40}, 40 * PROFILE.chained_read_us / 1e6),
        ({"instructions": 500.0}, 500e6 / PROFILE.warp_instructions_s),
    ],
)
def test_what_a_kernel_waits_for(counts, seconds):
    clock = Clock(PROFILE, {"k": dict.fromkeys(COUNTS, 0.0) | counts}, Scale())
    timeline = clock.play([Call.parse("launch|0|1|k|1000000|1x256|")])
    assert timeline.kernels_us == {"k": pytest.approx(seconds * 1e6)}


def test_what_is_counted_over_the_link_is_read_from_the_device_where_no_argument_is_of_the_host():
    clock = Clock(PROFILE, {"k": COUNTS | {"host_load_sectors": 64.0, "host_chain": 40}}, Scale())
    far, near = (clock.play([Call.parse(f"launch|0|1|k|1000000|1x256|device=1,host={host}")]) for host in (5, 0))
    assert (far.link_bytes, near.link_bytes) == (64e6 * 32, 0.0)
    assert (far.sample_sectors, near.sample_sectors) == (0.0, 0.0)  # k samples nothing
    seconds = 128e6 * 32 / (PROFILE.hbm_bytes_s * PROFILE.hbm_share)
    assert near.kernels_us["k"] == pytest.approx(seconds * 1e6)
    assert near.kernels_us["k"] < far.kernels_us["k"]


def test_sectors_of_the_link_that_sampling_reads():
    counts = COUNTS | {"host_load_sectors": 2.0}
    clock = Clock(PROFILE, {"gather_neighbors_32": counts, "classify_rows": counts}, Scale(10))
    launch = "launch|0|1|{}|1000|1x256|device=1,host=1"
    timeline = clock.play([Call.parse(launch.format(name)) for name in ("gather_neighbors_32", "classify_rows")])
    assert timeline.sample_sectors == 2.0 * 1000
    assert timeline.link_bytes == 2 * 10 * timeline.sample_sectors * 32
    held = Clock(PROFILE, {"gather_neighbors_32": counts}, Scale(10, held_neighbors=0.75))
    timeline = held.play([Call.parse(launch.format("gather_neighbors_32"))])
    assert (timeline.sample_sectors, timeline.link_bytes) == (0.5 * 1000, 10 * 0.5 * 1000 * 32)


def test_a_thread_that_a_stream_tells_to_go_on_has_not_waited():
    lines = [
        "launch|0|3|set_values|10|1x256|",
        "record event|0|3|r|0|5:1",
        "host function|0|3|f|0|",
        "told|1|0|f|0|5:1",
    ]
    timeline = play(*lines, "launch|1|4|set_values|10|1x256|")
    ready = 7.5 + 3.8 + PROFILE.host_function_us
    assert timeline.counts == {"launches": 2, "host functions": 1}
    assert [span.begin_us for span in timeline.spans if span.track == "stream 4 (other)"] == [
        pytest.approx(ready + 7.5)
    ]


def test_stages_and_kinds_of_copies():
    lines = ["launch|0|1|choose_edges_32|9|1x1|", "launch|0|1|scan_tiles|9|1x1|", "launch|1|2|classify_rows|9|1x1|"]
    lines += ["copy h2d pinned|1|2|c|8|", "copy h2d pinned|1|2|c|8|", "copy h2d pinned|2|3|c|8|"]
    assert stages_of_streams([Call.parse(line) for line in lines]) == {1: "sample", 2: "plan", 3: "storage"}
    assert (stage_of("choose_turns"), stage_of("scan_add"), stage_of("gather_rows_8")) == ("plan", None, "gather")
    timeline = play("copy d2h pageable|0|1|c|8|", "pool alloc|0|1|a|8|", "mark|0|1|batch 0|0|")
    assert timeline.counts == {"copy d2h pageable": 1, "host waits": 1, "allocations: pool alloc": 1}
    trace = timeline.perfetto()
    assert trace["otherData"] == {"note": "estimated, not measured"}
    assert {event["ph"] for event in trace["traceEvents"]} == {"M", "X", "i"}


def test_a_timeline_has_a_track_for_each_stage_of_a_batch():
    lines = [
        "part|0|-1|batch 10|0|", "launch|0|1|choose_edges_32|9|1x1|", "part|0|-1|batch 9|0|",
        "launch|0|1|choose_edges_32|9|1x1|", "part|1|-1|batches 9 to 10|0|", "launch|1|2|classify_rows|9|1x1|",
        "part|0|-1||0|", "sync stream|0|1|s|0|",
    ]  # fmt: skip
    timeline = play(*lines)
    assert timeline.counts == {"launches": 3, "host waits": 1}
    events = timeline.perfetto()["traceEvents"]
    tracks = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] == 2}
    assert list(tracks.values()) == ["batch 9: sample", "batch 10: sample", "batches 9 to 10: plan"]
    found = [(tracks[e["tid"]], e["name"], e["ts"]) for e in events if e["ph"] == "X" and e["pid"] == 2]
    assert found == [
        ("batch 10: sample", "choose_edges_32", 7.5),
        ("batch 9: sample", "choose_edges_32", 15.0),
        ("batches 9 to 10: plan", "classify_rows", 7.5),
    ]
    waits = [e for e in events if e["name"] == "sync stream"]
    assert [("args" in e, e["pid"]) for e in waits] == [(False, 1)]


def test_both_who_submit_are_among_the_ways_and_the_machine_sets_their_limits():
    large, small = SETTINGS
    four, five = PROFILES["a100-pcie4"], PROFILES["h100-pcie5"]
    assert set(ways(large, four)) == {"uring", "gds", "nvme, submit='gpu'", "nvme, submit='cpu'"}
    assert f"the drives, by their curve ({four.name})" in ways(large, four)["nvme, submit='gpu'"]
    assert (
        f"8.5 M rows/s in reads of 1.0 KiB (limit: the drives, by their curve ({five.name}"
        in ways(small, five)["nvme, submit='gpu'"]
    )
    assert "limit: commands of a thread" in ways(small, five)["nvme, submit='cpu'"]
    assert "limit: the link" in ways(large, replace(five, drive_bytes_s=1e12, link_bytes_s=1e10))["nvme, submit='gpu'"]


def test_what_the_link_leaves_to_a_batch_is_promised():
    resources = {"link": 1000.0, "Python, all threads (one at a time)": 360.0, "stream of storage": 900.0}
    bars = shares_of_the_link("rows", "machine", resources | {"stream of sample": 100.0, "stream of gather": 200.0})
    assert [(bar.value, bar.holds) for bar in bars] == [(0.3, True), (0.36, False)]
    assert all("estimated, not measured" in bar.name for bar in bars)


@pytest.mark.long
@pytest.mark.xdist_group("standin")
def test_the_benchmark_counts_and_says_that_it_estimates(tmp_path):
    command = [sys.executable, "-m", "gids", "bench", "cuda", "--json", "--quick", "--timeline", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[3])
    assert result.returncode == 0, result.stderr[-3000:]
    found = json.loads(result.stdout)["results"]
    estimates = {name: value for name, value in found.items() if "rows of" in name}
    assert len(estimates) == 2
    for name, value in estimates.items():
        assert "estimated, not measured" in name
        assert value["launches"] > 10
        assert value["host waits"] > 0
        assert "submit='gpu'" in " ".join(value["ways to the device, by gids/cuda/choice.py"])
        assert set(value["time by stage, us"]) >= {"sample", "plan", "gather"}
    timelines = [json.loads(path.read_text())["traceEvents"] for path in tmp_path.glob("*.json")]
    assert len(timelines) == 2
    for events in timelines:
        tracks = {event["args"]["name"] for event in events if event["name"] == "thread_name" and event["pid"] == 2}
        assert tracks >= {"batch 5: sample", "batch 5: gather"}
        assert {track.rpartition(": ")[2] for track in tracks} >= {"sample", "plan", "storage", "gather"}
