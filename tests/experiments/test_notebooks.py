"""Notebooks run from top to bottom, and what is stored of them is what their code printed and drew."""

import base64

import nbformat
import pytest

from experiments.notebooks.execute import HERE, code_digest, execute, notebooks, tidy
from tests.packages import NO_DGL

NAMES = ["dgl_in_two_lines", "first_look", "sizing_cache_and_window", "where_time_goes"]
#: What a code-hosting page shows: text, tables and pictures, nothing that needs a script.
READABLE = {"text/plain", "text/html", "image/png"}
LARGEST_BYTES = 400_000


def kinds(cell):
    """What a cell gave, without the numbers: streams and kinds of data."""
    return [output.get("name") or sorted(output.get("data", {})) for output in cell.get("outputs", [])]


def test_these_are_all_notebooks():
    assert [path.stem for path in notebooks()] == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_what_is_stored_was_executed_and_can_be_read_on_a_page(name):
    path = HERE / f"{name}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata.gids.executed == code_digest(notebook), f"{name} was edited: run `make notebooks`"
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell.outputs]
    assert all(output.output_type in ("stream", "display_data", "execute_result") for output in outputs)
    assert "stderr" not in [output.get("name") for output in outputs]
    data = [output.data for output in outputs if "data" in output]
    assert all(set(kind) <= READABLE for kind in data)
    assert "<script" not in "".join(kind.get("text/html", "") for kind in data)
    pictures = [base64.b64decode(kind["image/png"]) for kind in data if "image/png" in kind]
    assert pictures
    assert all(picture.startswith(b"\x89PNG") for picture in pictures)
    assert path.stat().st_size < LARGEST_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_it_runs_and_gives_what_is_stored_but_for_numbers(name):
    if "dgl" in name:
        pytest.importorskip("dgl", reason=NO_DGL)
    stored = nbformat.read(HERE / f"{name}.ipynb", as_version=4)
    fresh = tidy(execute(HERE / f"{name}.ipynb", {"GIDS_NOTEBOOK_NODES": "8000"}))
    assert fresh.metadata == stored.metadata
    assert [kinds(cell) for cell in fresh.cells] == [kinds(cell) for cell in stored.cells]


def test_an_edit_without_a_run_is_found():
    notebook = nbformat.read(HERE / "first_look.ipynb", as_version=4)
    executed = notebook.metadata.gids.executed
    notebook.cells[1].source += "\n"
    assert code_digest(notebook) != executed
