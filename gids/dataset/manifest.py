"""``manifest.json``: what a dataset holds and where. Read strictly, because everything else trusts it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from gids.dataset.strict import MOST, Places, as_count, count, damage_in, flag, text
from gids.errors import ConfigError, DatasetError
from gids.table import RowTable, Stripe
from gids.types import EdgeType

FORMAT = "gids-dataset"
#: Datasets without triples and relabelled nodes are written as version 1, which every gids reads; version 2 does not know
#: parts of datasets, whose files lack rows.
VERSION, WHOLE_VERSION, PLAIN_VERSION = 3, 2, 1
MANIFEST = "manifest.json"


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
    original_ids: StoredTable | None = None  # where nodes were relabelled: what they were called


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
class NamesEntry:
    """Names of ids ``0, 1, ...``: name ``i`` is the UTF-8 text that ends at ``ends[i]``; ``order`` sorts ids by name."""

    ends: StoredTable
    text: StoredTable
    order: StoredTable

    def tables(self) -> Iterator[StoredTable]:
        """Yield the three tables."""
        yield from (self.ends, self.text, self.order)


@dataclass
class KnowledgeEntry:
    """A knowledge graph, by head: the triples of entity ``e`` are rows ``indptr[e]..indptr[e + 1]`` of ``triples``.

    Attributes
    ----------
    entity_type : str
        Node type of heads and tails.
    num_triples : int
        Triples, added ones included; ``triples`` has rows of -1 after them, to a whole block.
    num_relations : int
        Relations, added ones included: ``r + base_relations`` is the reverse of ``r`` where there are reverses, and the
        identity is the last one where there is one.
    base_relations : int
        Relations of the source.
    reverse, identity : bool
        What was added to the source's triples.
    indptr : StoredTable
        ``int64``, one more than entities.
    triples : StoredTable
        ``int32``, rows of (relation, tail), sorted within a head, each once.
    queries : dict
        By split: ``int32`` rows of (head, relation, tail).
    entity_names, relation_names : NamesEntry, optional
        Names of entities and of base relations.
    """

    entity_type: str
    num_triples: int
    num_relations: int
    base_relations: int
    reverse: bool
    identity: bool
    indptr: StoredTable
    triples: StoredTable
    queries: dict[str, StoredTable] = field(default_factory=dict)
    entity_names: NamesEntry | None = None
    relation_names: NamesEntry | None = None

    def tables(self) -> Iterator[StoredTable]:
        """Yield every table."""
        yield from (self.indptr, self.triples)
        yield from self.queries.values()
        for names in (self.entity_names, self.relation_names):
            if names is not None:
                yield from names.tables()


@dataclass
class Manifest:
    """The parsed manifest; paths in it are absolute or relative to the dataset's directory."""

    id: str
    nodes: dict[str, NodeEntry]
    edges: dict[EdgeType, EdgeEntry]
    attributes: dict[str, Any] = field(default_factory=dict)
    knowledge: KnowledgeEntry | None = None

    def tables(self) -> Iterator[StoredTable]:
        """Return every table, node types first."""
        for node in self.nodes.values():
            yield from node.features.values()
            if node.labels is not None:
                yield node.labels
            yield from node.splits.values()
            if node.original_ids is not None:
                yield node.original_ids
        for edge in self.edges.values():
            yield from (edge.indptr, edge.indices)
            yield from (table for table in (edge.weights, edge.edge_ids) if table is not None)
            yield from edge.features.values()
        if self.knowledge is not None:
            yield from self.knowledge.tables()


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
        **({} if table.held is None else {"held": list(table.held)}),
    }


