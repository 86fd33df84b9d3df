"""Generated graphs: same seed same bytes, the promised shape, and classes that only the graph gives away."""

import itertools
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import gids
from gids import ConfigError, _native, generate
from gids.dataset import verify
from gids.dataset.rows import as_tensor, read_rows
from gids.generate.communities import block_offsets
from gids.generate.rmat import rmat_in_degrees


def values(table):
    return as_tensor(table, read_rows(table))


def edges_of(dataset):
    indptr = torch.from_numpy(np.array(dataset.indptr()))
    return values(dataset.indices_table()).long(), torch.repeat_interleave(torch.arange(len(indptr) - 1), indptr.diff())


@pytest.mark.parametrize("kind", [generate.communities, generate.rmat])
def test_same_seed_same_bytes(tmp_path, kind):
    first = kind(tmp_path / "a", num_nodes=3000, dim=20, seed=5, threads=1)
    second = kind(tmp_path / "b", num_nodes=3000, dim=20, seed=5, threads=4)
    other = kind(tmp_path / "c", num_nodes=3000, dim=20, seed=6)
    assert first.id == second.id != other.id
    assert verify(first) == []


def test_communities_shape(tmp_path):
    dataset = generate.communities(
        tmp_path / "g", num_nodes=20_000, degree=10, num_classes=8, dim=4, homophily=0.7, skew=3
    )
    source, destination = edges_of(dataset)
    assert abs(len(source) / 20_000 - 10) < 0.5
    labels = dataset.labels()
    assert torch.bincount(labels).tolist() == [2500] * 8
    same = (labels[source] == labels[destination]).float().mean()
    assert abs(float(same) - (0.7 + 0.3 / 8)) < 0.01
    popularity = torch.bincount(source, minlength=20_000).sort(descending=True).values.float()
    assert abs(float(popularity[:200].sum() / popularity.sum()) - 0.01 ** (1 / 3)) < 0.03  # the top 1 % send x^(1/skew)
    assert torch.bincount(destination).max() > 30 * 10
    # Ids tell nothing: neighbours in a community are no nearer than others.
    assert abs(float((source - destination).abs().float().mean()) / 20_000 - 1 / 3) < 0.03


def test_blocks_shape(tmp_path):
    asked = {"num_nodes": 20_000, "degree": 10, "num_classes": 8, "dim": 4, "homophily": 0.6, "seed": 3}
    dataset = generate.communities(tmp_path / "g", **asked, blocks=100, inside=0.7, block_ratio=3)
    first = block_offsets(20_000, 100, 3.0)
    sizes = np.diff(first)
    assert first[0] == 0
    assert first[-1] == 20_000
    assert sizes.max() / sizes.min() == pytest.approx(3, abs=0.05)
    graph = _native.Blocks(first, 8, 3, 10.0, 0.7, 0.6, 3)
    block = np.empty(20_000, np.int64)
    graph.blocks(0, block, _native.ThreadPool(1))
    assert np.array_equal(np.bincount(block), sizes)
    source, destination = edges_of(dataset)
    assert abs(len(source) / 20_000 - 10) < 0.5
    stays = (block[source] == block[destination]).mean()
    assert abs(stays - (0.7 + 0.3 / 100)) < 0.01
    labels = dataset.labels().numpy()
    same = (labels[source] == labels[destination]).mean()
    assert abs(same - (0.6 + 0.4 / 8)) < 0.01
    # Classes are independent of blocks: every block has all of them, as evenly as its size allows.
    counts = np.zeros((100, 8), np.int64)
    np.add.at(counts, (block, labels), 1)
    assert (counts.max(1) - counts.min(1)).max() <= 1
    # Ids tell nothing about blocks.
    assert abs(float((source - destination).abs().float().mean()) / 20_000 - 1 / 3) < 0.03
    again = generate.communities(tmp_path / "h", **asked, blocks=100, inside=0.7, block_ratio=3, threads=1)
    assert again.id == dataset.id


