"""Words that were private to this project are not used, and docstrings begin with the verb that readers expect."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: Names that were replaced (shared/STYLE.md says by what): none comes back.
REPLACED = ("LateGroup", "Undelivered", "BATCHES_IN_HANDS", "LoaderOptions", "least_batches")


def docstrings(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module) and ast.get_docstring(node):
            yield getattr(node, "name", path.name), ast.get_docstring(node)


def test_no_docstring_begins_with_give():
    begun = [
        f"{path.relative_to(ROOT)}: {name}"
        for folder in ("gids", "experiments")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for name, text in docstrings(path)
        if re.match(r"Gives?\b", text)
    ]
    assert begun == []


def test_replaced_names_stay_away():
    found = [
        f"{path.relative_to(ROOT)}: {word}"
        for path in sorted((ROOT / "gids").rglob("*.py"))
        for word in REPLACED
        if re.search(rf"\b{word}\b", path.read_text())
    ]
    assert found == []
