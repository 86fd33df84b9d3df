"""Two changed lines: the public-style scripts in experiments/ give the same losses from memory and from disk."""

from __future__ import annotations

import difflib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.packages import NO_DGL

pytest.importorskip("dgl", reason=NO_DGL)

import dgl

from gids.dataset import DatasetWriter
from tests.resources import DEADLINE_S

ROOT = Path(__file__).resolve().parents[3]


def changed_lines(before: Path, after: Path) -> list[tuple[str, str]]:
    old, new = before.read_text().splitlines(), after.read_text().splitlines()
    matcher = difflib.SequenceMatcher(a=old, b=new, autojunk=False)
    changes = [op for op in matcher.get_opcodes() if op[0] != "equal"]
    assert all(kind == "replace" and b - a == d - c == 1 for kind, a, b, c, d in changes)
    return [(old[a].strip(), new[c].strip()) for _, a, _, c, _ in changes]


@pytest.mark.parametrize("name", ["dgl_sage", "dgl_rgcn"])
def test_two_lines_differ(name: str) -> None:
    changes = changed_lines(ROOT / f"experiments/{name}.py", ROOT / f"experiments/{name}_gids.py")
    assert len(changes) == 2
    assert changes[0] == ("from dgl.dataloading import DataLoader", "from gids.dgl import DataLoader")
    before, after = changes[1]
    assert after == before.removesuffix(")") + ", gids=args.dataset)"


def planted(num_nodes: int, classes: int, dim: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    label = torch.randint(0, classes, (num_nodes,), generator=generator)
    centers = torch.randn(classes, dim, generator=generator)
    return label, centers[label] + 2 * torch.randn(num_nodes, dim, generator=generator)


def run_both(name: str, path: Path) -> tuple[list[str], list[str]]:
    """Run the script as it was and as it is with gids; give what each printed."""
    # One thread: with more, DGL's samplers do not repeat themselves for one seed.
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    commands = [[ROOT / f"experiments/{name}.py", path], [ROOT / f"experiments/{name}_gids.py", path, "--dataset"]]
    commands[1].append(path / "dataset")
    running = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for command in commands
    ]
    printed = []
    for process in running:
        out, errors = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0, errors[-3000:]
        printed.append(out.splitlines())
    return printed[0], printed[1]


@pytest.mark.slow
def test_graphsage(tmp_path: Path) -> None:
    label, feat = planted(3000, 4, 16, seed=1)
    generator = torch.Generator().manual_seed(2)
    dst = torch.randint(0, 3000, (24_000,), generator=generator)
    same = torch.randint(0, 3000, (24_000, 8), generator=generator)
    src = same[torch.arange(24_000), (label[same] == label[dst][:, None]).int().argmax(1)]
    np.save(tmp_path / "edges.npy", torch.stack([src, dst]).numpy())
    np.save(tmp_path / "feat.npy", feat.numpy())
    np.save(tmp_path / "label.npy", label.numpy())
    np.save(tmp_path / "train.npy", np.arange(0, 2000))
    np.save(tmp_path / "test.npy", np.arange(2000, 3000))
    with DatasetWriter(tmp_path / "dataset") as writer:
        writer.add_nodes(3000)
        writer.add_features(feat)
    expected, got = run_both("dgl_sage", tmp_path)
    assert got == expected
    assert float(expected[-1].removeprefix("test accuracy ")) > 0.6


def test_rgcn(tmp_path: Path) -> None:
    label, feat = planted(1500, 4, 12, seed=3)
    generator = torch.Generator().manual_seed(4)
    author_label = torch.randint(0, 4, (800,), generator=generator)
    author_feat = torch.nn.functional.one_hot(author_label, 4).float().repeat(1, 2)

    def pairs(destinations: torch.Tensor, sources: torch.Tensor, count: int) -> Any:
        dst = torch.randint(0, len(destinations), (count,), generator=generator)
        candidates = torch.randint(0, len(sources), (count, 8), generator=generator)
        fitting = (sources[candidates] == destinations[dst][:, None]).int().argmax(1)
        return candidates[torch.arange(count), fitting], dst

    graph = dgl.heterograph(
        {
            ("author", "writes", "paper"): pairs(label, author_label, 6000),
            ("paper", "cites", "paper"): pairs(label, label, 6000),
            ("paper", "written_by", "author"): pairs(author_label, label, 4000),
        },
        num_nodes_dict={"author": 800, "paper": 1500},
    )
    graph.nodes["paper"].data["label"] = label
    graph.nodes["paper"].data["train"] = torch.arange(1500) < 1000
    dgl.save_graphs(str(tmp_path / "graph.bin"), [graph])
    np.save(tmp_path / "paper_feat.npy", feat.numpy())
    np.save(tmp_path / "author_feat.npy", author_feat.numpy())
    with DatasetWriter(tmp_path / "dataset") as writer:
        writer.add_nodes(1500, "paper")
        writer.add_nodes(800, "author")
        writer.add_features(feat, "paper")
        writer.add_features(author_feat, "author")
    expected, got = run_both("dgl_rgcn", tmp_path)
    assert got == expected
    assert float(expected[-1].split()[-1]) > 0.6
