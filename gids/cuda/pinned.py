"""Host memory that kernels read directly (UVA): registered where it is, or staged in memory pinned for copies."""

from __future__ import annotations

import mmap
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from gids.cuda.array import DeviceArray
from gids.cuda.pages import PagesTakenError, RegisteredPages, RegistrationError, kind_of
from gids.cuda.session import CudaDevice, CudaSession, Session
from gids.cuda.transfer import memlock_limit
from gids.errors import DeviceError
from gids.units import format_bytes

#: Below this, arrays are copied to pages of their own: glibc's malloc maps what is larger by itself (128 KiB at least).
SHARED_PAGE_BYTES = 128 << 10
_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY


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


def host_array(session: Session, values: npt.NDArray[Any], name: str) -> HostArray:
    """Pin an array where it is, so that kernels read it over the bus."""
    if isinstance(session, MapsHost):
        return session.map_host(values)
    if not isinstance(session, CudaSession):
        raise DeviceError(f"{name} cannot be shown to {type(session).__name__}")
    return RegisteredArray(session, np.ascontiguousarray(values), name)


class RegisteredArray:
    """An array in registered pages until :meth:`close`: its own, or a copy where other data is on them.

    Arrays below :data:`SHARED_PAGE_BYTES` come from a heap and share their pages; others may meet a range at their edges.
    """

    def __init__(self, session: CudaSession, values: npt.NDArray[Any], name: str):
        self._pages: RegisteredPages | None = None
        self._copy: mmap.mmap | None = None
        pointer = values.ctypes.data
        if values.nbytes:
            try:
                values, self._pages = self._register(session.device, values)
            except RegistrationError as error:
                raise DeviceError(_explain_register(name, values.nbytes, error.status)) from error
            pointer = self._pages.pointer
        self._array = DeviceArray(pointer, values.shape, values.dtype, values)

    def _register(self, device: CudaDevice, values: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], RegisteredPages]:
        kind = kind_of(device, values.ctypes.data, values.nbytes)
        if values.nbytes >= SHARED_PAGE_BYTES and kind is not None:
            try:
                return values, RegisteredPages(device, values.ctypes.data, values.nbytes, kind)
            except PagesTakenError:
                pass  # a neighbour's
        self._copy = mmap.mmap(-1, values.nbytes)
        copied: npt.NDArray[Any] = np.frombuffer(self._copy, values.dtype, values.size).reshape(values.shape)
        copied[...] = values
        return copied, RegisteredPages(device, copied.ctypes.data, copied.nbytes)

    @property
    def array(self) -> DeviceArray:
        """The array as kernels see it."""
        return self._array

    def close(self) -> None:
        """Unregister. A copy's memory goes with the last array over it."""
        if self._pages is not None:
            self._pages.close()
            self._pages = None


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
