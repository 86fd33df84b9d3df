"""Change every batch with CUDA C++ through CuPy's RawKernel: ``python docs/examples/transform_raw_kernel.py DATASET``.

Needs a GPU, and CuPy (``pip install 'gids[cuda13]'``). The kernel turns the features of a batch into the bytes of a random
projection's signs, 32 to a word; CuPy launches it on its current stream, which is torch's for the call.
"""

from __future__ import annotations

import sys

import cupy
import torch

import gids
from gids.types import TableKey

SOURCE = r"""
extern "C" __global__ void signs(const float* x, const float* planes, unsigned* out, long long rows, int dim) {
    const long long row = blockIdx.x * static_cast<long long>(blockDim.y) + threadIdx.y;
    if (row >= rows) return;
    float dot = 0.0f;
    for (int column = 0; column < dim; ++column) dot += x[row * dim + column] * planes[threadIdx.x * dim + column];
    const unsigned word = __ballot_sync(0xffffffffu, dot > 0.0f);
    if (threadIdx.x == 0) out[row] = word;
}
"""

SIGNS = TableKey("_N", "signs")


class Signs:
    """Adds ``batch.features["_N", "signs"]``: for every row, on which side of 32 planes it lies."""

    def __init__(self, dim: int, seed: int = 0):
        self._kernel = cupy.RawKernel(SOURCE, "signs")
        self.planes = torch.randn(32, dim, generator=torch.Generator().manual_seed(seed)).cuda()

    def __call__(self, batch: gids.Batch) -> None:
        """Launch one warp for each row."""
        rows, dim = batch.x.shape
        x, planes = cupy.from_dlpack(batch.x), cupy.from_dlpack(self.planes)
        out = cupy.empty(rows, cupy.uint32)
        self._kernel((-(-rows // 8),), (32, 8), (x, planes, out, rows, dim))
        batch.features[SIGNS] = torch.from_dlpack(out)


def main(path: str) -> None:
    """Compare one epoch with what torch makes of the same batches."""
    dataset = gids.open(path)
    signs = Signs(dataset.feature_table("_N").dim)
    with gids.Loader(
        dataset,
        "train",
        fanouts=[2, 2],
        batch_size=16,
        device="cuda",
        output=gids.OutputOptions(transform=signs),
    ) as loader:
        weights = 1 << torch.arange(32, device="cuda")
        wrong = sum(
            int(((((batch.x @ signs.planes.T) > 0) * weights).sum(1) != batch.features[SIGNS].to(torch.int64)).sum())
            for batch in loader
        )
    print(f"rows whose signs differ from torch's: {wrong}")
    if wrong:
        raise SystemExit("the kernel's result differs from torch's")


if __name__ == "__main__":
    main(sys.argv[1])
