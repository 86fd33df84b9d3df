"""Whatever happens to the files of a dataset, opening or verifying it names the file, the table and the row."""

import json
import re

import numpy as np
import pytest
import torch

import gids
from gids import DatasetError, DatasetWriter
from gids.dataset import manifest as manifests
from gids.dataset import verify

from .toy import toy


def flip_bit(path, offset, bit=0):
    data = bytearray(path.read_bytes())
    data[offset] ^= 1 << bit
    path.write_bytes(data)


def edit_manifest(dataset, change, sign=True):
    """Change a manifest; signed as its writer would have, unless told otherwise."""
    path = dataset.path / "manifest.json"
    document = json.loads(path.read_text())
    change(document)
    if sign:
        document.pop("digest")
        document["digest"] = manifests._digest(document)
    path.write_text(json.dumps(document))


@pytest.fixture
def dataset(tmp_path):
    return toy(tmp_path / "toy")


@pytest.mark.parametrize("change", [-1, 1, 100])
def test_resized_feature_file(dataset, change):
    path = dataset.feature_table().stripes[0].path
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(size + change)
    with pytest.raises(DatasetError, match=rf"feat\.bin.*must have {size} bytes \(got {size + change}\)"):
        gids.open(dataset.path)


def test_missing_feature_file(dataset):
    dataset.feature_table().stripes[0].path.unlink()
    with pytest.raises(DatasetError, match=r"feat\.bin of table _N/feat cannot be read: No such file"):
        gids.open(dataset.path)


def test_newer_version(dataset):
    edit_manifest(dataset, lambda document: document.update(version=4))
    with pytest.raises(DatasetError, match="format version 4, this gids reads up to 3: upgrade gids"):
        gids.open(dataset.path)


@pytest.mark.parametrize("version", [None, 0, "1", 1.5])
def test_nonsense_version(dataset, version):
    edit_manifest(dataset, lambda document: document.update(version=version))
    with pytest.raises(DatasetError, match=r"version in .* must be a positive number"):
        gids.open(dataset.path)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": "other"}', "\x00"])
def test_not_a_manifest(dataset, text):
    (dataset.path / "manifest.json").write_text(text)
    with pytest.raises(DatasetError, match=r"manifest\.json"):
        gids.open(dataset.path)


def table_of(document):
    return document["nodes"]["_N"]["features"]["feat"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: table_of(d).update(dim=4), "row_stride of _N/feat must be at least row_bytes = 16"),
        (lambda d: table_of(d).update(dtype="complex64"), "dtype of _N/feat must be one of"),
        (lambda d: table_of(d).update(num_rows=3), "num_rows"),
        (lambda d: table_of(d).pop("dim"), "KeyError: 'dim'"),
        (lambda d: d["nodes"]["_N"].update(num_nodes=5), "_N/feat in .* must have 5 rows"),
        (lambda d: d["edges"][0].update(num_edges=5), "indices in .* must have 5 rows"),
        (lambda d: d["edges"][0].update(type=["a", "b", "c"]), "names node type 'a', which is not stored"),
        (lambda d: d["edges"][0]["indptr"].update(dtype="float64"), "must be int64 in one file"),
        (lambda d: d["edges"][0]["indices"].update(dtype="float64"), "must be int32 or int64"),
    ],
)
def test_contradictory_manifest(dataset, change, message):
    edit_manifest(dataset, change)
    with pytest.raises(DatasetError, match=message):
        gids.open(dataset.path)


def test_edited_manifest(dataset):
    edit_manifest(dataset, lambda document: table_of(document).update(row_stride=12, dim=2), sign=False)
    with pytest.raises(DatasetError, match="changed or damaged after it was written"):
        gids.open(dataset.path)


def test_stripes_out_of_turn(tmp_path):
    with DatasetWriter(tmp_path / "toy") as writer:
        writer.add_nodes(5)
        writer.add_features(torch.ones(5, 1), stripes=2, stripe_rows=2)

    def swap(document):
        first, second = document["nodes"]["_N"]["features"]["feat"]["stripes"]
        first["num_rows"], second["num_rows"] = second["num_rows"], first["num_rows"]

    dataset = gids.open(tmp_path / "toy")
    edit_manifest(dataset, swap)
    with pytest.raises(DatasetError, match=r"stripes of _N/feat .* must have \[3, 2\] rows"):
        gids.open(dataset.path)


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([0, 3, 1, 3, 4], "must not decrease (got 3 then 1 at node 1)"),
        ([1, 1, 3, 3, 4], "must begin at 0 and end at 4 (got 1 and 4)"),
        ([0, 1, 3, 3, 5], "must begin at 0 and end at 4 (got 0 and 5)"),
    ],
)
def test_damaged_indptr(dataset, offsets, message):
    path = dataset.manifest.edges["_N", "_E", "_N"].indptr.table.stripes[0].path
    np.array(offsets, np.int64).tofile(path)
    with pytest.raises(DatasetError, match=re.escape(message)):
        gids.open(dataset.path).indptr()


