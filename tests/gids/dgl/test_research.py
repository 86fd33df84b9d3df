"""The research code's names: a fourth element with the features, whatever the sampler prefetches."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from tests.packages import NO_DGL

pytest.importorskip("dgl", reason=NO_DGL)

import dgl

from gids.dataset import Dataset
from gids.dgl import GIDS, GIDS_DGLDataLoader
from gids.errors import ConfigError


def settings(dataset: Dataset, **changes: Any) -> GIDS:
    defaults = {"page_size": 4096, "off": 0, "cache_dim": 7, "num_ele": 1200 * 7, "num_ssd": 1, "cache_size": 1e-5}
    return GIDS(**(defaults | changes), dataset=dataset, budget="128MiB")


@pytest.mark.parametrize("window", [False, True])
@pytest.mark.parametrize("prefetch", [[], ["feat"]])
def test_homogeneous(
    bare_homogeneous: Any, homogeneous: Any, homogeneous_dataset: Dataset, window: bool, prefetch: Any
) -> None:
    loader_settings = settings(homogeneous_dataset, window_buffer=window, wb_size=4, accumulator_flag=window)
    loader_settings.cpu_backing_buffer(7, 100)
    loader_settings.set_cpu_buffer(torch.arange(500, 1200), 100)
    if window:
        loader_settings.set_required_storage_access(5.8, 20.0, 10.0, 1, 0.95)
        assert loader_settings.required_accesses == pytest.approx(0.95 * 5.8 * 1024 / 4096 * 30 / 0.05)
    sampler = dgl.dataloading.MultiLayerNeighborSampler([4, 3], prefetch_node_feats=prefetch)
    loader = GIDS_DGLDataLoader(
        bare_homogeneous, torch.arange(200), sampler, 32, 7, loader_settings, shuffle=True, drop_last=False
    )
    assert loader.options.memory.policy == ("gids" if window else "random")
    seen = []
    for input_nodes, seeds, blocks, feats in itertools.chain(loader, loader):
        assert torch.equal(feats, homogeneous.ndata["feat"][input_nodes])
        assert torch.equal(blocks[-1].dstdata[dgl.NID], seeds)
        assert ("feat" in blocks[0].srcdata) == bool(prefetch)
        seen.append(seeds)
    assert torch.cat(seen[:7]).sort()[0].tolist() == torch.cat(seen[7:]).sort()[0].tolist() == list(range(200))
    loader.prepare()
    (store,) = loader.stores.values()
    assert store.planner.policy.name == ("gids" if window else "random")
    assert store.host_buffer.index.rows.tolist() == list(range(500, 600))
    assert loader.division.group_batches * loader.division.sweep_groups <= 1 or window
    assert (loader.options.pipeline.accesses == 827) == window
    list(loader)
    (table,) = loader.stats().tables.values()
    assert table.host > 0
    assert table.requests == table.cache + table.host + table.disk + table.duplicates
    loader.close()


def test_statistics_are_printed(
    bare_homogeneous: Any, homogeneous_dataset: Dataset, capsys: pytest.CaptureFixture[str]
) -> None:
    loader_settings = settings(homogeneous_dataset)
    loader_settings.print_stats()
    assert capsys.readouterr().out == ""
    sampler = dgl.dataloading.MultiLayerNeighborSampler([3])
    loader = GIDS_DGLDataLoader(bare_homogeneous, torch.arange(64), sampler, 16, 7, loader_settings)
    requested = sum(len(input_nodes) for input_nodes, *_ in loader)
    loader.print_stats()
    loader.print_timer()
    out = capsys.readouterr().out
    assert f"_N/feat: {requested} rows" in out
    assert "waited for batches: " in out
    loader.close()


def test_heterogeneous(heterogeneous: Any, bare_heterogeneous: Any, tmp_path_factory: Any) -> None:
    from gids.dataset import DatasetWriter

    path = tmp_path_factory.mktemp("research") / "dataset"
    with DatasetWriter(path) as writer:  # one width for all types, as the research code has it
        for ntype in heterogeneous.ntypes:
            count = heterogeneous.num_nodes(ntype)
            writer.add_nodes(count, ntype)
            writer.add_features(torch.arange(count * 5.0).view(count, 5), ntype)
        dataset = writer.finish()
    loader_settings = settings(
        dataset, cache_dim=5, heterograph=True, heterograph_map={"author": 0, "paper": 300}, window_buffer=True
    )
    loader_settings.set_cpu_buffer(torch.tensor([0, 299, 300, 301]), 4)
    scores = loader_settings.memory_options().host_rank
    assert {ntype: score.nonzero().flatten().tolist() for ntype, score in scores.items()} == {
        "author": [0, 299],
        "paper": [0, 1],
    }
    assert scores["author"][0] > scores["author"][299]
    sampler = dgl.dataloading.MultiLayerNeighborSampler([3, 3])
    loader = GIDS_DGLDataLoader(bare_heterogeneous, {"paper": torch.arange(120)}, sampler, 40, 5, loader_settings)
    for input_nodes, _, _, feats in loader:
        for ntype in heterogeneous.ntypes:
            assert torch.equal(feats[ntype][:, 0], input_nodes[ntype] * 5.0)
    loader.close()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cache_dim": 8}, "cache_dim must be 7"),
        ({"long_type": True}, "long_type must be False"),
        ({"heterograph": True}, "heterograph must be False"),
        ({"cache_size": -1}, "cache_size must not be negative"),
    ],
)
def test_settings_that_do_not_fit_the_dataset(homogeneous_dataset: Dataset, changes: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings(homogeneous_dataset, **changes)
