"""Samplers of gids as DGL samplers: the blocks are DGL's, the edges are the graph's, excluded edges are absent."""

from __future__ import annotations

import itertools
import pickle
from typing import Any

import pytest
import torch

from tests.packages import NO_DGL

pytest.importorskip("dgl", reason=NO_DGL)

import dgl

from gids.dataset import Dataset
from gids.dgl.blocks import without_edges
from gids.dgl.sampler import DatasetGraph, NeighborSampler
from gids.errors import ConfigError
from gids.sampling import Block

EDGE = ("_N", "_E", "_N")


def check_blocks(graph: Any, seeds: dict[str, torch.Tensor], input_nodes: Any, blocks: list[Any], fanout: int) -> None:
    for ntype in graph.ntypes:
        got = input_nodes[ntype] if isinstance(input_nodes, dict) else input_nodes
        assert torch.equal(got, blocks[0].srcnodes[ntype].data[dgl.NID])
        assert torch.equal(blocks[-1].dstnodes[ntype].data[dgl.NID], seeds.get(ntype, torch.empty(0)).long())
    for outer, inner in itertools.pairwise(blocks):
        for ntype in graph.ntypes:
            ids = outer.dstnodes[ntype].data[dgl.NID]
            assert torch.equal(ids, inner.srcnodes[ntype].data[dgl.NID])
    for block in blocks:
        assert block.is_block
        for etype in graph.canonical_etypes:
            source, destination = block.edges(etype=etype)
            ids = block.edges[etype].data[dgl.EID]
            true_source, true_destination = graph.find_edges(ids, etype=etype)
            assert torch.equal(block.srcnodes[etype[0]].data[dgl.NID][source], true_source)
            assert torch.equal(block.dstnodes[etype[2]].data[dgl.NID][destination], true_destination)
            nodes = block.dstnodes[etype[2]].data[dgl.NID]
            expected = graph.in_degrees(nodes, etype=etype).clamp(max=fanout) if len(nodes) else torch.empty(0)
            assert block.in_degrees(etype=etype).tolist() == expected.tolist()


def test_blocks_of_a_homogeneous_graph(homogeneous: Any) -> None:
    seeds = torch.arange(5, 300, 7)
    input_nodes, output_nodes, blocks = NeighborSampler([4, 4]).sample_blocks(homogeneous, seeds)
    assert torch.equal(output_nodes, seeds)
    check_blocks(homogeneous, {"_N": seeds}, input_nodes, blocks, 4)


def test_blocks_of_a_heterogeneous_graph(heterogeneous: Any) -> None:
    seeds = {"paper": torch.arange(40), "author": torch.arange(3)}
    input_nodes, _, blocks = NeighborSampler([3, 3, 3]).sample_blocks(heterogeneous, seeds)
    check_blocks(heterogeneous, seeds, input_nodes, blocks, 3)


@pytest.mark.parametrize("layer", ["GATConv", "GATv2Conv", "SAGEConv", "GraphConv"])
def test_layers_of_dgl_learn_from_our_blocks_as_from_its_own(homogeneous: Any, layer: str) -> None:
    """DGL's kernels for AVX-512 want edges with numbers, or the gradients of attention fail."""
    import dgl.nn

    own = {"num_heads": 2} if layer.startswith("GAT") else {"aggregator_type": "mean"} if layer == "SAGEConv" else {}
    if layer != "SAGEConv":
        own["allow_zero_in_degree"] = True
    torch.manual_seed(0)
    model = getattr(dgl.nn, layer)(7, 16, **own)
    input_nodes, _, (ours,) = NeighborSampler([4]).sample_blocks(homogeneous, torch.arange(0, 600))
    theirs = dgl.create_block(ours.edges(), ours.num_src_nodes(), ours.num_dst_nodes())
    gradients = []
    for block in (ours, theirs):
        model.zero_grad()
        model(block, homogeneous.ndata["feat"][input_nodes]).square().sum().backward()
        gradients.append([weight.grad.clone() for weight in model.parameters()])
    for got, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(got, expected)


