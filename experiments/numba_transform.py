"""Change the features of a batch in place with a CUDA kernel of your own, written in Python with numba-cuda.

On a machine with a GPU: ``python experiments/numba_transform.py DATASET``. Without one, numba's simulator runs the same
kernel on the CPU: ``NUMBA_ENABLE_CUDASIM=1 python experiments/numba_transform.py DATASET``.
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


def transform(batch: gids.Batch, mean: torch.Tensor, scale: torch.Tensor) -> None:
    """Standardise ``batch.x`` in place, on the stream that torch uses, so that training comes after it."""
    rows, columns = batch.x.shape
    threads = (8, 32)
    blocks = (-(-rows // threads[0]), -(-columns // threads[1]))
    stream = cuda.external_stream(torch.cuda.current_stream().cuda_stream) if batch.x.is_cuda else 0
    standardize[blocks, threads, stream](as_numba(batch.x), as_numba(mean), as_numba(scale))


def main(path: str) -> None:
    """Take one batch and standardise it by its own columns."""
    device = "cuda" if torch.cuda.is_available() else None
    with gids.Loader(path, "train", fanouts=[2, 2], batch_size=16, device=device) as loader:
        batch = next(iter(loader))
        mean, scale = batch.x.mean(0), 1 / batch.x.std(0)
        expected = (batch.x - mean) * scale
        transform(batch, mean, scale)
        difference = float((batch.x - expected).abs().max())
        print(f"{tuple(batch.x.shape)} values on {batch.x.device}, largest difference from torch {difference:.1e}")
        if not difference < 1e-5:
            raise SystemExit("the kernel's result differs from torch's")


if __name__ == "__main__":
    main(sys.argv[1])
