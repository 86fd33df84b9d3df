"""Directive ``gids-kernels``: the table of each kernel's work, from the counts that the tests keep."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

COUNTS = Path(__file__).resolve().parents[2] / "tests" / "ptx" / "kernel_counts.json"
HEADS = (
    "entry point", "device memory: load + store", "link: load + store", "sectors an access, device / link",
    "lanes at work", "atomic operations", "rounds of one", "chain",
)  # fmt: skip


def cells(found: dict[str, Any]) -> list[str]:
    """Return one kernel's figures as text, in the order of the heads after the first."""
    hbm, host = (
        f"{found[f'{place}_load_sectors']:.2f} + {found[f'{place}_store_sectors']:.2f}" for place in ("hbm", "host")
    )
    wide = " / ".join(f"{found[f'{place}_sectors_per_access']:.1f}" for place in ("hbm", "host"))
    atomics = f"{found['hbm_atomics'] + found['host_atomics']:.2f}"
    alone = f" ({found['host_chain_alone']} alone)" if "host_chain_alone" in found else ""
    rounds = f"{found['atomic_rounds']:.1f}"
    return [hbm, host, wide, f"{found['active_lanes']:.1f}", atomics, rounds, f"{found['host_chain']}{alone}"]


def row(entries: Iterable[nodes.Node]) -> nodes.row:
    """Return one line of a table."""
    return nodes.row("", *(nodes.entry("", nodes.paragraph("", "", entry)) for entry in entries))


class Kernels(SphinxDirective):
    """Write a line for every entry point."""

    def run(self) -> list[nodes.Node]:
        """Return the table."""
        self.env.note_dependency(str(COUNTS))
        group = nodes.tgroup("", *(nodes.colspec(colwidth=1) for _ in HEADS), cols=len(HEADS))
        group += nodes.thead("", row(nodes.Text(head) for head in HEADS))
        body = nodes.tbody()
        for name, found in json.loads(COUNTS.read_text())["kernels"].items():
            body += row([nodes.literal("", name), *(nodes.Text(cell) for cell in cells(found))])
        group += body
        return [nodes.table("", group)]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("gids-kernels", Kernels)
    return {"parallel_read_safe": True}
