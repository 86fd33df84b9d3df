"""RowReader over every engine: the same rows, bit for bit, whatever the shape of the table."""

import numpy as np
import pytest
import torch
from storage_tables import ENGINES, make_table, raw

from gids import ConfigError, RowTable, StorageError, Stripe
from gids.storage import RowReader, StorageOptions

SHAPES = {
    "block": {"dim": 128},
    "odd": {"dim": 25},
    "prime": {"dim": 127, "dtype": "int8", "offset": 3},
    "int32": {"dim": 1, "dtype": "int32", "num_rows": 5000},
    "int64": {"dim": 1, "dtype": "int64", "num_rows": 5000},
    "npy header": {"dim": 100, "offset": 128},
    "stride": {"dim": 100, "stride": 512},
    "stride without padding at the tail": {"dim": 100, "stride": 4096, "num_rows": 50},
    "768": {"dim": 768, "dtype": "float16", "num_rows": 300},
    "longer than a read": {"dim": 20_000, "num_rows": 20, "offset": 5},
    "striped": {"dim": 25, "files": 3, "stripe_rows": 7},
    "more files than units": {"dim": 25, "files": 4, "stripe_rows": 500},
    "one row": {"dim": 25, "num_rows": 1},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_arrive(tmp_path, engine, shape):
    table, values = make_table(tmp_path, **SHAPES[shape])
    rows = np.random.default_rng(3).integers(0, table.num_rows, min(2000, 4_000_000 // table.row_bytes))
    options = StorageOptions(engine=engine, max_io_bytes=16 << 10, staging_bytes=128 << 10, queue_depth=8)
    with RowReader(table, options) as reader:
        assert reader.engine == engine
        np.testing.assert_array_equal(raw(reader.read(rows)), values[rows])
        ends = [table.num_rows - 1, 0]
        np.testing.assert_array_equal(raw(reader.read(ends)), values[ends])
        everything = np.arange(table.num_rows)
        np.testing.assert_array_equal(raw(reader.read(everything)), values)


def test_no_rows(tmp_path, engine):
    table, _ = make_table(tmp_path)
    with RowReader(table, StorageOptions(engine=engine)) as reader:
        assert reader.read([]).shape == (0, 25)


def test_rows_go_to_their_places(tmp_path, engine):
    table, values = make_table(tmp_path, dim=25, num_rows=500)
    rows, places = np.array([7, 3, 499, 8, 3]), np.array([11, 0, 4, 2, 9], np.int32)
    out = torch.full((12, 25), -1.0)
    with RowReader(table, StorageOptions(engine=engine, merge_gap_bytes=4096)) as reader:
        reader.submit(rows, out, places=places).wait()
        np.testing.assert_array_equal(raw(out[torch.from_numpy(places).long()]), values[rows])
        assert (out[[1, 3, 5, 6, 7, 8, 10]] == -1).all(), "and nowhere else"
        for wrong, message in (([12, 0], "places must be in"), ([-1, 0], "not be negative"), ([0], "as many as rows")):
            with pytest.raises(ConfigError, match=message):
                reader.submit([1, 2], out, places=np.array(wrong, np.int32))


def test_submit_overlaps_and_order_is_free(tmp_path, engine):
    table, values = make_table(tmp_path)
    with RowReader(table, StorageOptions(engine=engine, queue_depth=4, threads=2)) as reader:
        wanted = [np.random.default_rng(i).integers(0, 1000, 500) for i in range(10)]
        pending = [reader.submit(rows, torch.empty(500, 25)) for rows in wanted]
        for rows, read in reversed(list(zip(wanted, pending, strict=True))):
            np.testing.assert_array_equal(raw(read.wait()), values[rows])
            assert read.done()


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_a_million_rows_in_any_order(tmp_path, engine, dtype):
    table, values = make_table(tmp_path, dim=1, dtype=dtype, num_rows=300_000, offset=128)
    rows = np.random.default_rng(8).integers(0, 300_000, 1_000_000)
    with RowReader(table, StorageOptions(engine=engine)) as reader:
        np.testing.assert_array_equal(raw(reader.read(rows)), values[rows])
        assert reader.stats()["unique_rows"] == len(np.unique(rows))


@pytest.mark.parametrize("row_bytes", [1024, 1028])
def test_more_rows_than_caches_hold(tmp_path, engine, row_bytes):
    table, values = make_table(tmp_path, dim=row_bytes // 4, num_rows=2000)
    rows = np.random.default_rng(9).integers(0, 2000, 40_000)
    with RowReader(table, StorageOptions(engine=engine)) as reader:
        np.testing.assert_array_equal(raw(reader.read(rows)), values[rows])


@pytest.mark.skipif("uring" not in ENGINES, reason="the kernel refuses io_uring")
@pytest.mark.parametrize("polled", ["sqpoll", "iopoll"])
def test_polling(tmp_path, polled):
    table, values = make_table(tmp_path, dim=128)
    rows = np.random.default_rng(3).integers(0, 1000, 3000)
    with RowReader(table, StorageOptions(engine="uring", threads=2, **{polled: True})) as reader:
        try:
            got = reader.read(rows)
        except StorageError as error:
            if polled == "iopoll" and "iopoll needs" in str(error):
                pytest.skip(f"this disk does not poll: {error}")
            raise
        np.testing.assert_array_equal(raw(got), values[rows])


def test_stats_count(tmp_path, engine):
    table, _ = make_table(tmp_path, dim=128)
    with RowReader(table, StorageOptions(engine=engine, merge_gap_bytes=0)) as reader:
        reader.read([1, 5, 5, 9])
        stats = reader.stats()
        assert (stats["jobs"], stats["rows"], stats["unique_rows"], stats["reads"]) == (1, 4, 3, 3)
        assert stats["bytes_read"] == 3 * 512


@pytest.mark.parametrize(
    "out",
    [torch.empty(2, 25), torch.empty(1, 24), torch.empty(1, 25, dtype=torch.float64), torch.empty(25, 1).T[:, ::2]],
)
def test_refuses_wrong_out(tmp_path, out):
    table, _ = make_table(tmp_path)
    with RowReader(table) as reader, pytest.raises(ConfigError, match="out must be"):
        reader.read([0], out=out)


def test_missing_file(tmp_path, engine):
    table = RowTable("t", "float32", 4, 10, 16, (Stripe(tmp_path / "none", 0, 10),), 10)
    with pytest.raises(StorageError, match="none") as error:
        RowReader(table, StorageOptions(engine=engine))
    assert error.value.errno == 2


def test_short_file_is_refused_at_open(tmp_path, engine):
    table, _ = make_table(tmp_path, dim=25, num_rows=10)
    path = table.stripes[0].path
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(StorageError, match="shorter than its table"):
        RowReader(table, StorageOptions(engine=engine))


def test_closed_reader(tmp_path, engine):
    table, _ = make_table(tmp_path)
    reader = RowReader(table, StorageOptions(engine=engine))
    reader.close()
    reader.close()
    with pytest.raises(StorageError, match="closed"):
        reader.read([0])
