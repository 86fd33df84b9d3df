"""README's table of benchmarks says what the kept records say, and what is missed cannot hide in it."""

import copy
import json

import pytest

from experiments import bench
from experiments.keep import between


def bar(name, value, floor, holds, reachable=True):
    return {"name": name, "value": value, "floor": floor, "holds": holds, "reachable": reachable}


def test_readme_says_what_the_kept_records_say():
    text = bench.README.read_text()
    begin, end = between(text, "bench")
    assert text[begin:end] == bench.table(bench.kept()), "python -m experiments.bench"


@pytest.mark.parametrize("name", bench.TABLE)
def test_every_missed_bar_is_in_the_table_and_bold(name):
    records = copy.deepcopy(bench.kept())
    for one in records[name]["bars"]:
        one |= {"holds": False, "value": one["value"] + 1}
    before = bench.table(bench.kept()).count("**") - sum(not one["holds"] for one in bench.kept()[name]["bars"]) * 2
    assert bench.table(records).count("**") - before == 2 * len(records[name]["bars"])


@pytest.mark.parametrize(
    ("given", "words", "rule"),
    [
        (bar("x", 1.234, 1.2, True), "1.23", "at least 1.2"),
        (bar("x", 36.72, 25.0, True), "36.7", "at least 25"),
        (bar("x", 0.0871, 0.15, True), "0.087", "at most 0.15"),
        (bar("x", 0.0, 0.0, True), "0.000", "at least 0"),
        (bar("x (two)", 1.42, 1.3, False), "**1.42** (two)", "at most 1.3"),
        (bar("x", 2.3, 2.5, False), "**2.30**", "at least 2.5"),
        (bar("x (b: 1.2)", 1.17, 1.2, False, False), "**1.17** (b 1.2, beyond reach)", "at least 1.2"),
    ],
)
def test_a_bar_in_words(given, words, rule):
    assert (bench.measured(given), bench.bound(given)) == (words, rule)


def test_a_row_tells_different_floors_apart_and_must_match():
    record = {"benchmark": "b", "results": {}, "bars": [bar("a 1", 2.0, 1.0, True), bar("a 2", 3.0, 4.0, False)]}
    assert bench.line(bench.Row("both", "^a"), record)[0] == "| both | 2.00 (at least 1) / **3.00** (at least 4) |"
    assert bench.rest(record, {"a 1"}) == ["| a 2 | **3.00** (at least 4) |"]
    assert bench.rest(record, {"a 2"}) == ["| further promises of `gids bench b` | 1 hold |"]
    with pytest.raises(SystemExit, match="bench b must have a bar named like '\\^c'"):
        bench.line(bench.Row("none", "^c"), record)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"benchmark": "nvme"}, "must be what `gids bench"),
        ({"provenance": {"command": ["gids", "bench", "disk", "--quick"], "commit": "abc"}}, "of a whole run"),
        ({"provenance": {"command": ["gids", "bench", "disk"], "commit": "abc-dirty"}}, "a clean commit"),
        ({"bars": []}, "must have a bar"),
    ],
)
def test_what_must_not_be_kept_is_refused(tmp_path, monkeypatch, change, message):
    record = bench.kept()["disk"]
    (tmp_path / "new.json").write_text(json.dumps(record | change))
    monkeypatch.setattr(bench, "RESULTS", tmp_path / "results")
    with pytest.raises(SystemExit, match=message):
        bench.keep(tmp_path / "new.json")


def test_a_new_record_is_kept_and_the_table_follows(tmp_path, monkeypatch):
    results = tmp_path / "results"
    results.mkdir()
    for name, record in bench.kept().items():
        (results / f"{name}.json").write_text(json.dumps(record))
    new = bench.kept()["disk"]
    new["bars"][0] |= {"value": 7.77, "holds": True}
    (tmp_path / "new.json").write_text(json.dumps(new))
    (tmp_path / "README.md").write_text("a\n<!-- bench:begin -->\nold\n<!-- bench:end -->\nb\n")
    monkeypatch.setattr(bench, "RESULTS", results)
    monkeypatch.setattr(bench, "README", tmp_path / "README.md")
    monkeypatch.setattr("sys.argv", ["bench", str(tmp_path / "new.json")])
    bench.main()
    text = (tmp_path / "README.md").read_text()
    assert text.startswith("a\n<!-- bench:begin -->\n| benchmark")
    assert text.endswith("<!-- bench:end -->\nb\n")
    assert "7.77 / " in text
