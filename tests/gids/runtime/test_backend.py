"""The CPU's backend keeps the contract of gids/runtime/backend.py; the CUDA backend's run is in standin/case_backend.py."""

from gids.runtime.backend import CpuBackend

from .backend_contract import BackendContract


class TestCpu(BackendContract):
    def open(self, options, pool):
        return CpuBackend(options, pool)
