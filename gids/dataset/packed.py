"""Packed epochs on disk: rows in the order in which batches ask for them, and the sampled batches themselves.

A directory with a ``manifest.json`` of its own format. For every feature table that was packed there is one row table,
``[hot rows | cache of segment 0 | chunks of its batches | cache of segment 1 | ...]``; ``samples.bin`` holds the sampled
batches one after the other, ``positions.bin`` says for every batch where in those tables its rows are.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from gids.dataset import strict
from gids.dataset.manifest import MANIFEST
from gids.errors import ConfigError, DatasetError, StorageError
from gids.storage.system import read_errors, read_file, read_into
from gids.table import RowTable, Stripe
from gids.types import TableKey

FORMAT, VERSION = "gids-packed", 1
SAMPLES, POSITIONS, INDEX = "samples.bin", "positions.bin", "batches.bin"
BEYOND = ("error", "online")

#: One record per batch. A batch that a rank does not have (``uneven="join"``) has no bytes.
BATCH = np.dtype(
    [
        ("sample_offset", "<i8"),
        ("sample_bytes", "<i8"),
        ("sample_hash", "<u8"),
        ("positions_offset", "<i8"),
        ("positions_bytes", "<i8"),
        ("positions_hash", "<u8"),
        ("seeds", "<i8"),
        ("padding", "<i8"),
    ]
)
#: One record per region of a table: its first row, and two sums of row digests (see cpp/dataset/checksum.hpp).
REGION = np.dtype([("begin", "<i8"), ("sum", "<u8"), ("weighted", "<u8")])


@dataclass(frozen=True)
class PackedTable:
    """Rows of one feature table as they were packed.

    Attributes
    ----------
    table : RowTable
        The packed rows; positions count from its beginning.
    hot_rows : int
        Its first rows, most wanted first: what host memory should hold.
    largest_rows : int
        Rows that the largest batch asks for.
    regions : str
        File with a :data:`REGION` record for every part that is checked as one.
    position_bytes : int
        Bytes of a stored position.
    """

    table: RowTable
    hot_rows: int
    largest_rows: int
    regions: str
    position_bytes: int = 8

    @property
    def position_dtype(self) -> np.dtype[Any]:
        """How positions are stored."""
        return np.dtype("<u4") if self.position_bytes == 4 else np.dtype("<i8")


class Packed:
    """Epochs that ``gids pack`` has made; give it, or its path, to a loader as ``packed=``.

    Parameters
    ----------
    path : path-like
        Directory.
    beyond : {"error", "online"}
        What a loader does in an epoch after the last packed one: say so, or sample and read as without packing.

    Attributes
    ----------
    dataset_id : str
        Of the dataset that was packed.
    identity : dict
        What decides the batches: seeds, sampler, and the order's arguments, as loaders describe them.
    tables : dict of TableKey to PackedTable
        The rows, in the order in which batches name them.
    epochs : int
        Different ones that were packed.
    reuse : bool
        Whether epoch ``e`` beyond them is epoch ``e % epochs`` again.
    batches : int
        Records of an epoch, over all ranks.
    segment_batches : int
        Batches that share a disk cache; 1 where every row was packed for its batch.
    facts : dict
        What packing counted and predicted.
    """

    def __init__(self, path: str | os.PathLike[str], beyond: str = "error"):
        if beyond not in BEYOND:
            raise ConfigError(f"beyond must be one of {', '.join(BEYOND)} (got {beyond!r})")
        self.path, self.beyond = Path(path).absolute(), beyond
        if not is_packed(self.path):
            raise DatasetError(f"{self.path} has no {MANIFEST} of packed epochs: `gids pack` makes them")
        with strict.damage_in(self.path / MANIFEST):
            self._read(json.loads(read_file(self.path / MANIFEST)))

    def _read(self, document: dict[str, Any]) -> None:
        digest = document.pop("digest")
        if document["version"] != VERSION:
            raise DatasetError(f"{self.path} must have version {VERSION} (got {document['version']}): pack it again")
        if digest != digest_of(document):
            raise DatasetError(f"{self.path / MANIFEST} is damaged: its digest does not fit its contents")
        self.dataset_id = strict.text(document, "dataset")
        self.identity: dict[str, Any] = dict(document["identity"])
        self.epochs = strict.count(document, "epochs", 1)
        self.reuse = strict.flag(document, "reuse")
        self.batches = strict.count(document, "batches", 1)
        self.batches_of_rank = [strict.as_count(batches, "batches_of_rank") for batches in document["batches_of_rank"]]
        self.segment_batches = strict.count(document, "segment_batches", 1)
        self.largest_sample_bytes = strict.count(document, "largest_sample_bytes")
        self.facts: dict[str, Any] = dict(document["facts"])
        places = strict.Places(self.path)
        self.tables = {_key(entry["key"]): self._table(entry, places) for entry in document["tables"]}
        sizes = {
            places.file(strict.as_text(name, "files")): strict.count(document["files"], name)
            for name in document["files"]
        }
        for file, size in sizes.items():
            with read_errors(file):
                found = file.stat().st_size if file.is_file() else None
            if found != size:
                raise DatasetError(
                    f"{file} must have {size} bytes (it {'is missing' if found is None else f'has {found}'})"
                )
        self.size_bytes = sum(sizes.values())
        self._read_index(sizes, document["index_hash"])

    def _read_index(self, sizes: Mapping[Path, int], digest: object) -> None:
        """Read the records of all batches; each must lie within its files."""
        records = self.epochs * self.batches
        if sizes[self.path / INDEX] != records * BATCH.itemsize:
            raise ConfigError(f"{INDEX} must have {records} records of {BATCH.itemsize} bytes")
        self.index = np.empty(records, BATCH)
        read_into(self.path / INDEX, 0, self.index)
        if xxhash.xxh3_64_intdigest(self.index.tobytes()) != digest:
            raise DatasetError(f"{self.path / INDEX} is damaged: it is not the one that {MANIFEST} was written for")
        for part, name in (("sample", SAMPLES), ("positions", POSITIONS)):
            offset, length, size = self.index[f"{part}_offset"], self.index[f"{part}_bytes"], sizes[self.path / name]
            if (offset < 0).any() or (length < 0).any() or (length > size).any() or (offset > size - length).any():
                raise ConfigError(f"records of {INDEX} must lie in {name}, of {size} bytes")

    def _table(self, entry: dict[str, Any], places: strict.Places) -> PackedTable:
        key, rows, dim, dtype = (
            _key(entry["key"]),
            strict.count(entry, "rows"),
            strict.count(entry, "dim", 1),
            strict.text(entry, "dtype"),
        )
        kind = key.type if isinstance(key.type, str) else ":".join(key.type)
        row_bytes = RowTable("row", dtype, dim, 0, strict.MOST, (Stripe(self.path, 0, 0),), 1).row_bytes
        if rows * row_bytes >= strict.MOST:
            raise ConfigError(f"{key} must end before byte 2**62")
        stripe = Stripe(places.file(strict.text(entry, "file")), 0, rows)
        table = RowTable(f"packed {kind}/{key.name}", dtype, dim, rows, row_bytes, (stripe,), max(1, rows))
        regions = places.file(strict.text(entry, "regions")).name
        counts = (strict.count(entry, "hot_rows"), strict.count(entry, "largest_rows"))
        return PackedTable(table, *counts, regions, strict.count(entry, "position_bytes"))

    def __reduce__(self) -> tuple[Any, ...]:
        return Packed, (str(self.path), self.beyond)

    def __repr__(self) -> str:
        again = ", again and again" if self.reuse else ""
        return f"Packed({str(self.path)!r}, {self.epochs} epochs of {self.batches} batches{again})"

    def stored_epoch(self, epoch: int) -> int | None:
        """Return the packed epoch that serves as ``epoch`` of training; None where there is none."""
        if epoch < self.epochs:
            return epoch
        return epoch % self.epochs if self.reuse else None

    def record(self, epoch: int, global_index: int) -> np.void:
        """Return the record of a batch.

        Parameters
        ----------
        epoch : int
            A packed one.
        global_index : int
            Number of the batch over all ranks.
        """
        found: np.void = self.index[epoch * self.batches + global_index]
        return found

    def regions(self, key: TableKey) -> NDArray[Any]:
        """Read the records of a table's regions; ``key`` says which table."""
        path = self.path / self.tables[key].regions
        with read_errors(path):
            records = np.empty(path.stat().st_size // REGION.itemsize, REGION)
        read_into(path, 0, records)
        return records


class PackedReader:
    """Reads stored batches, each checked against its hash.

    Parameters
    ----------
    packed : Packed
        Where they are.
    """

    def __init__(self, packed: Packed):
        self.packed = packed
        self.bytes_read = 0
        self._descriptors: dict[str, int] = {}
        try:
            for name in (SAMPLES, POSITIONS):
                with read_errors(packed.path / name):
                    self._descriptors[name] = os.open(packed.path / name, os.O_RDONLY | os.O_CLOEXEC)
        except BaseException:
            self.close()
            raise

    def sample(self, record: np.void) -> memoryview:
        """Read the bytes of a sampled batch."""
        return self._read(SAMPLES, *(int(record[f"sample_{part}"]) for part in ("offset", "bytes", "hash")))

    def positions(self, record: np.void) -> dict[TableKey, NDArray[np.int64]]:
        """Read where the rows of a batch are in the packed tables, in the order of the batch."""
        data = self._read(POSITIONS, *(int(record[f"positions_{part}"]) for part in ("offset", "bytes", "hash")))
        with strict.damage_in(self.packed.path / POSITIONS):
            return decode_positions(self.packed.tables, data)

    def _read(self, name: str, offset: int, size: int, digest: int) -> memoryview:
        path, out, done = self.packed.path / name, memoryview(bytearray(size)), 0
        while done < size:
            with read_errors(path, offset + done, size - done):
                count = os.preadv(self._descriptors[name], [out[done:]], offset + done)
            if count == 0:
                raise StorageError("file ends early", str(path), offset + done, size - done)
            done += count
        if xxhash.xxh3_64_intdigest(out) != digest:
            raise DatasetError(f"{path} is damaged in bytes {offset} to {offset + size - 1}: pack it again")
        self.bytes_read += size
        return out

    def close(self) -> None:
        """Close the files."""
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])


