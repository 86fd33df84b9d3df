"""Rankings: literal graphs, an independent float PageRank, any thread count, stored and reused."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gids import ConfigError, DatasetError, RowTable, Stripe
from gids._native import ThreadPool
from gids.tiers import rank, top_edges, top_rows
from gids.tiers.rank import (
    RANK_UNIT,
    count_accesses,
    expected_visits,
    rank_nodes,
    reverse_pagerank,
    source_degrees,
)

N, E = "_N", ("_N", "_E", "_N")


class SmallGraph:
    """A dataset of edge lists, its neighbour lists in files."""

    def __init__(self, directory, num_nodes, edges, dtype="int32"):
        self._num_nodes = num_nodes
        self._indptr, self._tables = {}, {}
        self.id = "small"
        self.scratch_dir = Path(directory)
        for number, (etype, pairs) in enumerate(edges.items()):
            pairs = np.array(pairs, np.int64).reshape(-1, 2)
            order = np.argsort(pairs[:, 1], kind="stable")
            counts = np.bincount(pairs[:, 1], minlength=num_nodes[etype[2]])
            self._indptr[etype] = np.concatenate([[0], np.cumsum(counts)])
            path = self.scratch_dir / f"indices-{number}"
            pairs[order, 0].astype(dtype).tofile(path)
            size = np.dtype(dtype).itemsize
            self._tables[etype] = RowTable(
                "indices", dtype, 1, len(pairs), size, (Stripe(path, 0, len(pairs)),), max(len(pairs), 1)
            )

    node_types = property(lambda self: list(self._num_nodes))
    edge_types = property(lambda self: list(self._tables))

    def num_nodes(self, ntype=None):
        return self._num_nodes[ntype]

    def indptr(self, etype):
        return self._indptr[etype]

    def indices_table(self, etype):
        return self._tables[etype]


def float_pagerank(num_nodes, edges, train, damping, rounds):
    """PageRank on the reversed graph with restarts at the training nodes, as a dense matrix of floats."""
    flow = np.zeros((num_nodes, num_nodes))
    for source, destination in edges:
        flow[source, destination] += 1
    flow /= np.maximum(flow.sum(axis=0), 1)
    restart = np.bincount(train, minlength=num_nodes) / len(train)
    value = restart.copy()
    for _ in range(rounds):
        value = damping * flow @ value + (1 - damping) * restart
    return value


def test_literal_chain(tmp_path):
    """0 -> 1 -> 2, trained on 2: rank flows against the edges, halved at every step."""
    graph = SmallGraph(tmp_path, {N: 3}, {E: [(0, 1), (1, 2)]})
    scores = reverse_pagerank(graph, {N: torch.tensor([2])}, damping=0.5, rounds=2)[N]
    assert (scores / RANK_UNIT).tolist() == [0.25, 0.25, 0.5]


@given(
    st.integers(1, 8).flatmap(
        lambda n: st.tuples(
            st.just(n),
            st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=30),
            st.lists(st.integers(0, n - 1), min_size=1, max_size=4),
        )
    ),
    st.integers(0, 4),
    st.sampled_from(["int32", "int64"]),
)
@settings(max_examples=60, deadline=None)
def test_is_pagerank_of_the_reversed_graph(tmp_path_factory, drawn, rounds, dtype):
    num_nodes, edges, train = drawn
    graph = SmallGraph(tmp_path_factory.mktemp("g"), {N: num_nodes}, {E: edges}, dtype)
    scores = reverse_pagerank(graph, {N: torch.tensor(train)}, damping=0.75, rounds=rounds)[N]
    np.testing.assert_allclose(
        scores / RANK_UNIT, float_pagerank(num_nodes, edges, train, 0.75, rounds), rtol=1e-9, atol=1e-15
    )


def test_same_bits_for_any_threads_and_chunks(tmp_path, monkeypatch):
    edges = np.random.default_rng(0).integers(0, 500, (200_000, 2))
    graph = SmallGraph(tmp_path, {N: 500}, {E: edges})
    train = {N: torch.arange(50)}
    first = reverse_pagerank(graph, train, pool=ThreadPool(1))[N]
    monkeypatch.setattr(rank, "EDGES_IN_CHUNK", 999)
    np.testing.assert_array_equal(first, reverse_pagerank(graph, train, pool=ThreadPool(4))[N])


def test_heterograph(tmp_path):
    """Papers trained; half of their rank goes to authors, half to cited papers."""
    writes, cites = ("author", "writes", "paper"), ("paper", "cites", "paper")
    graph = SmallGraph(tmp_path, {"author": 2, "paper": 2}, {writes: [(0, 0), (1, 0)], cites: [(1, 0)]})
    scores = reverse_pagerank(graph, {"paper": torch.tensor([0])}, damping=0.5, rounds=1)
    assert (scores["author"] / RANK_UNIT).tolist() == [0.125, 0.125]
    assert (scores["paper"] / RANK_UNIT).tolist() == [0.5, 0.25]
    assert {ntype: counts.tolist() for ntype, counts in source_degrees(graph).items()} == {
        "author": [1, 1],
        "paper": [0, 1],
    }


def test_damaged_neighbour_list_is_an_error(tmp_path):
    graph = SmallGraph(tmp_path, {N: 2}, {E: [(0, 1), (7, 1)]})
    with pytest.raises(DatasetError, match=r"\[0, 2\) \(got 7 at edge 1\)"):
        reverse_pagerank(graph, {N: torch.tensor([1])})


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"damping": 1.5}, "damping"),
        ({"rounds": -1}, "rounds"),
        ({"train": {N: torch.tensor([9])}}, "train nodes"),
        ({"train": {}}, "at least one"),
        ({"train": {"x": torch.tensor([0])}}, "node types"),
    ],
)
def test_refuses(tmp_path, change, word):
    graph = SmallGraph(tmp_path, {N: 2}, {E: [(0, 1)]})
    with pytest.raises(ConfigError, match=word):
        reverse_pagerank(graph, **({"train": {N: torch.tensor([1])}} | change))


def test_ranking_is_stored_and_reused(tmp_path, monkeypatch):
    graph = SmallGraph(tmp_path, {N: 3}, {E: [(0, 1), (1, 2)]})
    train = {N: torch.tensor([2, 1])}
    first = rank_nodes(graph, train)[N].tolist()
    monkeypatch.setattr(rank, "stream_edges", lambda table: pytest.fail("computed again"))
    assert rank_nodes(graph, {N: torch.tensor([1, 2])})[N].tolist() == first  # the order of train does not matter
    monkeypatch.undo()
    assert rank_nodes(graph, {N: torch.tensor([0])})[N].tolist() != first
    assert rank_nodes(graph, train, rounds=1)[N].tolist() != first
    assert rank_nodes(graph, by="degree")[N].tolist() == [1, 1, 0]
    assert not list(tmp_path.glob(".*"))
    with pytest.raises(ConfigError, match="train"):
        rank_nodes(graph)


def test_top_rows():
    assert top_rows(torch.tensor([1, 5, 0, 5, 3]), 2).tolist() == [1, 3]
    assert top_rows(torch.tensor([4, 4, 4, 4]), 2).tolist() == [0, 1]
    assert top_rows(np.array([0.5, 0.0, 0.25]), 9).tolist() == [0, 2]
    assert top_rows(torch.tensor([1, 2]), 0).tolist() == []
    assert top_rows(torch.tensor([], dtype=torch.int64), 3).tolist() == []
    for bad in (torch.tensor([-1]), torch.tensor([float("nan"), 1.0]), torch.zeros(2, 2)):
        with pytest.raises(ConfigError, match="scores"):
            top_rows(bad, 1)


def test_top_edges_are_whole_neighbourhoods_of_likely_nodes():
    indptr = np.array([0, 2, 2, 5, 6])
    assert top_edges(torch.tensor([4, 100, 9, 5]), indptr, 4).tolist() == [2, 3, 4, 5]  # 5/1, then 9/3; 4/2 no room
    assert top_edges(torch.tensor([4, 100, 9, 5]), indptr, 0).tolist() == []
    assert top_edges(torch.tensor([0, 1, 0, 0]), indptr, 9).tolist() == []


def test_count_accesses():
    assert count_accesses([torch.tensor([0, 2]), torch.tensor([2])], 4).tolist() == [1, 0, 2, 0]


def test_expected_visits_of_a_literal_graph(tmp_path):
    """2 has three in-neighbours of which two are taken; the outer layer expands 2 again, and 0, whose only one is 4."""
    graph = SmallGraph(tmp_path, {N: 5}, {E: [(0, 2), (1, 2), (3, 2), (4, 0)]})
    visits = expected_visits(graph, {N: torch.tensor([2])}, [2, 2])[N] / (RANK_UNIT / 9)
    np.testing.assert_allclose(visits, [4 / 3, 4 / 3, 1, 4 / 3, 2 / 3], rtol=1e-9)
    everything = expected_visits(graph, {N: torch.tensor([2])}, [-1])[N] / (RANK_UNIT / 65)
    np.testing.assert_allclose(everything, [1, 1, 1, 1, 0], rtol=1e-9)


def test_expected_visits_are_what_sampling_does(tmp_path):
    rng = np.random.default_rng(5)
    edges = np.stack([(200 * rng.random(3000) ** 3).astype(int), (200 * rng.random(3000) ** 2).astype(int)], axis=1)
    graph = SmallGraph(tmp_path, {N: 200}, {E: edges})
    train = rng.permutation(200)[:60]
    scores = expected_visits(graph, {N: torch.from_numpy(train)}, [3, 5], pool=ThreadPool(2))[N].astype(float)
    sources = np.fromfile(graph.indices_table(E).stripes[0].path, np.int32)
    counts = np.zeros(200)
    for seed in np.tile(train, 20):
        frontier = [seed]
        for fanout in (5, 3):
            for node in list(frontier):
                neighbours = sources[graph.indptr(E)[node] : graph.indptr(E)[node + 1]]
                frontier.extend(rng.permutation(neighbours)[:fanout])
        np.add.at(counts, frontier, 1)
    assert np.corrcoef(scores, counts)[0, 1] > 0.99
    pagerank = reverse_pagerank(graph, {N: torch.from_numpy(train)})[N].astype(float)
    assert np.corrcoef(pagerank, counts)[0, 1] < np.corrcoef(scores, counts)[0, 1]


def test_expected_visits_of_a_heterograph_reach_types_that_only_one_layer_does(tmp_path):
    writes, cites = ("author", "writes", "paper"), ("paper", "cites", "paper")
    graph = SmallGraph(tmp_path, {"author": 2, "paper": 2}, {writes: [(0, 0), (1, 0)], cites: [(1, 0)]})
    fanouts = [{writes: 1, cites: 3}]
    visits = expected_visits(graph, {"paper": torch.tensor([0])}, fanouts)
    np.testing.assert_allclose(visits["author"] / (RANK_UNIT / 5), [0.5, 0.5], rtol=1e-9)
    np.testing.assert_allclose(visits["paper"] / (RANK_UNIT / 5), [1, 1], rtol=1e-9)
    alone = expected_visits(graph, {"paper": torch.tensor([0])}, [{writes: 1}])["paper"]
    assert alone[0] > 0 == alone[1], "an edge type without a fan-out is not followed"
    train = {"paper": torch.tensor([0])}
    stored = rank_nodes(graph, train, by="visits", fanouts=fanouts)
    assert all(np.array_equal(stored[ntype], visits[ntype]) for ntype in visits)
    assert not np.array_equal(rank_nodes(graph, train, by="visits", fanouts=[2])["author"], visits["author"])
    with pytest.raises(ConfigError, match="fanouts must be given"):
        rank_nodes(graph, train, by="visits")
