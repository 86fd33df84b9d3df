"""Virtual time of a trace with known costs; the benchmark itself runs with the long tests."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gids.bench.cuda_profiles import PROFILES
from gids.bench.cuda_time import Call, Clock, Scale, stage_of, stages_of_streams

PROFILE = PROFILES["a100-pcie4"]
COUNTS = {
    "hbm_load_sectors": 32.0, "hbm_store_sectors": 32.0, "host_load_sectors": 0.0, "host_store_sectors": 0.0,
    "host_sectors_per_access": 0.0, "instructions": 0.0,
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


def test_stages_and_kinds_of_copies():
    lines = ["launch|0|1|choose_edges_32|9|1x1|", "launch|0|1|scan_tiles|9|1x1|", "launch|1|2|classify_rows|9|1x1|"]
    assert stages_of_streams([Call.parse(line) for line in lines]) == {1: "sample", 2: "plan"}
    assert (stage_of("choose_turns"), stage_of("scan_add"), stage_of("gather_rows_8")) == ("plan", None, "gather")
    timeline = play("copy d2h pageable|0|1|c|8|", "pool alloc|0|1|a|8|", "mark|0|1|batch 0|0|")
    assert timeline.counts == {"copy d2h pageable": 1, "host waits": 1, "allocations: pool alloc": 1}
    trace = timeline.perfetto()
    assert trace["otherData"] == {"note": "estimated, not measured"}
    assert {event["ph"] for event in trace["traceEvents"]} == {"M", "X", "i"}


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
        assert set(value["time by stage, us"]) >= {"sample", "plan", "gather"}
    assert len(list(tmp_path.glob("*.json"))) == 2
