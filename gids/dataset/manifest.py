"""``manifest.json``: what a dataset holds and where. Read strictly, because everything else trusts it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from gids.errors import ConfigError, DatasetError
from gids.table import RowTable, Stripe

FORMAT = "gids-dataset"
VERSION = 1
MANIFEST = "manifest.json"

EdgeType = tuple[str, str, str]


def stripe_row_counts(num_rows: int, stripe_rows: int, num_stripes: int) -> list[int]:
    """Rows that every stripe holds when units of ``stripe_rows`` rows take turns."""
    units, rest = divmod(num_rows, stripe_rows)
    counts = [(units // num_stripes + (i < units % num_stripes)) * stripe_rows for i in range(num_stripes)]
    counts[units % num_stripes] += rest
    return counts


@dataclass(frozen=True)
class ChecksumFile:
    """Where a table's checksums are: one record per chunk of ``chunk_rows`` rows (see :mod:`gids.dataset.checksum`)."""

    path: str
    chunk_rows: int
    digest: str  # of the checksum file itself


@dataclass(frozen=True)
class StoredTable:
    """A table, the size that each of its files must have, and its checksums."""

    table: RowTable
    file_bytes: tuple[int, ...]
    checksums: ChecksumFile


@dataclass
class NodeEntry:
    """Everything stored about one node type."""

    num_nodes: int
    features: dict[str, StoredTable] = field(default_factory=dict)
    labels: StoredTable | None = None
    num_classes: int | None = None
    splits: dict[str, StoredTable] = field(default_factory=dict)


@dataclass
class EdgeEntry:
    """Everything stored about one edge type, by destination."""

    num_edges: int
    indptr: StoredTable
    indices: StoredTable
    weights: StoredTable | None = None
    edge_ids: StoredTable | None = None
    features: dict[str, StoredTable] = field(default_factory=dict)


@dataclass
class Manifest:
    """The parsed manifest; paths in it are absolute or relative to the dataset's directory."""

    id: str
    nodes: dict[str, NodeEntry]
    edges: dict[EdgeType, EdgeEntry]
    attributes: dict[str, Any] = field(default_factory=dict)

    def tables(self) -> Iterator[StoredTable]:
        """Give every table, node types first."""
        for node in self.nodes.values():
            yield from node.features.values()
            if node.labels is not None:
                yield node.labels
            yield from node.splits.values()
        for edge in self.edges.values():
            yield from (edge.indptr, edge.indices)
            yield from (table for table in (edge.weights, edge.edge_ids) if table is not None)
            yield from edge.features.values()


def _table_json(stored: StoredTable, root: Path) -> dict[str, Any]:
    table = stored.table
    stripes = [
        {
            "path": os.path.relpath(stripe.path, root) if stripe.path.is_relative_to(root) else str(stripe.path),
            "data_offset": stripe.data_offset,
            "num_rows": stripe.num_rows,
            "file_bytes": size,
        }
        for stripe, size in zip(table.stripes, stored.file_bytes, strict=True)
    ]
    return {
        "name": table.name,
        "dtype": table.dtype,
        "dim": table.dim,
        "num_rows": table.num_rows,
        "row_stride": table.row_stride,
        "stripe_rows": table.stripe_rows,
        "stripes": stripes,
        "checksums": {"algorithm": "xxh3_64+rowsums", **vars(stored.checksums)},
    }


def dump(manifest: Manifest, root: Path) -> str:
    """Write a manifest as JSON; files below ``root`` get relative paths."""

    def tables(entries: Mapping[str, StoredTable]) -> dict[str, Any]:
        return {name: _table_json(stored, root) for name, stored in entries.items()}

    def optional(stored: StoredTable | None) -> dict[str, Any] | None:
        return None if stored is None else _table_json(stored, root)

    document = {
        "format": FORMAT,
        "version": VERSION,
        "id": manifest.id,
        "attributes": manifest.attributes,
        "nodes": {
            ntype: {
                "num_nodes": node.num_nodes,
                "features": tables(node.features),
                "labels": optional(node.labels),
                "num_classes": node.num_classes,
                "splits": tables(node.splits),
            }
            for ntype, node in manifest.nodes.items()
        },
        "edges": [
            {
                "type": list(etype),
                "num_edges": edge.num_edges,
                "indptr": _table_json(edge.indptr, root),
                "indices": _table_json(edge.indices, root),
                "weights": optional(edge.weights),
                "edge_ids": optional(edge.edge_ids),
                "features": tables(edge.features),
            }
            for etype, edge in manifest.edges.items()
        ],
    }
    return json.dumps({"digest": _digest(document), **document}, indent=1) + "\n"


def _digest(document: dict[str, Any]) -> str:
    """XXH3-128 of a manifest without its digest, however it is spaced."""
    return str(xxhash.xxh3_128_hexdigest(json.dumps(document, sort_keys=True, separators=(",", ":")).encode()))


