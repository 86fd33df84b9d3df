"""Blocks of device memory that are used again: sizes, order, consumers, and a budget that is short."""

import gc
from contextlib import nullcontext

import pytest

from gids.cuda.blocks import BlockPool, DeviceBudget, block_bytes
from gids.errors import DeviceError


class Buffer:
    def __init__(self, device, count):
        self.device, self.count = device, count

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


@pytest.mark.parametrize(
    ("count", "size"),
    [(1, 256), (256, 256), (257, 512), (2048, 2048), (2049, 2304), (4097, 4608), (1 << 30, 1 << 30)],
)
def test_sizes(count, size):
    assert block_bytes(count) == size


@pytest.mark.parametrize("count", [300, 5000, 99_999, 123_456_789])
def test_a_block_is_at_most_an_eighth_too_large(count):
    assert count <= block_bytes(count) <= max(count * 9 / 8, 512)


def test_the_latest_block_is_used_again_at_once():
    device, budget = Device(), DeviceBudget(1 << 20)
    pool = BlockPool(device, None, budget)
    first, second = pool.take(1000), pool.take(1000)
    assert budget.used == 2048
    pool.give(first, [])
    pool.give(second, [])
    assert (budget.used, budget.kept) == (0, 2048)
    assert pool.take(900) is second
    assert pool.take(600) is first  # no more than twice as large as asked for
    assert len(device.made) == 2
    assert pool.take(300) is not first
    assert len(device.made) == 3


def test_a_block_waits_for_its_consumers_and_nobody_else_does():
    device, event = Device(), Event()
    pool = BlockPool(device, None, DeviceBudget(1 << 20))
    block = pool.take(1000)
    pool.give(block, [event])
    other = pool.take(1000)
    assert other is not block
    assert not event.waited
    event.is_done = True
    assert pool.take(1000) is block


def test_a_short_budget_takes_kept_blocks_back_first_then_waits():
    device, budget, event = Device(), DeviceBudget(3000, "device_budget"), Event()
    pools = [BlockPool(device, None, budget) for _ in range(2)]
    idle, busy = pools[0].take(1024), pools[1].take(1024)
    pools[0].give(idle, [])
    pools[1].give(busy, [event])
    held = pools[0].take(1500)  # what nobody uses is enough
    assert device.freed == [1024]
    assert not event.waited
    pools[0].take(1400)  # now the consumer is waited for
    assert event.waited
    assert device.freed == [1024, 1024]
    with pytest.raises(DeviceError, match=r"device_budget must have room for 500 B more \(2.9 KiB of 2.9 KiB"):
        pools[1].take(500)
    assert held.count <= 1536


def test_a_device_that_is_full_gets_kept_blocks_back():
    device = Device(room=4096)
    pool = BlockPool(device, None, DeviceBudget(1 << 30))
    pool.give(pool.take(4096), [])
    assert pool.take(1024).count == 1024
    assert device.freed == [4096]
    with pytest.raises(DeviceError, match="no room"):
        pool.take(4000)


def test_what_comes_back_after_the_end_is_freed():
    device, budget = Device(), DeviceBudget(1 << 20)
    pool = BlockPool(device, None, budget)
    kept, late = pool.take(256), pool.take(512)
    pool.give(kept, [])
    pool.close()
    assert device.freed == [256]
    pool.give(late, [])
    assert device.freed == [256, 512]
    assert (budget.used, budget.kept) == (0, 0)
    del pool
    gc.collect()
    budget.take(1 << 20)  # and asks no pool that is gone
