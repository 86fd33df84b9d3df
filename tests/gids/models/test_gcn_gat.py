"""GCN and GAT: literal values, DGL's layers on the same weights, the same bits from the same start, and learning."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gids import ConfigError
from gids.models import GAT, GCN, GATLayer, GCNLayer
from gids.sampling import NeighborSampler, SampleKey, Topology


def sampled(seed: int = 0):
    """Blocks of a small graph in which some nodes have no in-edges, and rows for its input nodes."""
    rng = np.random.default_rng(seed)
    degrees = rng.integers(0, 9, 200)
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    topology = Topology.from_arrays(indptr, rng.integers(0, 200, indptr[-1]))
    sample = NeighborSampler([3, 4]).sample(topology, torch.arange(20), SampleKey(seed))
    generator = torch.Generator().manual_seed(seed)
    return sample, torch.randn(len(sample.input_nodes["_N"]), 6, generator=generator)


def dgl_block(block, self_loops: bool):
    dgl = pytest.importorskip("dgl")
    src, dst = block.edge_index()
    if self_loops:
        loops = torch.arange(block.num_dst["_N"])
        src, dst = torch.cat([src, loops]), torch.cat([dst, loops])
    return dgl.create_block((src, dst), num_src_nodes=block.num_src["_N"], num_dst_nodes=block.num_dst["_N"])


def only(block):
    ((etype, indptr),) = block.indptr.items()
    return indptr, block.src[etype]


def test_gcn_by_hand() -> None:
    layer = GCNLayer(1, 1, self_loops=False)
    with torch.no_grad():
        layer.linear.weight.fill_(2.0)
        layer.bias.fill_(0.5)
    # Sources 0..3 send 1, 2, 0 and 1 edges; destinations 0, 1 and 2 receive 3, 1 and 0.
    x = torch.tensor([[1.0], [2.0], [4.0], [8.0]])
    out = layer(x, torch.tensor([0, 3, 4, 4]), torch.tensor([0, 1, 3, 1]))
    expected = [2 * (1 + 2 / 2**0.5 + 8) / 3**0.5 + 0.5, 2 * (2 / 2**0.5) + 0.5, 0.5]
    torch.testing.assert_close(out.flatten(), torch.tensor(expected))


def test_gat_by_hand() -> None:
    layer = GATLayer(1, 1, heads=1, self_loops=False)
    with torch.no_grad():
        layer.linear.weight.fill_(1.0)
        layer.attention_src.fill_(1.0)
        layer.attention_dst.fill_(-1.0)
        layer.bias.fill_(0.25)
    # Destination 0 (value 1) attends to 0 and 2: scores 1 - 1 and 3 - 1. Destination 1 has no edges.
    out = layer(torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([0, 2, 2]), torch.tensor([0, 2]))
    share = np.exp(2) / (1 + np.exp(2))
    torch.testing.assert_close(out.flatten(), torch.tensor([(1 - share) * 1 + share * 3 + 0.25, 0.25]).float())


@pytest.mark.parametrize("self_loops", [False, True])
@pytest.mark.parametrize("out_dim", [3, 11])
def test_gcn_equals_dgl(self_loops: bool, out_dim: int) -> None:
    dgl_nn = pytest.importorskip("dgl.nn.pytorch")
    sample, x = sampled(1)
    ours = GCNLayer(6, out_dim, self_loops)
    theirs = dgl_nn.GraphConv(6, out_dim, norm="both", allow_zero_in_degree=True)
    torch.nn.init.normal_(ours.bias)
    with torch.no_grad():
        theirs.weight.copy_(ours.linear.weight.T)
        theirs.bias.copy_(ours.bias)
    block = sample.blocks[0]
    torch.testing.assert_close(ours(x, *only(block)), theirs(dgl_block(block, self_loops), x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("self_loops", [False, True])
def test_gat_equals_dgl_in_values_and_gradients(self_loops: bool) -> None:
    dgl_nn = pytest.importorskip("dgl.nn.pytorch")
    sample, x = sampled(2)
    ours = GATLayer(6, 5, heads=3, self_loops=self_loops)
    theirs = dgl_nn.GATConv(6, 5, 3, allow_zero_in_degree=True)
    torch.nn.init.normal_(ours.bias)
    with torch.no_grad():
        theirs.fc.weight.copy_(ours.linear.weight)
        theirs.attn_l.copy_(ours.attention_src.unsqueeze(0))
        theirs.attn_r.copy_(ours.attention_dst.unsqueeze(0))
        theirs.bias.copy_(ours.bias)
    block = sample.blocks[0]
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    got = ours(inputs[0], *only(block))
    expected = theirs(dgl_block(block, self_loops), inputs[1]).flatten(1)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    for out in (got, expected):
        (out * torch.linspace(-1, 1, out.shape[1])).sum().backward()
    torch.testing.assert_close(inputs[0].grad, inputs[1].grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours.attention_src.grad, theirs.attn_l.grad[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", [GCN, GAT])
def test_models_run_on_blocks_and_repeat_to_the_bit(kind) -> None:
    sample, x = sampled(3)
    results = []
    for _ in range(2):
        torch.manual_seed(0)
        model = kind(6, 8, 5, num_layers=2, dropout=0.3)
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        for _ in range(3):
            out = model(sample.blocks, x)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(out, torch.arange(20) % 5).backward()
            optimizer.step()
        results.append(out.detach())
    assert results[0].shape == (20, 5)
    assert torch.equal(*results)


def test_heads_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"hidden_dim must be a multiple of heads >= 1 \(got 10 and 4\)"):
        GAT(6, 10, 3)
    with pytest.raises(ConfigError, match="heads must be at least 1"):
        GATLayer(6, 3, heads=0)
