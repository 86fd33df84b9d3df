"""Graphs that experiments measure on: made once, kept, the same for every contender."""

from __future__ import annotations

from pathlib import Path

import gids
from gids.generate import rmat

DATA = Path("build/experiments")


def power_law(nodes: int, degree: float = 15.0, dim: int = 256) -> gids.Dataset:
    """An R-MAT graph with ``dim`` float32 features; made on first use."""
    path = DATA / f"rmat-{nodes}-{degree:g}-{dim}"
    if not path.exists():
        DATA.mkdir(parents=True, exist_ok=True)
        rmat(path, num_nodes=nodes, degree=degree, dim=dim, train=0.5)
    return gids.open(path)
