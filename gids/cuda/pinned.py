"""Host memory that kernels read directly (UVA): registered where it is, or staged in memory pinned for copies."""

from __future__ import annotations

import resource
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from gids.cuda.array import DeviceArray
from gids.cuda.session import CudaSession, Session
from gids.errors import DeviceError
from gids.units import format_bytes

_REGISTER_MAPPED = 1 | 2  # CU_MEMHOSTREGISTER_PORTABLE: for every context; CU_MEMHOSTREGISTER_DEVICEMAP
_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
_ALREADY_REGISTERED = 712  # CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED


class HostArray(Protocol):
    """A host array that kernels can read."""

    @property
    def array(self) -> DeviceArray:
        """The array as kernels see it."""

    def close(self) -> None:
        """Give the pinning back."""


@runtime_checkable
class MapsHost(Protocol):
    """A session that can show host memory to kernels without registering it; the lane-by-lane tests have one."""

    def map_host(self, values: npt.NDArray[Any]) -> HostArray:
        """Show an array to kernels."""


def memlock_limit() -> int | None:
    """Give the bytes that this process may lock (RLIMIT_MEMLOCK), or None for no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft


def host_array(session: Session, values: npt.NDArray[Any], name: str) -> HostArray:
    """Pin an array where it is, so that kernels read it over the bus."""
    if isinstance(session, MapsHost):
        return session.map_host(values)
    if not isinstance(session, CudaSession):
        raise DeviceError(f"{name} cannot be shown to {type(session).__name__}")
    return RegisteredArray(session, np.ascontiguousarray(values), name)


class RegisteredArray:
    """Memory registered with the driver (``cuMemHostRegister``) until :meth:`close`."""

    def __init__(self, session: CudaSession, values: npt.NDArray[Any], name: str):
        from cuda.bindings import driver

        session.enter()
        self._values: npt.NDArray[Any] | None = values
        self._registered = False
        pointer = values.ctypes.data
        if values.nbytes:
            (status,) = driver.cuMemHostRegister(pointer, values.nbytes, _REGISTER_MAPPED)
            if int(status) not in (0, _ALREADY_REGISTERED):
                raise DeviceError(_explain_register(name, values.nbytes, status))
            self._registered = int(status) == 0
            status, mapped = driver.cuMemHostGetDevicePointer(pointer, 0)
            if int(status):
                self.close()
                raise DeviceError(f"{name} has no device address ({status.name})")
            pointer = int(mapped)
        self._array = DeviceArray(pointer, values.shape, values.dtype, values)

    @property
    def array(self) -> DeviceArray:
        """The array as kernels see it."""
        return self._array

    def close(self) -> None:
        """Unregister."""
        from cuda.bindings import driver

        if self._registered and self._values is not None:
            driver.cuMemHostUnregister(self._values.ctypes.data)
        self._registered, self._values = False, None


def _explain_register(name: str, count: int, status: Any) -> str:
    limit = memlock_limit()
    message = f"{name} must be pinned: cuMemHostRegister of {format_bytes(count)} failed ({status.name})"
    if int(status) == _OUT_OF_MEMORY or (limit is not None and limit < count):
        shown = "unlimited" if limit is None else format_bytes(limit)
        message += (
            f". RLIMIT_MEMLOCK is {shown}; raise it to at least {format_bytes(count)}: `ulimit -l unlimited`, "
            "`memlock` in /etc/security/limits.conf, or `--ulimit memlock=-1` for a container"
        )
    return message


class StagingBuffer:
    """Pinned memory (``cuMemHostAlloc``) that reads land in on their way to the device."""

    def __init__(self, session: CudaSession, count: int):
        from cuda.bindings import driver

        session.enter()
        status, self._pointer = driver.cuMemHostAlloc(max(count, 1), 0)
        if int(status):
            limit = memlock_limit()
            raise DeviceError(
                f"staging needs {format_bytes(count)} of pinned memory: cuMemHostAlloc failed ({status.name}; "
                f"RLIMIT_MEMLOCK is {'unlimited' if limit is None else format_bytes(limit)})"
            )
        self.count = count
        address = int(self._pointer)
        array_type = np.ctypeslib.as_array
        import ctypes

        self.bytes: npt.NDArray[np.uint8] = array_type((ctypes.c_uint8 * max(count, 1)).from_address(address))[:count]

    def close(self) -> None:
        """Give the memory back; nothing may read or write it any more."""
        from cuda.bindings import driver

        if self._pointer is not None:
            driver.cuMemFreeHost(self._pointer)
            self._pointer = None