def test_block_offsets_by_hand():
    assert block_offsets(12, 3, 1.0).tolist() == [0, 4, 8, 12]
    assert block_offsets(12, 3, 3.0).tolist() == [0, 2, 6, 12]  # weights 1, 2, 3
    assert block_offsets(5, 1, 4.0).tolist() == [0, 5]


@pytest.mark.parametrize(
    ("wrong", "rule"),
    [
        ({"blocks": 0}, "blocks must be in"),
        ({"blocks": 2000}, "blocks must be in"),
        ({"blocks": 900, "block_ratio": 100.0}, "leave every block a node"),
        ({"blocks": 10, "block_ratio": 0.5}, "block_ratio must be at least 1"),
        ({"blocks": 10, "inside": 1.5}, r"inside must be in \[0, 1\]"),
    ],
)
def test_blocks_that_cannot_be(tmp_path, wrong, rule):
    with pytest.raises(ConfigError, match=rule):
        generate.communities(tmp_path / "g", num_nodes=1000, dim=2, **wrong)
    assert not (tmp_path / "g").exists()


def test_splits(tmp_path):
    dataset = generate.communities(tmp_path / "g", num_nodes=1000, dim=2, train=0.5, val=0.3, test=0.2)
    parts = [dataset.split(name) for name in ("train", "val", "test")]
    assert [len(part) for part in parts] == [500, 300, 200]
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(1000))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_features_are_a_function_of_seed_and_row(tmp_path, dtype):
    dataset = generate.communities(tmp_path / "g", num_nodes=500, dim=131, dtype=dtype, seed=9)
    stored = values(dataset.feature_table())
    labels = dataset.labels().numpy()
    pool = _native.ThreadPool(1)
    row = generate.feature_rows(321, labels[321:322], 131, 9, 1.5, dtype, pool)
    assert torch.equal(stored[321:322], row)
    assert abs(float(stored.double().std()) - 1) < 0.02


def test_rmat_shape(tmp_path):
    dataset = generate.rmat(tmp_path / "g", num_nodes=10_000, degree=12.5, dim=2)
    source, destination = edges_of(dataset)
    assert len(source) == 125_000
    for ids in (source, destination):
        degrees = torch.bincount(ids, minlength=10_000).sort(descending=True).values
        assert degrees[:100].sum() > 0.12 * len(source)  # hubs
        assert (degrees == 0).sum() > 100  # and loners


@pytest.mark.parametrize("num_nodes", [1, 2, 3, 7, 8])
def test_rmat_follows_its_distribution(tmp_path, num_nodes):
    """Against edges drawn one by one, as R-MAT is defined."""
    a, b, c = 0.5, 0.2, 0.2
    dataset = generate.rmat(
        tmp_path / "g",
        num_nodes=num_nodes,
        degree=200_000 / num_nodes,
        a=a,
        b=b,
        c=c,
        scatter=False,
        dim=1,
        num_classes=1,
    )
    source, destination = edges_of(dataset)
    counts = torch.bincount(source * num_nodes + destination, minlength=num_nodes**2).view(num_nodes, num_nodes) / len(
        source
    )
    expected = torch.zeros(num_nodes, num_nodes)

    def descend(rows, columns, chance):
        if len(rows) == len(columns) == 1:
            expected[rows[0], columns[0]] += chance
            return
        half_rows, half_columns = (len(rows) + 1) // 2, (len(columns) + 1) // 2
        parts_r = [rows[:half_rows], rows[half_rows:]] if len(rows) > 1 else [rows, rows]
        parts_c = [columns[:half_columns], columns[half_columns:]] if len(columns) > 1 else [columns, columns]
        for i, row in enumerate(parts_r):
            for j, column in enumerate(parts_c):
                descend(row, column, chance * [[a, b], [c, 1 - a - b - c]][i][j])

    descend(list(range(num_nodes)), list(range(num_nodes)), 1.0)
    assert torch.allclose(counts, expected, atol=0.005)


