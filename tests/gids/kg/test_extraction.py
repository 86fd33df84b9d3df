"""Complete subgraphs, from memory and from disk, against plain Python."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gids import ConfigError, StorageError
from gids.kg import Graph
from gids.runtime.batch import map_tensors
from gids.storage import StorageOptions
from gids.storage.options import FaultOptions

from .far import FAR, Far
from .graphs import atoms, make, parts, random_triples, same, subgraph

CHAIN = [(0, 0, 1), (1, 1, 2), (2, 0, 3), (3, 1, 4)]


def test_literal_subgraph_of_a_chain(tmp_path):
    graph = Graph(make(tmp_path, CHAIN, identity=False))  # reverse of r is r + 2
    (found,) = parts(graph.extract([0], hops=2))
    assert found == ([0, 1, 2], [0, 1, 2], [(0, 0, 1), (1, 1, 2), (1, 2, 0)])
    (both,) = parts(graph.extract([0], [4], hops=1))
    assert both == ([0, 4, 1, 3], [0, 0, 1, 1], [(0, 0, 2), (1, 3, 3)])


def test_removed_triple_and_what_only_it_leads_to(tmp_path):
    graph = Graph(make(tmp_path, CHAIN, identity=False))
    (found,) = parts(graph.extract([1], hops=3, remove=np.array([[1, 1, 2]])))
    assert found == ([1, 0], [0, 1], [(0, 2, 1), (1, 0, 0)])
    # The reverse is gone too, when the query is at the other end.
    (found,) = parts(graph.extract([2], hops=3, remove=np.array([[1, 1, 2]])))
    assert found[0] == [2, 3, 4]


@given(
    num_triples=st.integers(0, 300),
    hops=st.integers(1, 4),
    reverse=st.booleans(),
    both=st.booleans(),
    remove=st.booleans(),
    hub=st.booleans(),
    seed=st.integers(0, 999),
)
@settings(max_examples=40, deadline=None)
def test_any_subgraph_equals_plain_python(tmp_path_factory, num_triples, hops, reverse, both, remove, hub, seed):
    triples = random_triples(40, 3, num_triples, seed, hub=(7, 2) if hub else None)
    dataset = make(tmp_path_factory.mktemp("any"), triples, num_entities=40, reverse=reverse)
    known = dataset.knowledge
    queries = np.column_stack([np.random.default_rng(seed).integers(0, limit, 9) for limit in (40, 1, 40)])
    if len(triples):
        queries[:5] = triples[: min(5, len(triples))][np.arange(5) % len(triples)]
    base, atom = known.base_relations, atoms(known)
    queries[:, 1] = np.minimum(queries[:, 1], base - 1)
    expected = []
    for head, relation, tail in queries.tolist():
        gone = {(head, relation, tail)} | ({(tail, relation + base, head)} if reverse else set())
        expected.append(subgraph(atom, [head, tail] if both else [head], hops, gone if remove else ()))
    tails = queries[:, 2] if both else None
    options = {"hops": hops, "remove": queries if remove else None}
    results = []
    for choice in ({}, {"on_disk": True}, {"on_disk": True, "atom_cache": 400}, {"threads": 1}):
        with Graph(dataset, **choice) as graph:
            results.append(graph.extract(queries[:, 0], tails, **options))
    assert parts(results[0]) == [(entities, distances, triples) for entities, distances, triples in expected]
    assert all(same(results[0], other) for other in results[1:])


def test_atoms_across_blocks_and_larger_than_any(tmp_path):
    triples = random_triples(500, 5, 6000, 1, hub=(3, 3))
    dataset = make(tmp_path, triples)
    with Graph(dataset, on_disk=True, atom_cache="20KiB") as disk, Graph(dataset) as memory:
        heads = np.arange(500)
        for first in range(0, 500, 50):
            chosen = heads[first : first + 50]
            assert same(disk.extract(chosen, hops=2), memory.extract(chosen, hops=2))
        assert disk.cached_bytes > 10_000
        assert disk.stats()["bytes_read"] > 0


def test_positions_and_doors(tmp_path):
    pytest.importorskip("torch_geometric")
    graph = Graph(make(tmp_path, CHAIN, identity=False))
    found = graph.extract([0, 2], hops=2)
    assert found.positions(torch.tensor([2, 0])).tolist() == [2, 7]
    assert found.positions(torch.tensor([4, 2])).tolist() == [-1, 3]
    data = found.to_pyg()
    assert data.edge_index.tolist() == [found.heads.tolist(), found.tails.tolist()]
    assert data.batch.tolist() == [0, 0, 0, 1, 1, 1, 1, 1]
    assert data.edge_type.tolist() == found.relations.tolist()


def test_doors_of_subgraphs_on_a_gpu(tmp_path, far):
    pytest.importorskip("torch_geometric")
    with Graph(make(tmp_path, CHAIN, identity=False)) as graph:
        found = graph.extract([0, 2], hops=2)
    moved = map_tensors(found, Far)
    assert moved.positions(Far(torch.tensor([4, 2]))).tolist() == [-1, 3]
    here, there = found.to_pyg(), moved.to_pyg()
    assert {part.device for part in there.to_dict().values() if isinstance(part, torch.Tensor)} == {FAR}
    for name in ("edge_index", "edge_type", "entity", "distance", "batch"):
        assert there[name].tolist() == here[name].tolist()


def test_dgl_graph(tmp_path):
    pytest.importorskip("dgl")
    graph = Graph(make(tmp_path, CHAIN, identity=False))
    found = graph.extract([0, 2], hops=2)
    made = found.to_dgl()
    source, destination = made.edges()
    assert (source.tolist(), destination.tolist()) == (found.heads.tolist(), found.tails.tolist())
    assert made.edata["relation"].tolist() == found.relations.tolist()
    assert made.batch_num_nodes().tolist() == [3, 5]


def test_bad_queries(tmp_path):
    graph = Graph(make(tmp_path, CHAIN))
    with pytest.raises(ConfigError, match=r"query entity must be in \[0, 5\) \(got 5\)"):
        graph.extract([5], hops=1)
    with pytest.raises(ConfigError, match="hops must be at least 1"):
        graph.extract([0], hops=0)
    with pytest.raises(ConfigError, match=r"relation must be in \[0, 4\) \(got 4\)"):
        graph.extract([0], hops=1, remove=np.array([[0, 4, 1]]))
    with pytest.raises(ConfigError, match="tails must be as many as heads"):
        graph.extract([0, 1], [1], hops=1)
    with pytest.raises(ConfigError, match=r"2 queries have 13 triples and the budget holds 8: smaller batches"):
        graph.extract([0, 1], hops=2, max_triples=8)
    assert graph.extract([0], hops=1).num_triples == 2  # still usable


def test_a_failed_read_is_an_error_and_the_graph_stays_usable(tmp_path):
    dataset = make(tmp_path, random_triples(200, 3, 2000, 5))
    storage = StorageOptions(fault=FaultOptions(fail_at=1))
    with Graph(dataset, on_disk=True, storage=storage) as graph, Graph(dataset) as memory:
        with pytest.raises(StorageError, match="Input/output error"):
            graph.extract([5], hops=3)  # the second hop
        assert same(graph.extract([5], hops=3), memory.extract([5], hops=3))
