"""A dataset that was written opens again with the same contents, and says where its rows are."""

import pickle

import numpy as np
import pytest
import torch

import gids
from gids import ConfigError, DatasetError, DatasetWriter

from .toy import toy, values

WRITES = ("author", "writes", "paper")
CITES = ("paper", "cites", "paper")


def test_homogeneous(tmp_path):
    dataset = toy(tmp_path / "toy", attributes={"origin": "test"})
    assert dataset.node_types == ["_N"]
    assert dataset.edge_types == [("_N", "_E", "_N")]
    assert (dataset.num_nodes(), dataset.num_nodes("_N"), dataset.num_edges()) == (4, 4, 4)
    assert dataset.indptr().tolist() == [0, 1, 3, 3, 4]
    assert values(dataset.indices_table()).tolist() == [1, 2, 3, 0]
    assert dataset.edge_weight_table() is None
    assert dataset.edge_ids_table() is None
    assert dataset.feature_names() == ["feat"]
    assert values(dataset.feature_table()).tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
    assert dataset.labels().tolist() == [0, 1, -1, 2]
    assert dataset.num_classes == 3
    assert dataset.split_names() == ["train"]
    assert dataset.split("train").tolist() == [0, 3]
    assert dataset.attributes == {"origin": "test"}
    assert dataset.scratch_dir.is_dir()
    assert [entry.name for entry in tmp_path.iterdir()] == ["toy"]
    assert "4" in repr(dataset)


def test_heterogeneous(tmp_path):
    papers = torch.randn(5, 7).to(torch.bfloat16)
    codes = np.arange(5, dtype=np.uint8).reshape(5, 1)
    with DatasetWriter(tmp_path / "toy") as writer:
        writer.add_nodes(5, "paper")
        writer.add_nodes(2, "author")
        writer.add_features(papers, "paper")
        writer.add_features(codes, "paper", "code")
        writer.add_features(torch.randn(2, 3).to(torch.float16), "author")
        writer.add_csc([0, 2, 2, 3, 3, 3], [0, 1, 1], WRITES, weights=torch.tensor([0.5, 1, 2]))
        writer.add_csc([0, 0, 1, 2, 2, 2], np.array([4, 0], np.int32), CITES, edge_ids=torch.tensor([1, 0]))
        writer.add_edge_features(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), CITES)
        writer.add_labels(torch.tensor([[0.5], [1], [2], [3], [4]]), "paper")
        writer.add_split("train", torch.tensor([4, 2], dtype=torch.int32), "paper")
    dataset = gids.open(tmp_path / "toy")
    assert dataset.node_types == ["paper", "author"]
    assert dataset.edge_types == [WRITES, CITES]
    assert (dataset.num_nodes(), dataset.num_edges(), dataset.num_edges(CITES)) == (7, 5, 2)
    assert torch.equal(values(dataset.feature_table("paper")), papers)
    assert values(dataset.feature_table("paper", "code")).tolist() == [0, 1, 2, 3, 4]
    assert dataset.feature_table("author").dtype == "float16"
    assert values(dataset.edge_weight_table(WRITES)).tolist() == [0.5, 1, 2]
    assert dataset.indices_table(CITES).dtype == "int32"
    assert values(dataset.edge_ids_table(CITES)).tolist() == [1, 0]
    assert values(dataset.edge_feature_table(CITES)).tolist() == [[1, 2], [3, 4]]
    assert dataset.edge_feature_names(CITES) == ["feat"]
    assert dataset.labels().view(-1).tolist() == [0.5, 1, 2, 3, 4]
    assert dataset.num_classes is None
    assert dataset.split("train").tolist() == [4, 2]
    assert dataset.labels("author") is None
    with pytest.raises(ConfigError, match="ntype must be given"):
        dataset.feature_table()
    with pytest.raises(ConfigError, match="ntype must be one of paper, author"):
        dataset.num_nodes("venue")
    with pytest.raises(ConfigError, match="etype must be given"):
        dataset.indptr()
    with pytest.raises(ConfigError, match=r"must be one of feat, code \(got 'size'\)"):
        dataset.feature_table("paper", "size")
    with pytest.raises(ConfigError, match="split of node type 'paper' must be one of train"):
        dataset.split("test")


def test_pickle_opens_again(tmp_path):
    dataset = toy(tmp_path / "toy")
    dataset.indptr()
    data = pickle.dumps(dataset)
    assert len(data) < 1000
    assert pickle.loads(data).id == dataset.id


def test_missing(tmp_path):
    with pytest.raises(DatasetError, match="must be a directory"):
        gids.open(tmp_path / "none")
    with pytest.raises(DatasetError, match="did not finish"):
        gids.open(tmp_path)
