"""Rows out equal rows in the file, bit for bit; order, failures, budget."""

import pytest
import torch

from gids import ConfigError, GidsError, StorageError
from gids.tiers import FeatureStore, HostBuffer
from tests.gids.tiers.conftest import MemoryReader, make_table

ROWS = 300
POLICIES = ["random", "lru", "sieve", "gids(4)", "window(1)", "window(8)", "belady"]


def run_store(store, values, batches, group, dtype=None):
    for begin in range(0, len(batches), group):
        now = batches[begin : begin + group]
        pending = store.start(store.plan_group(now, batches[begin + group :]))
        for i, batch in enumerate(now):
            out = store.gather(pending, i, dtype=dtype)
            expected = values[batch] if dtype is None else values[batch].to(dtype)
            assert out.dtype == expected.dtype
            assert torch.equal(out.view(torch.uint8), expected.view(torch.uint8))


DTYPES = ["float16", "bfloat16", "float32", "float64", "uint8", "int8", "int16", "int32", "int64"]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("capacity", [0, 1, 20, ROWS])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_right(policy, capacity, dtype, batches_of):
    for group, dim in ((1, 25), (3, 1)):
        check_rows(policy, capacity, dtype, batches_of, group, dim)


def check_rows(policy, capacity, dtype, batches_of, group, dim):
    table, values = make_table(ROWS, dim, dtype)
    reader = MemoryReader(values)
    host = HostBuffer.load(table, reader, torch.tensor([5, 0, 77]))
    reader.rows_read = 0
    store = FeatureStore(table, reader, cache_rows=capacity, policy=policy, host_buffer=host)
    batches = batches_of(10, 40, ROWS)
    run_store(store, values, batches, group)
    c = store.counters
    assert c.requests == sum(map(len, batches)) == c.cache + c.host + c.disk + c.duplicates
    assert c.disk == reader.rows_read
    assert c.host == sum(row in (0, 5, 77) for batch in batches for row in batch.tolist())
    assert (c.cache > 0) == (capacity > 0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("to", [None, torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_dtypes(dtype, to, batches_of):
    table, values = make_table(ROWS, 7, dtype)
    store = FeatureStore(table, MemoryReader(values), cache_rows=50)
    run_store(store, values, batches_of(4, 40, ROWS), 2, to)


def test_float_conversions_round_as_torch():
    """Every float16 and bfloat16 bit pattern, and floats around every rounding edge."""
    patterns = torch.arange(65536, dtype=torch.int32).to(torch.int16)
    table, _ = make_table(64, 1024, "float16")
    for dtype in (torch.float16, torch.bfloat16):
        values = patterns.view(dtype).view(64, 1024)
        table, _ = make_table(64, 1024, str(dtype).removeprefix("torch."))
        check_conversion(table, values, torch.float32)
    halves = patterns.view(torch.float16).float().view(64, 1024)
    table, _ = make_table(64, 1024, "float32")
    for values in (halves, halves * 1.00048828125, torch.nextafter(halves, torch.tensor(1e9)), halves * 2.0**-8):
        check_conversion(table, values, torch.float16)
        check_conversion(table, values, torch.bfloat16)


def check_conversion(table, values, to):
    store = FeatureStore(table, MemoryReader(values))
    out = store.gather(store.start(store.plan_group([torch.arange(64)])), 0, dtype=to)
    expected = values.to(to)
    nan = expected.isnan()
    assert torch.equal(out.isnan(), nan)
    assert torch.equal(out[~nan].view(torch.uint8), expected[~nan].view(torch.uint8))


def test_integer_target_is_refused():
    table, values = make_table(10, 2)
    store = FeatureStore(table, MemoryReader(values))
    with pytest.raises(ConfigError, match="float"):
        store.gather(store.start(store.plan_group([torch.arange(3)])), 0, dtype=torch.int32)


def test_out_is_filled_and_checked():
    table, values = make_table(10, 2)
    store = FeatureStore(table, MemoryReader(values))
    pending = store.start(store.plan_group([torch.arange(3)]))
    with pytest.raises(ConfigError, match=r"\[3, 2\]"):
        store.gather(pending, 0, out=torch.empty(2, 2))
    out = torch.empty(3, 2, dtype=torch.float16)
    assert store.gather(pending, 0, out=out) is out
    assert torch.equal(out, values[:3].half())


def test_batches_are_gathered_in_order():
    table, values = make_table(10, 2)
    store = FeatureStore(table, MemoryReader(values), cache_rows=2)
    pending = store.start(store.plan_group([torch.arange(3), torch.arange(2)]))
    with pytest.raises(ConfigError, match="expected group 0, batch 0"):
        store.gather(pending, 1)
    store.gather(pending, 0)
    store.gather(pending, 1)
    with pytest.raises(ConfigError, match="expected group 1, batch 0"):
        store.gather(pending, 1)


def test_memory_of_groups_in_flight_is_counted():
    table, values = make_table(10, 2)  # 8 bytes a row
    store = FeatureStore(table, MemoryReader(values))
    first = store.start(store.plan_group([torch.arange(3)]))
    second = store.start(store.plan_group([torch.arange(2)]))
    assert store.nbytes == store.planner.memory_bytes + 40
    store.gather(first, 0)
    assert store.nbytes == store.planner.memory_bytes + 16
    assert torch.equal(store.gather(second, 0), values[:2])
    assert store.nbytes == store.planner.memory_bytes


def test_after_a_failed_read_a_reset_makes_the_store_usable(batches_of):
    table, values = make_table(ROWS, 3)
    reader = MemoryReader(values)
    store = FeatureStore(table, reader, cache_rows=100, policy="lru")
    batches = batches_of(3, 40, ROWS)
    reader.fail_next = True
    pending = store.start(store.plan_group(batches[:1]))
    later = store.plan_group(batches[1:2])
    with pytest.raises(StorageError):
        store.gather(pending, 0)
    store.reset()
    with pytest.raises(GidsError, match="void"):
        store.start(later)
    run_store(store, values, batches, 1)


def test_host_buffer_must_match_the_table():
    table, values = make_table(10, 2)
    other, other_values = make_table(10, 3)
    host = HostBuffer.load(other, MemoryReader(other_values), torch.tensor([1]))
    with pytest.raises(ConfigError, match="host_buffer"):
        FeatureStore(table, MemoryReader(values), host_buffer=host)


@pytest.mark.parametrize("bad", [[1, 1], [-1]])
def test_host_rows_must_be_unique_and_not_negative(bad):
    table, values = make_table(10, 2)
    with pytest.raises(ConfigError):
        HostBuffer.load(table, MemoryReader(values), torch.tensor(bad))
