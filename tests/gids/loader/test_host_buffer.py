"""The host buffer of a loader: which rows it holds, that loaders share it, and that what it serves is right."""

import errno
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import gids
from gids.budget.parts import host_bytes
from gids.errors import ConfigError, StorageError
from gids.loader.feed import COUNTED_EPOCH
from tests.faultfs import mounted

from .conftest import DIM, make, same

pytestmark = pytest.mark.usefixtures("nothing_left")


def mapped():
    """Shared buffers that this process maps: paths and how often."""
    return re.findall(r"/dev/shm/gids-[0-9a-f]{24}$", Path("/proc/self/maps").read_text(), re.MULTILINE)


@pytest.mark.parametrize("rank_by", ["pagerank", "degree", "counted"])
def test_loaders_share_their_host_buffer_and_deliver_the_same_batches(graph, rank_by):
    options = {"host_buffer": "60KiB", "host_rank": rank_by, "cache": "20KiB"}
    with make(graph) as plain, make(graph, **options).prepare() as one, make(graph, **options).prepare() as two:
        for a, b, c in zip(plain, one, two, strict=True):
            assert same(a, b)
            assert same(a, c)
        table = one.stats().tables["_N/feat"]
        assert table.host > 0.1 * table.requests
        assert table.requests == table.cache + table.host + table.disk + table.duplicates
        first, second = (store.host_buffer.values for loader in (one, two) for store in loader.stores.values())
        first[0, 0] += 1
        assert second[0, 0] == first[0, 0], "one memory, not a copy"
        first[0, 0] -= 1
        assert first.nbytes <= 60 << 10
        (path,) = {Path(name) for name in mapped()}
        assert path.exists()
    assert not path.exists()


def held_rows(loader):
    (store,) = loader.prepare().stores.values()
    return store.host_buffer.index.rows.tolist()


@pytest.mark.parametrize("kind", ["tensor", "array", "file", "by type"])
def test_own_scores_choose_the_rows(graph, tmp_path, kind):
    scores = torch.zeros(graph.num_nodes(), dtype=torch.float64)
    scores[[5, 17, 2999, 400]] = torch.tensor([0.5, 3.0, 1.0, 2.0], dtype=torch.float64)
    np.save(tmp_path / "scores.npy", scores.numpy())
    given = {
        "tensor": scores,
        "array": scores.numpy(),
        "file": str(tmp_path / "scores.npy"),
        "by type": {"_N": tmp_path / "scores.npy"},
    }[kind]
    room = host_bytes(3, DIM * 4)
    with make(graph) as plain, make(graph, host_buffer=room, host_rank=given) as loader:
        assert held_rows(loader) == [17, 400, 2999]
        assert all(same(a, b) for a, b in zip(plain, loader, strict=True))
    with make(graph, host_buffer="60KiB", host_rank=given) as loader:
        assert held_rows(loader) == [5, 17, 400, 2999]  # score 0 stays out however much room there is


@pytest.mark.parametrize("dtype", [">f8", "<i4"])
def test_own_scores_in_a_file_that_shrinks(graph, tmp_path, dtype):
    """Scores are read, not mapped: what is cut off later is no longer there, and is no signal."""
    scores = np.arange(graph.num_nodes(), dtype=dtype)
    path = tmp_path / "scores.npy"
    np.save(path, scores)
    room = host_bytes(3, DIM * 4)
    with make(graph, host_buffer=room, host_rank=path) as loader:
        assert held_rows(loader) == [2997, 2998, 2999]
    with make(graph, host_buffer=room, host_rank=path) as loader:
        path.write_bytes(path.read_bytes()[:4096])
        cut = rf"must be a readable .npy file \(got {path}: .*needs .* bytes, got 4096"
        with pytest.raises(ConfigError, match=cut):
            held_rows(loader)
    with pytest.raises(ConfigError, match=cut):
        make(graph, host_buffer=room, host_rank=path)


