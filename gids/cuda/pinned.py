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

#: From this size on, malloc maps every piece by itself, so that nothing else is on its pages: the most that glibc's
#: threshold grows to (mallopt(3), M_MMAP_THRESHOLD: DEFAULT_MMAP_THRESHOLD_MAX). What is smaller may share them.
OWN_PAGES_BYTES = 32 << 20
_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY


class HostArray(Protocol):
    """A host array that kernels can read."""

    @property
    def array(self) -> DeviceArray:
        """The array as kernels see it."""

    def close(self) -> None:
        """Release the pinning."""


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
    """An array in registered pages until :meth:`close`: where it is, or a copy where other data may be on its pages.

    Pages of a map are its own, and those of a large piece of the heap; a smaller one may share its first and last page
    with anything, which would be pinned with it, and refused to whoever copies from there.
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
        if kind is not None and has_own_pages(values):
            try:
                return values, RegisteredPages(device, values.ctypes.data, values.nbytes, kind)
            except PagesTakenError:
                pass  # of another array of the same map
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


def has_own_pages(values: npt.NDArray[Any]) -> bool:
    """Whether nothing but an array, and what it is a part of, is on its pages."""
    owner: Any = values
    while isinstance(owner, np.ndarray | memoryview):
        owner = owner.base if isinstance(owner, np.ndarray) else owner.obj
    return isinstance(owner, mmap.mmap) or values.nbytes >= OWN_PAGES_BYTES


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
