"""Inference gives what the same layers give in memory, to the bit, for every kind of layer and whatever the memory is."""

import pytest
import torch
from torch import nn

import gids
from gids.errors import ConfigError
from gids.infer.layers import layers_of
from gids.models import GAT, GCN, RGCN, GraphSAGE

from .conftest import CITES, DIM, EDGE_DIM, HAS, WRITES, in_memory, result

pytestmark = pytest.mark.usefixtures("nothing_left", "seeded")

MODELS = {
    "sage": lambda: GraphSAGE(DIM, 24, 5, 2, dropout=0.5),
    "gcn, narrower": lambda: GCN(DIM, 8, 5, 2),
    "gcn, wider, three layers": lambda: GCN(DIM, 32, 40, 3, self_loops=False),
    "gat": lambda: GAT(DIM, 16, 5, 2, heads=2),
    "rgcn": lambda: RGCN(DIM, 24, 5),
}


@pytest.mark.parametrize("model", MODELS)
def test_a_model_of_gids(graph, tmp_path, model):
    model = MODELS[model]()
    expected = in_memory(layers_of(model.eval()), graph)
    model.train()
    found = gids.infer(model, graph, tmp_path / "out", budget="64MiB", tile=512)
    assert torch.equal(result(found), expected)
    assert model.training  # as it was


@pytest.mark.parametrize(("budget", "tile"), [("9MiB", 512), ("32MiB", 512), ("1GiB", 512), ("1GiB", None)])
def test_memory_changes_nothing(graph, tmp_path, budget, tile):
    model = GraphSAGE(DIM, 24, 5, 2)
    expected = in_memory(layers_of(model), graph)
    job = gids.infer.Inference(model, graph, tmp_path / "out", gids.infer.InferOptions(budget=budget, tile=tile))
    assert torch.equal(result(job.run()), expected)
    for layer in job.facts["layers"]:
        assert {
            name: usage for name, usage in layer["memory"].items() if usage["peak"] > usage["allotted"] + 4096
        } == {}


def test_a_budget_that_is_too_small_says_the_least(graph, tmp_path):
    with pytest.raises(ConfigError, match=r"budget must be at least .* \(got 1.0 MiB\)"):
        gids.infer(GraphSAGE(DIM, 24, 5, 2), graph, tmp_path / "out", budget="1MiB")
    assert list(tmp_path.iterdir()) == []


def test_a_graph_on_disk(graph, tmp_path, monkeypatch):
    monkeypatch.setattr("gids.loader.graph.topology_bytes", lambda dataset: 1 << 60)
    model = GraphSAGE(DIM, 24, 5, 2)
    found = gids.infer(model, graph, tmp_path / "out", budget="64MiB", tile=512)
    assert torch.equal(result(found), in_memory(layers_of(model), graph))


def test_half_precision_is_widened(graph, tmp_path):
    model = GraphSAGE(DIM, 24, 5, 2)
    found = gids.infer(model, graph, tmp_path / "out", budget="64MiB", tile=512, features="half")
    assert torch.equal(result(found), in_memory(layers_of(model), graph, features="half"))


@pytest.mark.parametrize("fanouts", [[3, 2], [-1, 4]])
def test_fanouts_draw_the_same_edges_for_every_budget(graph, tmp_path, fanouts):
    model = GraphSAGE(DIM, 24, 5, 2)
    expected = in_memory(layers_of(model), graph, fanouts, seed=9)
    for number, budget in enumerate(["16MiB", "256MiB"]):
        found = gids.infer(model, graph, tmp_path / str(number), budget=budget, tile=512, fanouts=fanouts, seed=9)
        assert torch.equal(result(found), expected)


@pytest.mark.parametrize("fanouts", [None, [3, 2]])
def test_weights_of_edges(graph, tmp_path, fanouts):
    model = GraphSAGE(DIM, 24, 5, 2)
    options = {"budget": "64MiB", "tile": 512, "edge_weights": True}
    found = gids.infer(model, graph, tmp_path / "out", fanouts=fanouts, **options)
    assert torch.equal(result(found), in_memory(layers_of(model), graph, fanouts, weights=True))
    assert not torch.equal(result(found), result(gids.infer(model, graph, tmp_path / "without", tile=512)))


