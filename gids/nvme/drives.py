"""Opening drives for engine ``nvme``: check what they carry, then tell the engine which file is where."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, cast

import xxhash

from gids import _native
from gids.dataset import Dataset
from gids.errors import ConfigError, DatasetError
from gids.nvme.extents import ExtentMap
from gids.nvme.raw import check_set, feature_files
from gids.nvme.superblock import SUPERBLOCK_BYTES, Superblock

_NSID = 1
_ALIGN = 4096


def open_drives(
    addresses: Sequence[str],
    *,
    queue_depth: int = 256,
    queue_pairs: int = 8,
    max_io_bytes: int = 128 << 10,
    timeout_s: float = 10.0,
    admin_timeout_s: float = 2.0,
) -> Drives:
    """Take over drives that are bound to vfio-pci.

    Parameters
    ----------
    addresses : sequence of str
        PCI addresses such as ``"0000:01:00.0"``, in stripe order.
    queue_depth : int
        Entries of one queue pair; rounded down to a power of two and to the drive's limit.
    queue_pairs : int
        Queue pairs to ask each drive for: one per I/O thread of every reader.
    max_io_bytes : int
        Longest single command; also limited by the drive (MDTS).
    timeout_s, admin_timeout_s : float
        Deadline of a request, and of each step of set-up and recovery.
    """
    opened: list[_native.NvmeDrive] = []
    try:
        for address in addresses:
            drive = _native.nvme_open_vfio(address, queue_depth, queue_pairs, max_io_bytes, timeout_s, admin_timeout_s)
            opened.append(drive)
        return Drives(opened)
    except BaseException:
        for drive in opened:
            drive.close()
        raise


class Drives:
    """Open drives and the files that engine ``nvme`` may read from them. Close it, or use it in a ``with``.

    Parameters
    ----------
    drives : sequence of NvmeDrive
        In stripe order.
    """

    def __init__(self, drives: Sequence[_native.NvmeDrive]):
        if not drives:
            raise ConfigError("drives must be at least one")
        self.native = list(drives)
        self._set = _native.NvmeDriveSet(self.native)

    @property
    def info(self) -> list[dict[str, Any]]:
        """What each drive said about itself: serial, model, limits, namespaces."""
        return [cast("dict[str, Any]", drive.info) for drive in self.native]

    @property
    def stats(self) -> list[dict[str, int]]:
        """Time-outs, aborts, resets and stray completions of each drive."""
        return [drive.stats for drive in self.native]

    def superblocks(self) -> list[Superblock]:
        """Read and check the superblocks: one whole set, in stripe order, on the drives they were written to."""
        blocks = [Superblock.from_bytes(drive.read(_NSID, 0, SUPERBLOCK_BYTES), drive.name) for drive in self.native]
        check_set(blocks, [info["serial"] for info in self.info], [drive.name for drive in self.native])
        return blocks

    def attach(self, dataset: Dataset) -> None:
        """Serve a dataset's feature files from these drives; refuses drives that do not carry exactly this dataset."""
        blocks = self.superblocks()
        for block, drive in zip(blocks, self.native, strict=True):
            if block.dataset_id != dataset.id:
                carried = f"dataset {block.dataset_id}" if block.dataset_id else "no complete dataset"
                raise DatasetError(f"{drive.name} must carry dataset {dataset.id} (it carries {carried})")
            if block.files != blocks[0].files:
                raise DatasetError(f"{drive.name} disagrees with {self.native[0].name} on where files are")
        stored = {file.path: file for file in blocks[0].files}
        for path in feature_files(dataset):
            root = Path(dataset.path)
            key = str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
            if key not in stored:
                raise DatasetError(f"the drives must carry every feature file (missing {key})")
            file = stored[key]
            columns = [(file.offset, i, _NSID) for i in range(len(self.native))]
            padded = -(-file.bytes // _ALIGN) * _ALIGN
            self._set.add_striped(str(path), padded, file.unit_bytes, columns)

    def attach_map(self, extents: ExtentMap) -> None:
        """Serve files of an ordinary filesystem by their extents, after checking samples of their bytes."""
        serials = [info["serial"] for info in self.info]
        if extents.serial not in serials:
            raise DatasetError(
                f"the map belongs to the drive with serial {extents.serial!r} (got {', '.join(serials)})"
            )
        number = serials.index(extents.serial)
        drive = self.native[number]
        for file in extents.files:
            places = {logical: (length, physical) for logical, length, physical in file.extents}
            for at, checksum in file.samples:
                length, physical = places[at]
                wanted = min(_ALIGN, length, file.bytes - at)
                data = self._read_bytes(drive, extents.nsid, physical, wanted)
                if xxhash.xxh64_hexdigest(data) != checksum:
                    raise DatasetError(f"{file.path} is no longer where the map says (byte {at}): map it again")
            covered = sum(length for _, length, _ in file.extents)
            entries = [(a, b, c, number, extents.nsid) for a, b, c in file.extents]
            self._set.add_extents(file.path, covered, entries)

    @staticmethod
    def _read_bytes(drive: _native.NvmeDrive, nsid: int, offset: int, length: int) -> bytes:
        spaces = cast("list[dict[str, int]]", drive.info["namespaces"])
        block = next((space["block_bytes"] for space in spaces if space["nsid"] == nsid), 0)
        if block == 0:
            raise DatasetError(f"{drive.name} must have namespace {nsid}")
        if offset % block:
            raise ConfigError(f"extents must begin at blocks of {block} bytes (got byte {offset} of {drive.name})")
        return bytes(drive.read(nsid, offset // block, -(-length // block) * block)[:length])

    def close(self) -> None:
        """Forget the files and give the drives up; readers that are still open fail their next read."""
        self._set.forget()
        for drive in self.native:
            drive.close()

    def __enter__(self) -> Drives:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
