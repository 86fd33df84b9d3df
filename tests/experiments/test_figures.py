"""Every experiment runs at its tiny scale, keeps its numbers, and appears on the page."""

import json

import pytest

from experiments import graphs, harness, keep, page


@pytest.mark.parametrize("name", harness.names())
def test_tiny_run(name, tmp_path, monkeypatch, tmp_path_factory):
    monkeypatch.setattr(graphs, "DATA", tmp_path_factory.getbasetemp() / "graphs")
    record = json.loads(harness.run(name, "tiny", tmp_path).read_text())
    assert record["results"]
    assert record["claim"]
    assert record["differs"]
    assert record["provenance"]["commit"]
    html = page.write(tmp_path).read_text()
    assert record["title"].partition(" (")[0].replace("'", "&#x27;") in html
    assert "<svg" in html
    assert "http://" not in html.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", ""
    ).replace("http://dublincore", "")


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
