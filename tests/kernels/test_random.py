"""random_blocks, lane by lane, against the published Philox4x32-10 algorithm in NumPy."""

import numpy as np
import pytest


def philox(key, counter):
    """Philox4x32-10 of Salmon et al. on arrays of counters, shape (n, 4)."""
    c = [counter[:, i].astype(np.uint64) for i in range(4)]
    k0, k1 = (np.uint64(k) for k in key)
    low = np.uint64(0xFFFFFFFF)
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [(p1 >> np.uint64(32)) ^ c[1] ^ k0, p1 & low, (p0 >> np.uint64(32)) ^ c[3] ^ k1, p0 & low]
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & low, (k1 + np.uint64(0xBB67AE85)) & low
    return np.stack(c, 1).astype(np.uint32)


@pytest.mark.parametrize(("grid", "block"), [(1, 32), (3, 64), (2, 100)])
def test_random_blocks(simt, grid, block):
    first, count = 2**32 - 40, 100
    out = np.zeros((count, 4), np.uint32)
    simt.launch("random_blocks", grid, block, np.uint32(7), np.uint32(9), np.int64(first), np.int64(count), out)
    nodes = np.arange(first, first + count, dtype=np.uint64)
    counter = np.zeros((count, 4), np.uint64)
    counter[:, 0], counter[:, 1] = nodes & np.uint64(0xFFFFFFFF), nodes >> np.uint64(32)
    assert (out == philox((7, 9), counter)).all()
