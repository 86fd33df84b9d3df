"""gids= on and off give the same batches, with the same features, for every kind of sampler and task."""

from __future__ import annotations

import itertools
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from tests.packages import NO_DGL

pytest.importorskip("dgl", reason=NO_DGL)

import dgl

from gids.dataset import Dataset
from gids.dgl import DataLoader, NeighborSampler, Options
from gids.dgl.requests import collect, graphs_in
from gids.errors import ConfigError
from gids.sampling import LadiesSampler, ShadowSampler
from gids.sampling import NeighborSampler as PlainNeighborSampler

pytestmark = pytest.mark.filterwarnings("ignore:Dataloader CPU affinity:dgl.base.DGLWarning")

SMALL = {"budget": "64MiB", "window": 3, "max_group": 3, "threads": 1}


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    threads = dgl.utils.get_num_threads()
    dgl.utils.set_num_threads(1)  # with more, DGL's samplers do not repeat themselves for one seed
    yield
    dgl.utils.set_num_threads(threads)
    assert not [t.name for t in threading.enumerate() if t.name.startswith("gids-") and "pool" not in t.name]


def reseed() -> None:
    np.random.seed(7)  # noqa: NPY002 - DGL shuffles with NumPy's global state
    dgl.seed(7)
    torch.manual_seed(7)


def columns(batch: Any) -> list[Any]:
    """Everything in a batch: structure, ids and every feature column, in order."""
    found: list[Any] = []
    for item in batch:
        found.append({k: v.tolist() for k, v in item.items()} if isinstance(item, dict) else None)
        if isinstance(item, torch.Tensor):
            found.append(item.tolist())
    for graph in graphs_in(list(batch)):
        for etype in graph.canonical_etypes:
            found.append([ends.tolist() for ends in graph.edges(etype=etype, order="eid")])
        for frame in (*graph._node_frames, *graph._edge_frames):
            found.append({name: frame[name].tolist() for name in sorted(frame.keys())})
    return found


def epochs(loader: Any, count: int = 2) -> list[list[Any]]:
    return [[columns(batch) for batch in loader] for _ in range(count)]


def asked_for(batches: list[list[Any]], got: list[list[Any]]) -> list[list[Any]]:
    """Leave out of DGL's batches the columns that it adds because the graph has them, asked for or not."""
    return [
        [
            {name: values for name, values in mine.items() if name in theirs} if isinstance(mine, dict) else mine
            for mine, theirs in zip(batch, other, strict=True)
        ]
        for batch, other in zip(batches, got, strict=True)
    ]


def assert_same(full: Any, bare: Any, dataset: Dataset, indices: Any, make_sampler: Any, **kwargs: Any) -> None:
    """DGL with all features in memory, gids beside them, and gids without them, give the same."""
    # DGL does not tell a sampler that an epoch begins; ours goes by epochs, so only the first is comparable.
    inner = getattr(make_sampler(), "sampler", make_sampler())
    count = 1 if isinstance(inner, NeighborSampler) else 2
    reseed()
    expected = epochs(dgl.dataloading.DataLoader(full, indices, make_sampler(), **kwargs), count)
    for graph in (full, bare):
        reseed()
        loader = DataLoader(graph, indices, make_sampler(), gids=Options(dataset, **SMALL), **kwargs)
        got = epochs(loader, count)
        if graph is full:
            assert got == expected
        else:
            assert got == [asked_for(mine, theirs) for mine, theirs in zip(expected, got, strict=True)]
            few = {k: v[:4] for k, v in indices.items()} if isinstance(indices, dict) else indices[:4]
            lazy = sum(
                len(places) for places in collect(make_sampler().sample(full, few), lambda _: True).places.values()
            )
            assert sum(len(c.keys() - {dgl.NID}) for c in got[0][0] if isinstance(c, dict) and dgl.NID in c) >= lazy
        assert sum(table.requests for table in loader.stats().values()) > 0
        loader.close()


