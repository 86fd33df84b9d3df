"""A column in memory is the column on disk, however it is stored, and what is missing is said."""

import numpy as np
import pytest

from gids import DatasetError, RowTable, StorageError, Stripe
from gids.sampling import load
from tests.gids.sampling.test_disk import write_table


@pytest.mark.parametrize("piece", [4096, 10_000, 1 << 20])
@pytest.mark.parametrize("header", [0, 128, 4096])
def test_one_file_in_pieces(tmp_path, monkeypatch, piece, header):
    monkeypatch.setattr(load, "PIECE_BYTES", piece)
    values = np.arange(20_011, dtype=np.int32)
    path = tmp_path / "column"
    path.write_bytes(b"\1" * header + values.tobytes())
    table = RowTable("column", "int32", 1, len(values), 4, (Stripe(path, header, len(values)),), len(values))
    assert np.array_equal(load.load_table(table), values)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(StorageError, match="file ends early"):
        load.load_table(table)


def test_stripes_and_strides(tmp_path):
    values = np.random.default_rng(1).integers(0, 1 << 40, 1000)
    assert np.array_equal(load.load_table(write_table(tmp_path, "striped", values, stripes=3)), values)
    path = tmp_path / "wide"
    rows = np.zeros((1000, 2), np.int64)
    rows[:, 0] = values
    path.write_bytes(rows.tobytes()[:-8])
    assert np.array_equal(load.load_table(RowTable("w", "int64", 1, 1000, 16, (Stripe(path, 0, 1000),), 1000)), values)
    assert len(load.load_table(write_table(tmp_path, "none", values[:0]))) == 0


def test_values_are_checked_while_they_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(load, "PIECE_BYTES", 4096)
    values = np.arange(20_000, dtype=np.int32)
    path = tmp_path / "column"
    path.write_bytes(values.tobytes())
    table = RowTable("column", "int32", 1, len(values), 4, (Stripe(path, 0, len(values)),), len(values))
    assert np.array_equal(load.load_table(table, below=20_000), values)
    for bad, said in ((20_000, "20000"), (-3, "-3")):
        values[12_345] = bad
        path.write_bytes(values.tobytes())
        with pytest.raises(DatasetError, match=rf"column must be in \[0, 20000\) \(got .*{said}"):
            load.load_table(table, below=20_000)
        values[12_345] = 12_345
