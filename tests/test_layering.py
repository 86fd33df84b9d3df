"""Import direction inside gids/ (DESIGN, section 2): a package imports only from its own layer's packages below it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

#: From the bottom up. Packages of one layer do not know each other, but for those of COMPANIONS.
LAYERS = (
    ("_native",),
    ("errors", "units", "table", "types", "ledger", "machine"),
    ("storage",),
    ("dataset", "convert", "generate"),
    ("sampling", "partition"),
    ("tiers",),
    ("budget",),
    ("runtime",),
    ("cuda", "nvme"),
    ("loader", "pack", "infer", "kg", "cluster"),
    ("dgl", "pyg", "models"),
    ("report", "bench", "demo", "cli"),
)
LEVEL = {package: level for level, packages in enumerate(LAYERS) for package in packages}
#: Layers whose packages may import each other, and which way.
COMPANIONS = {
    ("units", "errors"),
    ("table", "errors"),
    ("table", "units"),
    ("types", "errors"),
    ("ledger", "errors"),
    ("ledger", "units"),
    ("convert", "dataset"),
    ("generate", "dataset"),
    ("generate", "convert"),
    ("partition", "sampling"),
    ("cuda", "nvme"),
    *((package, "loader") for package in ("pack", "infer", "kg", "cluster")),
    *((package, "models") for package in ("dgl", "pyg")),
    ("bench", "report"),
    ("demo", "report"),
    *(("cli", package) for package in ("report", "bench", "demo")),
}
#: What is not in order today, by file and package imported, each with its reason. A test fails when one is mended.
EXCEPTIONS: dict[tuple[str, str], str] = {
    (
        "gids/cuda/selftest.py",
        "gids",
    ): "a tool, not a part: it runs whole loaders to see whether a device does what the CPU does",
}


def package_of(path: Path) -> str:
    """Name of the package or module directly under gids/ that a file belongs to."""
    first = path.relative_to(ROOT / "gids").parts[0]
    return first.removesuffix(".py")


def imported(path: Path) -> Iterator[tuple[str, int]]:
    """Modules of gids that a file imports, those inside of functions and TYPE_CHECKING included, and the line."""
    own = [*path.relative_to(ROOT).with_suffix("").parts]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names if alias.name.split(".")[0] == "gids")
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(own[: -node.level]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            if module == "gids":
                names = [alias.name for alias in node.names if alias.name != "__version__"]
                yield from ((f"gids.{name}", node.lineno) for name in names)
            elif module.startswith("gids."):
                yield module, node.lineno


def packages_imported(path: Path) -> Iterator[tuple[str, int]]:
    """Packages directly under gids/ that a file imports."""
    for module, line in imported(path):
        parts = module.split(".")
        if len(parts) > 1 and parts[1] in LEVEL:
            yield parts[1], line
        elif module == "gids" or (len(parts) == 2 and parts[1] not in LEVEL):
            yield "gids", line  # the package itself, for its public names


def offences() -> Iterator[tuple[str, str, int]]:
    """Imports against the direction: file, package, line."""
    for path in sorted((ROOT / "gids").rglob("*.py")):
        own, name = package_of(path), str(path.relative_to(ROOT))
        if own in ("__init__", "__main__"):
            continue
        for other, line in packages_imported(path):
            if other == "gids":
                # The public face exports the loader: whoever takes names from it stands above the loader.
                if LEVEL[own] <= LEVEL["loader"]:
                    yield name, other, line
            elif other != own and LEVEL[other] >= LEVEL[own] and (own, other) not in COMPANIONS:
                yield name, other, line


def test_every_package_has_a_layer():
    found = {package_of(path) for path in (ROOT / "gids").rglob("*.py")} - {"__init__", "__main__"}
    assert found <= set(LEVEL), f"say in LAYERS where {sorted(found - set(LEVEL))} stand"


def test_companions_go_one_way():
    assert not {(b, a) for a, b in COMPANIONS} & COMPANIONS
    assert all(LEVEL[a] == LEVEL[b] for a, b in COMPANIONS)


def test_nobody_imports_against_the_direction():
    wrong = [
        f"{name}:{line} imports gids.{other}" for name, other, line in offences() if (name, other) not in EXCEPTIONS
    ]
    assert wrong == []


@pytest.mark.parametrize("exception", EXCEPTIONS, ids=lambda pair: f"{pair[0]} -> {pair[1]}")
def test_an_exception_is_still_one(exception):
    assert exception in {(name, other) for name, other, _ in offences()}, "remove it from EXCEPTIONS"


def test_imports_inside_functions_are_seen(tmp_path):
    assert ("gids.cuda.backend", 14) in set(imported(ROOT / "gids" / "loader" / "backends.py"))
