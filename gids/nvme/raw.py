"""Writing raw drives: superblocks and feature files. Nothing here writes before it was told twice."""

from __future__ import annotations

import os
import stat
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import xxhash

from gids.dataset import Dataset
from gids.errors import ConfigError, DatasetError
from gids.nvme.superblock import SUPERBLOCK_BYTES, StoredFile, Superblock
from gids.table import RowTable

DEFAULT_UNIT_BYTES = 128 << 10
_ALIGN = 4096


@dataclass(frozen=True)
class Target:
    """A drive to write: its path, and its serial number as the user typed it (the second telling).

    For a block device the serial must be the one that the drive reports; for an image file it is taken as given.
    """

    path: Path
    serial: str

    def check(self) -> None:
        """Refuse a path that is not the drive that was meant, or that something else uses."""
        try:
            mode = self.path.stat().st_mode
        except OSError as error:
            raise ConfigError(f"{self.path} must be a drive or an image: {error.strerror}") from None
        if stat.S_ISREG(mode):
            return
        if not stat.S_ISBLK(mode):
            raise ConfigError(f"{self.path} must be a block device or an image file")
        name = self.path.resolve().name
        reported = _serial_of(name)
        if reported != self.serial:
            raise ConfigError(
                f"serial of {self.path} must be {reported!r} (got {self.serial!r}): is this the right drive?"
            )
        node = Path("/sys/class/block") / name
        parts = [part.name for part in node.iterdir() if (part / "partition").exists()]
        if (node / "partition").exists() or parts:
            raise ConfigError(
                f"{self.path} must be a whole drive without partitions (got {', '.join(parts) or 'a partition'})"
            )
        holders = [holder.name for holder in (node / "holders").iterdir()]
        if holders:
            raise ConfigError(f"{self.path} must not be in use (held by {', '.join(holders)})")


def _serial_of(block: str) -> str:
    path = Path("/sys/class/block") / block / "device" / "serial"
    try:
        return path.read_text().strip()
    except OSError:
        raise ConfigError(f"/dev/{block} must be an NVMe namespace with a serial number (no {path})") from None


