"""Which feature tables a command line names, as ``features`` of a loader has them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gids.errors import ConfigError

if TYPE_CHECKING:
    from gids.dataset import Dataset


def add_features(parser: argparse.ArgumentParser, verb: str) -> None:
    """Add ``--features`` and ``--edge-features``."""
    parser.add_argument("--features", nargs="*", default=["feat"], help=f"feature tables to {verb} (default feat)")
    parser.add_argument("--edge-features", nargs="*", help=f"edge feature tables to {verb} (default none)")


def features_of(dataset: Dataset, nodes: Sequence[str], edges: Sequence[str] | None) -> Any:
    """Return the names, or, with edge tables, the names by type; a name means every type that has it."""
    if not edges:
        return list(nodes)
    of_nodes = {ntype: dataset.feature_names(ntype) for ntype in dataset.node_types}
    of_edges = {etype: dataset.edge_feature_names(etype) for etype in dataset.edge_types}
    return _having(of_nodes, nodes, "--features") | _having(of_edges, edges, "--edge-features")


def _having(stored: Mapping[Any, Sequence[str]], names: Sequence[str], option: str) -> dict[Any, list[str]]:
    known = sorted({name for found in stored.values() for name in found})
    for name in names:
        if name not in known:
            raise ConfigError(f"{option} must be among {known} (got {name!r})")
    having = {kind: [name for name in names if name in found] for kind, found in stored.items()}
    return {kind: found for kind, found in having.items() if found}
