"""Edge lists are sorted on disk as they would be in memory, whatever the sizes of steps, buckets and hubs."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gids
from gids import DatasetWriter
from gids.convert import edges as module
from gids.convert.edges import EdgeList, write_edges
from gids.convert.sources import ArrayRows

from .graphs import by_destination, random_edges, stored_edges, values


@pytest.fixture
def tiny_buckets(monkeypatch):
    """Make every limit matter with a few hundred edges."""
    monkeypatch.setattr(module, "STEP_EDGES", 64)
    monkeypatch.setattr(module, "BUCKET_EDGES", 32)
    monkeypatch.setattr(module, "MAX_BUCKETS", 5)


def write(path, num_src, num_dst, edge_index, weights=None, **options):
    source, destination = (ArrayRows(row, "edges") for row in edge_index)
    weight = None if weights is None else ArrayRows(weights, "weights")
    etype = ("a", "to", "b")
    with DatasetWriter(path) as writer:
        writer.add_nodes(num_src, "a")
        writer.add_nodes(num_dst, "b")
        write_edges(writer, etype, EdgeList(source, destination, weight, **options))
    return gids.open(path), etype


@given(
    num_dst=st.integers(1, 60),
    num_edges=st.integers(0, 400),
    hub=st.booleans(),
    keep_ids=st.booleans(),
    weighted=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_matches_a_stable_sort(tmp_path_factory, tiny_buckets, num_dst, num_edges, hub, keep_ids, weighted, seed):
    edge_index = random_edges(30, num_dst, num_edges, seed)
    if hub:  # more in-edges than a bucket may hold
        edge_index[1, : num_edges // 2] = num_dst // 2
    weights = np.arange(num_edges, dtype=np.float32) if weighted else None
    path = tmp_path_factory.mktemp("edges") / "out"
    dataset, etype = write(path, 30, num_dst, edge_index, weights, keep_ids=keep_ids)
    assert np.array_equal(stored_edges(dataset, etype), by_destination(edge_index))
    order = np.argsort(edge_index[1], kind="stable")
    if keep_ids:
        assert np.array_equal(values(dataset.edge_ids_table(etype)), order)
    if weighted:
        assert np.array_equal(values(dataset.edge_weight_table(etype)), order.astype(np.float32))


def test_ids_beyond_32_bits(tmp_path):
    edge_index = np.array([[2**33, 5, 2**40 - 1], [1, 0, 1]])
    dataset, etype = write(tmp_path / "out", 2**40, 2, edge_index)
    assert dataset.indices_table(etype).dtype == "int64"
    assert np.array_equal(stored_edges(dataset, etype), by_destination(edge_index))


def test_small_ids_take_32_bits(tmp_path):
    dataset, etype = write(tmp_path / "out", 9, 9, random_edges(9, 9, 20))
    assert dataset.indices_table(etype).dtype == "int32"