def _parse_table(document: dict[str, Any], root: Path) -> StoredTable:
    stripes = tuple(Stripe(root / s["path"], int(s["data_offset"]), int(s["num_rows"])) for s in document["stripes"])
    table = RowTable(
        name=document["name"],
        dtype=document["dtype"],
        dim=int(document["dim"]),
        num_rows=int(document["num_rows"]),
        row_stride=int(document["row_stride"]),
        stripes=stripes,
        stripe_rows=int(document["stripe_rows"]),
    )
    checksums = document["checksums"]
    file = ChecksumFile(checksums["path"], int(checksums["chunk_rows"]), checksums["digest"])
    return StoredTable(table, tuple(int(s["file_bytes"]) for s in document["stripes"]), file)


def parse(text: str, root: Path) -> Manifest:
    """Read a manifest; ``root`` is the dataset's directory, for messages and relative paths."""
    path = root / MANIFEST
    try:
        document = json.loads(text)
    except ValueError as error:
        raise DatasetError(f"{path} must be JSON ({error})") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise DatasetError(f"{path} must have format {FORMAT!r}; this is not a gids dataset")
    version = document.get("version")
    if not isinstance(version, int) or version < 1:
        raise DatasetError(f"version in {path} must be a positive number (got {version!r})")
    if version > VERSION:
        raise DatasetError(
            f"{path} has format version {version}, this gids reads up to {VERSION}: upgrade gids to open it"
        )
    if document.pop("digest", None) != _digest(document):
        raise DatasetError(f"{path} was changed or damaged after it was written: its digest does not match")

    def tables(entries: dict[str, Any]) -> dict[str, StoredTable]:
        return {name: _parse_table(entry, root) for name, entry in entries.items()}

    def optional(entry: dict[str, Any] | None) -> StoredTable | None:
        return None if entry is None else _parse_table(entry, root)

    try:
        nodes = {
            ntype: NodeEntry(
                num_nodes=int(node["num_nodes"]),
                features=tables(node["features"]),
                labels=optional(node["labels"]),
                num_classes=node["num_classes"],
                splits=tables(node["splits"]),
            )
            for ntype, node in document["nodes"].items()
        }
        edges: dict[EdgeType, EdgeEntry] = {}
        for edge in document["edges"]:
            source, relation, destination = edge["type"]
            edges[source, relation, destination] = EdgeEntry(
                num_edges=int(edge["num_edges"]),
                indptr=_parse_table(edge["indptr"], root),
                indices=_parse_table(edge["indices"], root),
                weights=optional(edge["weights"]),
                edge_ids=optional(edge["edge_ids"]),
                features=tables(edge["features"]),
            )
        manifest = Manifest(str(document["id"]), nodes, edges, document.get("attributes", {}))
    except ConfigError as error:
        raise DatasetError(f"{path} contradicts itself: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DatasetError(f"{path} is damaged: {type(error).__name__}: {error}") from error
    _check(manifest, path)
    return manifest


def _check(manifest: Manifest, path: Path) -> None:
    """Check what no single table can know: counts that must agree between tables."""
    for table in (stored.table for stored in manifest.tables()):
        counts = stripe_row_counts(table.num_rows, table.stripe_rows, len(table.stripes))
        if [stripe.num_rows for stripe in table.stripes] != counts:
            raise DatasetError(f"stripes of {table.name} in {path} must have {counts} rows")

    def rule(stored: StoredTable | None, num_rows: int) -> None:
        if stored is not None and stored.table.num_rows != num_rows:
            raise DatasetError(f"{stored.table.name} in {path} must have {num_rows} rows (got {stored.table.num_rows})")

    for node in manifest.nodes.values():
        for stored in (*node.features.values(), node.labels):
            rule(stored, node.num_nodes)
    for (source, relation, destination), edge in manifest.edges.items():
        for ntype in (source, destination):
            if ntype not in manifest.nodes:
                raise DatasetError(f"edge type {relation!r} in {path} names node type {ntype!r}, which is not stored")
        rule(edge.indptr, manifest.nodes[destination].num_nodes + 1)
        for stored in (edge.indices, edge.weights, edge.edge_ids):
            rule(stored, edge.num_edges)
        if edge.edge_ids is None:
            for stored in edge.features.values():
                rule(stored, edge.num_edges)
        if edge.indptr.table.dtype != "int64" or len(edge.indptr.table.stripes) != 1:
            raise DatasetError(f"{edge.indptr.table.name} in {path} must be int64 in one file")
        if edge.indices.table.dtype not in ("int32", "int64"):
            got = edge.indices.table.dtype
            raise DatasetError(f"{edge.indices.table.name} in {path} must be int32 or int64 (got {got})")
