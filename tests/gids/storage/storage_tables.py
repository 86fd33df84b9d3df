"""Small tables of random bytes on disk, for every storage test."""

import numpy as np
import torch

from gids import RowTable, Stripe
from gids.storage import engine_availability

ENGINES = [name for name, refusal in engine_availability().items() if not refusal]


def make_table(
    directory, dim=25, num_rows=1000, dtype="float32", offset=0, stride=None, files=1, stripe_rows=None, pad=0
):
    """Write a table of random bytes; give it and its rows as raw bytes [num_rows, row_bytes]."""
    item = torch.empty(0, dtype=getattr(torch, dtype)).element_size()
    row_bytes, stripe_rows = dim * item, stripe_rows or max(num_rows, 1)
    stride = stride or row_bytes
    values = np.random.default_rng(7).integers(0, 256, (num_rows, row_bytes), dtype=np.uint8)
    stripes = []
    for f in range(files):
        mine = [r for r in range(num_rows) if r // stripe_rows % files == f]
        body = np.full((len(mine), stride), 0xEE, np.uint8)
        body[:, :row_bytes] = values[mine]
        data = body.reshape(-1)[: len(mine) * stride - (stride - row_bytes) + pad] if mine else body.reshape(-1)
        path = directory / f"{dtype}-{dim}-{offset}-{f}.bin"
        path.write_bytes(b"\xdd" * offset + data.tobytes())
        stripes.append(Stripe(path, offset, len(mine)))
    return RowTable("t", dtype, dim, num_rows, stride, tuple(stripes), stripe_rows), values


def raw(tensor):
    return tensor.contiguous().view(torch.uint8).numpy().reshape(tensor.shape[0], -1)
