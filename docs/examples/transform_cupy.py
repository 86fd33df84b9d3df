"""Change every batch with CuPy before it is handed over: ``python docs/examples/transform_cupy.py DATASET``.

Needs a GPU, and CuPy (``pip install 'gids[cuda13]'``). ``batch.x`` is a torch tensor; CuPy shares its memory by DLPack, and
its current stream is torch's for the call, so that nothing is copied and nothing waits.
"""

from __future__ import annotations

import sys

import cupy
import torch

import gids


def transform(batch: gids.Batch) -> None:
    """Standardise ``batch.x`` by its own columns, in place."""
    x = cupy.from_dlpack(batch.x)
    x -= x.mean(axis=0)
    x /= x.std(axis=0, ddof=1)


def main(path: str) -> None:
    """Compare one epoch with what torch makes of the same batches."""
    options = {"fanouts": [2, 2], "batch_size": 16, "seed": 1, "device": "cuda"}
    with (
        gids.Loader(path, "train", **options) as plain,
        gids.Loader(path, "train", output=gids.OutputOptions(transform=transform), **options) as loader,
    ):
        difference = 0.0
        for before, batch in zip(plain, loader, strict=True):
            expected = (before.x - before.x.mean(0)) / before.x.std(0)
            difference = max(difference, float((batch.x - expected).abs().max()))
    print(f"batches on {torch.cuda.get_device_name()}, largest difference from torch {difference:.1e}")
    if not difference < 1e-4:
        raise SystemExit("CuPy's result differs from torch's")


if __name__ == "__main__":
    main(sys.argv[1])
