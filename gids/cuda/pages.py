"""Pages of host memory registered with the driver: once per process, counted, shared by whoever needs them."""

from __future__ import annotations

import enum
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gids.cuda.session import CudaDevice
from gids.errors import DeviceError

PAGE_BYTES = 4096
_PORTABLE, _DEVICEMAP, _IOMEMORY, _READ_ONLY = 1, 2, 4, 8  # CU_MEMHOSTREGISTER_*
_READ_ONLY_SUPPORTED = 113  # CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED
_ALREADY_REGISTERED = 712  # CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED


class PageKind(enum.Enum):
    """What is behind the pages."""

    MEMORY = 0
    READ_ONLY = _READ_ONLY  #: mapped read-only: the driver wants to be told
    REGISTERS = _IOMEMORY  #: registers of a PCI device


class PagesTakenError(DeviceError):
    """Some of the pages are registered already, with others or by somebody else."""


@dataclass
class _Range:
    begin: int
    end: int
    kind: PageKind
    device: CudaDevice  # in whose context it was registered
    users: int
    seen_by: dict[int, CudaDevice]  # devices of all users so far, by ordinal


_ranges: list[_Range] = []  # guarded by _lock; no two overlap
_lock = threading.Lock()


class RegisteredPages:
    """The pages around some bytes, mapped for every device until :meth:`close`.

    Parameters
    ----------
    device : CudaDevice
        Where a kernel will use them.
    address, count : int
        The bytes. What else lies on their pages is pinned too.
    kind : PageKind
        What they are.

    Raises
    ------
    PagesTakenError
        If some of these pages are registered, but not as part of a range that holds them all.
    DeviceError
        With the driver's status as ``status``, for any other refusal.
    """

    def __init__(self, device: CudaDevice, address: int, count: int, kind: PageKind = PageKind.MEMORY):
        from cuda.bindings import driver

        begin, end = address // PAGE_BYTES * PAGE_BYTES, -(-(address + count) // PAGE_BYTES) * PAGE_BYTES
        self._range: _Range | None = None
        with _lock, device.current():
            for known in _ranges:
                if known.begin <= begin and end <= known.end and known.kind is kind:
                    known.users += 1
                    known.seen_by[device.ordinal] = device
                    self._range = known
            if self._range is None:
                if any(known.begin < end and begin < known.end for known in _ranges):
                    raise PagesTakenError(f"{count} bytes at {address:#x} share pages with a registered range")
                flags = _PORTABLE | _DEVICEMAP | kind.value
                (status,) = driver.cuMemHostRegister(begin, end - begin, flags)
                if int(status) == _ALREADY_REGISTERED:
                    raise PagesTakenError(f"{count} bytes at {address:#x} are registered by somebody else")
                if int(status):
                    raise RegistrationError(count, status)
                self._range = _Range(begin, end, kind, device, 1, {device.ordinal: device})
                _ranges.append(self._range)
            status, mapped = driver.cuMemHostGetDevicePointer(address, 0)
        if int(status):
            self.close()
            raise DeviceError(f"{count} registered bytes have no device address ({status.name})")
        #: Where kernels find the bytes.
        self.pointer = int(mapped)

    def close(self) -> None:
        """Let go; the last user's call unregisters, after all work of the devices that had the pages."""
        from cuda.bindings import driver

        mine, self._range = self._range, None
        if mine is None:
            return
        with _lock:
            mine.users -= 1
            if mine.users == 0:
                _ranges.remove(mine)
                for device in mine.seen_by.values():
                    with device.current():
                        driver.cuCtxSynchronize()  # that cuMemHostUnregister waits is said nowhere
                with mine.device.current():
                    driver.cuMemHostUnregister(mine.begin)


class RegistrationError(DeviceError):
    """The driver refused to register pages; ``status`` is its answer."""

    def __init__(self, count: int, status: Any):
        super().__init__(f"cuMemHostRegister of {count} bytes failed ({status.name})")
        self.status = status


def kind_of(device: CudaDevice, address: int, count: int) -> PageKind | None:
    """Return what ordinary pages are to be registered as; None where this device cannot have them."""
    if _writable(address, address + count):
        return PageKind.MEMORY
    from cuda.bindings import driver

    attribute = driver.CUdevice_attribute(_READ_ONLY_SUPPORTED)
    status, supported = driver.cuDeviceGetAttribute(attribute, device.ordinal)
    return PageKind.READ_ONLY if not int(status) and supported else None


def _writable(begin: int, end: int) -> bool:
    """Whether the process may write to all of a range, as the kernel tells."""
    with Path("/proc/self/maps").open(encoding="ascii", errors="replace") as maps:
        for line in maps:
            span, access = line.split(maxsplit=2)[:2]
            low, high = (int(part, 16) for part in span.split("-"))
            if low < end and begin < high and access[1] != "w":
                return False
    return True
