"""Pins can be installed on every Python that gids says it supports, or it is said here which cannot."""

from __future__ import annotations

from collections import Counter
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parents[1]
FILES = ["requirements.txt", *(f"tests/{path.name}" for path in sorted(ROOT.glob("tests/requirements*.txt")))]
LANGUAGE = "Programming Language :: Python :: 3."
PYTHONS = [
    line.removeprefix(LANGUAGE[:-2])
    for line in metadata.metadata("gids").get_all("Classifier") or ()
    if line.startswith(LANGUAGE)
]
#: What has no release for a Python; its tests skip there, see tests/packages.py.
ABSENT = {("dgl", "3.12"), ("dgl", "3.13"), ("rapids-logger", "3.10")}


def pins(name: str) -> list[Requirement]:
    return [Requirement(line) for line in (ROOT / name).read_text().splitlines() if line and not line.startswith("#")]


def applies(pin: Requirement, python: str) -> bool:
    return pin.marker is None or pin.marker.evaluate({"python_version": python, "python_full_version": f"{python}.0"})


def test_the_supported_pythons_are_those_the_package_declares() -> None:
    assert PYTHONS == ["3.10", "3.11", "3.12", "3.13"]
    assert metadata.metadata("gids")["Requires-Python"] == f">={PYTHONS[0]}"


@pytest.mark.parametrize("name", FILES)
def test_every_python_has_one_exact_version_of_each_package(name: str) -> None:
    requirements = pins(name)
    for pin in requirements:
        assert [clause.operator for clause in pin.specifier] == ["=="], pin
    for python in PYTHONS:
        count = Counter(pin.name for pin in requirements if applies(pin, python))
        expected = {pin.name for pin in requirements if (pin.name, python) not in ABSENT}
        assert count == dict.fromkeys(expected, 1), f"{name} on Python {python}"


@pytest.mark.parametrize("name", ["requirements.txt", "tests/requirements.txt", "tests/requirements-nodeps.txt"])
def test_no_pin_is_for_a_python_that_its_package_refuses(name: str) -> None:
    for pin in pins(name):
        installed = next(iter(metadata.distributions(name=pin.name)), None)
        if installed is None or not pin.specifier.contains(installed.version):
            continue  # the pin of another Python
        accepted = SpecifierSet(installed.metadata["Requires-Python"] or "")
        refused = [python for python in PYTHONS if applies(pin, python) and not accepted.contains(f"{python}.99")]
        assert not refused, f"{pin} is for Python {refused}, but needs Python {accepted}"


@pytest.mark.parametrize(
    "extra",
    [
        "dgl",
        "pyg",
        "cuda12",
        "cuda13",
        "gds",
        "partition",
        "graphbolt",
        "parquet",
        "ray",
        "stage",
        "report",
        "notebook",
        "dev",
    ],
)
def test_an_extra_brings_something_on_every_python_but_those_named(extra: str) -> None:
    requirements = [Requirement(line) for line in metadata.requires("gids") or ()]
    for python in PYTHONS:
        environment = {"python_version": python, "python_full_version": f"{python}.0", "extra": extra}
        brought = [r.name for r in requirements if r.marker is not None and r.marker.evaluate(environment)]
        assert bool(brought) == ((extra, python) not in ABSENT), f"[{extra}] on Python {python}: {brought}"