def test_rmat_degrees_add_up():
    for num_nodes in (1, 5, 1 << 18, (1 << 18) + 1, 600_001):
        blocks = list(rmat_in_degrees(num_nodes, 1_000_000, 0.7, seed=1))
        assert sum(len(counts) for _, counts in blocks) == num_nodes
        assert sum(int(counts.sum()) for _, counts in blocks) == 1_000_000
        assert [begin for begin, _ in blocks] == sorted(begin for begin, _ in blocks)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_nodes": 3}, "num_nodes must be at least num_classes = 16"),
        ({"degree": -1}, "degree must be in"),
        ({"homophily": 1.5}, "homophily must be in"),
        ({"skew": 0}, "skew must be in"),
        ({"dim": 0}, "dim must be at least 1"),
        ({"dtype": "int64"}, "dtype must be one of"),
        ({"train": 0.9, "val": 0.2}, "shares that add up to at most 1"),
        ({"seed": -1}, "seed must be in"),
        ({"num_classes": 0}, "num_classes must be at least 1"),
    ],
)
def test_communities_refuses(tmp_path, options, message):
    with pytest.raises(ConfigError, match=message):
        generate.communities(tmp_path / "g", **({"num_nodes": 100} | options))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [({"a": 0.9, "b": 0.2}, "a, b, c must be chances"), ({"num_nodes": 0}, "num_nodes"), ({"degree": -1}, "degree")],
)
def test_rmat_refuses(tmp_path, options, message):
    with pytest.raises(ConfigError, match=message):
        generate.rmat(tmp_path / "g", **({"num_nodes": 100} | options))


class Model(nn.Module):
    """Three layers; with ``adjacency`` GraphSAGE with means, without it an MLP."""

    def __init__(self, dims, adjacency):
        super().__init__()
        self.adjacency = adjacency
        self.own = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(dims))
        self.neighbours = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(dims))

    def forward(self, x):
        for i, (own, neighbours) in enumerate(zip(self.own, self.neighbours, strict=True)):
            out = own(x) + (0 if self.adjacency is None else neighbours(self.adjacency @ x))
            x = functional.relu(out) if i < 2 else out
        return x


def accuracy(dataset, x, adjacency):
    torch.manual_seed(0)
    model = Model([x.shape[1], 32, 32, dataset.num_classes], adjacency)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2, weight_decay=5e-4)
    labels, train, test = dataset.labels(), dataset.split("train"), dataset.split("test")
    for _ in range(20):
        optimizer.zero_grad()
        functional.cross_entropy(model(x)[train], labels[train]).backward()
        optimizer.step()
    return float((model(x).argmax(1)[test] == labels[test]).float().mean())


@pytest.fixture
def one_thread():
    """Small matrices: threads would only wait for each other, for ages where cores are shared."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.filterwarnings("ignore:Sparse")
def test_the_graph_is_needed(tmp_path, one_thread):
    dataset = generate.communities(tmp_path / "g", num_nodes=5000, dim=64, num_classes=8, train=0.4, test=0.3)
    x = values(dataset.feature_table())
    indptr = torch.from_numpy(np.array(dataset.indptr()))
    source, _ = edges_of(dataset)
    weights = torch.repeat_interleave(1 / indptr.diff().clamp(min=1), indptr.diff())
    adjacency = torch.sparse_csr_tensor(indptr, source, weights.float(), (5000, 5000))
    with_graph, without = accuracy(dataset, x, adjacency), accuracy(dataset, x, None)
    assert with_graph > 0.85
    assert without < with_graph - 0.25


def test_memory_does_not_grow_with_the_table(tmp_path):
    """A table several times the pieces adds little to the peak of a fresh process."""
    script = (
        "import sys; from gids import generate; from gids.generate import tables; tables.PIECE_BYTES = 2 << 20\n"
        "from gids.report.growth import peak_resident_bytes\n"
        "generate.communities(sys.argv[1], num_nodes=1000, dim=8)\n"
        "before = peak_resident_bytes()\n"
        "generate.communities(sys.argv[2], num_nodes=100_000, dim=256)\n"
        "print(peak_resident_bytes() - before)"
    )
    command = [sys.executable, "-c", script, tmp_path / "a", tmp_path / "b"]
    grown = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    table = gids.open(tmp_path / "b").feature_table()
    assert table.total_bytes > 95 << 20
    assert grown < 40 << 20
