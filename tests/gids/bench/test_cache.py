"""``gids bench cache --quick --json``: runs, keeps the promises that do not depend on the machine, draws the plot."""

import json
import re

import pytest

from gids.bench.harness import Bar, Report
from gids.cli import main


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    directory = tmp_path_factory.mktemp("bench")
    patch = pytest.MonkeyPatch()
    lines = []
    with patch.context() as context:
        context.setattr("builtins.print", lambda *words, **_: lines.append(" ".join(map(str, words))))
        arguments = ["--quick", "--json", "--directory", str(directory), "--plot", str(directory / "plot.png")]
        assert main(["bench", "cache", *arguments]) == 0
    assert (directory / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in directory.iterdir()] == ["plot.png"]  # what the run made is gone
    return json.loads("\n".join(lines))


def test_hit_ratios_keep_their_promises(result):
    """Every promise that a cache can keep is kept: where belady gains less over random, so does any policy.

    Small batches leave most of a cache to what lies beyond the window; there the bars may miss, and are only reported.
    """
    possible = []
    small = [bar for bar in result["bars"] if " seeds" in bar["name"]]
    assert len(small) >= 2 * 3 + 2
    for bar in result["bars"]:
        if bar in small:
            continue
        if bar["name"].startswith("window(16) / random"):
            if float(bar["name"].split("belady: ")[1].rstrip(")")) > bar["floor"] + 0.05:
                possible.append(bar)
        elif bar["name"].startswith(("window(16) / belady", "least gain", "host buffer")):
            possible.append(bar)
    assert len(possible) >= 2 * (2 + 3 + 1)
    for bar in possible:
        assert bar["holds"], bar


def test_what_no_policy_can_keep_is_marked(result):
    for bar in result["bars"]:
        best = re.search(r"\(belady: ([\d.]+)\)$", bar["name"])
        if best is None:  # no bound is known: window(16) told the counts, which the name may say, is none
            assert bar["reachable"], bar
        elif abs(float(best[1]) - bar["floor"]) > 0.01:
            assert bar["reachable"] == (float(best[1]) > bar["floor"]), bar
    missed = [bar for bar in result["bars"] if not bar["holds"]]
    beyond = [bar for bar in missed if not bar["reachable"]]
    expected = f"{len(missed)} of {len(result['bars'])} bars missed, {len(beyond)} of them beyond reach"
    assert result["summary"] == expected


def test_a_summary_tells_what_was_missed_from_what_nothing_could_hold():
    bars = [Bar("a", 1.0, 2.0), Bar("b", 1.0, 2.0, reachable=False), Bar("c", 3.0, 2.0), Bar("d", 3.0, 2.0, True)]
    report = Report("x", bars=bars)
    assert report.summary == "3 of 4 bars missed, 1 of them beyond reach"
    assert [bar["reachable"] for bar in report.as_dict()["bars"]] == [True, False, True, True]


def test_traces_fill_the_largest_cache_and_turn_it_over(result):
    for trace in (value for name, value in result["results"].items() if name.startswith("trace ")):
        assert trace["batches"] * trace["rows_per_batch"] >= 16 * 0.16 - 1e-9
        assert trace["hit_ratio"]["belady"]["16%"] - trace["hit_ratio"]["random"]["16%"] > 0.01


def test_no_policy_beats_belady(result):
    traces = [value for name, value in result["results"].items() if name.startswith("trace ")]
    assert len(traces) == 4
    for trace in traces:
        best = trace["hit_ratio"]["belady"]
        for policy, ratios in trace["hit_ratio"].items():
            for share, ratio in ratios.items():
                assert 0 < ratio <= best[share], (policy, share)


def test_speed_and_model_are_reported(result):
    names = {bar["name"] for bar in result["bars"]}
    assert {"plan + gather / torch.index_select, time", "accumulator's model, largest error"} <= names
    model = result["results"]["accumulator"]
    assert model["depths"] == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert min(model["predicted_iops"] + model["measured_iops"]) > 0
    assert {rate["name"] for rate in result["results"]["rates"]} >= {"torch.index_select", "reverse PageRank, streamed"}
