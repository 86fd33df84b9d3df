"""Every script of docs/examples runs on a small graph, learns something, and is linked from a guide."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import gids
from gids.cli import main as command
from gids.dataset import DatasetWriter
from gids.models import GraphSAGE
from tests.packages import NO_DGL
from tests.resources import DEADLINE_S

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
#: Run as torchrun runs it, by test_two_ranks.
OWN_PROCESS = {"multi_rank"}
#: Those that change a batch on a GPU run in tests/gids/cuda: test_numba_example.py, standin/case_transform.py.
ON_A_GPU = {"transform_cupy", "transform_numba", "transform_raw_kernel"}


def example(name: str) -> ModuleType:
    """Import a script."""
    if name.startswith("dgl"):
        pytest.importorskip("dgl", reason=NO_DGL)
    if name.startswith("pyg"):
        pytest.importorskip("torch_geometric")
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small matrices: several threads would wait for each other, most of all where other tests run."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("examples") / "graph")
    words = ["--nodes", "2k", "--dim", "8", "--classes", "4", "--train", "0.3", "--quiet"]
    assert command(["generate", "communities", path, *words]) == 0
    return path


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Papers and authors; what a paper is about shows in its features."""
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 3, 600)
    path = tmp_path_factory.mktemp("examples") / "typed"
    with DatasetWriter(path) as writer:
        writer.add_nodes(600, "paper")
        writer.add_nodes(200, "author")
        for etype, sources in {("author", "writes", "paper"): 200, ("paper", "cites", "paper"): 600}.items():
            indptr = np.arange(0, 600 * 4 + 1, 4)
            writer.add_csc(indptr, generator.integers(0, sources, 2400), etype=etype)
        writer.add_csc(np.arange(0, 200 * 3 + 1, 3), generator.integers(0, 600, 600), ("paper", "written_by", "author"))
        rows = generator.normal(size=(600, 6)).astype(np.float32)
        rows[np.arange(600), labels] += 3
        writer.add_features(rows, "paper")
        writer.add_features(generator.normal(size=(200, 5)).astype(np.float32), "author")
        writer.add_labels(labels, "paper")
        writer.add_split("train", np.arange(0, 600, 2), "paper")
        writer.finish()
    return str(path)


def test_plain(graph: str) -> None:
    assert example("plain").main(graph) > 0.5  # of four classes


@pytest.mark.parametrize("name", ["dgl_node", "pyg_node"])
def test_nodes(name: str, graph: str) -> None:
    losses = example(name).main(graph)
    assert losses[-1] < 0.95 * losses[0]


@pytest.mark.parametrize("name", ["dgl_link", "pyg_link"])
def test_links(name: str, graph: str) -> None:
    losses = example(name).main(graph, edges=1024)
    assert losses[-1] < 0.95 * losses[0]


@pytest.mark.parametrize("name", ["dgl_hetero", "pyg_hetero"])
def test_several_types(name: str, typed: str) -> None:
    losses = example(name).main(typed, "paper")
    assert losses[-1] < 0.9 * losses[0]


def test_packed_epochs_give_the_losses_of_reading_online(graph: str, tmp_path: Path) -> None:
    module = example("packed_epochs")
    losses = module.main(graph, str(tmp_path / "packed"))
    dataset = gids.open(graph)
    torch.manual_seed(0)
    model = GraphSAGE(dataset.num_features, 32, dataset.num_classes, num_layers=2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    online = []
    with gids.Loader(dataset, "train", fanouts=[5, 5], batch_size=128, budget="64MiB") as loader:
        for _ in range(module.EPOCHS):
            for batch in loader:
                loss = cross_entropy(model(batch.blocks, batch.x), batch.y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                online.append(loss.item())
    assert losses == online


def test_inference(graph: str, tmp_path: Path) -> None:
    assert example("inference").main(graph, str(tmp_path / "answers")) > 0.5
    assert gids.open(tmp_path / "answers").num_nodes() == 2000


def test_knowledge_graph(tmp_path: Path) -> None:
    path = str(tmp_path / "graph")
    words = ["--entities", "300", "--degree", "4", "--reverse", "--identity", "--train", "0.2", "--quiet"]
    assert command(["generate", "kg", path, *words]) == 0
    losses = example("knowledge_graph").main(path, queries=64)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("name", sorted(OWN_PROCESS))
def test_two_ranks(name: str, graph: str) -> None:
    """What torchrun does: a process for each rank, told by its environment who it is."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), graph]
    processes = [
        subprocess.Popen(
            command,
            env=os.environ | where | {"RANK": rank, "LOCAL_RANK": rank},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in "01"
    ]
    said = [process.communicate(timeout=DEADLINE_S) for process in processes]
    for rank, (process, (out, err)) in enumerate(zip(processes, said, strict=True)):
        assert process.returncode == 0, err[-2000:]
        assert f"rank {rank} of 2, epoch 1: loss " in out


def test_every_script_is_run_and_linked() -> None:
    tests = Path(__file__).read_text()
    pages = "".join(page.read_text() for page in EXAMPLES.parent.glob("*.md"))
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    assert len(names) >= 13
    assert {name for name in names - ON_A_GPU - OWN_PROCESS if f'"{name}"' not in tests} == set()
    assert {name for name in names if f"examples/{name}.py" not in pages} == set()
