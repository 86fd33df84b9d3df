"""The CUDA backend keeps the contract that the CPU's keeps, test for test."""

from dataclasses import replace

import torch

from gids.cuda.backend import CudaBackend
from tests.gids.runtime.backend_contract import BackendContract


class TestCuda(BackendContract):
    def open(self, options, pool):
        return CudaBackend(replace(options, device=torch.device("cuda")), pool)
