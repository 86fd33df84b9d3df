"""PyG's names for sampling by time and for disjoint subgraphs: against brute force, on nodes and on links."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.sampler import NegativeSampling

from gids import ConfigError
from gids.dataset import Dataset, DatasetWriter
from gids.pyg import LinkNeighborLoader, NeighborLoader
from tests.rows import marked_rows

from .conftest import CITES, WRITES, WRITTEN, random_csc


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    indptr, indices = random_csc(200, 200, 1800, seed=5)
    rng = np.random.default_rng(6)
    with DatasetWriter(tmp_path_factory.mktemp("pyg") / "timed") as writer:
        writer.add_nodes(200)
        writer.add_csc(indptr, indices)
        writer.add_features(marked_rows(200, 4, 0.0))
        writer.add_features(torch.from_numpy(rng.integers(0, 50, (200, 1))), name="born")
        writer.add_edge_features(torch.from_numpy(rng.integers(0, 50, (1800, 1))), name="time")
        return writer.finish()


def column(dataset: Dataset, name: str, *, edges: bool = False) -> torch.Tensor:
    from gids.dataset.rows import as_tensor, read_rows

    table = dataset.edge_feature_table(None, name) if edges else dataset.feature_table(None, name)
    return as_tensor(table, read_rows(table)).view(-1)


def check_tree(data: Any, dataset: Dataset) -> None:
    """Edges stay within their tree, nodes of a seed's tree are distinct, rows belong to their nodes."""
    source, destination = data.edge_index
    assert torch.equal(data.batch[source], data.batch[destination])
    if "batch_size" in data:  # both ends of a link, and of its negatives, have trees of the same number
        pairs = data.batch * dataset.num_nodes() + data.n_id
        assert len(pairs.unique()) == len(pairs)
    assert torch.equal(data.x[:, 0], data.n_id.float())


@pytest.mark.parametrize("strategy", ["uniform", "last"])
def test_no_edge_is_from_after_its_seed(timed: Dataset, strategy: str) -> None:
    times, input_time = column(timed, "time", edges=True), torch.arange(60) % 50
    seeds = torch.arange(60)
    options = {"time_attr": "time", "input_time": input_time, "temporal_strategy": strategy}
    with NeighborLoader(timed, [4, 3], seeds, batch_size=25, **options) as loader:
        batches = list(loader)
    indptr = torch.from_numpy(timed.indptr(timed.edge_types[0]).copy())
    for data in batches:
        check_tree(data, timed)
        assert torch.equal(data.seed_time, input_time[data.input_id])
        assert torch.equal(data.time.view(-1), times[data.e_id])
        seen_until = data.seed_time[data.batch[data.edge_index[1]]]
        assert (times[data.e_id] <= seen_until).all()
        for row, seed in enumerate(data.n_id[: data.batch_size].tolist()):
            own = range(int(indptr[seed]), int(indptr[seed + 1]))
            could = [e for e in own if times[e] <= data.seed_time[row]]
            got = data.e_id[data.edge_index[1] == row].tolist()
            assert len(got) == min(4, len(could))
            if strategy == "last":
                assert sorted(got) == sorted(sorted(could, key=lambda e: (int(times[e]), e))[len(could) - len(got) :])
    assert sum(data.batch_size for data in batches) == 60


def test_times_of_nodes_are_those_of_their_seeds_by_default(timed: Dataset) -> None:
    born = column(timed, "born")
    with NeighborLoader(timed, [5, 5], None, batch_size=64, time_attr="born") as loader:
        for data in loader:
            check_tree(data, timed)
            found = torch.arange(len(data.n_id)) >= data.batch_size
            assert (born[data.n_id] <= born[data.n_id[data.batch]])[found].all()
            assert data.num_sampled_nodes[0] == data.batch_size


def test_disjoint_subgraphs_are_what_each_seed_sees_alone(timed: Dataset) -> None:
    with NeighborLoader(timed, [-1, -1], torch.arange(4), batch_size=4, disjoint=True) as loader:
        (data,) = loader
    check_tree(data, timed)
    for seed in range(4):
        with NeighborLoader(timed, [-1, -1], torch.tensor([seed]), batch_size=1) as alone:
            (own,) = alone
        mine = data.batch == seed
        assert sorted(data.n_id[mine].tolist()) == sorted(own.n_id.tolist())
        assert sorted(data.e_id[mine[data.edge_index[1]]].tolist()) == sorted(own.e_id.tolist())


def test_disjoint_subgraphs_of_a_heterograph(heterogeneous: Dataset) -> None:
    with NeighborLoader(heterogeneous, [4, 4], "train", batch_size=50, disjoint=True) as loader:
        data = next(iter(loader))
    for etype in (WRITES, CITES, WRITTEN):
        source, destination = data[etype].edge_index
        assert torch.equal(data[etype[0]].batch[source], data[etype[2]].batch[destination])
    assert torch.equal(data["paper"].x[:, 0], data["paper"].n_id.float())
    assert data["paper"].batch[:50].tolist() == list(range(50))


@pytest.mark.parametrize("mode", ["binary", "triplet"])
def test_links_see_what_existed_and_so_do_their_negatives(timed: Dataset, mode: str) -> None:
    born, count = column(timed, "born"), 40
    edges, moments = torch.stack([torch.arange(40), torch.arange(40, 80)]), torch.full((count,), 30)
    moments[::2] = 45
    options = {"time_attr": "born", "edge_label_time": moments, "neg_sampling": NegativeSampling(mode, 2)}
    with LinkNeighborLoader(timed, [3, 3], edges, batch_size=20, **options) as loader:
        batches = list(loader)
    for data in batches:
        check_tree(data, timed)
        own = moments[data.input_id]
        seeds = data.num_sampled_nodes[0]
        assert (born[data.n_id] <= own[data.batch])[seeds:].all(), "nothing that was sampled is from the future"
        if mode == "binary":
            negative = data.edge_label == 0
            for side in data.edge_label_index:
                assert (born[data.n_id[side]] <= data.edge_label_time)[negative].all()
            assert torch.equal(data.n_id[data.edge_label_index[0][:20]], edges[0][data.input_id])
        else:
            assert data.dst_neg_index.shape == (20, 2)
            assert (born[data.n_id[data.dst_neg_index]] <= own[:, None]).all()
            assert torch.equal(data.batch[data.dst_neg_index], torch.arange(20)[:, None].expand(-1, 2))
            assert torch.equal(data.seed_time, own)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"time_attr": "time"}, "input_time must be given where time_attr names times of edges"),
        ({"time_attr": "born", "input_time": torch.arange(3)}, "input_time must have one entry for every seed"),
        ({"disjoint": True, "weight_attr": "weight"}, "weight_attr"),
    ],
)
def test_what_cannot_be_is_refused(timed: Dataset, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        NeighborLoader(timed, [2], torch.arange(10), **options)
    with pytest.raises(ConfigError, match="edge_label_time must be given with time_attr"):
        LinkNeighborLoader(timed, [2], torch.zeros(2, 1, dtype=torch.int64), time_attr="born")
