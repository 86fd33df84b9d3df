"""A run becomes one page that needs nothing else, and that a real browser draws."""

from __future__ import annotations

import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch

from gids.cli import main
from gids.dataset import DatasetWriter
from gids.errors import DatasetError
from gids.report import Epoch, Memory, Run, figures, load_run, record, render
from gids.report.figures import SOURCE_COLOURS, timeline
from tests.browser import browse, chromium
from tests.loading import load


def trace_events(spans: int = 40) -> list[dict[str, object]]:
    events: list[dict[str, object]] = [
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": tid, "args": {"name": name}}
        for tid, name in enumerate(("gids-sample", "gids-plan", "gids-read"))
    ]
    for i in range(spans):
        for tid, name in enumerate(("sample", "plan", "read")):
            events.append({"ph": "X", "name": name, "pid": 1, "tid": tid, "ts": 1000 * i + 200 * tid, "dur": 700})
    return events


def example_run() -> Run:
    rows = {"cache": 700_000, "host": 200_000, "disk": 90_000, "duplicates": 10_000}
    epochs = [
        Epoch(trainer, n, 3.0 - n / 4, 120, loss=2.0 / (n + 1), accuracy=0.5 + n / 10, rows=rows)
        for trainer in ("gids", "memory")
        for n in range(4)
    ]
    return Run(
        name="demo",
        title="A run <with> markup & signs",
        settings={"fanouts": [5, 5, 5], "budget": "64MiB", "window": None},
        headline={"test accuracy": "81.3 %", "rows/s": "412 k"},
        results={"hit ratio": 0.7123456},
        epochs=epochs,
        memory=Memory(64 << 20, 60 << 20, 300 << 20, 58 << 20, {"cache": 30 << 20}),
        bars=[
            {"name": "difference in points", "value": 0.0, "floor": 1.0, "holds": True},
            {"name": "table/budget", "value": 3.5, "floor": 4.0, "holds": False},
        ],
        trace=trace_events(),
    )


class Markup(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.references: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.references += [v or "" for k, v in attrs if k in ("src", "href", "xlink:href", "srcset", "data", "action")]

    def handle_data(self, data: str) -> None:
        self.text += data


def parse(page: str) -> Markup:
    markup = Markup()
    markup.feed(page)
    return markup


def test_a_run_survives_being_written_and_read(tmp_path: Path) -> None:
    run = example_run()
    run.save(tmp_path)
    assert load_run(tmp_path).as_dict() == json.loads(json.dumps(run.as_dict()))
    assert [p.name for p in tmp_path.iterdir()] == ["run.json"]


def test_the_page_needs_no_network_and_no_script() -> None:
    markup = parse(render(example_run()))
    assert all(reference.startswith("#") for reference in markup.references), markup.references
    assert not {"script", "link", "img", "iframe", "object"} & set(markup.tags)
    assert "@import" not in markup.text
    assert not re.search(r"url\((?!#)", render(example_run()))


def test_the_page_shows_every_part_of_the_run() -> None:
    page = render(example_run())
    markup = parse(page)
    assert markup.tags.count("svg") == 6
    for figure in ("loss", "accuracy", "tiers", "memory", "throughput", "timeline"):
        assert f'<svg id="{figure}"' in page
    for words in (
        "A run <with> markup & signs",
        "81.3 %",
        "5 5 5",
        "not set",
        "0.7123",
        "gids-sample",
        "does not hold",
    ):
        assert words in markup.text, words
    assert "5,600,000" in markup.text  # cache rows over 8 epochs
    assert "70.0 %" in markup.text


def test_without_matplotlib_the_page_has_its_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "can_draw", lambda: False)
    markup = parse(render(example_run()))
    assert "svg" not in markup.tags
    for words in ("gids[report]", "5,600,000", "does not hold"):
        assert words in markup.text, words


def test_no_colour_has_two_meanings() -> None:
    palettes = (figures.SOURCE_COLOURS.values(), figures.TRAINER_COLOURS, figures.MEMORY_COLOURS.values())
    colours = [colour for palette in (*palettes, figures.SPAN_COLOURS) for colour in palette]
    assert len(colours) == len(set(colours))


