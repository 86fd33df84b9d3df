"""One node's part of a dataset: everything but the feature rows that other nodes hold."""

from __future__ import annotations

import copy
import errno
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gids.dataset import manifest as manifests
from gids.dataset.dataset import Dataset, open_dataset
from gids.dataset.journal import sync_directory
from gids.dataset.manifest import Manifest, StoredTable, stripe_row_counts
from gids.dataset.table_writer import Progress
from gids.errors import ConfigError, DatasetError
from gids.table import RowTable, Stripe

#: Bytes that are copied at a time, between two reports of progress.
STEP_BYTES = 64 << 20


def bounds(num_rows: int, nodes: int) -> NDArray[np.int64]:
    """Return where the rows of every node begin, and where the last ones end: node ``k`` has ``[b[k], b[k + 1])``.

    Parameters
    ----------
    num_rows : int
        Of the table.
    nodes : int
        That share it, as evenly as rows can be.
    """
    return np.array([num_rows * node // nodes for node in range(nodes + 1)], np.int64)


def write_part(
    dataset: Dataset, path: str | os.PathLike[str], *, node: int, nodes: int, progress: Progress | None = None
) -> Dataset:
    """Write the part of a dataset that one of several nodes holds, for :class:`gids.Shards`.

    Topology, labels and splits are whole, and so are the names and lengths of all files; feature files have their node's
    rows and holes in the place of the others. The part has the dataset's id, so that loaders resume on either. Reading
    rows that it lacks is refused.

    Parameters
    ----------
    dataset : Dataset
        The whole one, for example on a shared file system.
    path : path-like
        Directory to create; nothing is there until it is complete.
    node, nodes : int
        Which part, counted from 0, and of how many.
    progress : callable, optional
        Called with a table's name, bytes copied, and bytes to copy.
    """
    found = part_of(dataset.manifest, node, nodes)
    target = Path(path).absolute()
    if target.exists():
        raise DatasetError(f"{target} must not exist (remove it to write it again)")
    making = target.with_name(f"{target.name}.unfinished")
    shutil.rmtree(making, ignore_errors=True)  # of a run that was killed
    making.mkdir(parents=True)
    try:
        files: dict[Path, Path] = {}  # of the source -> of the part
        for stored in found.tables():
            _copy_table(stored, dataset.path, making, files, progress)
        _write_manifest(_moved(found, files, target), target, making)
        sync_directory(making)
        making.rename(target)
        sync_directory(target.parent)
    except BaseException:
        shutil.rmtree(making, ignore_errors=True)
        raise
    return open_dataset(target)


def part_of(whole: Manifest, node: int, nodes: int) -> Manifest:
    """Return the manifest of the part of a dataset that a node holds; its files are those of the whole."""
    if nodes < 1 or not 0 <= node < nodes:
        raise ConfigError(f"node must be in [0, nodes) (got {node} of {nodes})")
    found = copy.deepcopy(whole)
    features = [entry.features for entry in found.nodes.values()] + [entry.features for entry in found.edges.values()]
    for tables in features:
        for name, stored in tables.items():
            begin, end = bounds(stored.table.num_rows, nodes)[[node, node + 1]].tolist()
            tables[name] = replace(stored, table=replace(stored.table, held=(begin, end)))
    return found


def _copy_table(
    stored: StoredTable, root: Path, making: Path, files: dict[Path, Path], progress: Progress | None
) -> None:
    table = stored.table
    _copy(root / stored.checksums.path, making / stored.checksums.path, [(0, None)], None)
    ranges = [_bytes_of(table, number) for number in range(len(table.stripes))]
    total, done = sum(end - begin for begin, end in ranges), 0
    for number, (stripe, size) in enumerate(zip(table.stripes, stored.file_bytes, strict=True)):
        name = files[stripe.path] = _name_inside(table, number, root)
        begin, end = ranges[number]
        wanted: list[tuple[int, int | None]] = [(0, None)]
        if table.held is not None:
            wanted = [(0, stripe.data_offset), (begin, end)]
        for copied in _steps(stripe.path, making / name, wanted, size):
            done += copied
            if progress is not None:
                progress(table.name, min(done, total), total)


def _name_inside(table: RowTable, number: int, root: Path) -> Path:
    """Name a file of a table within a dataset's directory, also where it is elsewhere."""
    path = table.stripes[number].path
    return path.relative_to(root) if path.is_relative_to(root) else Path("parts", *table.name.split("/"), str(number))


def inside(found: Manifest, root: Path) -> tuple[Manifest, dict[Path, Path]]:
    """Return a manifest all of whose files are in the dataset's directory ``root``, and the names that they have there."""
    tables = [stored.table for stored in found.tables()]
    files = {s.path: _name_inside(table, number, root) for table in tables for number, s in enumerate(table.stripes)}
    return _moved(copy.deepcopy(found), files, root), files


def _bytes_of(table: RowTable, number: int) -> tuple[int, int]:
    """Return where the rows that a table holds are in one of its files."""
    rows = (0, table.num_rows) if table.held is None else table.held
    local = [stripe_row_counts(row, table.stripe_rows, len(table.stripes))[number] for row in rows]
    return table.begin_in(number, local[0]), table.begin_in(number, local[1])


def _copy(source: Path, target: Path, ranges: list[tuple[int, int | None]], size: int | None) -> None:
    for _ in _steps(source, target, ranges, size):
        pass


def _steps(source: Path, target: Path, ranges: list[tuple[int, int | None]], size: int | None) -> Iterator[int]:
    """Copy ranges of bytes to where they are in the source; yields how many were copied at a time."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with source.open("rb") as given, target.open("wb") as made:
        length = os.fstat(given.fileno()).st_size if size is None else size
        os.truncate(made.fileno(), length)
        for begin, end in ranges:
            at, stop = begin, min(length, length if end is None else end)
            while at < stop:
                copied = _copy_bytes(given.fileno(), made.fileno(), min(STEP_BYTES, stop - at), at)
                if copied == 0:
                    raise DatasetError(f"{source} must have {length} bytes (it ends at {at})")
                at += copied
                yield copied
        os.fsync(made.fileno())


def _copy_bytes(given: int, made: int, most: int, at: int) -> int:
    try:
        return os.copy_file_range(given, made, most, at, at)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
    return os.pwrite(made, os.pread(given, most, at), at)  # between file systems that the kernel cannot copy between


def _moved(found: Manifest, files: dict[Path, Path], target: Path) -> Manifest:
    """Return a manifest whose files are those of the part."""

    def moved(stored: StoredTable) -> StoredTable:
        stripes = tuple(
            Stripe(target / files[stripe.path], stripe.data_offset, stripe.num_rows) for stripe in stored.table.stripes
        )
        return replace(stored, table=replace(stored.table, stripes=stripes))

    def walk(entry: object) -> None:
        for name, value in vars(entry).items():
            if isinstance(value, StoredTable):
                setattr(entry, name, moved(value))
            elif isinstance(value, manifests.NamesEntry):
                walk(value)
            elif isinstance(value, dict):
                for key, stored in value.items():
                    if isinstance(stored, StoredTable):
                        value[key] = moved(stored)

    for entry in (*found.nodes.values(), *found.edges.values(), found.knowledge):
        if entry is not None:
            walk(entry)
    return found


def _write_manifest(found: Manifest, target: Path, making: Path) -> None:
    with (making / manifests.MANIFEST).open("w") as file:
        file.write(manifests.dump(found, target))
        file.flush()
        os.fsync(file.fileno())
