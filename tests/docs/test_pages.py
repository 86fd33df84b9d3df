"""The documentation does what it says: snippets and commands run, messages exist, every public name and page is listed."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import gids
from gids.cli import COMMANDS, NESTED, main
from gids.loader.epochs import EpochLoader

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
#: Pages whose commands and snippets run one after the other, in one directory.
EXECUTED = ("get_started", "your_data", "budget", "profile")
#: Words that a command has where the reader puts a name of their own.
PLACEHOLDERS = {"SOURCE", "DATASET", "DIR"}


def blocks(page: Path) -> list[tuple[str, str]]:
    return re.findall(r"^```(sh|python)\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("docs")
    graph = str(path / "my-graph")
    assert main(["generate", "communities", graph, "--nodes", "20k", "--dim", "32", "--quiet"]) == 0
    return path


@pytest.mark.parametrize("name", EXECUTED)
def test_commands_and_snippets_run(name: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch_geometric")
    if name == "get_started":
        pytest.importorskip("dgl", reason="the page has a snippet for DGL")
    monkeypatch.chdir(directory)
    names: dict[str, Any] = {}
    for language, text in blocks(DOCS / f"{name}.md"):
        if language == "python":
            exec(compile(text, f"docs/{name}.md", "exec"), names)
            continue
        for line in text.splitlines():
            words = shlex.split(line, comments=True)
            generated = words[1] == "generate" and Path(words[3]).exists()
            if words[0] == "gids" and not PLACEHOLDERS & set(words) and not generated:
                assert main(words[1:]) == 0, line
    for value in names.values():
        if isinstance(value, EpochLoader):
            value.close()


def test_messages_of_the_troubleshooting_page_are_those_of_the_code() -> None:
    sources = "\n".join(
        path.read_text()
        for folder in ("gids", "cpp")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".cpp", ".hpp")
    )
    page = (DOCS / "troubleshooting.md").read_text()
    terms = re.findall(r"^`([^`]+)`\n: ", page, flags=re.MULTILINE)
    assert len(terms) >= 8
    for term in terms:
        parts = [part.strip() for part in re.split(r"…|\[.*|:", term) if len(part.strip()) > 3]
        for part in parts:
            assert part in sources, f"no message has {part!r} of {term!r}"


def test_the_reference_lists_every_public_name() -> None:
    page = (DOCS / "reference" / "api.md").read_text()
    names = set(gids.__all__) - {"__version__", "convert", "infer", "pack"}
    errors = {name for name in names if name.endswith("Error")}  # by automodule:: gids.errors
    missing = [name for name in sorted(names - errors) if f"gids.{name}\n" not in page]
    assert not missing
    for function in ("gids.convert.convert", "gids.pack.pack"):
        assert f"autofunction:: {function}" in page


def test_every_command_has_a_summary_that_begins_with_a_verb() -> None:
    for words in (*COMMANDS.values(), *NESTED.values()):
        assert re.match(r"[a-z]+,? ", words), words


def test_every_page_is_listed() -> None:
    listed = set()
    for page in DOCS.rglob("*.md"):
        for toctree in re.findall(r"^```\{toctree\}\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE):
            listed |= {line for line in toctree.splitlines() if line and not line.startswith(":")}
    pages = {str(page.relative_to(DOCS).with_suffix("")) for page in DOCS.rglob("*.md")} - {"index"}
    assert pages == listed
