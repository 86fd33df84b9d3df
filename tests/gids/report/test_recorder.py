"""Any loader's work becomes a run, and that a page."""

from __future__ import annotations

from pathlib import Path

import torch

import gids
from gids.cli import main
from gids.dataset import DatasetWriter
from gids.report import load_run, record


def test_a_loader_becomes_a_page(tmp_path: Path) -> None:
    with DatasetWriter(tmp_path / "graph") as writer:
        writer.add_nodes(200)
        writer.add_csc(torch.arange(0, 401, 2), torch.arange(400) % 200)
        writer.add_features(torch.randn(200, 8))
        writer.add_labels(torch.arange(200) % 3)
        writer.add_split("train", torch.arange(100))
    with gids.Loader(tmp_path / "graph", "train", fanouts=[2], batch_size=10, budget="64MiB") as loader:
        with loader.tracing(tmp_path / "trace.json"):
            rows = sum(len(batch.x) for batch in loader)
        written = record(loader, tmp_path / "run", title="Ours")
    assert written == tmp_path / "run" / "run.json"
    run = load_run(tmp_path / "run")
    assert run.epochs[0].total_rows == rows
    assert run.memory is not None
    assert run.memory.table_bytes == 200 * 8 * 4
    assert run.memory.peak_bytes <= run.memory.budget_bytes == 64 << 20
    assert main(["report", str(tmp_path / "run")]) == 0
    page = (tmp_path / "run" / "report.html").read_text()
    for words in ("Ours", "gids-fetch", '<svg id="tiers"', '<svg id="timeline"', "batch size"):
        assert words in page, words
    assert '<svg id="throughput"' not in page
