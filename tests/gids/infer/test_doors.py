"""Conv layers of DGL and PyG in gids.infer give what they give in their framework on the whole graph."""

import pytest
import torch

from gids.errors import ConfigError

from .conftest import CITES, DIM, EDGE_DIM, HAS, WRITES, in_memory, result, whole, whole_block

pytestmark = pytest.mark.usefixtures("seeded")
OPTIONS = {"budget": "64MiB", "tile": 512}


def close(found, expected):
    return torch.allclose(found, expected, atol=1e-5)


def convs_of_dgl():
    nn = pytest.importorskip("dgl.nn")
    return {
        "SAGEConv": [nn.SAGEConv(DIM, 8, "mean"), nn.SAGEConv(8, 5, "mean")],
        "GATConv": [nn.GATConv(DIM, 4, 2, allow_zero_in_degree=True), nn.GATConv(8, 5, 1, allow_zero_in_degree=True)],
        "GraphConv": [
            nn.GraphConv(DIM, 8, norm="right", allow_zero_in_degree=True),
            nn.GraphConv(8, 5, norm="none", allow_zero_in_degree=True),
        ],
    }


@pytest.mark.parametrize("name", ["SAGEConv", "GATConv", "GraphConv"])
def test_dgl(graph, tmp_path, name):
    convs = convs_of_dgl()[name]
    import gids.dgl

    flat = lambda x: torch.relu(x.flatten(1))  # noqa: E731 - heads stand side by side
    layers = [gids.dgl.ConvLayer(convs[0], flat), gids.dgl.ConvLayer(convs[1])]
    found = gids.infer(layers, graph, tmp_path / "out", **OPTIONS)
    assert close(result(found), in_memory(layers, graph).flatten(1))
    smaller = gids.infer(layers, graph, tmp_path / "smaller", budget="16MiB", tile=512)
    assert torch.equal(result(smaller), result(found))


def test_dgl_with_weights_and_types(graph, typed, tmp_path):
    nn = pytest.importorskip("dgl.nn")
    import gids.dgl

    layers = [
        gids.dgl.ConvLayer(nn.SAGEConv(DIM, 8, "mean"), torch.relu),
        gids.dgl.ConvLayer(nn.SAGEConv(8, 5, "mean")),
    ]
    found = gids.infer(layers, graph, tmp_path / "weights", edge_weights=True, **OPTIONS)
    assert close(result(found), in_memory(layers, graph, weights=True))
    widths = {"paper": 12, "author": 20}
    hetero = nn.HeteroGraphConv(
        {e[1]: nn.SAGEConv((widths[e[0]], widths[e[2]]), 6, "mean") for e in (WRITES, CITES, HAS)}
    )
    layers = [gids.dgl.ConvLayer(hetero)]
    found = gids.infer(layers, typed, tmp_path / "typed", tile=128)
    expected = in_memory(layers, typed)
    assert all(close(result(found, t), expected[t]) for t in ("paper", "author"))
    with pytest.raises(ConfigError, match=r"norm of GraphConv must be 'right' or 'none' within.*got 'both' in Hetero"):
        gids.dgl.ConvLayer(nn.HeteroGraphConv({"writes": nn.GraphConv(3, 4)}))


@pytest.mark.parametrize("norm", ["both", "left"])
@pytest.mark.parametrize("weighted", [False, True])
def test_dgl_normalises_by_the_degrees_of_the_whole_graph(graph, tmp_path, norm, weighted):
    dgl = pytest.importorskip("dgl")
    import gids.dgl

    convs = [
        dgl.nn.GraphConv(width, out, norm=norm, bias=True, allow_zero_in_degree=True)
        for width, out in ((DIM, 8), (8, 9))
    ]
    torch.nn.init.normal_(convs[0].bias)
    layers = [gids.dgl.ConvLayer(convs[0], torch.relu), gids.dgl.ConvLayer(convs[1])]
    found = gids.infer(layers, graph, tmp_path / "out", edge_weights=weighted, **OPTIONS)
    block = whole_block(graph)
    src, dst = block.edge_index(block.only(None))
    everything = dgl.graph((src, dst), num_nodes=graph.num_nodes())
    weights = block.weights[block.only(None)] if weighted else None
    with torch.no_grad():
        hidden = torch.relu(convs[0](everything, whole(graph.feature_table()), edge_weight=weights))
        expected = convs[1](everything, hidden, edge_weight=weights)
    assert close(result(found), expected)
    assert convs[0]._norm == norm


def test_pyg(graph, typed, tmp_path):
    nn = pytest.importorskip("torch_geometric.nn")
    import gids.pyg

    sage = [gids.pyg.ConvLayer(nn.SAGEConv(DIM, 8), torch.relu), gids.pyg.ConvLayer(nn.SAGEConv(8, 5))]
    block = whole_block(graph)
    x = whole(graph.feature_table())
    with torch.no_grad():
        hidden = torch.relu(sage[0].module(x, block.edge_index()))
        expected = sage[1].module(hidden, block.edge_index())
    assert close(result(gids.infer(sage, graph, tmp_path / "sage", **OPTIONS)), expected)
    gat = nn.GATConv((DIM, DIM), 5, edge_dim=EDGE_DIM, add_self_loops=False)
    layers = [gids.pyg.ConvLayer(gat)]
    found = gids.infer(layers, graph, tmp_path / "gat", edge_features="feat", **OPTIONS)
    assert close(result(found), in_memory(layers, graph, edges=True))
    hetero = nn.HeteroConv({e: nn.SAGEConv((-1, -1), 6) for e in (WRITES, CITES, HAS)})
    layers = [gids.pyg.ConvLayer(hetero)]
    expected = in_memory(layers, typed)
    found = gids.infer(layers, typed, tmp_path / "typed", tile=128)
    assert all(close(result(found, t), expected[t]) for t in ("paper", "author"))
    with pytest.raises(ConfigError, match=r"conv must not normalise .*\(got APPNP\)"):
        gids.pyg.ConvLayer(nn.APPNP(3, 0.1))
    with pytest.raises(ConfigError, match=r"conv must not normalise .*\(got GCNConv\)"):
        gids.pyg.ConvLayer(nn.GCNConv(3, 4, add_self_loops=False))


@pytest.mark.parametrize("in_order", [True, False])
def test_pyg_normalises_by_the_degrees_of_the_whole_graph(graph, tmp_path, in_order, monkeypatch):
    nn = pytest.importorskip("torch_geometric.nn")
    import gids.pyg

    convs = [nn.GCNConv(DIM, 8), nn.GCNConv(8, 5)]
    torch.nn.init.normal_(convs[0].bias)
    layers = [gids.pyg.ConvLayer(convs[0], torch.relu), gids.pyg.ConvLayer(convs[1])]
    monkeypatch.setattr(gids.infer.Inference, "in_order", in_order)  # or through the runtime
    found = gids.infer(layers, graph, tmp_path / "out", **OPTIONS)
    block = whole_block(graph)
    edges = block.edge_index(block.only(None))
    assert bool((edges[0] == edges[1]).any())  # loops, which GCNConv replaces
    with torch.no_grad():
        expected = convs[1](torch.relu(convs[0](whole(graph.feature_table()), edges)), edges)
    assert close(result(found), expected)
    with pytest.raises(ConfigError, match="must not be given with GCNConv"):
        gids.infer(layers, graph, tmp_path / "weights", edge_weights=True, **OPTIONS)
