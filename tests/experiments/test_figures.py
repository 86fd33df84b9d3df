"""Every experiment runs at its tiny scale, keeps its numbers, and appears on the page."""

import json
import sys
from html import escape

import pytest

from experiments import __main__ as command
from experiments import graphs, harness, keep, page, tables


@pytest.mark.slow
@pytest.mark.parametrize("name", harness.names())
def test_tiny_run(name, tmp_path, monkeypatch, tmp_path_factory):
    monkeypatch.setattr(graphs, "DATA", tmp_path_factory.getbasetemp() / "graphs")
    record = json.loads(harness.run(name, "tiny", tmp_path).read_text())
    assert record["results"]
    assert record["claim"]
    assert record["differs"]
    assert record["provenance"]["commit"]
    said = harness.load(name).here(record["results"])
    assert said.endswith(".")
    assert said.count("unknown") == said.count("GraphBolt has no result")  # the only one that this scale leaves out
    html = page.write(tmp_path).read_text()
    assert escape(said) in html
    for heads, lines in tables.all_of(record):
        assert all(len(line) == len(heads) for line in lines)
        assert all(f"<td>{escape(line[0])}</td>" in html for line in lines)
    assert record["title"].partition(" (")[0].replace("'", "&#x27;") in html
    assert "<svg" in html
    assert "http://" not in html.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", ""
    ).replace("http://dublincore", "")


def run_command(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["experiments", *map(str, arguments)])
    return command.main()


def test_what_is_done_is_not_run_again_unless_asked(tmp_path, monkeypatch, capsys):
    arguments = ("--only", "model_fig10", "--scale", "tiny", "--out", tmp_path)
    assert run_command(monkeypatch, *arguments) == 0
    first = (tmp_path / "model_fig10.json").read_text()
    monkeypatch.setattr(harness.load("model_fig10"), "run", lambda config: pytest.fail("it was run again"))
    assert run_command(monkeypatch, *arguments) == 0
    assert "model_fig10: done at commit" in capsys.readouterr().out
    assert (tmp_path / "model_fig10.json").read_text() == first
    monkeypatch.undo()
    assert run_command(monkeypatch, *arguments, "--again") == 0
    assert (tmp_path / "model_fig10.json").read_text() != first


def test_another_config_is_not_done(tmp_path, monkeypatch):
    harness.run("model_fig10", "tiny", tmp_path)
    assert harness.done("model_fig10", "tiny", tmp_path)
    assert harness.done("model_fig10", "full", tmp_path) is None
    monkeypatch.setattr(harness.load("model_fig10"), "CONFIG", {"tiny": {"rows": 5}})
    assert harness.done("model_fig10", "tiny", tmp_path) is None


def test_one_failure_loses_no_other_and_is_on_the_page(tmp_path, monkeypatch, capsys):
    def fail(config):
        raise OSError("the disk is <gone>")

    arguments = ("--only", "model_fig09", "model_fig10", "--scale", "tiny", "--out", tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(harness.load("model_fig09"), "run", fail)
        assert run_command(patch, *arguments) == 1
    assert "FAILED: model_fig09" in capsys.readouterr().err
    html = (tmp_path / "figures.html").read_text()
    assert "<b>model_fig09</b>: OSError: the disk is &lt;gone&gt;" in html
    assert "Figure 10 as a MODEL" in html
    assert run_command(monkeypatch, *arguments) == 0  # runs only what is missing
    assert "model_fig10: done" in capsys.readouterr().out
    html = (tmp_path / "figures.html").read_text()
    assert "&lt;gone&gt;" not in html
    assert "Figure 9 as a MODEL" in html


def test_a_record_of_other_code_is_named_on_the_page_and_loses_no_other(tmp_path):
    for name in ("model_fig09", "model_fig10"):
        harness.run(name, "tiny", tmp_path)
    record = json.loads((tmp_path / "model_fig09.json").read_text())
    del record["results"]["fitted"]
    (tmp_path / "model_fig09.json").write_text(json.dumps(record))
    html = page.write(tmp_path).read_text()
    assert "<b>model_fig09</b>: what was recorded at commit" in html
    assert "Figure 10 as a MODEL" in html


def test_small_or_unclean_records_are_not_kept(tmp_path):
    harness.run("model_fig10", "tiny", tmp_path)
    with pytest.raises(SystemExit, match="of the full scale and a clean commit"):
        keep.keep(tmp_path)


def test_a_wrong_name_lists_the_right_ones():
    with pytest.raises(SystemExit, match="fig09"):
        harness.load("fig99")


def test_readme_shows_the_kept_records():
    text = keep.README.read_text()
    for name, part in keep.readme_parts().items():
        begin, end = keep.between(text, name)
        assert text[begin:end] == part, f"run python -m experiments --draw --keep: {name} is out of date"


@pytest.mark.parametrize("path", sorted(keep.RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_kept_records_can_be_drawn_again(path, tmp_path):
    record = json.loads(path.read_text())
    assert record["scale"] == "full"
    assert "dirty" not in record["provenance"]["commit"]
    harness.picture(record, tmp_path / "again.svg")
    assert harness.load(record["experiment"]).here(record["results"])