def test_damaged_split(dataset):
    np.array([0, 4], np.int64).tofile(dataset.manifest.nodes["_N"].splits["train"].table.stripes[0].path)
    with pytest.raises(DatasetError, match=r"splits/train must hold ids in \[0, 4\) \(got 0 to 4\)"):
        gids.open(dataset.path).split("train")


def large(path, **layout):
    with DatasetWriter(path) as writer:
        writer.add_nodes(5000)
        writer.add_features(torch.randn(5000, 25), **layout)
        writer.add_features(torch.randn(5000, 7).to(torch.float16), name="half")
        writer.add_csc(np.arange(5001) * 3, np.arange(15000) % 5000)
        writer.add_labels(np.arange(5000) % 7)
        writer.add_split("train", np.arange(0, 5000, 3))
    return gids.open(path)


@pytest.fixture(scope="module")
def intact(tmp_path_factory):
    return large(tmp_path_factory.mktemp("intact") / "data")


def test_verify_intact(intact):
    assert verify(intact) == []


@pytest.mark.parametrize("row", [0, 1, 654, 655, 1310, 4999])
@pytest.mark.parametrize("name", ["_N/feat", "_N/half", "_N/labels", "_N/splits/train", "_N:_E:_N/indices"])
def test_verify_names_row_of_flipped_bit(intact, name, row):
    table = next(stored.table for stored in intact.manifest.tables() if stored.table.name == name)
    row %= table.num_rows
    stripe, offset = table.locate(row)
    for byte, bit in ((0, 0), (table.row_bytes - 1, 7), (table.row_bytes // 2, 3)):
        flip_bit(table.stripes[stripe].path, offset + byte, bit)
        problems = verify(intact)
        assert [(p.table, p.first_row, p.last_row) for p in problems] == [(name, row, row)]
        assert f"{name} is damaged in row {row} " in problems[0].message
        flip_bit(table.stripes[stripe].path, offset + byte, bit)


def test_verify_striped_and_padded(tmp_path):
    dataset = large(tmp_path / "data", stripes=3, stripe_rows=10, row_stride=128)
    assert verify(dataset) == []
    table = dataset.feature_table()
    stripe, offset = table.locate(1234)
    flip_bit(table.stripes[stripe].path, offset + 99, 5)
    assert [(p.table, p.first_row, p.last_row) for p in verify(dataset)] == [("_N/feat", 1234, 1234)]


def test_verify_gives_a_range_for_several_rows(tmp_path):
    dataset = large(tmp_path / "data")
    table = dataset.feature_table()
    for row in (3, 8):
        flip_bit(table.stripes[0].path, row * 100)
    (problem,) = verify(dataset)
    assert (problem.first_row, problem.last_row) == (0, 654)
    assert "rows 0 to 654" in problem.message


def test_verify_whole_row_overwritten(tmp_path):
    dataset = large(tmp_path / "data")
    path = dataset.feature_table().stripes[0].path
    data = bytearray(path.read_bytes())
    data[77 * 100 : 78 * 100] = bytes(100)
    path.write_bytes(data)
    assert [(p.first_row, p.last_row) for p in verify(dataset)] == [(77, 77)]


def test_verify_damaged_checksums(tmp_path):
    dataset = toy(tmp_path / "toy")
    flip_bit(dataset.path / "checksums/nodes/_N/features/feat.xxh3", 3)
    (problem,) = verify(dataset)
    assert problem.table == "_N/feat"
    assert "missing or damaged" in problem.message


def test_verify_rules_beyond_checksums(tmp_path, monkeypatch):
    monkeypatch.setattr("gids.dataset.writer.check_range", lambda *args: None)
    with DatasetWriter(tmp_path / "toy") as writer:
        writer.add_nodes(3)
        writer.add_csc([0, 1, 1, 2], [2, 3])
        writer.add_labels([0, 5, 1], num_classes=2)
        writer.add_split("train", [-1])
    messages = sorted(problem.message for problem in verify(gids.open(tmp_path / "toy")))
    assert messages == [
        "_N/labels must be in [-1, 2) (got 5 at row 1)",
        "_N/splits/train must be in [0, 3) (got -1 at row 0)",
        "_N:_E:_N/indices must be in [0, 3) (got 3 at row 1)",
    ]