def test_a_dataset_serves_as_well_as_a_graph(homogeneous: Any, homogeneous_dataset: Dataset) -> None:
    graph, seeds = DatasetGraph(homogeneous_dataset), torch.arange(60)
    from_graph = NeighborSampler([4, 4], seed=3).sample_blocks(homogeneous, seeds)
    from_dataset = NeighborSampler([4, 4], seed=3).sample_blocks(graph, seeds)
    assert torch.equal(from_graph[0], from_dataset[0])
    for one, other in zip(from_graph[2], from_dataset[2], strict=True):
        assert torch.equal(one.edata[dgl.EID], other.edata[dgl.EID])


def test_batches_differ_and_epochs_repeat(homogeneous: Any) -> None:
    sampler, seeds = NeighborSampler([3], seed=9), torch.arange(100)

    def edges() -> list[int]:
        return sampler.sample_blocks(homogeneous, seeds)[2][0].edata[dgl.EID].tolist()

    sampler.set_epoch(4)
    first, second = edges(), edges()
    assert first != second
    sampler.set_epoch(4)
    assert [edges(), edges()] == [first, second]
    sampler.next_epoch()
    assert edges() not in (first, second)


def test_excluded_edges_are_absent(heterogeneous: Any) -> None:
    seeds = {"paper": torch.arange(50)}
    excluded = {"cites": torch.arange(0, 4000, 2), ("author", "writes", "paper"): torch.arange(100)}
    _, _, blocks = NeighborSampler([-1, -1]).sample_blocks(heterogeneous, seeds, exclude_eids=excluded)
    for block in blocks:
        assert not bool((block.edges["cites"].data[dgl.EID] % 2 == 0).any())
        assert not bool((block.edges["writes"].data[dgl.EID] < 100).any())
        degrees = heterogeneous.in_degrees(block.dstnodes["author"].data[dgl.NID], etype="written_by")
        assert block.in_degrees(etype="written_by").tolist() == degrees.tolist()


def test_leaving_out_edges_by_hand() -> None:
    block = Block(
        num_src={"_N": 4},
        num_dst={"_N": 3},
        indptr={EDGE: torch.tensor([0, 2, 2, 5])},
        src={EDGE: torch.tensor([1, 2, 0, 3, 1])},
        edge_ids={EDGE: torch.tensor([10, 11, 12, 13, 14])},
        weights={EDGE: torch.tensor([0.0, 0.1, 0.2, 0.3, 0.4])},
    )
    left = without_edges(block, {EDGE: torch.tensor([11, 12, 99])})
    assert left.indptr[EDGE].tolist() == [0, 1, 1, 3]
    assert left.src[EDGE].tolist() == [1, 3, 1]
    assert left.edge_ids is not None
    assert left.edge_ids[EDGE].tolist() == [10, 13, 14]
    assert left.weights is not None
    torch.testing.assert_close(left.weights[EDGE], torch.tensor([0.0, 0.3, 0.4]))


def test_dgl_itself_takes_our_sampler(homogeneous: Any) -> None:
    sampler = NeighborSampler([4, 4], prefetch_node_feats=["feat"], prefetch_labels=["label"])
    loader = dgl.dataloading.DataLoader(homogeneous, torch.arange(100), sampler, batch_size=32)
    seen = []
    for input_nodes, output_nodes, blocks in loader:
        assert torch.equal(blocks[0].srcdata["feat"], homogeneous.ndata["feat"][input_nodes])
        assert torch.equal(blocks[-1].dstdata["label"], output_nodes % 6)
        seen.append(output_nodes)
    assert torch.equal(torch.cat(seen), torch.arange(100))


def test_only_in_edges() -> None:
    with pytest.raises(ConfigError, match="edge_dir must be 'in'"):
        NeighborSampler([2], edge_dir="out")


def test_a_sampler_can_be_sent_to_a_worker(homogeneous: Any) -> None:
    sampler = NeighborSampler([3], seed=5)
    before = sampler.sample_blocks(homogeneous, torch.arange(20))
    copy = pickle.loads(pickle.dumps(sampler))
    copy.set_epoch(0)
    assert torch.equal(before[0], copy.sample_blocks(homogeneous, torch.arange(20))[0])
