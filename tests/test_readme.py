"""README and CONTRIBUTING do what they say: snippets run, commands exist, links lead somewhere, examples stay short."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packages import NO_DGL
from tests.resources import DEADLINE_S

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def commands(text: str) -> list[list[str]]:
    lines = "".join(blocks(text, "sh")).splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def run(command: list[str], directory: Path) -> str:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "160"}
    result = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert result.returncode == 0, f"{command}\n{result.stdout[-1500:]}\n{result.stderr[-3000:]}"
    return result.stdout


def gids(words: list[str], directory: Path) -> str:
    return run([sys.executable, "-m", "gids", *words], directory)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which the README's commands have been run, in order, up to those that need the demo's run."""
    path = tmp_path_factory.mktemp("readme")
    for words in commands(README):
        if words[0] == "gids" and words[1] != "report":
            gids(words[1:], path)
    return path


@pytest.mark.slow
def test_the_snippets_run_one_after_the_other(directory: Path) -> None:
    snippets = blocks(README, "python")
    assert len(snippets) == 3
    without_dgl = importlib.util.find_spec("dgl") is None
    if without_dgl:
        snippets = [snippet for snippet in snippets if "gids.dgl" not in snippet]
    out = run([sys.executable, "-W", "ignore", "-c", "\n".join(snippets)], directory)
    losses = [float(loss) for loss in re.findall(r"epoch \d: loss ([\d.]+)", out)]
    assert len(losses) == 3
    assert losses[-1] < losses[0]
    if without_dgl:
        pytest.skip(f"the snippets ran, but for the one with DGL: {NO_DGL}")


def test_the_first_example_has_fifteen_lines() -> None:
    example = [line for line in blocks(README, "python")[0].splitlines() if line.strip()]
    assert len(example) == 15


def test_the_generated_graph_is_there_and_sound(directory: Path) -> None:
    assert "50,000" in gids(["info", "my-graph"], directory)


def test_report_takes_the_demos_run(directory: Path) -> None:
    (words,) = [words for words in commands(README) if words[:2] == ["gids", "report"]]
    run_directory = directory / words[2]
    run_directory.mkdir()
    (run_directory / "run.json").write_text('{"format": "gids-run", "version": 1, "name": "demo", "title": "A run"}')
    page = Path(gids(words[1:], directory).strip())
    assert page == (run_directory / "report.html").resolve()


@pytest.mark.parametrize("text", [README, CONTRIBUTING], ids=["README", "CONTRIBUTING"])
def test_make_targets_exist(text: str) -> None:
    targets = {word for words in commands(text) if words[0] == "make" for word in words[1:]}
    targets |= {word for quoted in re.findall(r"`make ([a-z ]+)`", text) for word in quoted.split()}
    assert targets
    listed = dict(line.split(maxsplit=1) for line in run(["make", "help"], ROOT).splitlines())
    assert targets <= listed.keys() | {"figures"}, targets - listed.keys()
    for target in targets & listed.keys():
        run(["make", "--dry-run", target], ROOT)


def test_contributing_commands_run() -> None:
    pytest_commands = [words for words in commands(CONTRIBUTING) if words[0] != "make"]
    assert len(pytest_commands) == 2
    for words in pytest_commands:
        assert words[:3] == [".venv/bin/python", "-m", "pytest"]
        assert "passed" in run([sys.executable, *words[1:], "-p", "no:cacheprovider"], ROOT)


def test_continuous_integration_runs_what_contributing_says() -> None:
    assert "`.ci/run` is `make lint` and `make test`" in CONTRIBUTING
    script = [line for line in (ROOT / ".ci/run").read_text().splitlines() if line.startswith("make")]
    assert script == ["make lint", "make test"]


@pytest.mark.parametrize("text", [README, CONTRIBUTING], ids=["README", "CONTRIBUTING"])
def test_links_lead_somewhere(text: str) -> None:
    links = [link for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    missing = [link for link in links if not (ROOT / link.split("#")[0]).exists()]
    assert not missing


@pytest.mark.parametrize("text", [README, CONTRIBUTING], ids=["README", "CONTRIBUTING"])
def test_paths_in_code_font_exist(text: str) -> None:
    paths = re.findall(r"`((?:gids|cpp|kernels|tests|experiments|docker|\.ci)/[\w./]*)`", text)
    assert not [path for path in paths if not (ROOT / path).exists()]
