"""The first mebibyte of a drive that gids owns: whose it is, which dataset it carries, and where every file begins."""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass, field
from pathlib import Path

import xxhash

from gids.dataset import strict
from gids.errors import ConfigError, DatasetError

MAGIC = b"GIDSNVME"
VERSION = 1
SUPERBLOCK_BYTES = 1 << 20
#: Magic, version, bytes of the JSON text that follows, its XXH64.
_HEADER = struct.Struct("<8sIIQ")


@dataclass(frozen=True)
class StoredFile:
    """One file of a dataset, striped over all drives of the set.

    Unit ``u`` (``unit_bytes`` long) is on drive ``u % drives`` as that drive's unit ``u // drives`` of this file, which
    begins ``offset`` bytes into every drive.
    """

    path: str
    bytes: int
    offset: int
    unit_bytes: int
    checksum: str


@dataclass(frozen=True)
class Superblock:
    """What one drive says about itself.

    Attributes
    ----------
    set_id : str
        The same on all drives that were formatted together.
    position, drives : int
        Stripe order: this is drive ``position`` of ``drives``.
    serial : str
        Serial number of the drive it was written to; a copy on another drive is refused.
    dataset_id : str
        The dataset that is stored here; empty while none is, or while one is being loaded.
    files : tuple of StoredFile
        Relative to the dataset's directory.
    """

    set_id: str
    position: int
    drives: int
    serial: str
    dataset_id: str = ""
    files: tuple[StoredFile, ...] = field(default=())

    def to_bytes(self) -> bytes:
        """Return the ``SUPERBLOCK_BYTES`` bytes to write."""
        text = json.dumps(asdict(self), separators=(",", ":")).encode()
        if _HEADER.size + len(text) > SUPERBLOCK_BYTES:
            raise DatasetError(f"superblock must fit {SUPERBLOCK_BYTES} bytes (got {len(text)}): too many files")
        header = _HEADER.pack(MAGIC, VERSION, len(text), xxhash.xxh64_intdigest(text))
        return (header + text).ljust(SUPERBLOCK_BYTES, b"\0")

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> Superblock:
        """Read a superblock; ``where`` names the drive in errors."""
        if len(data) < _HEADER.size:
            raise DatasetError(f"superblock of {where} must have {_HEADER.size} bytes (got {len(data)})")
        magic, version, length, checksum = _HEADER.unpack_from(data)
        if magic != MAGIC:
            raise DatasetError(f"{where} carries no gids superblock (format it with: gids nvme format)")
        if version != VERSION:
            raise DatasetError(f"superblock version of {where} must be {VERSION} (got {version})")
        body = data[_HEADER.size : _HEADER.size + length]
        if len(body) != length or xxhash.xxh64_intdigest(body) != checksum:
            raise DatasetError(f"superblock of {where} is damaged: its checksum does not match")
        with strict.damage_in(Path(where)):
            record = json.loads(body)
            files = tuple(
                StoredFile(
                    strict.text(entry, "path"),
                    strict.count(entry, "bytes"),
                    strict.count(entry, "offset"),
                    strict.count(entry, "unit_bytes", 1),
                    strict.text(entry, "checksum"),
                )
                for entry in record["files"]
            )
            position, drives = strict.count(record, "position"), strict.count(record, "drives", 1)
            if position >= drives:
                raise ConfigError(f"position must be below drives = {drives} (got {position})")
            if not isinstance(record["dataset_id"], str):
                raise ConfigError(f"dataset_id must be text (got {record['dataset_id']!r})")
            return cls(
                strict.text(record, "set_id"),
                position,
                drives,
                strict.text(record, "serial"),
                record["dataset_id"],
                files,
            )
