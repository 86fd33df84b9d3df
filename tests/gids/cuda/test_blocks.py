"""Blocks of device memory that are used again: sizes, order, consumers, and a budget that is short."""

import gc
from collections import deque
from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gids.cuda.blocks import BlockPool, DeviceBudget, block_bytes
from gids.errors import DeviceError


class Buffer:
    def __init__(self, device, count):
        self.device, self.count, self.handle = device, count, len(device.made) << 40

    def close(self, stream):
        self.device.freed.append(self.count)


class Device:
    """A device with so many bytes."""

    def __init__(self, room=1 << 40):
        self.room, self.made, self.freed = room, [], []

    def current(self):
        return nullcontext()

    def allocate(self, count, stream):
        if sum(self.made) - sum(self.freed) + count > self.room:
            raise DeviceError("no room")
        self.made.append(count)
        return Buffer(self, count)


class Event:
    def __init__(self, done=False):
        self.is_done, self.waited = done, False

    def sync(self):
        self.is_done = self.waited = True


MB = 1 << 20


@pytest.mark.parametrize(("count", "size"), [(1, 256), (256, 256), (257, 512), (2049, 2304), (1 << 30, 1 << 30)])
def test_sizes(count, size):
    assert block_bytes(count) == size


def test_blocks_are_cut_from_few_allocations_and_used_again_at_once():
    device, budget = Device(), DeviceBudget(64 * MB)
    pool = BlockPool(device, None, budget)
    first, second, third = (pool.take(1000) for _ in range(3))
    assert device.made == [2 * MB]
    assert [block.pointer - first.pointer for block in (first, second, third)] == [0, 1024, 2048]
    assert (budget.used, budget.kept) == (3072, 2 * MB - 3072)
    pool.give(first, [])
    pool.give(second, [])
    assert pool.take(2000).pointer == first.pointer  # they were neighbours
    assert device.made == [2 * MB]


def test_the_smallest_piece_that_does_is_cut():
    pool = BlockPool(Device(), None, DeviceBudget(64 * MB))
    blocks = [pool.take(size) for size in (3000, 256, 1000, 256)]
    for block in blocks[::2]:
        pool.give(block, [])
    assert pool.take(900).pointer == blocks[2].pointer
    assert pool.take(2900).pointer == blocks[0].pointer


def test_sizes_that_vary_soon_ask_the_driver_for_nothing():
    """After some batches there is room for any; a segment that was just full enough may be followed by one more."""
    rng, device = np.random.default_rng(0), Device()
    pool, held = BlockPool(device, None, DeviceBudget(1 << 40)), deque()
    made = []
    for _ in range(400):
        sizes = np.concatenate([rng.normal(8 * MB, MB / 3, 4), rng.normal(90_000, 3000, 30)]).astype(int)
        held.append([pool.take(int(size)) for size in sizes])
        if len(held) > 5:
            for block in held.popleft():
                pool.give(block, [])
        made.append(len(device.made))
    assert made[-1] <= made[40] + 1
    assert sum(device.made) < 2.5 * sum(block.count for blocks in held for block in blocks)


@given(st.lists(st.tuples(st.integers(1, 5000), st.integers(0, 9)), max_size=60))
def test_no_two_blocks_share_a_byte(steps):
    pool, held = BlockPool(Device(), None, DeviceBudget(1 << 40)), []
    for size, drop in steps:
        block = pool.take(size)
        assert block.count >= size
        assert all(
            block.pointer + block.count <= other.pointer or other.pointer + other.count <= block.pointer
            for other in held
        )
        held.append(block)
        if drop < len(held):
            pool.give(held.pop(drop), [])
    for block in held:
        pool.give(block, [])
    assert pool.trim() == (1 if steps else 0)  # all of it is one piece again


def test_a_block_waits_for_its_consumers_and_nobody_else_does():
    event = Event()
    pool = BlockPool(Device(), None, DeviceBudget(64 * MB))
    block = pool.take(1000)
    pool.give(block, [event])
    assert pool.take(1000).pointer != block.pointer
    assert not event.waited
    event.is_done = True
    assert pool.take(1000).pointer == block.pointer


def test_a_short_budget_takes_what_is_kept_back_first_then_waits():
    device, budget, event = Device(), DeviceBudget(3100, "device_budget"), Event()
    pools = [BlockPool(device, None, budget) for _ in range(2)]
    idle, busy = pools[0].take(1024), pools[1].take(1024)
    assert device.made == [1024, 1024]  # no room for more than was asked for
    pools[0].give(idle, [])
    pools[1].give(busy, [event])
    pools[0].take(1500)  # what nobody uses is enough
    assert device.freed == [1024]
    assert not event.waited
    pools[0].take(1400)  # now the consumer is waited for
    assert event.waited
    assert device.freed == [1024, 1024]
    with pytest.raises(DeviceError, match=r"device_budget must have room for 512 B more \(3.0 KiB of 3.0 KiB"):
        pools[1].take(500)


def test_a_device_that_is_full_gets_memory_back():
    device = Device(room=4096)
    pool = BlockPool(device, None, DeviceBudget(1 << 30))
    pool.give(pool.take(4096), [])
    pool.trim()
    first = pool.take(2048)
    assert device.made[-1] == 2048
    pool.give(first, [])
    pool.take(4096)
    assert device.freed == [4096, 2048]
    with pytest.raises(DeviceError, match="no room"):
        pool.take(4000)


def test_what_comes_back_after_the_end_is_freed():
    device, budget = Device(), DeviceBudget(3 * MB)
    pool = BlockPool(device, None, budget)
    blocks = [pool.take(256), pool.take(512), pool.take(1 * MB)]
    pool.give(blocks[0], [])
    pool.close()
    assert device.freed == []  # all are in use, or cut from what is
    pool.give(blocks[1], [])
    assert device.freed == [2 * MB]
    pool.give(blocks[2], [])
    assert device.freed == [2 * MB, 1 * MB]
    assert (budget.used, budget.kept) == (0, 0)
    del pool
    gc.collect()
    budget.take(3 * MB)  # and asks no pool that is gone


def test_without_keeping_each_block_is_the_drivers(monkeypatch):
    monkeypatch.setattr(BlockPool, "keeps", False)
    device, budget = Device(), DeviceBudget(1 << 20)
    pool = BlockPool(device, None, budget)
    block = pool.take(1000)
    monkeypatch.setattr(BlockPool, "keeps", True)
    pool.give(block, [])
    assert (device.made, device.freed, budget.used, budget.kept) == ([1000], [1000], 0, 0)
