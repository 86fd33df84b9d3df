"""What every table store owes the pipeline (gids/tiers/contract.py), as one suite: test files say only how to open theirs.

A class that derives from :class:`StoreContract` has ``open(table, storage, **options)``, which opens a store whose
accounts are in ``ledger``; ``ids`` makes row ids what the store takes; ``rows`` makes what it gathers a tensor.
"""

import errno
import threading
import time

import numpy as np
import pytest
import torch

from gids.errors import ConfigError, GidsError, StorageError
from gids.ledger import Ledger, Stopped
from gids.storage import RowReader, StorageOptions
from gids.storage.options import FaultOptions
from gids.table import RowTable, Stripe
from gids.tiers import HostBuffer
from gids.tiers.contract import fetch_now

ROWS, DIM = 500, 9
POLICIES = ["window(3)", "belady", "gids(3)", "lru", "sieve", "random"]


def batches_of(count, size=40, seed=0):
    """Batches of unique rows, some rows again and again."""
    rng = np.random.default_rng(seed)
    weights = 1 / np.arange(1, ROWS + 1)
    return [torch.from_numpy(rng.choice(ROWS, size, replace=False, p=weights / weights.sum())) for _ in range(count)]


def wait_until(holds, seconds=60):
    """Wait for what another thread does."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.001)


class StoreContract:
    @pytest.fixture(autouse=True)
    def _table(self, tmp_path):
        self.values = torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(3))
        path = tmp_path / "rows"
        path.write_bytes(self.values.numpy().tobytes())
        self.path = path
        self.table = RowTable("t", "float32", DIM, ROWS, DIM * 4, (Stripe(path, 0, ROWS),), ROWS)
        self.ledger = Ledger(1 << 30)
        self.opened = []
        yield
        for store in self.opened:
            store.close()
        vars(self).clear()  # pytest keeps the instance

    def make(self, fault=None, **options):
        # One read for each row: neither merged nor cut, so that a fault hits a row that can be told.
        storage = StorageOptions(engine="pread", threads=1, merge_gap_bytes=0, max_io_bytes=4096, staging_bytes=1 << 20)
        if fault is not None:
            storage = StorageOptions(**{**vars(storage), "fault": FaultOptions(**fault)})
        options = {"group_bytes": ROWS * DIM * 4} | options
        store = self.open(self.table, storage, **options)
        self.opened.append(store)
        return store

    def planned(self, store, batches, lookahead=()):
        return store.plan([self.ids(batch) for batch in batches], [self.ids(batch) for batch in lookahead])

    def begun(self, store, batches, lookahead=()):
        ticket = self.planned(store, batches, lookahead)
        ticket.begin()
        while not ticket.underway:
            store.advance()
        return ticket

    def check(self, store, ticket, batches):
        for number, batch in enumerate(batches):
            assert torch.equal(self.rows(store.gather(ticket, number)), self.values[batch])

    @pytest.mark.parametrize("capacity", [0, 30, ROWS])
    @pytest.mark.parametrize("policy", POLICIES)
    def test_rows_are_those_of_the_file_in_the_batchs_order(self, policy, capacity):
        with RowReader(self.table, StorageOptions(engine="pread")) as reader:
            host = HostBuffer.load(self.table, reader, torch.tensor([0, 2, 77]))
        store = self.make(cache_rows=capacity, policy=policy, host_buffer=host)
        batches = batches_of(9)
        for at in range(0, 9, 3):
            ticket = self.begun(store, batches[at : at + 3], batches[at + 3 :])
            self.check(store, ticket, batches[at : at + 3])
        counts = store.counts()
        assert counts["requests"] == 9 * 40 == sum(counts[name] for name in ("cache", "host", "disk", "duplicates"))
        assert counts["host"] == sum(int(row) in (0, 2, 77) for batch in batches for row in batch)
        assert (counts["cache"] > 0) == (capacity > 0)
        assert counts["bytes_delivered"] == 9 * 40 * DIM * 4
        assert counts["reads"] > 0
        assert counts["bytes_read"] >= counts["disk"] * DIM * 4

    def test_a_plan_moves_no_bytes_and_takes_no_memory(self):
        store = self.make()
        ticket = self.planned(store, batches_of(2))
        assert ticket.counters.requests == 80
        assert not ticket.underway
        ticket.begin()
        assert store.counts()["reads"] == store.group_account.used == 0
        store.advance()
        wait_until(lambda: store.group_account.used > 0)

    def test_memory_goes_back_with_the_last_batch(self):
        store, batches = self.make(), batches_of(4)
        first, second = self.begun(store, batches[:2]), self.begun(store, batches[2:])
        both = store.group_account.used
        self.check(store, first, batches[:2])
        assert 0 < store.group_account.used < both
        self.check(store, second, batches[2:])
        assert store.group_account.used == 0
        assert store.group_account.usage.peak == both

    def test_batches_and_groups_are_gathered_in_order(self):
        store, batches = self.make(cache_rows=5), batches_of(4)
        first, second = self.begun(store, batches[:2]), self.begun(store, batches[2:])
        with pytest.raises(ConfigError, match="expected group 0, batch 0"):
            store.gather(first, 1)
        with pytest.raises(ConfigError, match="expected group 0, batch 0"):
            store.gather(second, 0)
        self.check(store, first, batches[:2])
        with pytest.raises(ConfigError, match="expected group 1, batch 0"):
            store.gather(first, 1)
        self.check(store, second, batches[2:])

    def test_what_was_not_read_is_not_gathered(self):
        store, batches = self.make(), batches_of(1)
        ticket = self.planned(store, batches)
        ticket.begin()
        with pytest.raises(GidsError, match="read"):
            store.gather(ticket, 0)
        store.advance()
        store.reset()

    def test_groups_of_nothing(self):
        store, batches = self.make(cache_rows=10), batches_of(2)
        nothing = torch.empty(0, dtype=torch.int64)
        self.check(store, self.begun(store, batches[:1]), batches[:1])
        self.begun(store, [])  # no batch of the group asks for this table
        self.check(store, self.begun(store, [nothing, batches[1], nothing]), [nothing, batches[1], nothing])

    def test_waiting_for_memory_ends_when_a_group_is_gathered(self):
        row = DIM * 4
        store, batches = self.make(group_bytes=50 * row), batches_of(2)
        first = self.begun(store, batches[:1])
        taken, later = store.group_account.used, []
        thread = threading.Thread(target=lambda: later.append(self.begun(store, batches[1:])))
        thread.start()
        time.sleep(0.05)
        assert store.group_account.used == taken, "40 rows of 50 are taken"
        self.check(store, first, batches[:1])
        thread.join(60)
        self.check(store, later[0], batches[1:])
        assert store.group_account.usage.peak <= 50 * row

    def test_stopping_the_account_wakes_who_waits_for_memory(self):
        store, batches = self.make(group_bytes=50 * DIM * 4), batches_of(2)
        first, later, outcome = self.begun(store, batches[:1]), [], []

        def advance():
            try:
                later.append(self.begun(store, batches[1:]))
            except Stopped:
                outcome.append("stopped")

        thread = threading.Thread(target=advance)
        thread.start()
        store.group_account.stop()
        thread.join(60)
        if later:  # its memory is waited for by the gather
            self.check(store, first, batches[:1])
            with pytest.raises(Stopped):
                store.gather(later[0], 0)
        else:
            assert outcome == ["stopped"]
        store.group_account.resume()
        store.reset()
        self.check(store, self.begun(store, batches[:1]), batches[:1])

    def test_a_failed_read_is_raised_by_the_gather_that_needs_it_and_a_reset_mends_the_store(self):
        store, batches = self.make(fault={"fail_at": 3, "error_number": errno.EIO}, cache_rows=100), batches_of(3)
        ticket = self.begun(store, batches[:1])
        later = self.planned(store, batches[1:2])
        with pytest.raises(StorageError, match="Input/output error") as caught:
            store.gather(ticket, 0)
        assert caught.value.path == str(self.path)
        assert 0 <= caught.value.offset < ROWS * DIM * 4
        store.reset()
        assert store.group_account.used == 0
        with pytest.raises(GidsError, match="void"):
            later.begin()
        with pytest.raises(GidsError, match="void"):
            store.gather(ticket, 0)
        for batch in batches:
            self.check(store, self.begun(store, [batch]), [batch])

    def test_reads_of_an_abandoned_group_write_nothing_after_a_reset(self):
        # Completions arrive late and in the reverse order: rows of the first group would land on those of the second.
        store, batches = self.make(fault={"delay_us": 20_000, "reorder": True}), batches_of(2)
        abandoned = self.begun(store, batches[:1])
        store.reset()
        self.check(store, self.begun(store, batches[1:]), batches[1:])
        with pytest.raises(GidsError, match="void"):
            store.gather(abandoned, 0)

    def test_a_cancelled_group_fails_and_the_next_after_a_reset_does_not(self):
        store, batches = self.make(fault={"delay_us": 200_000}), batches_of(2)
        ticket = self.begun(store, batches[:1])
        helper = threading.Thread(target=ticket.cancel)
        helper.start()
        helper.join(60)
        with pytest.raises(GidsError):
            store.gather(ticket, 0)
        ticket.cancel()
        store.reset()
        self.check(store, self.begun(store, batches[1:]), batches[1:])

    def test_a_cancelled_read_that_never_ends_does_not_block(self):
        store = self.make(fault={"stuck_at": 0})
        ticket = self.begun(store, batches_of(1))
        ticket.cancel()
        with pytest.raises(GidsError):
            store.gather(ticket, 0)

    def test_fetching_without_a_plan(self):
        store, (batch,) = self.make(cache_rows=10), batches_of(1)
        for _ in range(2):
            assert torch.equal(self.rows(fetch_now(store, self.ids(batch))), self.values[batch])

    def test_a_closed_store_holds_nothing_of_the_ledger(self):
        store, batches = self.make(cache_rows=50), batches_of(2)
        self.check(store, self.begun(store, batches[:1]), batches[:1])
        self.begun(store, batches[1:])
        assert any(part.used for part in self.ledger.usage().values())
        store.close()
        self.opened.clear()
        assert {name for name, part in self.ledger.usage().items() if part.used} == set()

    def test_a_host_buffer_that_comes_later_serves_the_groups_planned_from_then_on(self):
        with RowReader(self.table, StorageOptions(engine="pread")) as reader:
            host = HostBuffer.load(self.table, reader, torch.arange(0, ROWS, 2))
        store, batches = self.make(), batches_of(4)
        before = self.begun(store, batches[:2])
        store.add_host_buffer(host)
        after = self.begun(store, batches[2:])
        self.check(store, before, batches[:2])
        assert store.counts()["host"] == 0
        self.check(store, after, batches[2:])
        assert store.counts()["host"] == sum(int(row) % 2 == 0 for batch in batches[2:] for row in batch)
        with pytest.raises(ConfigError, match="neither a cache nor another one"):
            store.add_host_buffer(host)

    def test_a_host_buffer_cannot_be_added_to_a_cache(self):
        with RowReader(self.table, StorageOptions(engine="pread")) as reader:
            host = HostBuffer.load(self.table, reader, torch.tensor([0, 2, 77]))
        with pytest.raises(ConfigError, match="got 5 cached rows, 0 hosted rows"):
            self.make(cache_rows=5).add_host_buffer(host)