def encode_positions(positions: list[NDArray[np.int64]], dtypes: list[np.dtype[Any]]) -> bytes:
    """Return the bytes of one batch's positions: how many there are in each table, then those of one after the other."""
    counts = np.array([len(part) for part in positions], "<i8")
    return b"".join(
        [counts.tobytes(), *(part.astype(dtype).tobytes() for part, dtype in zip(positions, dtypes, strict=True))]
    )


def decode_positions(tables: dict[TableKey, PackedTable], data: memoryview) -> dict[TableKey, NDArray[np.int64]]:
    """Return what :func:`encode_positions` wrote, by table."""
    counts, found = np.frombuffer(data, "<i8", len(tables)), {}
    offset = counts.nbytes
    for (key, packed), size in zip(tables.items(), counts, strict=True):
        part = np.frombuffer(data, packed.position_dtype, strict.as_count(int(size), f"positions of {key}"), offset)
        found[key] = part.astype(np.int64)
        offset += part.nbytes
    return found


def is_packed(path: str | os.PathLike[str]) -> bool:
    """Return whether a directory holds packed epochs, rather than a dataset or nothing."""
    try:
        document = json.loads(read_file(Path(path) / MANIFEST))
    except (StorageError, ValueError, RecursionError):
        return False
    return isinstance(document, dict) and document.get("format") == FORMAT


def digest_of(document: dict[str, Any]) -> str:
    """XXH3-128 of a manifest without its digest, however it is spaced."""
    return str(xxhash.xxh3_128_hexdigest(json.dumps(document, sort_keys=True, separators=(",", ":")).encode()))


def _key(stored: list[Any]) -> TableKey:
    kind, name = stored
    if not isinstance(kind, str):
        source, relation, destination = (strict.as_text(word, "key") for word in kind)
        return TableKey((source, relation, destination), strict.as_text(name, "key"))
    return TableKey(kind, strict.as_text(name, "key"))
