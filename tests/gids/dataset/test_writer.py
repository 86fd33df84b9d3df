"""Writing: what goes in comes out for any layout, what breaks a rule is refused, and nothing half-made is left."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gids
from gids import ConfigError, DatasetError, DatasetWriter
from gids.dataset import npy_header, raw_rows, verify
from gids.table import DTYPES

from .toy import toy, values


def random_rows(num_rows, dim, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    if DTYPES[dtype].is_floating_point:
        return torch.randn(num_rows, dim, generator=generator).to(DTYPES[dtype])
    return torch.randint(0, 100, (num_rows, dim), generator=generator).to(DTYPES[dtype])


@given(
    dtype=st.sampled_from(list(DTYPES)),
    dim=st.sampled_from([1, 2, 3, 7, 100, 128, 384, 768]),
    num_rows=st.integers(0, 300),
    stripes=st.integers(1, 4),
    stripe_rows=st.integers(1, 50),
    padding=st.sampled_from([0, 1, 13, 512]),
    cuts=st.lists(st.integers(0, 300), max_size=4),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_table_round_trips(tmp_path_factory, dtype, dim, num_rows, stripes, stripe_rows, padding, cuts, seed):
    path = tmp_path_factory.mktemp("round") / "data"
    rows = random_rows(num_rows, dim, dtype, seed)
    stride = dim * DTYPES[dtype].itemsize + padding
    with DatasetWriter(path, threads=1) as writer:
        writer.add_nodes(num_rows)
        table = writer.features(dtype, dim, stripes=stripes, stripe_rows=stripe_rows, row_stride=stride)
        bounds = sorted({0, num_rows, *(cut for cut in cuts if cut < num_rows)})
        for begin, end in itertools.pairwise(bounds):
            part = rows[begin:end]
            table.append(part if dtype == "bfloat16" or begin % 2 else part.numpy())
    dataset = gids.open(path)
    stored = dataset.feature_table()
    assert (stored.dtype, stored.dim, stored.num_rows, stored.row_stride) == (dtype, dim, num_rows, stride)
    assert len(stored.stripes) == stripes
    assert torch.equal(values(stored).view(num_rows, dim), rows)
    assert verify(dataset) == []


@given(
    num_src=st.integers(1, 20),
    degrees=st.lists(st.integers(0, 9), min_size=1, max_size=20),
    wide=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=30, deadline=None)
def test_any_topology_round_trips(tmp_path_factory, num_src, degrees, wide, seed):
    path = tmp_path_factory.mktemp("round") / "data"
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    indices = np.random.default_rng(seed).integers(0, num_src, indptr[-1]).astype(np.int64 if wide else np.int32)
    etype = ("a/b", ".", "ü")
    with DatasetWriter(path, threads=1) as writer:
        writer.add_nodes(num_src, "a/b")
        writer.add_nodes(len(degrees), "ü")
        writer.add_csc(indptr, indices, etype)
    dataset = gids.open(path)
    assert dataset.edge_types == [etype]
    assert np.array_equal(dataset.indptr(), indptr)
    assert np.array_equal(values(dataset.indices_table()), indices)
    assert dataset.indices_table().dtype == ("int64" if wide else "int32")
    assert verify(dataset) == []


def test_identity_is_that_of_the_contents(tmp_path):
    first, second = toy(tmp_path / "one"), toy(tmp_path / "two")
    assert first.id == second.id
    with DatasetWriter(tmp_path / "other") as writer:
        writer.add_nodes(4)
        writer.add_features(torch.arange(12, dtype=torch.float32).view(4, 3))
    assert gids.open(tmp_path / "other").id != first.id
    with DatasetWriter(tmp_path / "striped") as writer:
        writer.add_nodes(4)
        writer.add_features(torch.arange(12, dtype=torch.float32).view(4, 3), stripes=2, stripe_rows=1)
    assert gids.open(tmp_path / "striped").id == gids.open(tmp_path / "other").id


def test_moved_dataset_opens(tmp_path):
    dataset = toy(tmp_path / "toy")
    moved = dataset.path.rename(tmp_path / "elsewhere")
    assert values(gids.open(moved).feature_table()).tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]


def test_stripes_on_other_drives(tmp_path):
    drives = [tmp_path / name for name in ("nvme0", "nvme1", "nvme2")]
    rows = torch.randn(1000, 5)

    def write(overwrite=False):
        with DatasetWriter(tmp_path / "data", stripe_dirs=drives, overwrite=overwrite) as writer:
            writer.add_nodes(1000)
            writer.add_features(rows, stripe_rows=7)
        return gids.open(tmp_path / "data")

    dataset = write()
    table = dataset.feature_table()
    assert [stripe.path.is_relative_to(drive) for stripe, drive in zip(table.stripes, drives, strict=True)] == [
        True
    ] * 3
    assert torch.equal(values(table), rows)
    old = [stripe.path for stripe in table.stripes]
    assert torch.equal(values(write(overwrite=True).feature_table()), rows)
    assert not any(path.exists() for path in old)


def test_big_endian_and_strided_arrays(tmp_path):
    rows = np.arange(24, dtype=">f4").reshape(4, 6)[:, ::2]
    with DatasetWriter(tmp_path / "data") as writer:
        writer.add_nodes(4)
        writer.add_features(rows)
    assert np.array_equal(values(gids.open(tmp_path / "data").feature_table()), rows.astype("f4"))


def test_npy_in_place(tmp_path):
    rows = np.random.default_rng(0).standard_normal((100, 33))
    np.save(tmp_path / "x.npy", rows)
    file = npy_header(tmp_path / "x.npy")
    with DatasetWriter(tmp_path / "data") as writer:
        writer.add_nodes(100)
        writer.reference_features(file)
    dataset = gids.open(tmp_path / "data")
    table = dataset.feature_table()
    assert table.stripes[0].path == tmp_path / "x.npy"
    assert table.stripes[0].data_offset == 128
    assert np.array_equal(values(table), rows)
    data = bytearray((tmp_path / "x.npy").read_bytes())
    data[128 + 57 * 33 * 8] ^= 1
    (tmp_path / "x.npy").write_bytes(data)
    assert [(p.table, p.first_row) for p in verify(dataset)] == [("_N/feat", 57)]
    np.save(tmp_path / "x.npy", rows[:99])
    with pytest.raises(DatasetError, match=r"x\.npy of table _N/feat must have 26528 bytes"):
        gids.open(tmp_path / "data")


def test_raw_in_place(tmp_path):
    rows = torch.randn(10, 5).to(torch.bfloat16)
    rows.view(torch.int16).numpy().tofile(tmp_path / "x.dat")
    with DatasetWriter(tmp_path / "data") as writer:
        writer.add_nodes(10)
        writer.reference_features(raw_rows(tmp_path / "x.dat", "bfloat16", 5))
    assert torch.equal(values(gids.open(tmp_path / "data").feature_table()), rows)
    with pytest.raises(DatasetError, match="must hold whole rows of 24 bytes"):
        raw_rows(tmp_path / "x.dat", "float32", 6)
    with pytest.raises(DatasetError, match="must have at least 110 bytes for 11 rows"):
        raw_rows(tmp_path / "x.dat", "bfloat16", 5, 11)


def test_npy_that_cannot_be_used_in_place(tmp_path):
    np.save(tmp_path / "fortran.npy", np.asfortranarray(np.ones((3, 4))))
    np.save(tmp_path / "big.npy", np.ones((3, 4), ">f4"))
    np.save(tmp_path / "scalar.npy", np.float32(1))
    (tmp_path / "short.npy").write_bytes(b"\x93NUMPY\x01\x00")
    for name, message in (("fortran", "convert it"), ("big", "convert it"), ("scalar", "rows"), ("short", "whole")):
        with pytest.raises(DatasetError, match=message):
            npy_header(tmp_path / f"{name}.npy")


def refused(tmp_path, message, act, error=ConfigError):
    def write():
        with DatasetWriter(tmp_path / "data") as writer:
            writer.add_nodes(4)
            act(writer)

    with pytest.raises(error, match=message):
        write()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("message", "act"),
    [
        (r"_N/feat must have 4 rows \(got shape \[3, 2\]\)", lambda w: w.add_features(torch.ones(3, 2))),
        (
            r"rows of _N/feat must have dtype float32 \(got float64\)",
            lambda w: w.features("float32", 2).append(np.ones((4, 2))),
        ),
        (
            r"rows of _N/feat must have shape \[n, 3\] \(got \[4, 2\]\)",
            lambda w: w.features("float64", 3).append(np.ones((4, 2))),
        ),
        (r"_N/feat must get 4 rows \(got 3\)", lambda w: w.features("float64", 2).append(np.ones((3, 2)))),
        (r"_N/feat must get 4 rows \(got 5\)", lambda w: w.features("float64", 2).append(np.ones((5, 2)))),
        ("dtype must be one of", lambda w: w.features("complex64", 2)),
        ("dim of _N/feat must be at least 1", lambda w: w.features("float32", 0)),
        ("row_stride of _N/feat must be at least row_bytes = 8", lambda w: w.features("float32", 2, row_stride=7)),
        ("stripes and stripe_rows must be at least 1", lambda w: w.features("float32", 2, stripes=2, stripe_rows=0)),
        (r"source ids .* must be in \[0, 4\) \(got 4 at row 1\)", lambda w: w.add_csc([0, 1, 2, 2, 2], [0, 4])),
        (r"source ids .* must be in \[0, 4\) \(got -1 at row 0\)", lambda w: w.add_csc([0, 1, 2, 2, 2], [-1, 1])),
        (r"indptr must not decrease \(got 2 then 1 at node 1\)", lambda w: w.add_csc([0, 2, 1, 2, 2], [0, 1])),
        (r"indptr must begin at 0 and end at 2 \(got 0 and 3\)", lambda w: w.add_csc([0, 1, 2, 2, 3], [0, 1])),
        (r"indptr must begin at 0 and end at 2 \(got 1 and 2\)", lambda w: w.add_csc([1, 1, 2, 2, 2], [0, 1])),
        (r"indptr must have 5 rows \(got shape \[4\]\)", lambda w: w.add_csc([0, 1, 2, 2], [0, 1])),
        (
            r"ids of split 'train' of _N must be in \[0, 4\) \(got -1 at row 1\)",
            lambda w: w.add_split("train", [0, -1]),
        ),
        (r"ids of split 'train' of _N must be in \[0, 4\) \(got 4 at row 0\)", lambda w: w.add_split("train", [4])),
        ("split 'train' must be a list of node ids", lambda w: w.add_split("train", [0.5])),
        ("split 'train' must be a list of node ids", lambda w: w.add_split("train", torch.ones(4, dtype=torch.bool))),
        (r"labels of _N must be in \[-1, 3\) \(got 3 at row 3\)", lambda w: w.add_labels([0, 1, 2, 3], num_classes=3)),
        ("_N/labels must have 4 rows", lambda w: w.add_labels([0, 1])),
        ("node type 'paper' must be declared", lambda w: w.add_features(torch.ones(4, 1), "paper")),
        ("node type '_N' was added before", lambda w: w.add_nodes(4)),
        ("num_nodes of 'x' must not be negative", lambda w: w.add_nodes(-1, "x")),
        ("must not be empty", lambda w: w.add_nodes(1, "")),
        ("_N/feat was added before", lambda w: [w.features("float32", 1), w.features("float32", 1)]),
        ("needs indices", lambda w: w.indptr().append(np.zeros(5, np.int64))),
        ("must be added before its other tables", lambda w: w.edge_features("float32", 2)),
        (
            "must have 1 rows, or edge ids",
            lambda w: [w.add_csc([0, 1, 1, 1, 1], [0]), w.edge_features("float32", 1, num_rows=2)],
        ),
    ],
)
def test_refuses_and_leaves_nothing(tmp_path, message, act):
    refused(tmp_path, message, act)


def test_streamed_indptr_is_checked_at_the_end(tmp_path):
    def act(writer):
        writer.indptr().append(np.array([0, 1, 0, 1, 1]))
        writer.indices(1, "int32").append(np.array([0], np.int32))

    refused(tmp_path, "must not decrease", act, DatasetError)


def test_existing_paths(tmp_path):
    toy(tmp_path / "toy")
    with pytest.raises(DatasetError, match="exists; choose another path"):
        DatasetWriter(tmp_path / "toy")
    (tmp_path / "photos").mkdir()
    with pytest.raises(DatasetError, match="is no gids dataset: it will not be overwritten"):
        DatasetWriter(tmp_path / "photos", overwrite=True)
    with pytest.raises(DatasetError, match="must be a directory, to hold the new dataset"):
        DatasetWriter(tmp_path / "none" / "data")


def test_empty_graph(tmp_path):
    with DatasetWriter(tmp_path / "data") as writer:
        writer.add_nodes(0)
        writer.add_features(torch.empty(0, 3))
        writer.add_csc([0], [])
        writer.add_split("train", [])
    dataset = gids.open(tmp_path / "data")
    assert dataset.num_nodes() == dataset.num_edges() == 0
    assert len(dataset.split("train")) == 0
    assert verify(dataset) == []
