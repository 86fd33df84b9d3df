"""README and docs/benchmarks.md say what the kept records say, misses cannot hide, and no number comes from nowhere."""

import json
import math
import re
from pathlib import Path

import pytest

from experiments import bench, cells, records
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
    assert "\n".join(bench.promises(records.newest(name))).count("**") == 2 * missed


@pytest.mark.parametrize(
    ("given", "words", "rule"),
    [
        (bar("x", 1.234, 1.2, True), "1.23", "at least 1.2"),
        (bar("x", 36.72, 25.0, True), "36.7", "at least 25"),
        (bar("x", 37_127_604.0, 1e7, True), "37.1 M", "at least 10 M"),
        (bar("x", 0.0871, 0.15, True), "0.087", "at most 0.15"),
        (bar("x", 0.0, 0.0, True, lower_is_better=True), "0.000", "at most 0"),
        (bar("x", 1.42, 1.3, False), "**1.42**", "at most 1.3"),
        (bar("x (belady: 1.196)", 1.17, 1.2, False, False), "**1.17** (beyond reach)", "at least 1.2"),
        (bar("pyg: resident memory", 1.12, 1.05, False, False), "**1.12**", "at most 1.05"),
        (bar("x (told the counts: 0.937)", 0.93, 0.95, False, False), "**0.93**", "at least 0.95"),
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
    record["results"] = {
        "rates": [{"name": f"{part}: x", "rates": [1.0]}],
        part: {"detail": 1},
        "seconds_per_epoch": {f"{part}, sage": {"gids": value}},
        "under_1.5": [f"{part}, sage"],
        "curve": {"depths": [1, 2], "iops": [value, 9.0]},
    }
    return record


def test_parts_of_one_run_become_one_record(kept_here):
    for part in (a_part("a", "p", 0.5), a_part("bb", "q"), a_part("bb", "q")):
        records.keep(written(kept_here, part))
    (record,) = records.kept("disk")
    assert [one["name"] for one in record.bars] == ["p", "q"]
    assert [rate["name"] for rate in record.content["results"]["rates"]] == ["a: x", "bb: x"]
    assert {"a", "bb"} < set(record.content["results"])
    results = record.content["results"]
    assert results["seconds_per_epoch"] == {"a, sage": {"gids": 0.5}, "bb, sage": {"gids": 2.0}}
    assert results["under_1.5"] == ["a, sage", "bb, sage"]
    assert results["curve"] == {"depths": [1, 2], "iops": [0.5, 9.0], "iops, run 2": [2.0, 9.0]}
    assert record.content["summary"] == "1 of 2 bars missed, 0 of them beyond reach"
    assert [run["command"][-1] for run in record.content["further_runs"]] == ["bb"]
    with pytest.raises(SystemExit, match="not replaced"):
        records.keep(written(kept_here, a_part("cc", "q", 9.0)))


def an_epoch_record(machine="One", times=(0.8, 1.2)):
    regime = {
        "peers": {
            "io_uring": {"setting": 64, "in_words": "64 deep", "rate_by_setting": {}, "alternated": True},
            "pread": {"setting": 4, "in_words": "4 threads", "rate_by_setting": {}, "alternated": False},
        },
        "left_out": {"float16 in memory": "needs 4 GiB of 2 GiB"},
        "times_peer": {"dgl-mmap-random": 20.0, "pread": times[1], "io_uring": times[0]},
        "density": 0.0004,
        "rows_per_read": 1.02,
        "reads_over_limit": 0.93,
        "bytes_read_over_needed": 1.01,
        "served_without_disk": 0.25,
    }
    record = a_record(cpu=machine, command=("gids", "bench", "epoch")) | {"benchmark": "epoch"}
    record["results"] = {"rates": [], "dense": regime, "sparse": regime}
    record["bars"] = [
        bar("rows/s over DGL with mmap and MADV_RANDOM", 20.0, 25.0, False),
        bar("rows/s over the best peer", times[0], 1.0, times[0] >= 1),
        bar("sparse: rows/s over the best peer", 1.1, 1.0, True),
    ]
    return record


def test_every_cell_of_a_regime_stands_on_the_page_the_closest_first(kept_here):
    records.keep(written(kept_here, an_epoch_record()))
    text = "\n".join(bench.section("epoch"))
    for regime in ("Dense", "Sparse"):
        assert f"*{regime}* batches, every peer at its best; One, 2026-01-01 00:00, abc." in text
    first = text[text.index("*Dense*") : text.index("*Sparse*")]
    assert "asks for 0.04 % of the rows, 25 % of them came without the disk; 1.02 rows a read" in first
    assert "reads/s over the probed limit 0.93; bytes read over bytes needed 1.01." in first
    rows = [line for line in first.splitlines() if line.startswith("| ")][2:]
    assert rows[0] == "| io_uring | 64 deep | **0.80** | in turns with gids |"
    assert rows[1] == "| pread | 4 threads | 1.20 | one turn, while tuned |"
    assert rows[2].endswith("one batch after the other | – | 20.0 | in turns with gids |")
    assert "Under 1.5: pread (1.20), io_uring (**0.80**)." in first
    assert "Not run: float16 in memory (needs 4 GiB of 2 GiB)." in first


def test_readme_has_the_best_peer_first_and_every_machine(kept_here):
    records.keep(written(kept_here, an_epoch_record("One")))
    older = an_epoch_record("Two", times=(1.6, 1.7))
    older["provenance"]["time_utc"] = "2025-12-31T00:00:00"
    records.keep(written(kept_here, older))
    table = bench.readme_table().splitlines()
    assert table[0].endswith("| One | Two |")
    assert "the best of the tuned peers" in table[2]
    assert table[2].endswith("| `epoch` | **0.80** (at least 1) | 1.60 (at least 1) |")
    assert "the papers' loop" in table[4]
    assert table[4].endswith("| **20.0** (at least 25) | **20.0** (at least 25) |")


def test_every_cell_of_training_stands_on_the_page(kept_here):
    record = a_record(command=("gids", "bench", "train")) | {"benchmark": "train", "bars": []}
    record["provenance"]["settings"] = {"accuracy": 0.8}
    record["results"] = {"rates": [], "seconds_per_epoch": {}, "best_peer": {}, "over_memory": {}}
    ratios = {"plain, sage 64": 2.0, "plain, sage 256": 0.5, "dgl, gat 64": 1.25, "pyg, rgcn 64": 3.0}
    for cell, ratio in ratios.items():
        record["results"]["seconds_per_epoch"][cell] = {"gids": 10.0, "best peer": 10 * ratio, "in memory": 8.0}
        record["results"]["best_peer"][cell] = "io_uring, 64 deep"
        record["results"]["over_memory"][cell] = 1.25
        one = bar(f"{cell}: seconds an epoch, best peer over gids", ratio, 1.0, ratio >= 1)
        record["bars"].append(one)
    record["results"]["left_out"] = {"dgl, gat 64": {"DGL's DataLoader, 16 workers": "ended early"}}
    record["results"]["to_accuracy"] = {
        "gids": {"seconds": 12.0, "reached": True},
        "best peer": {"seconds": 99.0, "reached": False},
    }
    records.keep(written(kept_here, record))
    text = "\n".join(bench.section("train"))
    assert "| plain, sage 256 | 10.0 | 5.00 | 8.00 | **0.50** | 1.25 | io_uring, 64 deep |" in text
    assert "Under 1.5: plain, sage 256 (**0.50**), dgl, gat 64 (1.25)." in text
    assert "Not run: dgl, gat 64: DGL's DataLoader, 16 workers (ended early)." in text
    assert "Until 80 % of new seeds are told right, once: gids 12.0 s, best peer 99.0 s and **not reached**." in text
    assert "| **0.50** / 3.00 (at least 1); **1 of 4** missed |" in bench.readme_table()


#: A number that is a claim about speed: it has such a unit, or is followed by the word times. One with a % is a claim in
#: sections that name a benchmark.
CLAIM = re.compile(
    r"(?<![\w.,-])(\d[\d,]*(?:\.\d+)?)(?: (k|M|G))? ?(×|times\b|%|(?:rows|edges|reads|batches|seeds)/s|IOPS|GB/s|MB/s)"
)
SCALE = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}
GENERATED = re.compile(r"<!-- (\w+):begin -->.*?<!-- \1:end -->", re.DOTALL)  # compared with the records above
NAMED = re.compile(rf"gids\s+bench\s+({'|'.join(records.BENCHMARKS)})\b|gids\s+(demo)\b")


def numbers(value):
    """Return every number in what a benchmark found."""
    if isinstance(value, dict):
        return [one for inner in value.values() for one in numbers(inner)]
    if isinstance(value, list):
        return [one for inner in value for one in numbers(inner)]
    return [float(value)] if isinstance(value, int | float) and not isinstance(value, bool) else []


def known(name, unit):
    """Return what a claim with this unit may say: promises and rates that a benchmark measured, or any share of it in %."""
    kept = records.kept(name)
    found = [one["value"] for record in kept for one in record.bars]
    if unit == "%":
        found += numbers([record.content["results"] for record in kept])
        return [100 * one for one in found] + [100 * (1 - one) for one in found] + found
    return found + [rate["median"] for record in kept for rate in record.content["results"].get("rates", [])]


def from_nowhere(text):
    """Return the claims of a page that no record has of the benchmarks that its section names."""
    unknown = []
    for part in re.split(r"^#+ ", GENERATED.sub("", text), flags=re.MULTILINE):
        named = {name for names in NAMED.findall(part) for name in names if name}
        for words, scale, unit in CLAIM.findall(part):
            if unit == "%" and not named:
                continue
            value = float(words.replace(",", "")) * SCALE[scale]
            spread = 0.5 * 10 ** -len(words.partition(".")[2]) * SCALE[scale] * 1.001
            if not any(math.isclose(value, one, abs_tol=spread) for name in named for one in known(name, unit)):
                unknown.append(f"{words} {scale}{unit}, of {sorted(named) or 'no benchmark'}")
    return unknown


def test_no_claim_about_speed_comes_from_nowhere():
    pages = [bench.README, *DOCS.rglob("*.md")]
    assert not [f"{path.name}: {claim}" for path in pages for claim in from_nowhere(path.read_text())]


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        ("See `gids bench disk`: 2.0 times as fast, 25 % of the rows, 4.1 k rows/s.", []),
        ("See `gids bench disk`: 75 % fewer.", []),
        ("See `gids bench disk`: 2.1 times as fast.", ["2.1 times, of ['disk']"]),
        ("See `gids bench disk`: 26 % of the rows.", ["26 %, of ['disk']"]),
        ("It is 2.0 times as fast.", ["2.0 times, of no benchmark"]),
        ("It takes 80 % of the memory.", []),
        ("See `gids bench epoch`: 2.0 times as fast.", ["2.0 times, of ['epoch']"]),
        ("# A\n`gids bench disk`\n# B\n2.0 times as fast", ["2.0 times, of no benchmark"]),
    ],
)
def test_a_claim_is_one_of_the_benchmark_that_its_section_names(kept_here, text, unknown):
    record = a_record()
    record["results"] = {"rates": [{"name": "r", "median": 4123.0}], "share": {"of": [0.25]}}
    records.keep(written(kept_here, record))
    assert from_nowhere(text) == unknown


def test_what_a_batch_asks_of_a_gpu_has_a_line_for_each_setting_and_machine() -> None:
    (record, *_) = records.newest("cuda")
    lines = [line for line in cells.tables("cuda") if line.startswith("| 1")]
    estimates = [name for name in record.content["results"] if "rows of" in name]
    assert [line.split(" |")[0].removeprefix("| ") for line in lines] == [name.partition(" (")[0] for name in estimates]
    first = record.content["results"][estimates[0]]
    assert f"| {first['launches']:.1f} | {first['host waits']:.1f} |" in lines[0]
    assert "estimated, not measured" in "".join(cells.tables("cuda")[:2])