class WithEdges(nn.Module):
    """Adds a projection of the mean of its edges' features to every destination."""

    def __init__(self, dim, out_dim):
        super().__init__()
        self.own, self.of_edges = nn.Linear(dim, out_dim), nn.Linear(EDGE_DIM, out_dim)

    def forward(self, block, x):
        etype = block.edge_types[0]
        every, count = torch.arange(len(block.src[etype])), len(block.indptr[etype]) - 1
        bags = nn.functional.embedding_bag(
            every, block.edge_features[etype], block.indptr[etype], mode="mean", include_last_offset=True
        )
        return self.own(x[:count]) + self.of_edges(bags)


def test_features_of_edges(graph, tmp_path):
    layers = [WithEdges(DIM, 8), WithEdges(8, 5)]
    found = gids.infer(layers, graph, tmp_path / "out", budget="64MiB", tile=512, edge_features="feat")
    assert torch.equal(result(found), in_memory(layers, graph, edges=True))


@pytest.mark.parametrize("bases", [None, 2])
def test_a_graph_with_types(typed, tmp_path, bases):
    model = RGCN({"paper": 12, "author": 20}, 16, 3, typed.edge_types, bases=bases)
    expected = in_memory(layers_of(model), typed)
    found = gids.infer(model, typed, tmp_path / "out", budget="64MiB", tile=128)
    assert found.node_types == ["paper", "author"]
    for ntype, rows in expected.items():
        assert torch.equal(result(found, ntype), rows)


def test_one_type_of_several(typed, tmp_path):
    model = RGCN({"paper": 12, "author": 20}, 16, 3, typed.edge_types)
    found = gids.infer(model, typed, tmp_path / "out", budget="64MiB", tile=128, nodes=["author"])
    assert found.node_types == ["author"]
    assert torch.equal(result(found), in_memory(layers_of(model), typed)["author"])


def test_types_with_fanouts_and_weights(typed, tmp_path):
    def layer(block, rows):
        return {
            t: sum(
                nn.functional.embedding_bag(
                    block.src[e], rows[e[0]], block.indptr[e], mode="sum", include_last_offset=True,
                    per_sample_weights=block.weights[e],
                ).sum(1, keepdim=True).expand(-1, 4)
                for e in (WRITES, CITES, HAS) if e[2] == t
            )
            for t in rows if block.num_dst[t]
        }  # fmt: skip

    fanouts = [{WRITES: 2, CITES: -1, HAS: 3}, 4]
    found = gids.infer([layer, layer], typed, tmp_path / "out", tile=128, fanouts=fanouts, edge_weights=True)
    expected = in_memory([layer, layer], typed, fanouts, weights=True)
    assert torch.equal(result(found, "paper"), expected["paper"])
    assert torch.equal(result(found, "author"), expected["author"])


def test_what_is_refused(graph, tmp_path):
    model = GraphSAGE(DIM, 24, 5, 2)
    for options, message in [
        ({"fanouts": [3]}, "fanouts must be one for each of 2 layers"),
        ({"tile": 0}, "tile must be at least 1"),
        ({"dtype": "int32"}, "dtype of results must be floating point"),
        ({"top_k": 6}, "top_k must be at most the 5 values of a row"),
        ({"rows": False}, "rows must be written, or top_k be given"),
        ({"nodes": ["paper"]}, "nodes must be node types among _N"),
        ({"features": "year"}, "feature table of node type '_N' must be one of feat, half"),
        ({"device": "meta"}, "device must be 'cpu' or 'cuda'"),
    ]:
        with pytest.raises(ConfigError, match=message):
            gids.infer(model, graph, tmp_path / "out", **options)
    with pytest.raises(ConfigError, match=r"layer 0 must take the rows it is given.*mat1 and mat2"):
        gids.infer(GraphSAGE(DIM + 1, 24, 5, 2), graph, tmp_path / "out")
    with pytest.raises(ConfigError, match="fanouts must be -1 for layers that need the degrees"):
        gids.infer(GCN(DIM, 24, 5, 2), graph, tmp_path / "out", fanouts=[3, 3])
    with pytest.raises(ConfigError, match=r"model must be one of gids\.models"):
        gids.infer(nn.Linear(3, 4), graph, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