@pytest.mark.parametrize("begin", [0, 8192], ids=["header", "scores"])
def test_an_error_below_own_scores_names_file_and_offset(graph, tmp_path, begin):
    np.save(tmp_path / "scores.npy", np.arange(graph.num_nodes()))
    with mounted(tmp_path) as faults:
        path = faults.path / "scores.npy"
        faults.set({"name": path.name, "begin": begin, "end": begin + 512, "do": "error", "errno": errno.EIO})
        with pytest.raises(StorageError) as caught, make(graph, host_buffer="8KiB", host_rank=path) as loader:
            held_rows(loader)
        assert (caught.value.path, caught.value.errno) == (str(path), errno.EIO)
        assert caught.value.offset <= begin < caught.value.offset + max(caught.value.length, 1)


def test_random_rows_depend_on_the_seed_alone_and_serve_less_than_ranked_ones(graph):
    served, held = {}, {}
    for name, rank, seed in [("a", "random", 1), ("b", "random", 1), ("c", "random", 2), ("best", "counted", 1)]:
        with make(graph, host_buffer="60KiB", host_rank=rank, seed=seed, cache=0) as loader:
            held[name] = held_rows(loader)
            for _ in loader:
                pass
            served[name] = loader.stats().tables["_N/feat"].host
    assert held["a"] == held["b"] != held["c"]
    assert served["best"] > 1.5 * served["a"]


def test_counted_rows_are_those_that_most_batches_of_the_counted_epoch_ask_for(graph):
    counts = torch.zeros(graph.num_nodes(), dtype=torch.int64)
    with make(graph, features=None) as loader:
        loader.set_epoch(COUNTED_EPOCH)
        for batch in loader:
            counts[batch.input_nodes] += 1
    with make(graph, host_buffer="8KiB", host_rank="counted") as loader:
        held = held_rows(loader)
    others = torch.ones(graph.num_nodes(), dtype=torch.bool)
    others[held] = False
    assert 50 < len(held) < 110
    assert counts[held].min() >= counts[others].max()


@pytest.mark.parametrize(
    ("rank", "message"),
    [
        ("taste", "host_rank must be one of"),
        ({"_N": "pagerank"}, "must be scores or a .npy file"),
        ("no-such.npy", "must be a readable .npy file"),
        ([1.0, 2.0], "must be 3000 numbers, one per node"),
        ({"paper": [1.0]}, "must name node types among"),
        (-torch.ones(3000), "must not be negative"),
    ],
)
def test_bad_ranking(graph, rank, message):
    with pytest.raises(ConfigError, match=message), make(graph, host_rank=rank, host_buffer="8KiB") as loader:
        loader.prepare()


def test_edge_features_come_from_the_host_buffer(graph, memory):
    """Edge rows that the host buffer holds are served from it, bit for bit."""
    etype = graph.edge_types[0]
    options = {"features": {gids.NODE: "feat", gids.EDGE: "feat"}, "cache": 0, "groups": "200KiB", "sweep_batches": 2}
    with (
        make(graph, host_buffer="80KiB", **options).prepare() as loader,
        make(graph, host_buffer=0, **options) as plain,
    ):
        for batch, expected in zip(loader, plain, strict=True):
            assert batch.edge_features[0].keys() == {(etype, "feat")}
            for block, rows, others in zip(batch.blocks, batch.edge_features, expected.edge_features, strict=True):
                assert torch.equal(rows[etype, "feat"], memory["edge"][block.edge_ids[etype]])
                assert torch.equal(rows[etype, "feat"], others[etype, "feat"])
        name = graph.edge_feature_table(etype, "feat").name
        table, without = (each.stats().tables[name] for each in (loader, plain))
        held = loader.stores[etype, "feat"].host_buffer.index.rows
    assert without.host == 0
    assert table.host > 0.05 * table.requests
    assert table.requests == table.cache + table.host + table.disk + table.duplicates
    # Whole neighbourhoods are held: every edge of a destination, or none.
    destinations = np.searchsorted(graph.indptr(), held.numpy(), side="right") - 1
    nodes, edges = np.unique(destinations, return_counts=True)
    assert np.array_equal(edges, np.diff(graph.indptr())[nodes])
