"""Datasets and conversions on a file system that fails on demand: every error names the file and the offset."""

import errno
import shutil

import numpy as np
import pytest
import torch

import gids
from gids.cli import main
from gids.dataset import verify
from gids.errors import DatasetError, StorageError
from gids.generate import communities
from gids.sampling import Topology
from tests.faultfs import mounted

EIO = {"do": "error", "errno": errno.EIO}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    directory = tmp_path_factory.mktemp("faults")
    communities(directory / "d", num_nodes=3000, degree=5, dim=8, train=0.3)
    return directory


@pytest.fixture(scope="module")
def faults(place):
    with mounted(place, cached=True) as shown:
        yield shown


@pytest.fixture
def dataset(faults):
    faults.set()
    yield gids.open(faults.path / "d")
    faults.set()


def failed(call, path, begin=0):
    """Check that a call fails with the file and an offset within what could not be read."""
    with pytest.raises(StorageError) as caught:
        call()
    assert (caught.value.path, caught.value.errno) == (str(path), errno.EIO)
    assert caught.value.offset <= begin < caught.value.offset + max(caught.value.length, 1)


def test_manifest(dataset, faults):
    faults.set({"name": "manifest.json", **EIO})
    failed(lambda: gids.open(dataset.path), dataset.path / "manifest.json")


@pytest.mark.parametrize(
    ("table", "call"),
    [
        (lambda d: d.manifest.edges["_N", "_E", "_N"].indptr.table, lambda d: d.indptr()),
        (lambda d: d.manifest.edges["_N", "_E", "_N"].indptr.table, lambda d: Topology.from_dataset(d)),
        (lambda d: d.indices_table(), lambda d: Topology.from_dataset(d)),
        (lambda d: d.manifest.nodes["_N"].labels.table, lambda d: d.labels()),
        (lambda d: d.manifest.nodes["_N"].splits["train"].table, lambda d: d.split("train")),
        (lambda d: d.feature_table(), lambda d: verify(d)),
    ],
    ids=["indptr", "topology, offsets", "topology, indices", "labels", "split", "verify"],
)
def test_small_arrays(dataset, faults, table, call):
    """Offsets were mapped: an error below them was a signal that killed the process."""
    path = table(dataset).stripes[0].path
    faults.set({"name": path.name, "begin": 0, "end": 512, **EIO})
    failed(lambda: call(dataset), path)
    faults.set()
    assert call(dataset) is not None


def test_a_file_of_offsets_that_is_cut_off(tmp_path):
    dataset = communities(tmp_path / "d", num_nodes=3000, degree=5, dim=8, train=0.3)
    offsets = dataset.indptr()
    before = offsets.copy()
    path = dataset.manifest.edges["_N", "_E", "_N"].indptr.table.stripes[0].path
    with path.open("r+b") as file:
        file.truncate(0)
    np.testing.assert_array_equal(offsets, before)
    assert not offsets.flags.writeable
    del offsets
    with pytest.raises(StorageError, match="file ends early"):
        dataset.indptr()


def test_one_copy_of_offsets(dataset):
    first = dataset.indptr()
    assert np.shares_memory(first, dataset.indptr())
    topology = Topology.from_dataset(dataset)
    assert np.shares_memory(first, topology.relations["_N", "_E", "_N"].indptr)


@pytest.mark.parametrize("order", ["C", "F", "swapped"])
def test_conversion(place, faults, tmp_path, order, capsys):
    source = place / f"arrays-{order}"
    source.mkdir()
    values = np.random.default_rng(0).random((50, 4), np.float32)
    stored = values.astype(">f4") if order == "swapped" else np.asarray(values, order="F" if order == "F" else "C")
    np.save(source / "features.npy", stored)
    np.save(source / "edge_index.npy", np.array([[0, 1, 2], [1, 2, 3]]))
    shown, target = faults.path / source.name, tmp_path / "out"
    for name in ("features.npy", "edge_index.npy"):
        for begin in (0, 128):  # the header, the rows
            faults.set({"name": f"{source.name}/{name}", "begin": begin, "end": begin + 8, **EIO})
            assert main(["convert", str(shown), str(target), "--quiet"]) == 1
            said = capsys.readouterr().err
            assert "Input/output error" in said, said
            assert str(shown / name) in said, said
    faults.set()
    assert main(["convert", str(shown), str(target), "--quiet"]) == 0
    table = gids.open(target).feature_table()
    from gids.dataset.rows import as_tensor, read_rows

    assert torch.equal(as_tensor(table, read_rows(table)), torch.from_numpy(values))
    shutil.rmtree(target)


def test_a_file_cut_off_while_it_is_converted(tmp_path):
    """Rows in column order were mapped: a file that shrinks was a signal that killed the process."""
    from gids.convert.sources import npy_rows

    np.save(tmp_path / "x.npy", np.asfortranarray(np.arange(5000.0).reshape(1000, 5)))
    rows = npy_rows(tmp_path / "x.npy")
    pieces = rows.read(0, 100)
    np.testing.assert_array_equal(next(pieces)[:, 1], np.arange(1, 501, 5)[:100])
    with (tmp_path / "x.npy").open("r+b") as file:
        file.truncate(200)
    with pytest.raises((StorageError, DatasetError), match="ends early"):
        next(pieces)