NODE_PREFETCH = {
    "prefetch_node_feats": ["feat", "extra"],
    "prefetch_labels": ["label"],
    "prefetch_edge_feats": ["feat"],
}


@pytest.mark.parametrize(
    "make_sampler",
    [
        lambda: dgl.dataloading.NeighborSampler([4, 3], **NODE_PREFETCH),
        lambda: dgl.dataloading.NeighborSampler([4, 3], fused=False, **NODE_PREFETCH),
        lambda: dgl.dataloading.MultiLayerFullNeighborSampler(2, **NODE_PREFETCH),
        lambda: dgl.dataloading.LaborSampler([4, 3], **NODE_PREFETCH),
        lambda: dgl.dataloading.ShaDowKHopSampler([4, 3], prefetch_node_feats=["feat"], prefetch_edge_feats=["feat"]),
        lambda: NeighborSampler([4, 3], **NODE_PREFETCH),
    ],
    ids=["neighbor", "unfused", "full", "labor", "shadow", "gids"],
)
def test_node_classification(
    homogeneous: Any, bare_homogeneous: Any, homogeneous_dataset: Dataset, make_sampler: Any
) -> None:
    indices = torch.arange(0, 1200, 5)
    assert_same(homogeneous, bare_homogeneous, homogeneous_dataset, indices, make_sampler, batch_size=32, shuffle=True)


@pytest.mark.parametrize("sampler", [dgl.dataloading.NeighborSampler, NeighborSampler], ids=["dgl", "gids"])
def test_heterogeneous(
    heterogeneous: Any, bare_heterogeneous: Any, heterogeneous_dataset: Dataset, sampler: Any
) -> None:
    def make() -> Any:
        return sampler(
            [3, 3],
            prefetch_node_feats={"paper": ["feat"], "author": ["feat"]},
            prefetch_labels={"paper": ["label"]},
            prefetch_edge_feats={("paper", "cites", "paper"): ["feat"]},
        )

    indices = {"paper": torch.arange(0, 600, 4)}
    kwargs = {"batch_size": 20, "shuffle": True, "drop_last": True}
    assert_same(heterogeneous, bare_heterogeneous, heterogeneous_dataset, indices, make, **kwargs)


@pytest.mark.parametrize("sampler", [dgl.dataloading.NeighborSampler, NeighborSampler], ids=["dgl", "gids"])
@pytest.mark.parametrize("negatives", [False, True], ids=["classification", "link prediction"])
def test_edges(
    homogeneous: Any, bare_homogeneous: Any, homogeneous_dataset: Dataset, sampler: Any, negatives: bool
) -> None:
    def make() -> Any:
        return dgl.dataloading.as_edge_prediction_sampler(
            sampler([3, 3], prefetch_node_feats=["feat"], prefetch_edge_feats=["feat"]),
            exclude="self",
            negative_sampler=dgl.dataloading.negative_sampler.Uniform(2) if negatives else None,
            prefetch_labels=["label"],
        )

    indices = torch.arange(0, 9000, 60)
    assert_same(homogeneous, bare_homogeneous, homogeneous_dataset, indices, make, batch_size=24, shuffle=True)


def test_heterogeneous_link_prediction(
    heterogeneous: Any, bare_heterogeneous: Any, heterogeneous_dataset: Dataset
) -> None:
    def make() -> Any:
        return dgl.dataloading.as_edge_prediction_sampler(
            dgl.dataloading.NeighborSampler([3, 3], prefetch_node_feats={"paper": ["feat"], "author": ["feat"]}),
            exclude="reverse_types",
            reverse_etypes={"writes": "written_by", "written_by": "writes"},
            negative_sampler=dgl.dataloading.negative_sampler.Uniform(1),
        )

    indices = {"writes": torch.arange(0, 2400, 30), "cites": torch.arange(0, 4000, 60)}
    assert_same(heterogeneous, bare_heterogeneous, heterogeneous_dataset, indices, make, batch_size=16)


