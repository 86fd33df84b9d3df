"""Every argument of every public callable is described where a reader looks for it."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

import gids
from tests.packages import NO_DGL

HAS_DGL = importlib.util.find_spec("dgl") is not None


DOORS = ["gids", "gids.pyg", *(["gids.dgl"] if HAS_DGL else [])]


def described(thing: Any) -> set[str]:
    """Names that the docstring of a callable, and of the class it belongs to, lists as parameters or attributes."""
    text = inspect.getdoc(thing) or ""
    names: set[str] = set()
    for line in text.splitlines():
        head = re.match(r"^((?:\*{0,2}\w+)(?:, \*{0,2}\w+)*)(?: :|$)", line)
        if head:
            names |= {name.lstrip("*") for name in head[1].split(", ")}
    return names | set(re.findall(r"``(\w+)``", text))


def callables() -> Iterator[tuple[str, Any, set[str]]]:
    for module in map(importlib.import_module, DOORS):
        for name in module.__all__:
            thing = getattr(module, name)
            if not getattr(thing, "__module__", "").startswith("gids"):
                continue  # DGL's own
            if inspect.isclass(thing):
                if not issubclass(thing, BaseException):
                    yield f"{module.__name__}.{name}", thing, described(thing)
                for method, value in inspect.getmembers(thing, inspect.isfunction):
                    if not method.startswith("_") and value.__module__.startswith("gids"):
                        yield f"{module.__name__}.{name}.{method}", value, described(value) | described(thing)
            elif callable(thing) and not isinstance(thing, ModuleType):
                yield f"{module.__name__}.{name}", thing, described(thing)


FOUND = list(callables())


def test_doors_are_looked_at() -> None:
    names = {name for name, _, _ in FOUND}
    assert {"gids.Loader", "gids.Loader.stats", "gids.open", "gids.pyg.NeighborLoader"} <= names
    if not HAS_DGL:
        pytest.skip(NO_DGL)
    assert {"gids.dgl.DataLoader", "gids.dgl.GIDS.set_cpu_buffer"} <= names


@pytest.mark.parametrize(("name", "thing", "names"), FOUND, ids=[name for name, _, _ in FOUND])
def test_every_argument_is_described(name: str, thing: Any, names: set[str]) -> None:
    parameters = [p for p in inspect.signature(thing).parameters if p != "self"]
    words = set(re.findall(r"\w+", inspect.getdoc(thing) or "")) if len(parameters) == 1 else set()
    missing = [p for p in parameters if p not in names | words]
    assert not missing, f"{name}: {', '.join(missing)} must be described in its docstring"


def test_the_loader_takes_few_arguments_and_options_are_named() -> None:
    parameters = inspect.signature(gids.Loader).parameters
    assert len(parameters) <= 16
    for options in (gids.MemoryOptions, gids.PipelineOptions, gids.OrderOptions, gids.OutputOptions):
        assert all(p.kind is p.KEYWORD_ONLY for p in inspect.signature(options).parameters.values())
        assert options.__dataclass_params__.frozen
    of_spill = inspect.signature(gids.SpillOptions).parameters  # a size may stand alone, as in spill="64GiB"
    assert [n for n, p in of_spill.items() if p.kind is not p.KEYWORD_ONLY] == ["disk", "directory"]
    assert gids.SpillOptions.__dataclass_params__.frozen
