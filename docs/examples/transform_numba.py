"""Change every batch with a CUDA kernel of your own, written in Python with numba-cuda, before it is handed over.

On a machine with a GPU: ``python docs/examples/transform_numba.py DATASET``. Without one, numba's simulator runs the same
kernel on the CPU: ``NUMBA_ENABLE_CUDASIM=1 python docs/examples/transform_numba.py DATASET``.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from numba import cuda

import gids


@cuda.jit
def standardize(x, mean, scale):
    """Shift and scale every column of ``x``."""
    row, column = cuda.grid(2)
    if row < x.shape[0] and column < x.shape[1]:
        x[row, column] = (x[row, column] - mean[column]) * scale[column]


def as_numba(tensor: torch.Tensor) -> Any:
    """Share a tensor's memory with numba: by CUDA pointer, or as a NumPy array for the simulator."""
    return cuda.as_cuda_array(tensor) if tensor.is_cuda else tensor.numpy()


def transform(batch: gids.Batch) -> None:
    """Standardise ``batch.x`` by its own columns, in place.

    Numba has no current stream: its launch names torch's, which is the one that the batch is handed over on.
    """
    mean, scale = batch.x.mean(0), 1 / batch.x.std(0)
    threads = (8, 32)
    blocks = tuple(-(-size // count) for size, count in zip(batch.x.shape, threads, strict=True))
    stream = cuda.external_stream(torch.cuda.current_stream().cuda_stream) if batch.x.is_cuda else 0
    standardize[blocks, threads, stream](as_numba(batch.x), as_numba(mean), as_numba(scale))


def main(path: str) -> None:
    """Compare one epoch with what torch makes of the same batches."""
    device = "cuda" if torch.cuda.is_available() else None
    options = {"fanouts": [2, 2], "batch_size": 16, "device": device}
    with (
        gids.Loader(path, "train", **options) as plain,
        gids.Loader(path, "train", output=gids.OutputOptions(transform=transform), **options) as loader,
    ):
        difference = 0.0
        for before, batch in zip(plain, loader, strict=True):
            expected = (before.x - before.x.mean(0)) / before.x.std(0)
            difference = max(difference, float((batch.x - expected).abs().max()))
    print(f"batches on {batch.x.device}, largest difference from torch {difference:.1e}")
    if not difference < 1e-5:
        raise SystemExit("the kernel's result differs from torch's")


if __name__ == "__main__":
    main(sys.argv[1])
