"""Files on an ordinary filesystem, by the blocks they occupy: read-only, and only where nothing can move them."""

from __future__ import annotations

import array
import json
import os
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import xxhash

from gids.dataset import strict
from gids.errors import ConfigError, DatasetError
from gids.storage.system import ioctl, read_file

_FS_IOC_FIEMAP = 0xC020660B
_FS_IOC_GETFLAGS = 0x80086601
_FS_IMMUTABLE = 0x10
_FLAG_SYNC = 1
_HEADER = struct.Struct("=QQIIII")  # start, length, flags, mapped, count, reserved
_EXTENT = struct.Struct("=QQQQQIIII")  # logical, physical, length, 2 reserved, flags, 3 reserved
_LAST = 0x1
_BATCH = 512
#: Flags of an extent whose bytes are not simply there, each with what it means.
_REFUSED = {
    0x2: "its place is unknown",
    0x4: "it is not yet allocated",
    0x8: "it is compressed or encoded",
    0x80: "it is encrypted",
    0x100: "it is not aligned to blocks",
    0x200: "it lies inside metadata",
    0x400: "it shares a block with another file's tail",
    0x800: "it was allocated but never written",
    0x2000: "it is shared with another file, so a write there moves it",
}
_SAMPLE_BYTES = 4096
_SAMPLES = 256
#: Filesystems that write in place; on copy-on-write ones (btrfs, zfs, f2fs, bcachefs) any block may move.
_FILESYSTEMS = ("ext4", "xfs")


@dataclass(frozen=True)
class FileExtents:
    """Where one file is on its device.

    Attributes
    ----------
    path : str
        The file, absolute.
    bytes : int
        Its size.
    extents : tuple of (file_offset, length, device_offset)
        In bytes; device_offset counts from the beginning of the whole namespace, partitions included.
    samples : tuple of (file_offset, checksum)
        XXH64 of up to 4 KiB at that offset, for :meth:`gids.nvme.Drives.attach_map` to check that nothing has moved.
    """

    path: str
    bytes: int
    extents: tuple[tuple[int, int, int], ...]
    samples: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class ExtentMap:
    """Extents of files that share one drive, with the drive's serial number and namespace."""

    serial: str
    nsid: int
    files: tuple[FileExtents, ...]

    def save(self, path: Path) -> None:
        """Write as JSON with a checksum."""
        text = json.dumps(asdict(self))
        path.write_text(json.dumps({"version": 1, "checksum": xxhash.xxh64_hexdigest(text.encode()), "map": text}))

    @classmethod
    def load(cls, path: Path) -> ExtentMap:
        """Read what :meth:`save` wrote."""
        with strict.damage_in(path):
            record = json.loads(read_file(path))
            if record.get("version") != 1 or xxhash.xxh64_hexdigest(record["map"].encode()) != record["checksum"]:
                raise DatasetError(f"extent map {path} must be of version 1 and undamaged")
            body = json.loads(record["map"])
            files = tuple(
                FileExtents(
                    strict.text(entry, "path"),
                    strict.count(entry, "bytes"),
                    tuple(
                        (
                            strict.as_count(a, "file offset"),
                            strict.as_count(b, "length", 1),
                            strict.as_count(c, "device offset"),
                        )
                        for a, b, c in entry["extents"]
                    ),
                    tuple(
                        (strict.as_count(a, "file offset"), strict.as_text(b, "checksum")) for a, b in entry["samples"]
                    ),
                )
                for entry in body["files"]
            )
            return cls(strict.text(body, "serial"), strict.count(body, "nsid", 1), files)