@contextmanager
def _opened(target: Target, flags: int) -> Iterator[int]:
    # O_EXCL on a block device: the kernel refuses one that is mounted or held.
    exclusive = os.O_EXCL if stat.S_ISBLK(target.path.stat().st_mode) and flags != os.O_RDONLY else 0
    descriptor = os.open(target.path, flags | exclusive | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def format_drives(targets: Sequence[Target], *, erase: bool) -> list[Superblock]:
    """Make drives a set that datasets can be loaded on. Whatever they held is lost.

    Parameters
    ----------
    targets : sequence of Target
        The drives, in stripe order, each with its serial number.
    erase : bool
        Must be True; together with the serial numbers this is what "told twice" means.

    Returns
    -------
    list of Superblock
        What was written, in stripe order.
    """
    if not erase:
        raise ConfigError("erase must be True: formatting destroys what the drives hold (got False)")
    if not targets or len({target.path.resolve() for target in targets}) != len(targets):
        raise ConfigError("targets must be one or more different drives")
    for target in targets:
        target.check()
    set_id = str(uuid.uuid4())
    blocks = [Superblock(set_id, i, len(targets), target.serial) for i, target in enumerate(targets)]
    for target, block in zip(targets, blocks, strict=True):
        with _opened(target, os.O_RDWR) as descriptor:
            _write(descriptor, block.to_bytes(), 0, target.path)
            os.fsync(descriptor)
    return blocks


def read_superblock(path: Path) -> Superblock:
    """Read the superblock of a drive that the kernel still owns, or of an image."""
    with path.open("rb") as file:
        return Superblock.from_bytes(file.read(SUPERBLOCK_BYTES), str(path))


def load_dataset(
    dataset: Dataset, targets: Sequence[Target], *, overwrite: bool = False, unit_bytes: int = DEFAULT_UNIT_BYTES
) -> list[Superblock]:
    """Write the feature tables of a dataset to drives that were formatted together.

    Parameters
    ----------
    dataset : Dataset
        Its topology, labels and splits stay where they are.
    targets : sequence of Target
        All drives of the set, in stripe order.
    overwrite : bool
        Needed when the drives already carry a dataset.
    unit_bytes : int
        Stripe unit, a multiple of 4096.

    Returns
    -------
    list of Superblock
        As written last: a load that is interrupted leaves drives that carry no dataset.
    """
    if unit_bytes < _ALIGN or unit_bytes % _ALIGN:
        raise ConfigError(f"unit_bytes must be a positive multiple of {_ALIGN} (got {unit_bytes})")
    for target in targets:
        target.check()
    found = [read_superblock(target.path) for target in targets]
    check_set(found, [target.serial for target in targets], [str(target.path) for target in targets])
    if any(block.dataset_id for block in found) and not overwrite:
        raise ConfigError(
            f"the drives carry dataset {found[0].dataset_id}: overwrite must be True to replace it (got False)"
        )
    with ExitStack() as stack:
        drives = [stack.enter_context(_opened(target, os.O_RDWR)) for target in targets]
        for descriptor, target, block in zip(drives, targets, found, strict=True):
            _write(descriptor, replace(block, dataset_id="", files=()).to_bytes(), 0, target.path)
            os.fsync(descriptor)
        capacity = min(os.lseek(descriptor, 0, os.SEEK_END) for descriptor in drives)
        files, offset = [], SUPERBLOCK_BYTES
        for path in feature_files(dataset):
            size = path.stat().st_size
            units = -(-size // unit_bytes)
            end = offset + -(-units // len(drives)) * unit_bytes
            if end > capacity:
                raise ConfigError(
                    f"every drive must hold at least {end} bytes for {path.name} (the smallest has {capacity})"
                )
            checksum = _stripe(path, drives, targets, offset, unit_bytes)
            files.append(StoredFile(_key(dataset, path), size, offset, unit_bytes, checksum))
            offset = end
        written = []
        for descriptor in drives:
            os.fsync(descriptor)  # the data is on the drives before any superblock says so
        for descriptor, target, block in zip(drives, targets, found, strict=True):
            written.append(replace(block, dataset_id=dataset.id, files=tuple(files)))
            _write(descriptor, written[-1].to_bytes(), 0, target.path)
            os.fsync(descriptor)
    return written


def feature_files(dataset: Dataset) -> list[Path]:
    """Return every file behind a node or edge feature table, each once, in a stable order."""
    tables: list[RowTable] = []
    for ntype in dataset.node_types:
        tables += [dataset.feature_table(ntype, name) for name in dataset.feature_names(ntype)]
    for etype in dataset.edge_types:
        tables += [dataset.edge_feature_table(etype, name) for name in dataset.edge_feature_names(etype)]
    paths = dict.fromkeys(stripe.path for table in tables for stripe in table.stripes if stripe.num_rows)
    return list(paths)


def _key(dataset: Dataset, path: Path) -> str:
    root = Path(dataset.path)
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


def check_set(blocks: Sequence[Superblock], serials: Sequence[str], names: Sequence[str]) -> None:
    """Refuse drives that are not one whole set in stripe order, or whose superblock was copied from elsewhere."""
    for i, (block, serial, name) in enumerate(zip(blocks, serials, names, strict=True)):
        if block.serial != serial:
            raise DatasetError(
                f"superblock of {name} belongs to the drive with serial {block.serial!r} (this one is {serial!r})"
            )
        if block.set_id != blocks[0].set_id or block.drives != len(blocks):
            raise DatasetError(
                f"drives must be all {block.drives} of one set (got {len(blocks)}; {name} is of set {block.set_id})"
            )
        if block.position != i:
            raise DatasetError(
                f"drives must be given in stripe order: {name} is number {block.position} (got it as {i})"
            )


def _stripe(path: Path, drives: Sequence[int], targets: Sequence[Target], offset: int, unit_bytes: int) -> str:
    digest = xxhash.xxh64()
    with path.open("rb") as file:
        unit = 0
        while data := file.read(unit_bytes):
            digest.update(data)
            column, row = unit % len(drives), unit // len(drives)
            padded = data.ljust(-(-len(data) // _ALIGN) * _ALIGN, b"\0")
            _write(drives[column], padded, offset + row * unit_bytes, targets[column].path)
            unit += 1
    return digest.hexdigest()


def _write(descriptor: int, data: bytes, offset: int, path: Path) -> None:
    view = memoryview(data)
    while view:
        count = os.pwrite(descriptor, view, offset)
        if count <= 0:
            raise OSError(f"wrote {count} bytes at {offset} of {path}")
        view, offset = view[count:], offset + count
