"""Gather with conversion and admission, lane by lane, bit for bit against the CPU backend."""

import numpy as np
import pytest
import torch

from gids._native import DType, ThreadPool, gather_rows
from gids.table import DTYPES

NUMBERS = {name: number for number, name in enumerate(DTYPES)}
FLOATS = ("float16", "bfloat16", "float32", "float64")


def random_bytes(dtype, rows, dim, seed):
    """Rows of any bit pattern: NaN, infinities and subnormals are among them."""
    size = DTYPES[dtype].itemsize
    raw = np.random.default_rng(seed).integers(0, 256, rows * dim * size, dtype=np.uint8)
    return raw.reshape(rows, dim * size)


def expected_rows(cache, host, read, location, to, source, dim):
    out = np.zeros(len(location) * dim * DTYPES[to].itemsize, np.uint8)
    tiers = (part.reshape(-1) for part in (cache, host, read))
    gather_rows(ThreadPool(1), *tiers, location, out, DType[to], DType[source], dim, dim * DTYPES[source].itemsize)
    return out


@pytest.mark.parametrize("lanes", [8, 32])
@pytest.mark.parametrize("dim", [1, 7, 100])
@pytest.mark.parametrize("source", list(DTYPES))
def test_gather_equals_the_cpu(session, source, dim, lanes):
    if session.block_threads % lanes:
        pytest.skip("a block holds whole groups")
    cache, host, read = (random_bytes(source, rows, dim, rows) for rows in (9, 5, 20))
    location = np.random.default_rng(dim).integers(0, 34, 60)
    row_bytes = dim * DTYPES[source].itemsize
    parts = [session.upload(part) for part in (cache, host, read)]
    for to in dict.fromkeys((source, *FLOATS)):
        bad, out = session.upload(np.zeros(1, np.uint32)), session.empty(60 * dim * DTYPES[to].itemsize, np.uint8)
        session.launch(
            f"gather_rows_{lanes}", 60, *parts, *(np.int64(n) for n in (9, 5, 20, row_bytes)),
            session.upload(location), np.int64(60), np.int64(dim), np.int32(NUMBERS[to]), np.int32(NUMBERS[source]),
            out, bad, lanes=lanes,
        )  # fmt: skip
        assert session.download(bad)[0] == 0
        expected = expected_rows(cache, host, read, location, to, source, dim)
        assert np.array_equal(session.download(out), expected), to


def test_a_location_outside_the_tiers_is_flagged_and_not_read(session):
    out, bad = session.empty(4, np.float32), session.upload(np.zeros(1, np.uint32))
    session.fill(out, 0)
    rows = session.upload(np.full(4, 7, np.float32))
    session.launch(
        "gather_rows_32", 4, rows, rows, rows, *(np.int64(n) for n in (4, 0, 0, 4)),
        session.upload(np.array([0, 4, -1, 3])), np.int64(4), np.int64(1), np.int32(2), np.int32(2), out, bad, lanes=32,
    )  # fmt: skip
    assert session.download(bad)[0] == 1
    assert list(session.download(out)) == [7, 0, 0, 7]


@pytest.mark.parametrize(("row_bytes", "lanes"), [(1, 8), (24, 32), (24, 8), (37, 32)])
def test_admission_copies_rows_to_their_slots(session, row_bytes, lanes):
    rng = np.random.default_rng(row_bytes)
    cache, read = rng.integers(0, 256, (10, row_bytes), np.uint8), rng.integers(0, 256, (30, row_bytes), np.uint8)
    slots, positions = rng.permutation(10)[:8], rng.permutation(30)[:8]
    device = session.upload(cache)
    session.launch(
        f"admit_rows_{lanes}", 5, device, session.upload(slots), session.upload(read), session.upload(positions),
        np.int64(2), np.int64(7), np.int64(row_bytes), lanes=lanes,
    )  # fmt: skip
    cache[slots[2:7]] = read[positions[2:7]]
    assert np.array_equal(session.download(device), cache)


def test_admission_hands_places_over(session):
    place, group = np.array([0, 1, 2, 3]), np.array([7, 5, 12, 4, 6])  # an arena of 8 and a host buffer of 4 rows
    slots, positions = np.array([1, 3, 0, 2]), np.array([4, 0, 2, 3])
    on_device, on_group = session.upload(place), session.upload(group)
    session.launch(
        "admit_places", 3, session.upload(slots), session.upload(positions), np.int64(1), np.int64(4), on_group,
        np.int64(8), on_device,
    )  # fmt: skip
    assert list(session.download(on_device)) == [0, 1, 4, 7]  # the row at 12 is not in the arena
    location = np.array([3, 0, 4, 7, 8, 10, 12, 13, -1])  # 4 cache slots, 4 host slots, 5 rows of the group
    out = session.empty(9, np.int64)
    session.launch(
        "resolve_places", 9, session.upload(location), np.int64(9), np.int64(4), np.int64(4), np.int64(5), on_device,
        on_group, np.int64(8), out,
    )  # fmt: skip
    assert list(session.download(out)) == [7, 0, 8, 11, 7, 12, 6, -1, -1]


def test_values_equal_torch_where_the_conversion_is_exact(session):
    values = torch.tensor([0.0, -1.5, 65504.0, 2.0**-24, float("inf")], dtype=torch.float16)
    out, bad = session.empty(5, np.float32), session.upload(np.zeros(1, np.uint32))
    rows = session.upload(values.view(torch.int16).numpy())
    session.launch(
        "gather_rows_8", 5, rows, None, None, *(np.int64(n) for n in (5, 0, 0, 2)), session.upload(np.arange(5)),
        np.int64(5), np.int64(1), np.int32(2), np.int32(0), out, bad, lanes=8,
    )  # fmt: skip
    assert np.array_equal(session.download(out), values.float().numpy())


@pytest.mark.parametrize(("conversion", "dtype"), [(1, torch.float16), (2, torch.bfloat16)])
def test_widening_of_every_half_equals_torch(session, conversion, dtype):
    if session.block_threads % 32:
        pytest.skip("a block holds whole warps")
    patterns = np.arange(65536, dtype=np.uint16)[:: 7 if session.block_threads < 256 else 1].copy()
    dim = 5
    patterns = patterns[: len(patterns) // dim * dim].reshape(-1, dim)
    packed = np.zeros((len(patterns), 2 * dim + 3), np.uint8)  # rows begin at odd bytes
    packed[:, : 2 * dim] = patterns.view(np.uint8).reshape(len(patterns), -1)
    out = session.empty(patterns.shape, np.float32)
    session.launch(
        "widen_rows", len(patterns), np.int32(conversion), session.upload(packed), np.int64(2 * dim + 3),
        np.int64(len(patterns)), np.int64(dim), out, lanes=32,
    )  # fmt: skip
    expected = torch.from_numpy(patterns.view(np.int16)).view(dtype).float().numpy()
    assert np.array_equal(session.download(out), expected, equal_nan=True)
