"""``gids info``: what a dataset holds."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from gids.cli import pack
from gids.dataset import Dataset, open_dataset
from gids.dataset.manifest import KnowledgeEntry, StoredTable
from gids.dataset.packed import Packed, is_packed
from gids.units import format_bytes


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("path", help="directory of the dataset, or of packed epochs")
    parser.add_argument("--json", action="store_true", help="one JSON object for machines")


def run(args: argparse.Namespace) -> None:
    """Print the summary."""
    if is_packed(args.path):
        packed = Packed(args.path)
        if args.json:
            print(json.dumps(pack.summary(packed), indent=2))
        else:
            pack.print_summary(packed)
        return
    dataset = open_dataset(args.path)
    if args.json:
        print(json.dumps(summary(dataset), indent=2))
    else:
        print_summary(dataset)


def _table(stored: StoredTable) -> dict[str, Any]:
    table = stored.table
    return {
        "dtype": table.dtype,
        "dim": table.dim,
        "rows": table.num_rows,
        "bytes": table.total_bytes,
        "row_stride": table.row_stride,
        "files": [str(stripe.path) for stripe in table.stripes],
    }


def summary(dataset: Dataset) -> dict[str, Any]:
    """Collect counts and tables, in values that JSON knows."""
    manifest = dataset.manifest
    return {
        "path": str(dataset.path),
        "id": dataset.id,
        "attributes": dataset.attributes,
        "bytes": sum(sum(stored.file_bytes) for stored in manifest.tables()),
        "nodes": {
            ntype: {
                "count": node.num_nodes,
                "num_classes": node.num_classes,
                "features": {name: _table(stored) for name, stored in node.features.items()},
                "labels": None if node.labels is None else _table(node.labels),
                "splits": {name: stored.table.num_rows for name, stored in node.splits.items()},
            }
            for ntype, node in manifest.nodes.items()
        },
        "edges": [
            {
                "type": list(etype),
                "count": edge.num_edges,
                "indices": _table(edge.indices),
                "weights": None if edge.weights is None else _table(edge.weights),
                "edge_ids": None if edge.edge_ids is None else _table(edge.edge_ids),
                "features": {name: _table(stored) for name, stored in edge.features.items()},
            }
            for etype, edge in manifest.edges.items()
        ],
        "knowledge": None if manifest.knowledge is None else _knowledge(manifest.knowledge),
    }


def _knowledge(entry: KnowledgeEntry) -> dict[str, Any]:
    facts = ("entity_type", "num_triples", "num_relations", "base_relations", "reverse", "identity")
    named = {"entity_names": entry.entity_names is not None, "relation_names": entry.relation_names is not None}
    queries = {name: stored.table.num_rows for name, stored in entry.queries.items()}
    tables = {"indptr": _table(entry.indptr), "triples": _table(entry.triples)}
    return {name: getattr(entry, name) for name in facts} | named | {"tables": tables, "queries": queries}


def print_summary(dataset: Dataset) -> None:
    """Write counts and tables for people."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    facts = summary(dataset)
    console = Console() if sys.stdout.isatty() else Console(width=160)
    console.print(
        f"[bold]{escape(facts['path'])}[/]  {format_bytes(facts['bytes'])}  id {facts['id']}", highlight=False
    )
    grid = Table(box=None, pad_edge=False)
    numbers = ("count", "rows", "dim", "size")
    for column in ("type", "count", "table", "rows", "dim", "dtype", "size", "files"):
        grid.add_column(column, justify="right" if column in numbers else "left", no_wrap=column in numbers)

    def rows(owner: str, count: int, tables: dict[str, dict[str, Any]]) -> None:
        for i, (name, table) in enumerate(tables.items()):
            lead = (escape(owner), f"{count:,}") if i == 0 else ("", "")
            values = (f"{table['rows']:,}", str(table["dim"]), table["dtype"], format_bytes(table["bytes"]))
            grid.add_row(*lead, escape(name), *values, str(len(table["files"])))
        if not tables:
            grid.add_row(escape(owner), f"{count:,}")

    for ntype, node in facts["nodes"].items():
        labels = {} if node["labels"] is None else {f"labels ({node['num_classes']} classes)": node["labels"]}
        rows(ntype, node["count"], node["features"] | labels)
        for name, size in node["splits"].items():
            grid.add_row("", "", f"split {escape(name)}", f"{size:,}")
    for edge in facts["edges"]:
        parts = {name: edge[name] for name in ("indices", "weights", "edge_ids") if edge[name] is not None}
        rows(" → ".join(edge["type"]), edge["count"], parts | edge["features"])
    known = facts["knowledge"]
    if known is not None:
        added = [name for name in ("reverse", "identity") if known[name]]
        relations = f"{known['num_relations']} relations" + (f" with {' and '.join(added)}" if added else "")
        rows(f"triples, {relations}", known["num_triples"], known["tables"])
        for name, size in known["queries"].items():
            grid.add_row("", "", f"queries {escape(name)}", f"{size:,}")
    console.print(grid)
