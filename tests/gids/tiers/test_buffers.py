"""Buffers for batches: lent while anyone looks at them, used again afterwards, never beyond what is kept."""

import gc

import torch

from gids.budget.parts import DEMAND_MARGIN
from gids.ledger import Account
from gids.tiers.buffers import BufferPool

ROWS, DIM = 4096, 256  # 4 MiB of float32


def test_a_buffer_comes_back_only_when_the_last_view_is_gone():
    pool = BufferPool(keep=2)
    tensor = pool.empty(ROWS, DIM, torch.float32)
    address = tensor.data_ptr()
    view = tensor[7:9].reshape(-1)[3:]
    view.fill_(3)
    del tensor
    other = pool.empty(ROWS, DIM, torch.float32)
    assert other.data_ptr() != address
    other.fill_(4)
    assert view.unique().tolist() == [3]
    del view
    gc.collect()
    assert pool.empty(ROWS, DIM, torch.float32).data_ptr() == address


def test_shapes_dtypes_and_small_tensors():
    pool = BufferPool(keep=1)
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.int64):
        for rows in (0, 1, 5, 3_000):
            tensor = pool.empty(rows, 700, dtype)
            assert tensor.shape == (rows, 700)
            assert tensor.dtype == dtype
            assert tensor.is_contiguous()
            tensor.zero_()


def test_keeps_no_more_than_told_and_counts_what_is_lent():
    account = Account("outputs", 0)
    pool = BufferPool(keep=1, account=account)
    tensors = [pool.empty(ROWS, DIM, torch.float32) for _ in range(5)]
    one = account.used // 5
    assert one >= tensors[0].nbytes
    peak = account.usage.peak
    tensors.clear()
    assert account.used == one, "one is kept"
    again = [pool.empty(ROWS, DIM, torch.float32) for _ in range(2)]
    assert account.used == 2 * one
    assert account.usage.peak == peak == 5 * one
    assert again[0].data_ptr() != again[1].data_ptr()
    pool.clear()
    again.clear()
    assert account.used == 0, "once cleared, nothing is kept that comes back"


def test_a_larger_batch_replaces_a_buffer_that_became_too_small():
    pool = BufferPool(keep=1)
    pool.empty(ROWS, DIM, torch.float32)
    large = pool.empty(4 * ROWS, DIM, torch.float32)
    address = large.data_ptr()
    del large
    assert pool.empty(4 * ROWS - 5, DIM, torch.float32).data_ptr() == address


def test_what_is_held_is_within_what_a_budget_allots_for_such_batches():
    account = Account("outputs", 0)
    pool = BufferPool(keep=3, account=account)
    rows = 75_847  # of a batch of the benchmarks, and the largest that was seen
    kept = [pool.empty(rows - 500 * number, DIM, torch.float32) for number in range(3)]
    allotted = int(rows * DEMAND_MARGIN) * DIM * 4 * len(kept)
    assert rows * DIM * 4 * len(kept) < account.usage.peak <= allotted
