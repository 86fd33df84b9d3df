"""CuPy's own arrays as seeds, as far as CuPy goes without NVIDIA's driver.

CuPy begins with NVIDIA's runtime library, which wants private tables of the driver that only NVIDIA's has; so CuPy cannot
allocate or compute here (the last test says where that ends). Its array type can be laid over memory that exists, and
hands it over in version 2 of the interface, which names no stream. Version 3 is in case_loader.py.
"""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from gids.cuda.session import CudaSession, open_device
from gids.errors import ConfigError
from tests.loading import load

os.environ["CUPY_CUDA_ARRAY_INTERFACE_EXPORT_VERSION"] = "2"
sys.path.append(os.environ.get("GIDS_CUPY") or str(Path(sys.prefix) / "cupy"))
cupy = pytest.importorskip("cupy", reason="cupy is not installed (make test does, in .venv/cupy)")

OPTIONS = {"fanouts": [3, 4], "batch_size": 48, "seed": 5, "device": "cuda", "device_budget": "48MiB"}


def lay_over(array):
    memory = cupy.cuda.UnownedMemory(array.pointer, array.nbytes, array, 0)
    return cupy.ndarray(array.shape, array.dtype, cupy.cuda.MemoryPointer(memory, 0))


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint16])
def test_seeds_in_an_array_of_cupy(dataset, dtype):
    ids, session = np.arange(0, 200, 3, dtype=dtype), CudaSession(open_device())
    seeds = lay_over(session.upload(ids))
    assert type(seeds).__module__.startswith("cupy")
    with load(dataset, seeds=torch.from_numpy(ids.astype(np.int64)), **OPTIONS) as loader:
        expected = list(loader)
    with load(dataset, seeds=seeds, **OPTIONS) as loader:
        got = list(loader)
    assert len(got) == len(expected) == 2
    for mine, theirs in zip(got, expected, strict=True):
        assert torch.equal(mine.seeds, theirs.seeds)
        assert torch.equal(mine.x, theirs.x)


def test_what_cupy_cannot_hand_over(dataset):
    session = CudaSession(open_device())
    with pytest.raises(ConfigError, match=r"seeds must be contiguous \(got strides \(16,\)\)"):
        load(dataset, seeds=lay_over(session.upload(np.arange(30)))[::2], **OPTIONS)
    with pytest.raises(ConfigError, match="seeds must be integers of one dimension"):
        load(dataset, seeds=lay_over(session.upload(np.zeros((3, 4), np.int64))), **OPTIONS)


def test_where_cupy_ends_without_nvidias_driver():
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="cudaErrorSymbolNotFound"):
        cupy.arange(10)
