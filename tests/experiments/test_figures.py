"""Every experiment runs at its tiny scale, keeps its numbers, and appears on the page."""

import json

import pytest

from experiments import graphs, harness, page


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