def test_ids_of_two_plots_never_clash() -> None:
    ids = re.findall(r'\bid="([^"]+)"', render(example_run()))
    clip_paths = [identity for identity in ids if re.fullmatch(r"p[0-9a-f]{10}", identity)]
    assert clip_paths
    assert len(clip_paths) == len(set(clip_paths))


def test_the_same_run_gives_the_same_page() -> None:
    run = example_run()
    assert render(run) == render(run)


def test_a_benchmark_becomes_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = {
        "benchmark": "disk",
        "provenance": {"commit": "abc", "settings": {"depth": 128}},
        "results": {
            "rates": [{"name": "uring", "unit": "rows", "median": 2e5, "mad": 10, "rates": []}],
            "device": "vda",
            "dense": {"rows_bytes": 3 << 30, "plan": {"seconds": 1.5}, "layers": [{"reads": 7}, {"reads": 8000}]},
        },
        "bars": [{"name": "uring vs pread", "value": 3.0, "floor": 2.0, "holds": True}],
    }
    path = tmp_path / "disk.json"
    path.write_text(json.dumps(record))
    assert main(["report", str(path)]) == 0
    page = Path(capsys.readouterr().out.strip())
    assert page == (tmp_path / "report.html").resolve()
    text = parse(page.read_text()).text
    for words in ("gids bench disk", "200,000", "uring vs pread", "depth", "vda", "abc"):
        assert words in text, words
    assert ">200 k<" in page.read_text().replace("\u2009", " ")  # not 1e6 at the end of the axis
    # What is nested is rows of their own, named by where they are; bytes are in the unit that fits.
    for name, value in {"rows": "3.0 GiB", "plan": "seconds 1.5", "layers: 1": "reads 8,000"}.items():
        assert f"<td>dense: {name}</td><td>{value}</td>" in page.read_text()


def test_a_trace_becomes_a_page(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps({"traceEvents": trace_events()}))
    assert main(["report", str(path), "--out", str(tmp_path / "p.html")]) == 0
    assert '<svg id="timeline"' in (tmp_path / "p.html").read_text()


def test_a_huge_trace_stays_a_small_page() -> None:
    assert len(timeline(trace_events(spans=20_000))) < 2_000_000


def test_a_short_run_is_shown_whole_and_a_long_one_from_its_middle() -> None:
    assert "ms, from 0.0 s into the run" in timeline(trace_events(spans=40))  # 40 ms
    assert "ms, from 2.0 s into the run" in timeline(trace_events(spans=4000))  # 4 s