def test_none_is_exactly_dgl(homogeneous: Any) -> None:
    def run(cls: Any, **more: Any) -> list[list[Any]]:
        reseed()
        sampler = dgl.dataloading.NeighborSampler([4, 3], **NODE_PREFETCH)
        return epochs(cls(homogeneous, torch.arange(200), sampler, batch_size=32, shuffle=True, **more))

    assert run(DataLoader, gids=None) == run(dgl.dataloading.DataLoader)
    assert run(DataLoader) == run(dgl.dataloading.DataLoader)


def test_workers_sample(homogeneous: Any, bare_homogeneous: Any, homogeneous_dataset: Dataset) -> None:
    def make() -> Any:
        return dgl.dataloading.MultiLayerFullNeighborSampler(2, **NODE_PREFETCH)

    indices = torch.arange(0, 1200, 10)
    assert_same(
        homogeneous, bare_homogeneous, homogeneous_dataset, indices, make, batch_size=16, shuffle=True, num_workers=2
    )


def test_a_path_turns_it_on_and_the_graph_may_keep_its_columns(homogeneous: Any, homogeneous_dataset: Dataset) -> None:
    sampler = dgl.dataloading.NeighborSampler([3], prefetch_node_feats=["feat"], prefetch_labels=["label"])
    loader = DataLoader(homogeneous, torch.arange(64), sampler, batch_size=16, gids=homogeneous_dataset.path)
    for input_nodes, output_nodes, blocks in loader:
        assert torch.equal(blocks[0].srcdata["feat"], homogeneous.ndata["feat"][input_nodes])
        assert torch.equal(blocks[-1].dstdata["label"], output_nodes % 6)
    assert len(loader) == 4
    assert list(loader.stats()) == ["_N/feat"]
    loader.close()


def test_no_dgl_graph_is_needed(heterogeneous: Any, heterogeneous_dataset: Dataset) -> None:
    sampler = PlainNeighborSampler([3, 3], edge_ids=True)
    loader = DataLoader(
        heterogeneous_dataset, {"paper": torch.arange(100)}, sampler, batch_size=32, gids=Options(heterogeneous_dataset)
    )
    count = 0
    for input_nodes, output_nodes, blocks in loader:
        for ntype in ("paper", "author"):
            rows = heterogeneous.nodes[ntype].data["feat"][input_nodes[ntype]]
            assert torch.equal(blocks[0].srcnodes[ntype].data["feat"], rows)
        assert torch.equal(blocks[-1].dstnodes["paper"].data["label"], output_nodes["paper"] % 4)
        for block in blocks:
            ids = block.edges["cites"].data[dgl.EID]
            assert torch.equal(block.edges["cites"].data["feat"], heterogeneous.edges["cites"].data["feat"][ids])
        count += 1
    assert count == len(loader) == 4
    loader.close()


def test_leaving_early_starting_again_and_two_at_once(bare_homogeneous: Any, homogeneous_dataset: Dataset) -> None:
    def make() -> DataLoader:
        sampler = NeighborSampler([3], prefetch_node_feats=["feat"])
        return DataLoader(
            bare_homogeneous, torch.arange(400), sampler, batch_size=8, gids=Options(homogeneous_dataset, **SMALL)
        )

    loader = make()
    for number, (input_nodes, _, blocks) in enumerate(loader):
        assert blocks[0].srcdata["feat"][:, 0].tolist() == input_nodes.tolist()
        if number == 2:
            break
    seen = [output.tolist() for _, output, _ in loader]
    assert list(itertools.chain(*seen)) == list(range(400))
    first = iter(loader)
    next(first)
    second = iter(loader)  # ends the first
    assert next(second)[1].tolist() == list(range(8))
    other = make()
    for (_, mine, _), (_, theirs, _) in zip(loader, other, strict=True):
        assert mine.tolist() == theirs.tolist()
    loader.close()
    other.close()