def resolve_extents(path: str | os.PathLike[str], partition_offset: int = 0) -> FileExtents:
    """Ask the filesystem where a file's bytes are, and refuse a file whose bytes could move.

    The file must be on ext4 or xfs, without holes, and either immutable (``chattr +i``) or on a read-only mount;
    extents that are compressed, encrypted, inline, unwritten, shared or not yet allocated are refused.

    Parameters
    ----------
    path : path
        A regular file.
    partition_offset : int
        Byte at which the filesystem's partition begins on its namespace.
    """
    file = Path(path).resolve(strict=True)
    _check_mount(file)
    with file.open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        raw = _fiemap(stream.fileno(), size)
        extents, expected = [], 0
        for logical, physical, length, flags in raw:
            for flag, meaning in _REFUSED.items():
                if flags & flag:
                    raise ConfigError(f"extent at byte {logical} of {file} cannot be read directly: {meaning}")
            if logical != expected:
                raise ConfigError(f"{file} must have no holes (one begins at byte {expected})")
            extents.append((logical, length, physical + partition_offset))
            expected = logical + length
        if expected < size:
            raise ConfigError(f"{file} must have no holes (one begins at byte {expected})")
        step = max(1, -(-len(extents) // _SAMPLES))
        samples = tuple((at, _sum(os.pread(stream.fileno(), _SAMPLE_BYTES, at))) for at, _, _ in extents[::step])
    return FileExtents(str(file), size, tuple(extents), samples)


def map_files(paths: Sequence[str | os.PathLike[str]]) -> ExtentMap:
    """Resolve files that are all on one NVMe namespace, possibly in a partition; no device mapper, no RAID."""
    if not paths:
        raise ConfigError("paths must name at least one file")
    places = {_namespace(Path(path).resolve(strict=True)) for path in paths}
    if len({(serial, nsid) for serial, nsid, _ in places}) != 1:
        raise ConfigError(f"files of one map must be on one drive (got {', '.join(sorted(p[0] for p in places))})")
    serial, nsid, _ = next(iter(places))
    files = [resolve_extents(path, _namespace(Path(path).resolve(strict=True))[2]) for path in paths]
    return ExtentMap(serial, nsid, tuple(files))


def _sum(data: bytes) -> str:
    return str(xxhash.xxh64_hexdigest(data))


def _fiemap(descriptor: int, size: int) -> list[tuple[int, int, int, int]]:
    found: list[tuple[int, int, int, int]] = []
    start = 0
    while start < size:
        buffer = array.array("B", _HEADER.pack(start, size - start, _FLAG_SYNC, 0, _BATCH, 0))
        buffer.extend(bytes(_BATCH * _EXTENT.size))
        try:
            ioctl(descriptor, _FS_IOC_FIEMAP, buffer)
        except OSError as error:
            raise ConfigError(f"the filesystem must support FIEMAP: {error.strerror}") from None
        mapped = _HEADER.unpack_from(buffer)[3]
        for i in range(mapped):
            logical, physical, length, _, _, flags, *_ = _EXTENT.unpack_from(buffer, _HEADER.size + i * _EXTENT.size)
            found.append((logical, physical, length, flags))
        if mapped == 0 or found[-1][3] & _LAST:
            break
        start = found[-1][0] + found[-1][2]
    return found


def _check_mount(file: Path) -> None:
    device = file.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    fields = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    mounts = [entry for entry in fields if entry[2] == number]
    if not mounts:
        raise ConfigError(f"{file} must be on a mounted filesystem of its own device (no mount of {number})")
    kind = mounts[0][mounts[0].index("-") + 1]
    if kind not in _FILESYSTEMS:
        raise ConfigError(f"{file} must be on {' or '.join(_FILESYSTEMS)}, which keep blocks in place (got {kind})")
    if all("ro" in entry[5].split(",") for entry in mounts):
        return
    flags = array.array("L", [0])
    with file.open("rb") as stream:
        ioctl(stream.fileno(), _FS_IOC_GETFLAGS, flags)
    if not flags[0] & _FS_IMMUTABLE:
        raise ConfigError(
            f"{file} must be immutable (chattr +i) or on a read-only mount, so that its blocks cannot move"
        )


def _namespace(file: Path) -> tuple[str, int, int]:
    device = file.stat().st_dev
    node = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
    offset = 0
    if (node / "partition").exists():
        offset = int((node / "start").read_text()) * 512
        node = node.parent
    serial, nsid = node / "device" / "serial", node / "nsid"
    if not node.name.startswith("nvme") or not nsid.exists():
        raise ConfigError(f"{file} must be on a plain NVMe namespace or partition (got {node.name})")
    return serial.read_text().strip(), int(nsid.read_text()), offset
