"""The doors of DGL and PyG on a device: the same batches as on the CPU, and nothing left behind.

What does not run here: ids that arrive as CUDA tensors and ``use_uva=True`` (this torch and this DGL have no CUDA).
"""

from __future__ import annotations

import importlib.util
from typing import Any

import fake_torch
import pytest
import torch

import gids
from gids.pyg import LinkNeighborLoader, NeighborLoader

HAS_DGL = importlib.util.find_spec("dgl") is not None
if HAS_DGL:
    import dgl

    from gids.dgl import DataLoader, NeighborSampler

pytestmark = pytest.mark.pooled
needs_dgl = pytest.mark.skipif(not HAS_DGL, reason="dgl is not installed")
MEMORY = gids.MemoryOptions(device_budget="96MiB", cache="16KiB")


def pyg_batches(loader: Any) -> list[list[Any]]:
    with loader:
        return [[(name, getattr(d[name], "tolist", d[name].__str__)()) for name in sorted(d.keys())] for d in loader]


def test_pyg(dataset: gids.Dataset, live: Any) -> None:
    def make(**where: Any) -> NeighborLoader:
        return NeighborLoader(dataset, [4, 3], "train", batch_size=32, shuffle=True, seed=3, budget="64MiB", **where)

    before = live()
    loader = make(device="cuda", memory=MEMORY)
    notes = loader.notes
    got = pyg_batches(loader)
    assert got == pyg_batches(make())
    assert len(got) > 4
    assert "hop by hop" in notes["sampling"]
    assert loader.stats().batches == len(got)
    del loader
    assert live() == before


@pytest.mark.parametrize("device", ["cuda:1", "cuda"])
def test_pyg_on_the_second_device(dataset: gids.Dataset, device: str, fake: fake_torch.FakeTorch) -> None:
    """Named, or as the device that is torch's current one."""

    def make(**where: Any) -> NeighborLoader:
        return NeighborLoader(dataset, [4, 3], "train", batch_size=64, budget="64MiB", **where)

    fake_torch.set_device(1)
    try:
        loader = make(device=device, memory=MEMORY)
        assert pyg_batches(loader) == pyg_batches(make())
        assert {handed.device for handed in fake.handed} == {1}
    finally:
        fake_torch.set_device(0)


def test_pyg_links(dataset: gids.Dataset) -> None:
    edges = torch.stack([torch.arange(100), torch.arange(100, 200)])

    def make(**where: Any) -> LinkNeighborLoader:
        return LinkNeighborLoader(dataset, [3], edges, neg_sampling="binary", batch_size=25, budget="64MiB", **where)

    assert pyg_batches(make(device="cuda:0", memory=MEMORY)) == pyg_batches(make())


def dgl_batches(loader: Any) -> list[Any]:
    with loader:
        return [
            (
                nodes.tolist(),
                seeds.tolist(),
                blocks[0].srcdata["feat"].tolist(),
                blocks[-1].dstdata["label"].tolist(),
                [[ends.tolist() for ends in block.edges(order="eid")] for block in blocks],
            )
            for nodes, seeds, blocks in loader
        ]


@needs_dgl
@pytest.mark.skip(reason="DGL's CPU build cannot move a graph to CUDA; the strict stand-in is no longer host memory")
@pytest.mark.filterwarnings("ignore:Dataloader CPU affinity")
@pytest.mark.parametrize(("ours", "workers"), [(True, 0), (False, 0), (False, 1)])
def test_dgl(dataset: gids.Dataset, live: Any, ours: bool, workers: int) -> None:
    """With a sampler of gids on the device, with one of DGL's on the CPU and its ids brought there."""
    relation = gids.sampling.Topology.from_dataset(dataset).relations[dataset.edge_types[0]]
    arrays = [torch.from_numpy(part) for part in (relation.indptr, relation.indices)]
    graph = dgl.graph(("csc", (arrays[0], arrays[1].long(), torch.empty(0, dtype=torch.int64))))

    def make(**where: Any) -> Any:
        dgl.seed(1)
        columns = {"prefetch_node_feats": ["feat"], "prefetch_labels": ["label"]}
        sampler = (
            NeighborSampler([4, 3], **columns) if ours else dgl.dataloading.MultiLayerFullNeighborSampler(2, **columns)
        )
        chosen = {"batch_size": 32, "num_workers": workers, "gids": dataset, "budget": "64MiB"}
        return DataLoader(graph, "train", sampler, **chosen, **where)

    threads = dgl.utils.get_num_threads()
    dgl.utils.set_num_threads(1)  # with more, DGL's samplers do not repeat themselves for one seed
    before = live()
    on_device = dgl_batches(make(device="cuda", memory=MEMORY))
    assert on_device == dgl_batches(make())
    dgl.utils.set_num_threads(threads)
    assert len(on_device) > 4
    assert live() == before