def test_an_error_in_the_sampler_reaches_the_loop(bare_homogeneous: Any, homogeneous_dataset: Dataset) -> None:
    class Broken(dgl.dataloading.NeighborSampler):  # type: ignore[misc]
        calls = 0

        def sample(self, *args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            if self.calls == 6:
                raise RuntimeError("the sampler broke")
            return super().sample(*args, **kwargs)

    sampler = Broken([3], prefetch_node_feats=["feat"])
    loader = DataLoader(
        bare_homogeneous, torch.arange(400), sampler, batch_size=8, gids=Options(homogeneous_dataset, **SMALL)
    )
    with pytest.raises(RuntimeError, match="the sampler broke"):
        list(loader)
    assert len(list(loader)) == 50
    loader.close()


def test_a_graph_of_another_size_is_refused(heterogeneous_dataset: Dataset) -> None:
    graph = dgl.heterograph({("paper", "cites", "paper"): (torch.tensor([0]), torch.tensor([1]))})
    with pytest.raises(ConfigError, match="graph must have 600 nodes of type 'paper'"):
        DataLoader(graph, torch.tensor([0]), dgl.dataloading.NeighborSampler([1]), gids=heterogeneous_dataset)


def test_a_budget_too_small_says_the_minimum(bare_homogeneous: Any, homogeneous_dataset: Dataset) -> None:
    sampler = dgl.dataloading.NeighborSampler([3], prefetch_node_feats=["feat"])
    loader = DataLoader(
        bare_homogeneous, torch.arange(64), sampler, batch_size=8, gids=Options(homogeneous_dataset, budget="1KiB")
    )
    with pytest.raises(ConfigError, match="budget must be at least"):
        next(iter(loader))


def test_a_sampler_that_asks_for_nothing_is_pointed_out(bare_homogeneous: Any, homogeneous_dataset: Dataset) -> None:
    loader = DataLoader(
        bare_homogeneous, torch.arange(64), dgl.dataloading.NeighborSampler([3]), batch_size=8, gids=homogeneous_dataset
    )
    with pytest.warns(UserWarning, match=r"prefetches none of the dataset's features \(extra, feat\)"):
        list(loader)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(loader)
    loader.close()


@pytest.mark.parametrize("sampler", [LadiesSampler([64, 32]), ShadowSampler([3, 3])], ids=["ladies", "shadow"])
def test_other_samplers_of_gids(homogeneous: Any, homogeneous_dataset: Dataset, sampler: Any) -> None:
    loader = DataLoader(
        homogeneous_dataset, torch.arange(100), sampler, batch_size=25, gids=Options(homogeneous_dataset, **SMALL)
    )
    for number, (input_nodes, output_nodes, blocks) in enumerate(loader):
        assert output_nodes.tolist() == list(range(25 * number, 25 * number + 25))
        assert torch.equal(blocks[0].srcdata["feat"], homogeneous.ndata["feat"][input_nodes])
        assert torch.equal(blocks[0].srcdata["extra"], homogeneous.ndata["extra"][input_nodes])
        assert blocks[-1].dstdata[dgl.NID][:25].tolist() == output_nodes.tolist()
        assert torch.equal(blocks[-1].dstdata["label"], blocks[-1].dstdata[dgl.NID] % 6)
        for block in blocks:
            source, destination = block.edges()
            pairs = block.srcdata[dgl.NID][source], block.dstdata[dgl.NID][destination]
            assert bool(homogeneous.has_edges_between(*pairs).all())
        if isinstance(sampler, LadiesSampler):
            sums = torch.zeros(blocks[0].num_dst_nodes()).index_add(0, blocks[0].edges()[1], blocks[0].edata["w"])
            torch.testing.assert_close(sums[blocks[0].in_degrees() > 0], torch.ones(int((sums > 0).sum())))
    loader.close()
