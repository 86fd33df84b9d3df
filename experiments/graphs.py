"""Graphs that experiments measure on: made once, kept, the same for every contender."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path

import gids
from gids.bench.page_cache import forget_pages
from gids.generate import communities, rmat

DATA = Path("build/experiments")


def power_law(nodes: int, degree: float = 15.0, dim: int = 256) -> gids.Dataset:
    """An R-MAT graph with ``dim`` float32 features; made on first use."""
    path = DATA / f"rmat-{nodes}-{degree:g}-{dim}"
    if not path.exists():
        DATA.mkdir(parents=True, exist_ok=True)
        rmat(path, num_nodes=nodes, degree=degree, dim=dim, train=0.5)
        read_once(gids.open(path).feature_table().stripes[0].path)
    return gids.open(path)


def edges_only(nodes: int, degree: float) -> gids.Dataset:
    """An R-MAT graph for sampling alone; its features are one number a node."""
    path = DATA / f"edges-{nodes}-{degree:g}"
    if not path.exists():
        DATA.mkdir(parents=True, exist_ok=True)
        rmat(path, num_nodes=nodes, degree=degree, dim=1, dtype="float16", train=0.5)
        read_once(gids.open(path).indices_table().stripes[0].path)
    return gids.open(path)


def edges_by_community(nodes: int, degree: float) -> gids.Dataset:
    """A graph of communities for sampling alone, whose accesses are less skewed."""
    path = DATA / f"community-edges-{nodes}-{degree:g}"
    if not path.exists():
        DATA.mkdir(parents=True, exist_ok=True)
        communities(path, num_nodes=nodes, degree=degree, dim=1, dtype="float16", train=0.5)
        read_once(gids.open(path).indices_table().stripes[0].path)
    return gids.open(path)


@cache
def opened(path: str) -> gids.Dataset:
    """Open a dataset once."""
    return gids.open(path)


def copy_of_features(dataset: gids.Dataset, name: str) -> Path:
    """Return a copy of a dataset's feature file, none of it in the page cache, for the one contender that ``name`` names."""
    (stripe,) = dataset.feature_table().stripes
    return _copy(stripe.path, dataset.scratch_dir / f"features of {name}.bin")


def copy_of_edges(dataset: gids.Dataset, name: str) -> Path:
    """Return such a copy of its edge file."""
    return _copy(dataset.indices_table().stripes[0].path, dataset.scratch_dir / f"edges of {name}.bin")


def _copy(source: Path, path: Path) -> Path:
    if not path.exists() or path.stat().st_size != source.stat().st_size:
        shutil.copyfile(source, path)
        read_once(path)
    forget_pages(path)
    return path


def read_once(path: Path) -> None:
    """Read a new file from the disk: virtual disks give blocks that nobody has read yet many times more slowly.

    Without this whoever came first would pay for it: the mapped contenders, whose copies are new.
    """
    forget_pages(path)
    with path.open("rb", buffering=0) as file:
        while file.read(8 << 20):
            pass
    forget_pages(path)
