"""Every keyword of PyG's neighbour loaders is taken, or refused by name with a reason and an alternative."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric import loader as pyg
from torch_geometric.sampler import NumNeighbors, SamplerOutput

from gids.dataset import Dataset, DatasetWriter
from gids.errors import ConfigError
from gids.pyg import FeatureStore, GraphStore, LinkNeighborLoader, NeighborLoader
from gids.pyg.keywords import REFUSED, TRANSLATED, WITHOUT_EFFECT
from gids.runtime import OrderOptions


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(NeighborLoader, pyg.NeighborLoader), (LinkNeighborLoader, pyg.LinkNeighborLoader)],
    ids=["nodes", "links"],
)
def test_no_keyword_is_forgotten(ours: Any, theirs: Any) -> None:
    known = set(inspect.signature(ours).parameters) | {*REFUSED, *TRANSLATED, *WITHOUT_EFFECT}
    base = pyg.NodeLoader if ours is NeighborLoader else pyg.LinkLoader
    wanted = set(inspect.signature(theirs).parameters) | set(inspect.signature(base).parameters)
    wanted |= set(inspect.signature(torch.utils.data.DataLoader).parameters)
    wanted -= {"kwargs", "node_sampler", "link_sampler"}  # NodeLoader's own: neighbor_sampler here
    assert wanted - known == set()
    positional = [name for name in inspect.signature(theirs).parameters if name != "kwargs"]
    assert list(inspect.signature(ours).parameters)[: len(positional)] == positional


@pytest.mark.parametrize(
    "keywords",
    [
        {"num_workers": 4, "persistent_workers": True, "prefetch_factor": 2},
        {"is_sorted": True, "filter_per_worker": True},
        {"time_attr": None, "sampler": None, "timeout": 0, "generator": None, "worker_init_fn": None},
        {"in_order": False},
        {"directed": True, "disjoint": False, "subgraph_type": "directional"},
    ],
)
def test_taken(homogeneous: Dataset, keywords: dict[str, Any]) -> None:
    with NeighborLoader(homogeneous, [2], "train", batch_size=100, **keywords) as loader:
        seeds = torch.cat([data.n_id[: data.batch_size] for data in loader])
    assert seeds.tolist() == list(range(0, 900, 3))


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"time_attr": "time"}, "time_attr must name a table of the nodes or of the edges"),
        ({"input_time": torch.arange(3)}, "time_attr must be given with input_time"),
        ({"temporal_strategy": "last"}, "time_attr must be given with temporal_strategy 'last'"),
        ({"temporal_strategy": "first"}, "temporal_strategy must be 'uniform' or 'last'"),
        ({"subgraph_type": "induced", "disjoint": True}, "subgraph_type must be 'directional' with disjoint=True"),
        ({"subgraph_type": "bidirectional", "directed": False}, "directed must be True with subgraph_type"),
        ({"neighbor_sampler": object()}, "neighbor_sampler must be None"),
        ({"weight_attr": "edge_weight"}, "weight_attr needs edge weights in the dataset"),
        ({"generator": torch.Generator()}, "generator must be None .*seed="),
        ({"sampler": [1, 2]}, "sampler must be None .*order=OrderOptions"),
        ({"batch_sampler": [[1]]}, "batch_sampler must be None"),
        ({"worker_init_fn": print}, "worker_init_fn must be None .*PipelineOptions"),
        ({"multiprocessing_context": "spawn"}, "multiprocessing_context must be None"),
        ({"timeout": 3}, "timeout must be 0"),
        ({"order": OrderOptions(seed=3)}, "seed must be given to this loader"),
        ({"custom_cls": dict}, "custom_cls must be None .*transform="),
        ({"batchsize": 3}, "NeighborLoader has no argument 'batchsize'"),
    ],
)
def test_refused(homogeneous: Dataset, keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        NeighborLoader(homogeneous, [2], "train", **keywords)


def test_pin_memory_without_a_device_is_said(homogeneous: Dataset) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a device to pin memory for")
    with pytest.warns(UserWarning, match="pin_memory=True makes no difference"):
        NeighborLoader(homogeneous, [2], "train", pin_memory=True).close()


def test_input_id_and_transforms(homogeneous: Dataset) -> None:
    seen = []

    def keep_seeds(out: SamplerOutput) -> SamplerOutput:
        seen.append(len(out.node))
        none = out.row[:0]
        return SamplerOutput(out.node[:10], none, none, out.edge[:0], None, [10], [])

    with NeighborLoader(
        homogeneous,
        [2],
        torch.arange(10),
        batch_size=10,
        input_id=torch.arange(100, 110),
        transform_sampler_output=keep_seeds,
        transform=lambda data: (data.x[:, 0].tolist(), data.input_id.tolist()),
    ) as loader:
        ((rows, names),) = loader
    assert rows == list(range(10))
    assert names == list(range(100, 110))
    assert min(seen) > 10


def test_stores_and_num_neighbors_of_pyg(heterogeneous: Dataset) -> None:
    stores = (FeatureStore(heterogeneous), GraphStore(heterogeneous))
    chosen = NumNeighbors({("paper", "cites", "paper"): [3]}, default=[0])
    with NeighborLoader(stores, chosen, ("paper", torch.arange(20)), batch_size=20) as loader:
        (data,) = loader
    assert data["paper", "cites", "paper"].num_edges > 0
    assert data["author", "writes", "paper"].num_edges == 0
    with pytest.raises(ConfigError, match="edge types of num_neighbors must be among"):
        NeighborLoader(heterogeneous, {("a", "b", "c"): [1]}, ("paper", None))


def test_replacement_repeats_edges_and_their_features(homogeneous: Dataset) -> None:
    with NeighborLoader(homogeneous, [9], "train", batch_size=50, replace=True) as loader:
        repeated = 0
        for data in loader:
            assert torch.equal(data.edge_attr[:, 0], data.e_id + 0.5)
            repeated += data.num_edges - len(torch.unique(data.e_id))
    assert repeated > 0


def test_edges_of_weight_zero_are_never_taken(tmp_path: Path) -> None:
    with DatasetWriter(tmp_path / "weighted") as writer:
        writer.add_nodes(10)
        writer.add_csc(
            np.array([0, 9, *[9] * 9]), np.arange(1, 10), weights=np.array([0, 1, 0, 1, 0, 0, 0, 0, 1.0], "f4")
        )
        writer.add_features(torch.zeros(10, 2))
        dataset = writer.finish()
    with NeighborLoader(dataset, [2], torch.tensor([0]), weight_attr="edge_weight") as loader:
        found = {int(node) for _ in range(20) for data in loader for node in data.n_id[1:]}
    assert found == {2, 4, 9}
