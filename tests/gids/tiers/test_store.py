"""Rows out equal rows in the file, bit for bit; order, failures, budget."""

import pytest
import torch

from gids import ConfigError, GidsError, StorageError
from gids.ledger import Ledger
from gids.tiers import HostBuffer, TableStore
from gids.tiers.contract import fetch_now
from tests.gids.tiers.conftest import MemoryReader, begun, make_table

ROWS = 300
POLICIES = ["random", "lru", "sieve", "gids(4)", "window(1)", "window(8)", "belady"]


def run_store(store, values, batches, group):
    for begin in range(0, len(batches), group):
        now = batches[begin : begin + group]
        ticket = begun(store, now, batches[begin + group :])
        for i, batch in enumerate(now):
            out = store.gather(ticket, i)
            assert out.dtype == store.dtype
            expected = values[batch].to(store.dtype)
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
    store = TableStore(table, reader, cache_rows=capacity, policy=policy, host_buffer=host)
    batches = batches_of(10, 40, ROWS)
    run_store(store, values, batches, group)
    c = store.counts()
    assert c["requests"] == sum(map(len, batches)) == c["cache"] + c["host"] + c["disk"] + c["duplicates"]
    assert c["disk"] == reader.rows_read
    assert c["host"] == sum(row in (0, 5, 77) for batch in batches for row in batch.tolist())
    assert (c["cache"] > 0) == (capacity > 0)
    assert c["bytes_delivered"] == c["requests"] * table.row_bytes
    assert (c["reads"], c["bytes_read"]) == (reader.reads, reader.stats()["bytes_read"])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("to", [None, torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_dtypes(dtype, to, batches_of):
    """Floating point rows become what is wanted, all others stay as they are."""
    table, values = make_table(ROWS, 7, dtype)
    store = TableStore(table, MemoryReader(values), cache_rows=50, dtype=to)
    assert store.dtype == (to if to is not None and values.dtype.is_floating_point else values.dtype)
    run_store(store, values, batches_of(4, 40, ROWS), 2)


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
    out = fetch_now(TableStore(table, MemoryReader(values), dtype=to), torch.arange(64))
    expected = values.to(to)
    nan = expected.isnan()
    assert torch.equal(out.isnan(), nan)
    assert torch.equal(out[~nan].view(torch.uint8), expected[~nan].view(torch.uint8))


def test_bad_arguments():
    table, values = make_table(10, 2)
    with pytest.raises(ConfigError, match="dtype must be one of"):
        TableStore(table, MemoryReader(values), dtype=torch.complex64)
    with pytest.raises(ConfigError, match=r"cache_rows must not be negative \(got -1\)"):
        TableStore(table, MemoryReader(values), cache_rows=-1)


def test_batches_are_gathered_in_order():
    table, values = make_table(10, 2)
    store = TableStore(table, MemoryReader(values), cache_rows=2)
    ticket = begun(store, [torch.arange(3), torch.arange(2)])
    with pytest.raises(ConfigError, match="expected group 0, batch 0"):
        store.gather(ticket, 1)
    store.gather(ticket, 0)
    store.gather(ticket, 1)
    with pytest.raises(ConfigError, match="expected group 1, batch 0"):
        store.gather(ticket, 1)


@pytest.mark.parametrize("arena_rows", [1, 10])
def test_memory_of_groups_in_flight_is_drawn_and_given_back(arena_rows):
    """Whether they share the arena or, larger than it, have memory of their own."""
    table, values = make_table(10, 2)  # 8 bytes a row
    ledger = Ledger(1 << 20)
    store = TableStore(table, MemoryReader(values), arena_rows=arena_rows, ledger=ledger)
    store.group_account.limit = 80
    first, second = begun(store, [torch.arange(3)]), begun(store, [torch.arange(5, 7)])
    assert ledger.usage()["groups t"].used == 40
    store.gather(first, 0)
    assert ledger.usage()["groups t"].used == 16
    assert torch.equal(store.gather(second, 0), values[5:7])
    assert (ledger.usage()["groups t"].used, ledger.usage()["groups t"].peak) == (0, 40)


def test_fixed_memory_is_in_the_ledger_until_the_store_is_closed():
    table, values = make_table(100, 2)
    reader, ledger = MemoryReader(values), Ledger(1 << 20)
    host = HostBuffer.load(table, reader, torch.tensor([1, 2]))
    store = TableStore(table, reader, cache_rows=30, host_buffer=host, ledger=ledger)
    usage = ledger.usage()
    assert usage["cache"].used == store.nbytes >= 30 * table.row_bytes
    assert usage["host_buffer"].used == host.nbytes
    begun(store, [torch.arange(50)])
    store.close()
    assert {name: part.used for name, part in ledger.usage().items()} == dict.fromkeys(ledger.usage(), 0)
    assert reader.closed == 1


def test_after_a_failed_read_a_reset_makes_the_store_usable(batches_of):
    table, values = make_table(ROWS, 3)
    reader = MemoryReader(values)
    store = TableStore(table, reader, cache_rows=100, policy="lru")
    batches = batches_of(3, 40, ROWS)
    reader.fail_next = True
    ticket = begun(store, batches[:1])
    later = store.plan(batches[1:2], [])
    with pytest.raises(StorageError):
        store.gather(ticket, 0)
    store.reset()
    with pytest.raises(GidsError, match="void"):
        later.begin()
    with pytest.raises(GidsError, match="void"):
        store.gather(ticket, 0)
    assert store.group_account.used == 0
    run_store(store, values, batches, 1)


def test_host_buffer_must_match_the_table():
    table, values = make_table(10, 2)
    other, other_values = make_table(10, 3)
    host = HostBuffer.load(other, MemoryReader(other_values), torch.tensor([1]))
    with pytest.raises(ConfigError, match="host_buffer"):
        TableStore(table, MemoryReader(values), host_buffer=host)


@pytest.mark.parametrize("bad", [[1, 1], [-1]])
def test_host_rows_must_be_unique_and_not_negative(bad):
    table, values = make_table(10, 2)
    with pytest.raises(ConfigError):
        HostBuffer.load(table, MemoryReader(values), torch.tensor(bad))