def test_a_trace_without_spans_draws_nothing() -> None:
    assert timeline(trace_events(spans=0)) == ""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "not found"),
        ("{", "must be JSON"),
        ("[1]", "must be of format gids-run"),
        ('{"format": "gids-run", "version": 99}', "must be 1 .got 99"),
        ('{"format": "gids-run", "version": 1, "name": "n", "title": "t", "colour": 1}', "colour"),
    ],
)
def test_a_bad_run_gets_a_clear_error(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "run.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(DatasetError, match=message):
        load_run(path)
    assert main(["report", str(path)]) == 1


PROBE = """<script>
const boxes = [...document.querySelectorAll('svg[role=img]')].map(s => {
  const b = s.getBoundingClientRect(); return [s.id, b.width, b.height, s.querySelectorAll('path,rect').length]; });
const sections = [...document.querySelectorAll('section')].map(s => {
  const b = s.getBoundingClientRect(); return [s.querySelector('h2').innerText, b.height, s.innerText]; });
document.body.innerHTML = '<pre>' + JSON.stringify({boxes, sections, scroll: document.documentElement.scrollWidth,
  client: document.documentElement.clientWidth}) + '</pre>';
</script>"""


def seen_in(dom: str) -> dict[str, Any]:
    found = re.search(r"<pre>(.*)</pre>", dom, re.DOTALL)
    assert found is not None, dom[:2000]
    seen: dict[str, Any] = json.loads(html.unescape(found[1]))
    return seen


@pytest.mark.xdist_group("chromium")
def test_what_gids_report_makes_of_a_real_run_is_seen_in_a_browser(tmp_path: Path) -> None:
    browser, run = chromium(), tmp_path / "run"
    with DatasetWriter(tmp_path / "graph") as writer:
        writer.add_nodes(2000)
        writer.add_csc(torch.arange(0, 8001, 4), torch.arange(8000) * 7919 % 2000)
        writer.add_features(torch.randn(2000, 16))
        writer.add_split("train", torch.arange(1000))
    options = {"fanouts": [3, 3], "batch_size": 50, "labels": False, "budget": "32MiB", "cache": "16KiB"}
    with load(tmp_path / "graph", "train", **options) as loader:  # type: ignore[arg-type]
        with loader.tracing(tmp_path / "trace.json"):
            rows = sum(len(batch.x) for batch in loader)
        record(loader, run, title="A real run")
    assert main(["report", str(run)]) == 0
    page = tmp_path / "probed.html"
    page.write_text((run / "report.html").read_text().replace("</main>", f"</main>{PROBE}"))
    dom = browse(browser, tmp_path / "profile", "--window-size=1280,900", "--dump-dom", page.as_uri())
    seen = seen_in(dom)
    assert {box[0] for box in seen["boxes"]} == {"tiers", "memory", "timeline"}
    assert all(width > 300 and height > 60 and shapes >= 4 for _, width, height, shapes in seen["boxes"])
    text = {title: words for title, height, words in seen["sections"] if height > 40}
    assert f"{rows:,}" in text["Results"] or str(rows) in text["Results"]
    for title, words in {
        "Where rows came from": ("cache", "host", "disk", "duplicates"),
        "Memory": ("budget", "MiB"),
        "Timeline": ("gids-fetch", "MainThread", "fetch"),  # on a busy machine all is sampled before what is shown
        "Settings": ("batch size", "50", "policy", "window"),
    }.items():
        for word in words:
            assert word in text[title], (title, word, text[title])


@pytest.mark.xdist_group("chromium")
@pytest.mark.parametrize("width", [1280, 500])
def test_a_browser_draws_every_plot_within_the_window(tmp_path: Path, width: int) -> None:
    browser = chromium()
    page = tmp_path / "probed.html"
    page.write_text(render(example_run()).replace("</main>", f"</main>{PROBE}"))
    dom = browse(browser, tmp_path / "profile", f"--window-size={width},900", "--dump-dom", page.as_uri())
    seen = seen_in(dom)
    assert [box[0] for box in seen["boxes"]] == ["loss", "accuracy", "tiers", "memory", "throughput", "timeline"]
    for name, box_width, box_height, shapes in seen["boxes"]:
        # The timeline has a scroll bar of its own where the window is narrow.
        assert 300 < box_width <= (max(width, 900) if name == "timeline" else width), (name, box_width)
        assert box_height > 60, (name, box_height)
        assert shapes >= 4, (name, shapes)
    assert seen["scroll"] <= seen["client"], "the page must not scroll sideways"


@pytest.mark.xdist_group("chromium")
def test_the_tiers_are_seen_in_their_colours(tmp_path: Path) -> None:
    browser = chromium()
    from matplotlib.image import imread

    page, picture = tmp_path / "report.html", tmp_path / "page.png"
    page.write_text(render(example_run()))
    browse(browser, tmp_path / "profile", "--window-size=1280,2400", f"--screenshot={picture}", page.as_uri())
    pixels = (imread(picture)[..., :3] * 255).round().astype(int)
    assert pixels.shape == (2400, 1280, 3)
    for source in ("cache", "host", "disk"):
        colour = tuple(int(SOURCE_COLOURS[source][i : i + 2], 16) for i in (1, 3, 5))
        assert (pixels == colour).all(axis=2).sum() > 500, source
