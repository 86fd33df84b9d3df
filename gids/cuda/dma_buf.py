"""GPU memory for drives to write to: exported as a dma-buf, offered to the IOMMU. Finds out how far this machine gets.

Queue pairs do not use it, even where every step here succeeds. A drive writes data and completion to two places, and
PCIe keeps the order of writes to one place only: with data in GPU memory and the completion ring in host memory, a
kernel could see the completion before the data. Either the ring moves to GPU memory too, where the host's watchdog
cannot follow it, or every poll is followed by a flush, which only hardware can show to suffice. Until then data goes
through pinned host memory, where one agent orders both.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gids.cuda.session import CudaSession
from gids.errors import DeviceError
from gids.nvme.facts import gpu_dma_buf
from gids.storage.system import ioctl

_PROBE_BYTES = 64 << 10  # a whole page of a GPU and of every host
_RANGE_HANDLE_DMA_BUF = 1  # CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD
_MAP_READ_WRITE = 1 << 1 | 1 << 2  # IOMMU_IOAS_MAP_WRITEABLE, IOMMU_IOAS_MAP_READABLE
IOMMU = Path("/dev/iommu")


class _Destroy(ctypes.Structure):
    _fields_ = (("size", ctypes.c_uint32), ("id", ctypes.c_uint32))


class _Alloc(ctypes.Structure):
    _fields_ = (("size", ctypes.c_uint32), ("flags", ctypes.c_uint32), ("out_ioas_id", ctypes.c_uint32))


class _MapFile(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("ioas_id", ctypes.c_uint32),
        ("fd", ctypes.c_int32),
        ("start", ctypes.c_uint64),
        ("length", ctypes.c_uint64),
        ("iova", ctypes.c_uint64),
    )


# <linux/iommufd.h>: _IO(';', number)
_DESTROY, _IOAS_ALLOC, _IOAS_MAP_FILE = (ord(";") << 8 | number for number in (0x80, 0x81, 0x8F))


@dataclass(frozen=True)
class DmaBufProbe:
    """How far GPU memory gets on its way to a drive.

    Attributes
    ----------
    step : str
        The last step that was tried: ``"attribute"``, ``"export"``, ``"iommufd"``, ``"address space"`` or ``"map"``.
    works : bool
        Whether that and so every step succeeded.
    reason : str
        What was refused and what would change it; or the bus address that the memory got.
    """

    step: str
    works: bool
    reason: str


@contextlib.contextmanager
def exported(session: CudaSession, count: int) -> Iterator[int]:
    """Allocate GPU memory and give it as a dma-buf file descriptor; raises OSError where the driver refuses."""
    from cuda.bindings import driver

    try:
        memory = session.reserve(count, mmap.PAGESIZE)  # what is exported begins on a page
    except DeviceError as error:
        raise OSError(errno.ENOMEM, str(error)) from error
    kind = driver.CUmemRangeHandleType(_RANGE_HANDLE_DMA_BUF)
    with session.current():
        status, handle = driver.cuMemGetHandleForAddressRange(memory.pointer, count, kind, 0)
    if int(status):
        raise OSError(errno.ENOTSUP, f"cuMemGetHandleForAddressRange failed ({status.name})")
    try:
        yield int(handle)
    finally:
        os.close(int(handle))
        del memory


def probe_dma_buf(session: CudaSession, iommu: Path = IOMMU) -> DmaBufProbe:
    """Export a page of GPU memory and map it for drives, as far as driver and kernel allow; leaves nothing behind."""
    works, reason = gpu_dma_buf()
    if not works:
        return DmaBufProbe("attribute", False, reason)
    try:
        with exported(session, _PROBE_BYTES) as descriptor:
            return _map(descriptor, iommu)
    except OSError as error:
        return DmaBufProbe("export", False, f"the GPU's memory cannot be exported: {error.strerror}")


def _map(descriptor: int, iommu: Path) -> DmaBufProbe:
    try:
        file = os.open(iommu, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        hint = "VFIO type 1 maps memory of the process only; IOMMUFD needs a kernel with CONFIG_IOMMUFD"
        return DmaBufProbe("iommufd", False, f"{iommu} cannot be opened ({error.strerror}): {hint}")
    try:
        space = _Alloc(ctypes.sizeof(_Alloc))
        try:
            ioctl(file, _IOAS_ALLOC, space)
        except OSError as error:
            return DmaBufProbe("address space", False, f"IOMMU_IOAS_ALLOC failed ({error.strerror})")
        request = _MapFile(ctypes.sizeof(_MapFile), _MAP_READ_WRITE, space.out_ioas_id, descriptor, 0, _PROBE_BYTES, 0)
        try:
            ioctl(file, _IOAS_MAP_FILE, request)
        except OSError as error:
            why = (
                "the kernel is older than 6.13"
                if error.errno == errno.ENOTTY
                else "this kernel maps memfd files, and dma-bufs of VFIO devices at most, but not a GPU's"
            )
            return DmaBufProbe("map", False, f"IOMMU_IOAS_MAP_FILE failed ({error.strerror}): {why}")
        finally:
            # Ends its mappings too.
            ioctl(file, _DESTROY, _Destroy(ctypes.sizeof(_Destroy), space.out_ioas_id))
        return DmaBufProbe("map", True, f"the IOMMU gave it bus address {request.iova:#x}")
    finally:
        os.close(file)
