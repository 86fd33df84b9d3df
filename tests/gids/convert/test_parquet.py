"""Parquet parts of nodes and edges: several files and row groups, lists of either kind, types, and what is refused."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gids
from gids.convert import convert, detect
from gids.convert.parquet import ParquetRows
from gids.errors import DatasetError

from .graphs import by_destination, random_edges, stored_edges, values

N, E, DIM = 90, 700, 3
EDGES = random_edges(N, N, E, seed=2)
X = np.random.default_rng(1).standard_normal((N, DIM)).astype(np.float32)
Y = np.arange(N) % 5


def part(path, first, last, **columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({name: column[first:last] for name, column in columns.items()}), path, row_group_size=16)


def lists(rows, fixed=False):
    flat = pa.array(rows.reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, rows.shape[1]) if fixed else pa.array(list(rows))


def write(root, fixed=False, ids=None):
    splits = pa.array(["train"] * 40 + ["test"] * 10 + [None] * (N - 50))
    columns = {"x": lists(X, fixed), "score": pa.array(X[:, 0]), "label": pa.array(Y), "split": splits}
    for number, (first, last) in enumerate([(0, 50), (50, N)]):
        own = {} if ids is None else {"id": pa.array(ids)}
        part(root / f"nodes/part-{number:05}.snappy.parquet", first, last, **own, **columns)
    weights = pa.array(np.arange(E, dtype=np.float32))
    for number, (first, last) in enumerate([(0, 300), (300, 300), (300, E)]):
        part(
            root / f"edges/{number}.parquet",
            first,
            last,
            src=pa.array(EDGES[0]),
            dst=pa.array(EDGES[1]),
            weight=weights,
        )
    return root


@pytest.mark.parametrize("fixed", [False, True])
def test_parts_become_one_dataset(tmp_path, fixed):
    source = write(tmp_path / "in", fixed, ids=np.arange(N))
    assert detect(source) == "parquet"
    made = convert(source, tmp_path / "out")
    order = np.argsort(EDGES[1], kind="stable")
    assert np.array_equal(stored_edges(made), by_destination(EDGES))
    assert np.array_equal(values(made.manifest.edges["_N", "_E", "_N"].weights.table).numpy().reshape(-1), order)
    node = made.manifest.nodes["_N"]
    assert np.array_equal(values(node.features["x"].table).numpy(), X)
    assert np.array_equal(values(node.features["score"].table).numpy().reshape(-1), X[:, 0])
    assert made.labels().tolist() == Y.tolist()
    assert made.num_classes == 5
    assert made.split("train").tolist() == list(range(40))
    assert made.split("test").tolist() == list(range(40, 50))


def test_types_are_folders(tmp_path):
    part(tmp_path / "in/nodes/user/0.parquet", 0, N, x=lists(X))
    part(tmp_path / "in/edges/user__likes__song/0.parquet", 0, E, source=pa.array(EDGES[0]), target=pa.array(EDGES[1]))
    made = convert(tmp_path / "in", tmp_path / "out")
    assert made.num_nodes("user") == N
    assert made.num_nodes("song") == EDGES[1].max() + 1
    assert np.array_equal(stored_edges(made, ("user", "likes", "song")), by_destination(EDGES))


def test_rows_are_read_from_any_row_on(tmp_path):
    source = ParquetRows(sorted((write(tmp_path) / "nodes").iterdir()), "x")
    for begin, end, step in [(0, N, 7), (17, 60, 9), (50, N, 100), (89, 90, 1), (40, 40, 3)]:
        found = [np.asarray(rows) for rows in source.read_range(begin, end, step)]
        assert [len(rows) for rows in found[:-1]] == [step] * (len(found) - 1)
        assert np.array_equal(np.concatenate(found) if found else X[:0], X[begin:end])


def test_what_is_refused(tmp_path):
    with pytest.raises(DatasetError, match=r"must count the rows from 0 over all parts \(got 1 in row 0\)"):
        convert(write(tmp_path / "ids", ids=np.arange(1, N + 1)), tmp_path / "out")
    part(tmp_path / "null/edges/0.parquet", 0, 3, src=pa.array([1, None, 2]), dst=pa.array([0, 1, 2]))
    with pytest.raises(DatasetError, match=r"column 'src' of .* must have a value in every row \(row 1 has none\)"):
        convert(tmp_path / "null", tmp_path / "out")
    part(tmp_path / "uneven/edges/0.parquet", 0, 2, src=pa.array([1, 0]), dst=pa.array([0, 1]))
    part(tmp_path / "uneven/nodes/0.parquet", 0, 2, x=pa.array([[1.0, 2.0], [3.0]]))
    with pytest.raises(DatasetError, match="must have lists of 2 numbers"):
        convert(tmp_path / "uneven", tmp_path / "out")
    part(tmp_path / "words/edges/0.parquet", 0, 2, src=pa.array(["a", "b"]), dst=pa.array([0, 1]))
    with pytest.raises(DatasetError, match=r"column 'src' of .* must hold numbers \(got string\)"):
        convert(tmp_path / "words", tmp_path / "out")
    part(tmp_path / "named/edges/0.parquet", 0, 2, left=pa.array([0, 1]), right=pa.array([0, 1]))
    with pytest.raises(DatasetError, match="must have columns src or source, and dst or destination or target"):
        convert(tmp_path / "named", tmp_path / "out")
    (tmp_path / "broken/edges").mkdir(parents=True)
    (tmp_path / "broken/edges/0.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(DatasetError, match=r"0\.parquet must be a Parquet file that can be read"):
        convert(tmp_path / "broken", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert gids.convert.FORMATS["parquet"].summary
