"""A partition of a dataset's nodes: kept beside the dataset, with checksums and with how it was made."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from gids.dataset import Dataset, strict
from gids.dataset.build import safe_name
from gids.dataset.checksum import file_digest
from gids.dataset.in_place import read_npy_header
from gids.dataset.journal import sync_directory
from gids.errors import ConfigError, DatasetError
from gids.storage.system import read_file, read_into

FORMAT, VERSION = "gids-partition", 1
_DESCRIPTION = "partition.json"
_FOLDER = "partitions"
_BLOCK = 1 << 22  # nodes that are in memory at a time while the parts of some are looked up

Parts = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Partition:
    """Which part every node of a dataset is in.

    Attributes
    ----------
    parts : dict of str to int32 array
        Part of every node, by node type; each in ``[0, num_parts)``.
    num_parts : int
        Parts.
    dataset_id : str
        Identity of the dataset it belongs to.
    cut_edges, num_edges : int
        Edges that lead from one part to another, and all edges.
    provenance : dict
        How it was made: method, options, seconds.
    """

    parts: dict[str, Parts]
    num_parts: int
    dataset_id: str
    cut_edges: int
    num_edges: int
    provenance: dict[str, Any] = field(default_factory=dict)

    @property
    def cut(self) -> float:
        """Share of the edges that lead from one part to another."""
        return self.cut_edges / max(self.num_edges, 1)

    def sizes(self, of: Mapping[str, npt.NDArray[np.int64]] | None = None) -> npt.NDArray[np.int64]:
        """Count the nodes of every part, or of those given by type: ``int64[num_parts]``."""
        counts = np.zeros(self.num_parts, np.int64)
        for ntype, parts in self.parts.items():
            chosen = parts if of is None else parts[of[ntype]] if ntype in of else parts[:0]
            counts += np.bincount(chosen, minlength=self.num_parts)
        return counts

    def balance(self, of: Mapping[str, npt.NDArray[np.int64]] | None = None) -> float:
        """Return the nodes of the largest part over the mean of all parts; 1 where there are no nodes."""
        sizes = self.sizes(of)
        return float(sizes.max() * self.num_parts / sizes.sum()) if sizes.sum() else 1.0


def _folders(dataset: Dataset) -> list[Path]:
    """Return where partitions of a dataset may be: where files are derived to now, and beside a dataset since read-only."""
    return [dataset.scratch_dir / _FOLDER, dataset.path / "scratch" / _FOLDER]


def stored_names(dataset: Dataset) -> list[str]:
    """Return the names of the partitions that are stored for a dataset, ascending."""
    found = {
        entry.name
        for folder in _folders(dataset)
        if folder.is_dir()
        for entry in folder.iterdir()
        if (entry / _DESCRIPTION).is_file() and not entry.name.startswith(".")
    }
    return sorted(found)


def save(dataset: Dataset, partition: Partition, name: str, *, overwrite: bool = False) -> Path:
    """Store a partition under a name, whole or not at all; returns its directory.

    It lies in :attr:`gids.Dataset.scratch_dir`: beside the dataset, or in the user's cache where that is read-only.
    """
    check_fits(dataset, partition)
    if name in stored_names(dataset) and not overwrite:
        raise ConfigError(
            f"partition {name!r} of {dataset.path} exists; choose another name, or overwrite it (overwrite=True, --overwrite)"
        )
    folder = dataset.scratch_dir / _FOLDER
    try:
        return _write(folder, safe_name(name), partition)
    except OSError as error:
        raise DatasetError(f"writing partition {name!r} to {folder} failed: {error.strerror}") from error


def _write(folder: Path, name: str, partition: Partition) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{name}.{os.getpid()}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        files = {}
        for ntype, parts in partition.parts.items():
            path = temporary / f"{safe_name(ntype)}.npy"
            with path.open("wb") as file:
                np.save(file, np.ascontiguousarray(parts, np.int32))
                file.flush()
                os.fsync(file.fileno())
            files[ntype] = {"file": path.name, "num_nodes": len(parts), "digest": file_digest(path)}
        document: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "dataset_id": partition.dataset_id,
            "num_parts": partition.num_parts,
            "cut_edges": partition.cut_edges,
            "num_edges": partition.num_edges,
            "provenance": partition.provenance,
            "nodes": files,
        }
        with (temporary / _DESCRIPTION).open("w") as text:
            text.write(json.dumps({"digest": _digest(document), **document}, indent=1) + "\n")
            text.flush()
            os.fsync(text.fileno())
        sync_directory(temporary)
        final = folder / name
        if final.exists():
            # Two renames: whoever opens it in between finds none, never half of one.
            old = folder / f".{name}.{os.getpid()}.old"
            final.rename(old)
            temporary.rename(final)
            shutil.rmtree(old)
        else:
            temporary.rename(final)
        sync_directory(folder)
        return final
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def load(dataset: Dataset, name: str | int | None = None, *, verify: bool = True) -> Partition:
    """Load a partition that was stored for a dataset.

    Parameters
    ----------
    dataset : Dataset
        The dataset.
    name : str or int, optional
        Its name, by default the number of its parts; may be left out where only one is stored.
    verify : bool
        Compare the arrays with their checksums.

    Returns
    -------
    Partition
        With its arrays in memory: 4 bytes for every node.
    """
    path, document = _describe(dataset, name)
    parts = {ntype: _read(path / entry["file"], entry, verify) for ntype, entry in document["nodes"].items()}
    return Partition(
        parts,
        int(document["num_parts"]),
        document["dataset_id"],
        int(document["cut_edges"]),
        int(document["num_edges"]),
        document["provenance"],
    )


def load_parts(
    dataset: Dataset, name: str | int | None, nodes: Mapping[str, npt.NDArray[np.int64]]
) -> dict[str, Parts]:
    """Return the parts of some nodes by type, from a stored partition that is read block by block and not kept."""
    path, document = _describe(dataset, name)
    entries = document["nodes"]
    unknown = set(nodes) - set(entries)
    if unknown:
        raise ConfigError(f"node types must be among {[*entries]} (got {sorted(unknown)})")
    return {ntype: _read(path / entries[ntype]["file"], entries[ntype], True, ids) for ntype, ids in nodes.items()}


def _describe(dataset: Dataset, name: str | int | None) -> tuple[Path, dict[str, Any]]:
    """Find a stored partition and check what it says of itself."""
    names = stored_names(dataset)
    if name is None:
        if len(names) != 1:
            stored = ", ".join(names) or "none: make one with `gids partition`"
            raise ConfigError(f"name of a partition of {dataset.path} must be given (stored: {stored})")
        name = names[0]
    if str(name) not in names:
        stored = ", ".join(names) or "none: make one with `gids partition`"
        raise ConfigError(f"partition of {dataset.path} must be one of those stored (got {name}; stored: {stored})")
    path = next(folder / str(name) for folder in _folders(dataset) if (folder / str(name) / _DESCRIPTION).is_file())
    description = path / _DESCRIPTION
    try:
        document = json.loads(read_file(description))
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{description} must be JSON ({error})") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise DatasetError(f"{description} must have format {FORMAT!r}")
    if document.get("version") != VERSION:
        raise DatasetError(f"{description} has version {document.get('version')!r}, this gids reads {VERSION}")
    if document.pop("digest", None) != _digest(document):
        raise DatasetError(f"{description} was changed or damaged after it was written: its digest does not match")
    with strict.damage_in(description):
        counts = {ntype: strict.count(entry, "num_nodes") for ntype, entry in document["nodes"].items()}
        for entry in document["nodes"].values():
            strict.Places(path).file(strict.text(entry, "file"))
            strict.text(entry, "digest")
        for name in ("num_parts", "cut_edges", "num_edges"):
            strict.count(document, name)
        if not isinstance(document["provenance"], dict):
            raise ConfigError(f"provenance must be a JSON object (got {document['provenance']!r})")
        _check_fits(dataset, strict.text(document, "dataset_id"), counts)
    return path, document


def _read(
    path: Path, entry: Mapping[str, Any], verify: bool, ids: npt.NDArray[np.int64] | None = None
) -> npt.NDArray[np.int32]:
    """Read the parts of all nodes, or of ``ids``, in blocks; an error below is an exception, as the file is not mapped."""
    header = read_npy_header(path)
    count = int(entry["num_nodes"])
    if header.shape != (count,) or header.dtype != np.int32:
        raise DatasetError(f"{path} must hold int32 for {count} nodes (got {header.dtype} for {header.shape})")
    if ids is not None and len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < count:
        raise ConfigError(f"nodes must be in [0, {count}) (got {int(ids.min())} to {int(ids.max())})")
    order = None if ids is None else np.argsort(ids, kind="stable")
    parts = np.empty(count if ids is None else len(ids), np.int32)
    digest = xxhash.xxh3_128(_bytes_of(path, 0, header.data_offset)) if verify else None
    for begin in range(0, count, _BLOCK):
        end = min(begin + _BLOCK, count)
        block = parts[begin:end] if ids is None else np.empty(end - begin, np.int32)
        read_into(path, header.data_offset + begin * block.itemsize, block)
        if digest is not None:
            digest.update(block.data)
        if ids is not None and order is not None:
            mine = order[np.searchsorted(ids, begin, sorter=order) : np.searchsorted(ids, end, sorter=order)]
            parts[mine] = block[ids[mine] - begin]
    if digest is not None and digest.hexdigest() != entry["digest"]:
        raise DatasetError(f"{path} was changed or damaged after it was written: its digest does not match")
    parts.flags.writeable = False
    return parts


def _bytes_of(path: Path, offset: int, length: int) -> bytes:
    data = np.empty(length, np.uint8)
    read_into(path, offset, data)
    return data.tobytes()


def check_fits(dataset: Dataset, partition: Partition) -> None:
    """Refuse a partition that was made for another dataset or has another number of nodes."""
    _check_fits(dataset, partition.dataset_id, {ntype: len(parts) for ntype, parts in partition.parts.items()})


def _check_fits(dataset: Dataset, dataset_id: str, actual: Mapping[str, int]) -> None:
    if dataset_id != dataset.id:
        raise DatasetError(
            f"a partition of {dataset.path} must be made from dataset {dataset.id} (got one of {dataset_id})"
        )
    expected = {ntype: dataset.num_nodes(ntype) for ntype in dataset.node_types}
    if actual != expected:
        raise DatasetError(f"a partition of {dataset.path} must have a part for each of {expected} (got {actual})")


def _digest(document: dict[str, Any]) -> str:
    return str(xxhash.xxh3_128_hexdigest(json.dumps(document, sort_keys=True, separators=(",", ":")).encode()))
