"""README and docs/benchmarks.md say what the kept records say, misses cannot hide, and no number comes from nowhere."""

import json
import math
import re
from pathlib import Path

import pytest

from experiments import bench, records
from experiments.keep import between

DOCS = bench.PAGE.parent


def bar(name, value, floor, holds, reachable=True, **more):
    return {"name": name, "value": value, "floor": floor, "holds": holds, "reachable": reachable, **more}


@pytest.mark.parametrize(
    ("path", "part", "text"), [(bench.README, "bench", bench.readme_table), (bench.PAGE, "records", bench.page)]
)
def test_pages_say_what_the_kept_records_say(path, part, text):
    whole = path.read_text()
    begin, end = between(whole, part)
    assert whole[begin:end] == text(), "python -m experiments.bench"


@pytest.mark.parametrize("name", records.NAMES)
def test_every_missed_promise_stands_in_bold(name):
    missed = sum(not one["holds"] for record in records.newest(name) for one in record.bars)
    assert "\n".join(bench.section(name)).count("**") == 2 * missed


@pytest.mark.parametrize(
    ("given", "words", "rule"),
    [
        (bar("x", 1.234, 1.2, True), "1.23", "at least 1.2"),
        (bar("x", 36.72, 25.0, True), "36.7", "at least 25"),
        (bar("x", 0.0871, 0.15, True), "0.087", "at most 0.15"),
        (bar("x", 0.0, 0.0, True, lower_is_better=True), "0.000", "at most 0"),
        (bar("x", 1.42, 1.3, False), "**1.42**", "at most 1.3"),
        (bar("x", 1.17, 1.2, False, False), "**1.17** (beyond reach)", "at least 1.2"),
    ],
)
def test_a_bar_in_words(given, words, rule):
    assert (bench.measured(given), bench.bound(given)) == (words, rule)


@pytest.fixture
def kept_here(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "RESULTS", tmp_path / "bench")
    return tmp_path


def a_record(commit="abc", cpu="A CPU", when="2026-01-01T00:00:00", value=2.0, command=("gids", "bench", "disk")):
    origin = {"command": list(command), "commit": commit, "cpu": cpu, "time_utc": when}
    return {"benchmark": "disk", "provenance": origin, "results": {}, "bars": [bar("p", value, 1.0, value >= 1)]}


def written(directory: Path, record) -> Path:
    path = directory / "new.json"
    path.write_text(json.dumps(record))
    return path


def test_records_of_other_commits_and_machines_stay(kept_here):
    for commit, cpu, when, value in [
        ("aaa", "One", "2026-01-01T00:00:00", 0.5),
        ("bbb", "One", "2026-01-02T00:00:00", 2.0),
        ("aaa", "Two (R) Processor @ 3GHz", "2026-01-03T00:00:00", 0.25),
    ]:
        records.keep(written(kept_here, a_record(commit, cpu, when, value)))
    names = [record.path.name for record in records.kept("disk")]
    assert names == ["two-3ghz-aaa.json", "one-bbb.json", "one-aaa.json"]
    assert [record.path.name for record in records.newest("disk")] == names[:2]
    text = "\n".join(bench.section("disk"))
    assert "| p | **0.25** (at least 1) | 2.00 (at least 1) |" in text
    assert "One, 2026-01-01 00:00, aaa: 1 of 1 missed" in text


def test_a_promise_is_shown_until_a_newer_record_has_it(kept_here):
    for commit, when, name in [("aaa", "2026-01-01", "p"), ("bbb", "2026-01-02", "q"), ("ccc", "2026-01-03", "q")]:
        record = a_record(commit, "One", f"{when}T00:00:00")
        record["bars"][0]["name"] = name
        records.keep(written(kept_here, record))
    assert [record.commit for record in records.newest("disk")] == ["ccc", "aaa"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"benchmark": "nothing"}, "must be what `gids bench"),
        ({"provenance": {"command": ["gids", "bench", "disk", "--quick"], "commit": "abc"}}, "of a whole run"),
        ({"provenance": {"command": ["gids", "bench", "disk"], "commit": "abc-dirty"}}, "a clean commit"),
    ],
)
def test_records_that_prove_nothing_are_refused(kept_here, change, message):
    with pytest.raises(SystemExit, match=message):
        records.keep(written(kept_here, a_record() | change))


def test_a_record_is_not_replaced(kept_here):
    records.keep(written(kept_here, a_record()))
    records.keep(written(kept_here, a_record()))
    with pytest.raises(SystemExit, match="not replaced"):
        records.keep(written(kept_here, a_record(value=3.0)))


def a_part(part, name, value=2.0):
    record = a_record(command=("gids", "bench", "disk", "--only", part))
    record["bars"][0] |= {"name": name, "value": value, "holds": value >= 1}
    record["provenance"]["time_utc"] = f"2026-01-0{len(part)}T00:00:00"
    record["results"] = {"rates": [{"name": f"{part}: x", "rates": [1.0]}], part: {"detail": 1}}
    return record


def test_parts_of_one_run_become_one_record(kept_here):
    for part in (a_part("a", "p", 0.5), a_part("bb", "q"), a_part("bb", "q")):
        records.keep(written(kept_here, part))
    (record,) = records.kept("disk")
    assert [one["name"] for one in record.bars] == ["p", "q"]
    assert [rate["name"] for rate in record.content["results"]["rates"]] == ["a: x", "bb: x"]
    assert {"a", "bb"} < set(record.content["results"])
    assert record.content["summary"] == "1 of 2 bars missed, 0 of them beyond reach"
    assert [run["command"][-1] for run in record.content["further_runs"]] == ["bb"]
    with pytest.raises(SystemExit, match="not replaced"):
        records.keep(written(kept_here, a_part("cc", "q", 9.0)))


#: A number that is a claim about speed: it has such a unit, or is followed by the word times.
CLAIM = re.compile(r"(?<![\w.,-])(\d[\d,]*(?:\.\d+)?)(?: (k|M|G))? ?(?:×|times\b|rows/s|edges/s|reads/s|GB/s|MB/s)")
SCALE = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}


def test_no_claim_about_speed_comes_from_nowhere():
    kept = {one["value"] for name in records.NAMES for record in records.kept(name) for one in record.bars}
    unknown = []
    for path in [bench.README, *DOCS.glob("*.md")]:
        for words, scale in CLAIM.findall(path.read_text()):
            value = float(words.replace(",", "")) * SCALE[scale]
            digits = len(words.partition(".")[2])
            spread = 0.5 * 10**-digits * SCALE[scale] * 1.001
            if not any(math.isclose(value, number, abs_tol=spread) for number in kept):
                unknown.append(f"{path.name}: {words} {scale}")
    assert not unknown
