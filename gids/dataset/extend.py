"""Add feature tables to a finished dataset, whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gids.dataset import manifest as manifests
from gids.dataset.build import safe_name
from gids.dataset.dataset import Dataset
from gids.dataset.journal import sync_directory
from gids.dataset.manifest import StoredTable
from gids.errors import ConfigError, DatasetError
from gids.table import Stripe


def check_addable(dataset: Dataset, ntypes: Sequence[str], names: Sequence[str], *, overwrite: bool) -> None:
    """Refuse tables that a dataset has already, unless they are to be replaced, and a dataset that cannot be written."""
    for ntype in ntypes:
        known = [name for name in names if name in dataset.feature_names(ntype)]
        if known and not overwrite:
            raise ConfigError(
                f"{dataset.path} has {ntype}/{known[0]} already; choose another name or ask to overwrite it"
            )
    if not os.access(dataset.path, os.W_OK):
        raise DatasetError(f"{dataset.path} must be a directory that can be written, to add tables to it")


def add_features(dataset: Dataset, made: Dataset, *, overwrite: bool = False) -> Dataset:
    """Move every feature table of one dataset into another; returns that one, opened again, and removes the first.

    The manifest is replaced in one step, so that a kill leaves the old dataset or the new one. The dataset has another
    :attr:`~gids.Dataset.id` afterwards: it names the contents.

    Parameters
    ----------
    dataset : Dataset
        What is added to.
    made : Dataset
        Tables of the same nodes, on the same disk; stripes on other drives stay where they are.
    overwrite : bool
        Replace tables of the same name.
    """
    manifest = manifests.parse((dataset.path / manifests.MANIFEST).read_bytes(), dataset.path)
    replaced: list[StoredTable] = []
    for ntype, node in made.manifest.nodes.items():
        check_addable(dataset, [ntype], list(node.features), overwrite=overwrite)
        if manifest.nodes[ntype].num_nodes != node.num_nodes:
            raise ConfigError(
                f"tables of {ntype!r} must have {manifest.nodes[ntype].num_nodes} rows (got {node.num_nodes})"
            )
        for name, stored in node.features.items():
            before = manifest.nodes[ntype].features.get(name)
            moved = _moved(stored, made.path, dataset.path, f"nodes/{safe_name(ntype)}/features/{safe_name(name)}")
            replaced += [] if before is None or before == moved else [before]
            manifest.nodes[ntype].features[name] = moved
    manifest.id = manifests.identity(manifest)
    _publish(manifests.dump(manifest, dataset.path), dataset.path)
    for stored in replaced:
        for path in (*(stripe.path for stripe in stored.table.stripes), dataset.path / stored.checksums.path):
            if path.is_relative_to(dataset.path):  # what lies elsewhere may be somebody else's
                path.unlink(missing_ok=True)
    shutil.rmtree(made.path)
    return Dataset(dataset.path)


def _moved(stored: StoredTable, root: Path, target: Path, key: str) -> StoredTable:
    """Link a table's files into another dataset; named after their contents, so that an earlier table stays whole."""
    token = stored.checksums.digest[:12]
    stripes = []
    for number, stripe in enumerate(stored.table.stripes):
        path = stripe.path
        if path.is_relative_to(root):
            path = target / f"{key}.{token}.{number}.bin"
            _link(stripe.path, path)
        stripes.append(Stripe(path, stripe.data_offset, stripe.num_rows))
    checksums = f"checksums/{key}.{token}.xxh3"
    _link(root / stored.checksums.path, target / checksums)
    return replace(
        stored,
        table=replace(stored.table, stripes=tuple(stripes)),
        checksums=replace(stored.checksums, path=checksums),
    )


def _link(source: Path, target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)  # of a run that was killed here
        os.link(source, target)
        sync_directory(target.parent)
    except OSError as error:
        raise DatasetError(f"adding {target} failed: {error.strerror}") from error


def _publish(document: str, path: Path) -> None:
    temporary = path / f"{manifests.MANIFEST}.tmp"
    try:
        with temporary.open("w") as file:
            file.write(document)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path / manifests.MANIFEST)
        sync_directory(path)
    except OSError as error:
        raise DatasetError(f"writing {temporary} failed: {error.strerror}") from error
