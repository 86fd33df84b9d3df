"""The host buffer in shared memory: filled once, mapped by all, removed by the last, never left locked."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from gids.errors import ConfigError
from gids.loader.engine import COUNTED_EPOCH
from gids.loader.shared import SharedTensor
from gids.tiers.budget import host_bytes

from .conftest import DIM
from .test_loader import make, same

pytestmark = pytest.mark.usefixtures("nothing_left")


def shared(tmp_path, value, identity="x", shape=(3, 4)):
    return SharedTensor(identity, shape, torch.float32, lambda tensor: tensor.fill_(value), tmp_path)


def test_the_first_fills_and_the_last_removes(tmp_path):
    first, second = shared(tmp_path, 1), shared(tmp_path, 2)
    assert (first.filled_here, second.filled_here) == (True, False)
    assert second.tensor.unique().tolist() == [1]
    first.tensor[0, 0] = 5
    assert second.tensor[0, 0] == 5, "one memory, not a copy"
    first.close()
    first.close()
    assert second.path.exists()
    second.close()
    assert not list(tmp_path.iterdir())
    assert second.tensor[0, 0] == 5, "what is mapped stays valid"


def test_other_contents_are_not_shared(tmp_path):
    buffers = [shared(tmp_path, 1), shared(tmp_path, 2, identity="y"), shared(tmp_path, 3, shape=(4, 3))]
    assert [b.tensor[0, 0].item() for b in buffers] == [1, 2, 3]
    for buffer in buffers:
        buffer.close()


def test_a_failed_fill_is_filled_again(tmp_path):
    def fail(tensor):
        tensor.fill_(9)
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        SharedTensor("x", (3, 4), torch.float32, fail, tmp_path)
    again = shared(tmp_path, 1)
    assert again.tensor.unique().tolist() == [1]
    again.close()


CRASHES = """
import os, sys, torch
from pathlib import Path
from gids.loader.shared import SharedTensor
def fill(tensor):
    tensor.fill_(7)
    if sys.argv[2] == "filling":
        os._exit(9)
SharedTensor("x", (3, 4), torch.float32, fill, Path(sys.argv[1]))
os._exit(9)
"""


@pytest.mark.parametrize(("when", "value"), [("filling", 1), ("using", 7)])
def test_a_killed_process_leaves_no_lock(tmp_path, when, value):
    assert subprocess.run([sys.executable, "-c", CRASHES, str(tmp_path), when], check=False).returncode == 9
    buffer = shared(tmp_path, 1)
    assert buffer.tensor.unique().tolist() == [value]
    buffer.close()
    assert not list(tmp_path.iterdir())


def test_no_room_says_how_much(tmp_path):
    if os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize > 1 << 45:
        pytest.skip("/dev/shm is larger than this test can ask for")
    with pytest.raises(ConfigError, match=r"host_buffer must fit in /dev/shm"):
        SharedTensor("too large", (1 << 35, 1024), torch.float32, lambda tensor: None, Path("/dev/shm"))


@pytest.mark.parametrize("rank_by", ["pagerank", "degree", "counted"])
def test_loaders_share_their_host_buffer_and_deliver_the_same_batches(graph, rank_by):
    options = {"host_buffer": "60KiB", "host_rank": rank_by, "cache": "20KiB"}
    with make(graph) as plain, make(graph, **options) as one, make(graph, **options) as two:
        for a, b, c in zip(plain, one, two, strict=True):
            assert same(a, b)
            assert same(a, c)
        table = one.stats().tables["_N/feat"]
        assert table.host > 0.1 * table.requests
        assert table.requests == table.cache + table.host + table.disk + table.duplicates
        stores = [next(iter(loader._engine.table_set.stores.values())) for loader in (one, two)]
        assert [store.shared.filled_here for store in stores] == [True, False]
        assert stores[0].shared.nbytes <= 60 << 10
        path = stores[0].shared.path
        assert path.exists()
        del stores
    assert not path.exists()


def held_rows(loader):
    (store,) = loader.prepare()._engine.table_set.stores.values()
    return store.store.host_buffer.index.rows.tolist()


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
    options = {"edge_features": "feat", "cache": 0, "groups": "200KiB", "max_group": 2}
    with make(graph, host_buffer="80KiB", **options) as loader, make(graph, host_buffer=0, **options) as plain:
        for batch, expected in zip(loader, plain, strict=True):
            assert batch.edge_features[0].keys() == {(etype, "feat")}
            for block, rows, others in zip(batch.blocks, batch.edge_features, expected.edge_features, strict=True):
                assert torch.equal(rows[etype, "feat"], memory["edge"][block.edge_ids[etype]])
                assert torch.equal(rows[etype, "feat"], others[etype, "feat"])
        name = graph.edge_feature_table(etype, "feat").name
        table, without = (each.stats().tables[name] for each in (loader, plain))
        held = loader._engine.table_set.stores[etype, "feat"].store.host_buffer.index.rows
    assert without.host == 0
    assert table.host > 0.05 * table.requests
    assert table.requests == table.cache + table.host + table.disk + table.duplicates
    # Whole neighbourhoods are held: every edge of a destination, or none.
    destinations = np.searchsorted(graph.indptr(), held.numpy(), side="right") - 1
    nodes, edges = np.unique(destinations, return_counts=True)
    assert np.array_equal(edges, np.diff(graph.indptr())[nodes])
