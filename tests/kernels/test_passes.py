"""Prefix sums, compaction and the radix sort, lane by lane, against NumPy."""

import numpy as np
import pytest

from gids.cuda.passes import compact, exclusive_scan, full, sort_pairs


@pytest.mark.parametrize(("count", "bound"), [(0, 0), (0, 70), (1, 1), (63, 64), (64, 64), (65, 300), (1000, 1000)])
def test_exclusive_scan(session, count, bound):
    values = np.random.default_rng(count).integers(-50, 50, bound)
    out = session.download(exclusive_scan(session, session.upload(values), full(session, 1, count), bound))
    assert (out[: count + 1] == np.concatenate([[0], np.cumsum(values[:count])])).all()


@pytest.mark.parametrize("limit", [None, 0, 5])
def test_compact_keeps_order(session, limit):
    flags = np.random.default_rng(7).integers(0, 2, 500)
    out, total = compact(session, session.upload(flags), full(session, 1, 450), 500, limit)
    expected = np.flatnonzero(flags[:450])
    assert session.download(total)[0] == len(expected)
    assert (session.download(out)[: len(expected[:limit])] == expected[:limit]).all()


@pytest.mark.parametrize(
    ("count", "limit"), [(0, 10), (1, 1), (300, 5), (257, 1000), (400, 1 << 40), (32 * 96 + 5, 300)]
)
def test_sort_is_stable(session, count, limit):
    keys = np.random.default_rng(count).integers(0, limit, count)
    values = np.arange(count)
    sorted_keys, sorted_values = sort_pairs(
        session, session.upload(keys), session.upload(values), full(session, 1, count), count, limit
    )
    order = np.argsort(keys, kind="stable")
    assert (session.download(sorted_keys) == keys[order]).all()
    assert (session.download(sorted_values) == order).all()
