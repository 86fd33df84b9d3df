"""How classes of gids stand to each other: backends are composed, and no constructor runs what a subclass overrides."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import gids

ROOT = Path(__file__).resolve().parents[1]
#: What a module may need that is not installed.
OPTIONAL = ("dgl", "torch_geometric", "cupy", "kvikio", "matplotlib", "pymetis", "mtkahypar", "yaml", "rich")
#: Packages of the CPU's path. Protocols and errors of theirs are for everyone.
CPU_PATH = ("gids.runtime", "gids.tiers", "gids.storage", "gids.loader")


def modules() -> Iterator[ModuleType]:
    for found in pkgutil.walk_packages(gids.__path__, "gids."):
        if found.name.endswith("__main__"):
            continue
        try:
            yield importlib.import_module(found.name)
        except ModuleNotFoundError as missing:
            if str(missing.name).split(".")[0] not in OPTIONAL:
                raise


def classes() -> set[type]:
    found = {thing for module in modules() for thing in vars(module).values() if inspect.isclass(thing)}
    return {kind for kind in found if kind.__module__.startswith("gids.")}


def used_of_self(function: Any) -> set[str]:
    """Attributes of its first argument that a method reads."""
    if function.__name__ == "__init__" and function.__code__.co_filename == "<string>":
        return {"__post_init__"}  # of a dataclass
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(definition, ast.FunctionDef)
    if not definition.args.args:
        return set()
    itself = definition.args.args[0].arg
    return {
        node.attr
        for node in ast.walk(definition)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == itself
    }


def member(kind: type, name: str) -> Any:
    """The method or property of that name, as a plain function; None where it is data or not ours."""
    owner = next((base for base in kind.__mro__ if name in vars(base)), None)
    if owner is None or not owner.__module__.startswith("gids."):
        return None
    found = vars(owner)[name]
    found = found.fget if isinstance(found, property) else getattr(found, "__func__", found)
    return found if inspect.isfunction(found) else None


def reached_by_constructor(kind: type) -> set[str]:
    """Methods and properties that the constructor of a class itself calls, directly or through others of them."""
    reached: set[str] = set()
    to_do = used_of_self(vars(kind)["__init__"])
    while to_do:
        name = to_do.pop()
        function = member(kind, name)
        if function is not None and name not in reached:
            reached.add(name)
            to_do |= used_of_self(function)
    return reached


def overridden_while_constructed(kinds: set[type]) -> list[str]:
    wrong = []
    for kind in kinds:
        heirs = [other for other in kinds if other is not kind and kind in other.__mro__]
        if heirs and inspect.isfunction(vars(kind).get("__init__")):
            reached = reached_by_constructor(kind)
            wrong += [
                f"{kind.__name__}: {heir.__name__}.{name}" for heir in heirs for name in reached & set(vars(heir))
            ]
    return sorted(wrong)


def test_no_constructor_calls_what_a_subclass_overrides():
    assert overridden_while_constructed(classes()) == []


def test_an_overridden_call_would_be_seen():
    class Parent:
        def __init__(self):
            self.open()

        def open(self):
            self.name  # noqa: B018

        @property
        def name(self):
            return ""

    class Child(Parent):
        @property
        def name(self):
            return "early"

    Parent.__module__ = Child.__module__ = "gids.made_up"
    assert overridden_while_constructed({Parent, Child}) == ["Parent: Child.name"]


def test_nothing_on_cuda_derives_from_the_cpus_path():
    wrong = [
        f"{kind.__name__}({base.__name__})"
        for kind in classes()
        for base in kind.__mro__[1:]
        if kind.__module__.startswith("gids.cuda") and base.__module__.startswith(CPU_PATH)
        if not getattr(base, "_is_protocol", False)
    ]
    assert wrong == []


def test_no_store_or_reader_is_of_any_type():
    wrong = []
    for path in sorted((ROOT / "gids").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.arg):
                name, annotation = node.arg, node.annotation
            elif isinstance(node, ast.AnnAssign):
                name, annotation = getattr(node.target, "attr", getattr(node.target, "id", "")), node.annotation
            else:
                continue
            text = "" if annotation is None else ast.unparse(annotation)
            of_any_type = text.rstrip("]").endswith(("Any", "object")) and "Store[" not in text
            if of_any_type and name.rstrip("s").endswith(("store", "reader")):
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno} {name}: {text}")
    assert wrong == []
