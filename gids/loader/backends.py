"""Which backend a device asks for: the only place that knows all of them."""

from __future__ import annotations

from gids._native import ThreadPool
from gids.runtime.backend import Backend, CpuBackend
from gids.runtime.options import RuntimeOptions


def open_backend(options: RuntimeOptions, pool: ThreadPool) -> Backend:
    """Open the backend of ``options.device``: ``cuda`` samples, plans and caches there, all others on the CPU."""
    if options.device is None or options.device.type != "cuda":
        return CpuBackend(options, pool)
    from gids.cuda.backend import CudaBackend  # needs the extra packages, and a driver

    return CudaBackend(options, pool)