def dump(manifest: Manifest, root: Path) -> str:
    """Write a manifest as JSON; files below ``root`` get relative paths."""

    def tables(entries: Mapping[str, StoredTable]) -> dict[str, Any]:
        return {name: _table_json(stored, root) for name, stored in entries.items()}

    def optional(stored: StoredTable | None) -> dict[str, Any] | None:
        return None if stored is None else _table_json(stored, root)

    relabelled = any(node.original_ids is not None for node in manifest.nodes.values())
    plain = manifest.knowledge is None and not relabelled
    is_part = any(stored.table.held is not None for stored in manifest.tables())
    document = {
        "format": FORMAT,
        "version": VERSION if is_part else PLAIN_VERSION if plain else WHOLE_VERSION,
        "id": manifest.id,
        "attributes": manifest.attributes,
        **_allowed(manifest, root),
        "nodes": {
            ntype: {
                "num_nodes": node.num_nodes,
                "features": tables(node.features),
                "labels": optional(node.labels),
                "num_classes": node.num_classes,
                "splits": tables(node.splits),
                **({} if node.original_ids is None else {"original_ids": _table_json(node.original_ids, root)}),
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
    if manifest.knowledge is not None:
        document["knowledge"] = _knowledge_json(manifest.knowledge, root)
    return json.dumps({"digest": _digest(document), **document}, indent=1) + "\n"


def _allowed(manifest: Manifest, root: Path) -> dict[str, list[str]]:
    """List the directories of files that were put, or left, outside the dataset's directory on purpose."""
    paths = (stripe.path for stored in manifest.tables() for stripe in stored.table.stripes)
    outside = sorted({os.path.normpath(path.parent) for path in paths if not path.is_relative_to(root)})
    return {"outside": outside} if outside else {}


def _knowledge_json(entry: KnowledgeEntry, root: Path) -> dict[str, Any]:
    def names(stored: NamesEntry | None) -> dict[str, Any] | None:
        return None if stored is None else {part: _table_json(table, root) for part, table in vars(stored).items()}

    facts = ("entity_type", "num_triples", "num_relations", "base_relations", "reverse", "identity")
    return {name: getattr(entry, name) for name in facts} | {
        "indptr": _table_json(entry.indptr, root),
        "triples": _table_json(entry.triples, root),
        "queries": {name: _table_json(stored, root) for name, stored in entry.queries.items()},
        "entity_names": names(entry.entity_names),
        "relation_names": names(entry.relation_names),
    }


def _digest(document: dict[str, Any]) -> str:
    """XXH3-128 of a manifest without its digest, however it is spaced."""
    return str(xxhash.xxh3_128_hexdigest(json.dumps(document, sort_keys=True, separators=(",", ":")).encode()))


def identity(manifest: Manifest) -> str:
    """Name the contents: counts, and the checksums of every table, but not where the files lie."""

    def content(stored: StoredTable) -> list[Any]:
        table = stored.table
        return [table.name, table.dtype, table.dim, table.num_rows, stored.checksums.digest]

    counts = [[ntype, node.num_nodes, node.num_classes] for ntype, node in manifest.nodes.items()]
    document = [counts, [content(stored) for stored in manifest.tables()]]
    return str(xxhash.xxh3_128_hexdigest(json.dumps(document).encode()))


def _parse_table(document: dict[str, Any], places: Places) -> StoredTable:
    stripes = tuple(
        Stripe(places.file(text(s, "path")), count(s, "data_offset"), count(s, "num_rows")) for s in document["stripes"]
    )
    table = RowTable(
        name=text(document, "name"),
        dtype=text(document, "dtype"),
        dim=count(document, "dim", 1),
        num_rows=count(document, "num_rows"),
        row_stride=count(document, "row_stride", 1),
        stripes=stripes,
        stripe_rows=count(document, "stripe_rows", 1),
        held=_parse_held(document.get("held")),
    )
    for number, stripe in enumerate(stripes):
        if table.begin_in(number, stripe.num_rows) >= MOST:
            raise ConfigError(f"{table.name} must end before byte 2**62 of {stripe.path}")
    checksums = document["checksums"]
    path = text(checksums, "path")
    Places(places.root).file(path)
    file = ChecksumFile(path, count(checksums, "chunk_rows", 1), text(checksums, "digest"))
    return StoredTable(table, tuple(count(s, "file_bytes") for s in document["stripes"]), file)


def _parse_held(found: object) -> tuple[int, int] | None:
    if found is None:
        return None
    if not isinstance(found, list) or len(found) != 2:
        raise ConfigError(f"held must be two rows (got {found!r})")
    return as_count(found[0], "held"), as_count(found[1], "held")


def _outside(document: dict[str, Any]) -> tuple[str, ...]:
    found = document.get("outside", [])
    if not isinstance(found, list) or not all(
        isinstance(place, str) and Path(place).is_absolute() and os.path.normpath(place) == place for place in found
    ):
        raise ConfigError(f"outside must be a list of absolute directories (got {found!r})")
    return tuple(found)


def _parse_knowledge(document: dict[str, Any], places: Places) -> KnowledgeEntry:
    def names(entry: dict[str, Any] | None) -> NamesEntry | None:
        if entry is None:
            return None
        return NamesEntry(*(_parse_table(entry[part], places) for part in ("ends", "text", "order")))

    return KnowledgeEntry(
        entity_type=text(document, "entity_type"),
        num_triples=count(document, "num_triples"),
        num_relations=count(document, "num_relations"),
        base_relations=count(document, "base_relations"),
        reverse=flag(document, "reverse"),
        identity=flag(document, "identity"),
        indptr=_parse_table(document["indptr"], places),
        triples=_parse_table(document["triples"], places),
        queries={name: _parse_table(entry, places) for name, entry in document["queries"].items()},
        entity_names=names(document["entity_names"]),
        relation_names=names(document["relation_names"]),
    )


def parse(data: str | bytes, root: Path) -> Manifest:
    """Read a manifest; ``root`` is the dataset's directory, for messages and relative paths.

    Whatever is in the file, the outcome is a manifest that agrees with itself or a :class:`DatasetError`.
    """
    path = root / MANIFEST
    with damage_in(path):
        return _parse(data, root, path)


def _parse(data: str | bytes, root: Path, path: Path) -> Manifest:
    try:
        document = json.loads(data)
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

    places = Places(root, _outside(document))

    def tables(entries: dict[str, Any]) -> dict[str, StoredTable]:
        return {name: _parse_table(entry, places) for name, entry in entries.items()}

    def optional(entry: dict[str, Any] | None) -> StoredTable | None:
        return None if entry is None else _parse_table(entry, places)

    nodes = {
        ntype: NodeEntry(
            num_nodes=count(node, "num_nodes"),
            features=tables(node["features"]),
            labels=optional(node["labels"]),
            num_classes=None if node["num_classes"] is None else count(node, "num_classes"),
            splits=tables(node["splits"]),
            original_ids=optional(node.get("original_ids")),
        )
        for ntype, node in document["nodes"].items()
    }
    edges: dict[EdgeType, EdgeEntry] = {}
    for edge in document["edges"]:
        etype = edge["type"]
        if not isinstance(etype, list) or len(etype) != 3 or not all(isinstance(word, str) for word in etype):
            raise ConfigError(f"type of edges must be three words (got {etype!r})")
        if tuple(etype) in edges:
            raise ConfigError(f"edge type {':'.join(etype)} must be stored once")
        edges[etype[0], etype[1], etype[2]] = EdgeEntry(
            num_edges=count(edge, "num_edges"),
            indptr=_parse_table(edge["indptr"], places),
            indices=_parse_table(edge["indices"], places),
            weights=optional(edge["weights"]),
            edge_ids=optional(edge["edge_ids"]),
            features=tables(edge["features"]),
        )
    attributes = document.get("attributes", {})
    if not isinstance(attributes, dict):
        raise ConfigError(f"attributes must be a JSON object (got {attributes!r})")
    manifest = Manifest(text(document, "id"), nodes, edges, attributes)
    if "knowledge" in document:
        manifest.knowledge = _parse_knowledge(document["knowledge"], places)
    _check(manifest, path)
    if manifest.id != identity(manifest):
        raise DatasetError(f"{path} was changed after it was written: its tables are not those that its id names")
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
        for stored in (*node.features.values(), node.labels, node.original_ids):
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
    if manifest.knowledge is not None:
        _check_knowledge(manifest.knowledge, manifest.nodes, path, rule)


def _check_knowledge(
    entry: KnowledgeEntry,
    nodes: Mapping[str, NodeEntry],
    path: Path,
    rule: Callable[[StoredTable | None, int], None],
) -> None:
    if entry.entity_type not in nodes:
        raise DatasetError(f"triples in {path} name node type {entry.entity_type!r}, which is not stored")
    entities = nodes[entry.entity_type].num_nodes
    rule(entry.indptr, entities + 1)
    for stored, dtype, dim in ((entry.indptr, "int64", 1), (entry.triples, "int32", 2)):
        table = stored.table
        if (table.dtype, table.dim, len(table.stripes)) != (dtype, dim, 1):
            raise DatasetError(f"{table.name} in {path} must be {dtype} of dim {dim} in one file")
    for stored in entry.queries.values():
        if (stored.table.dtype, stored.table.dim) != ("int32", 3):
            raise DatasetError(f"{stored.table.name} in {path} must be int32 of dim 3")
    if entry.triples.table.num_rows < entry.num_triples:
        got = entry.triples.table.num_rows
        raise DatasetError(f"{entry.triples.table.name} in {path} must have {entry.num_triples} rows (got {got})")
    added = entry.base_relations * (1 + entry.reverse) + entry.identity
    if entry.num_relations != added:
        raise DatasetError(f"num_relations in {path} must be {added} (got {entry.num_relations})")
    for names, named in ((entry.entity_names, entities), (entry.relation_names, entry.base_relations)):
        if names is not None:
            rule(names.ends, named)
            rule(names.order, named)
