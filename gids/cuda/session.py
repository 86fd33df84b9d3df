"""One device, one stream: memory within a budget, copies, and kernel launches by name."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gids.cuda.array import DeviceArray
from gids.cuda.compile import compile_kernels, load_cuda_core
from gids.errors import ConfigError, DeviceError
from gids.units import format_bytes

#: Threads of a block; the entry points are compiled for at most this many.
BLOCK_THREADS = 256
#: Blocks of the largest grid. Entry points loop, so any grid covers any count; more blocks than this only queue.
MAX_BLOCKS = 4096

Argument = DeviceArray | np.generic | None


class Session(Protocol):
    """What the stages need of a device. Work is done in the order in which it is asked for."""

    def empty(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> DeviceArray:
        """Allocate; the bytes are arbitrary."""

    def upload(self, values: npt.NDArray[Any]) -> DeviceArray:
        """Copy an array to the device; the source may be reused at once."""

    def download(self, array: DeviceArray) -> npt.NDArray[Any]:
        """Wait for all work before, and copy an array to the host."""

    def copy(self, to: DeviceArray, source: DeviceArray) -> None:
        """Copy device memory."""

    def fill(self, array: DeviceArray, byte: int) -> None:
        """Set every byte."""

    def launch(self, kernel: str, items: int, *arguments: Argument, lanes: int = 1, blocks: int | None = None) -> None:
        """Run an entry point with ``lanes`` lanes for each of ``items`` items, or on a given number of blocks."""

    @property
    def block_threads(self) -> int:
        """Threads of a block."""


def grid_blocks(items: int, lanes: int, threads: int) -> int:
    """Give the blocks that cover ``items`` groups of ``lanes`` lanes, bounded by MAX_BLOCKS."""
    return max(1, min((items * lanes + threads - 1) // threads, MAX_BLOCKS))


class CudaDevice:
    """A CUDA device with the kernels built for it. Opened once per process and shared; see :func:`open_device`."""

    def __init__(self, ordinal: int):
        core = load_cuda_core()
        self._core = core
        self.ordinal = ordinal
        try:
            self.device = core.Device(ordinal)
            self.device.set_current()
        except Exception as error:  # cuda.core has no public base class of its errors
            raise DeviceError(
                f"device='cuda:{ordinal}' needs a GPU and its driver; `gids doctor` tells what is missing ({error})"
            ) from error
        self.name = str(self.device.name)
        self.arch = f"sm_{self.device.arch}"
        properties = self.device.properties
        #: Whether the CPU can use the device's memory as its own: integrated devices, and the tests' stand-in.
        self.host_addressable = bool(properties.integrated)
        cubin = compile_kernels(self.arch)
        try:
            self._module = core.ObjectCode.from_cubin(cubin.code)
            self._kernels = {entry.kernel: self._module.get_kernel(entry.kernel) for entry in cubin.resources}
        except Exception as error:
            raise DeviceError(f"kernels for {self.arch} must load on {self.name} ({error})") from error

    def kernel(self, name: str) -> Any:
        """Give an entry point."""
        if name not in self._kernels:
            raise DeviceError(f"kernel must be an entry point of kernels/ (got {name!r})")
        return self._kernels[name]

    def memory_bytes(self) -> tuple[int, int]:
        """Give free and total bytes of the device's memory."""
        from cuda.bindings import driver

        self.device.set_current()
        status, free, total = driver.cuMemGetInfo()
        _check(status, f"memory of {self.name}")
        return int(free), int(total)


_devices: dict[int, CudaDevice] = {}  # guarded by _devices_lock
_devices_lock = threading.Lock()


def open_device(ordinal: int = 0) -> CudaDevice:
    """Open a device, or give the one that is open."""
    with _devices_lock:
        if ordinal not in _devices:
            _devices[ordinal] = CudaDevice(ordinal)
        return _devices[ordinal]


class DeviceBudget:
    """Counts the bytes that sessions of one loader take; refuses more than the budget.

    Invariant: ``0 <= used <= limit``.
    """

    def __init__(self, limit: int, name: str = "device budget"):
        self.limit = limit
        self.name = name
        self.used = 0  # guarded by _lock
        self.peak = 0  # guarded by _lock
        self._lock = threading.Lock()

    def take(self, count: int) -> None:
        """Account for an allocation, or refuse it."""
        with self._lock:
            if self.used + count > self.limit:
                raise DeviceError(
                    f"{self.name} must have room for {format_bytes(count)} more "
                    f"({format_bytes(self.used)} of {format_bytes(self.limit)} are in use)"
                )
            self.used += count
            self.peak = max(self.peak, self.used)

    def give(self, count: int) -> None:
        """Account for freed bytes."""
        with self._lock:
            self.used -= count


class Owned:
    """A buffer that goes back to the device and to the budget when the last array over it is gone."""

    def __init__(self, session: CudaSession, buffer: Any, count: int):
        self._session, self._buffer, self._count = session, buffer, count
        self._consumers: dict[int, object] = {}  # streams that may still work on it when it is dropped

    def used_on(self, stream_handle: int, keep: object = None) -> None:
        """Remember a consumer's stream (and its owner): the memory is not reused before what it has queued."""
        self._consumers[stream_handle] = keep

    def __del__(self) -> None:
        if not sys.is_finalizing():  # then the driver takes everything back at once
            self._session.free(self._buffer, self._count, self._consumers)


class Reserved:
    """Memory of :meth:`CudaSession.reserve`; freed with the last array over it, after all work of the device."""

    def __init__(self, session: CudaSession, pointer: int, count: int):
        self._session, self._pointer, self._count = session, pointer, count

    def __del__(self) -> None:
        if not sys.is_finalizing():
            from cuda.bindings import driver

            self._session.enter()
            driver.cuMemFree(self._pointer)
            self._session.budget.give(self._count)


class CudaSession:
    """A stream of a device. One thread uses it at a time; nothing here waits unless its name or text says so.

    Parameters
    ----------
    device : CudaDevice
        Where.
    budget : DeviceBudget, optional
        What its arrays count against.
    """

    def __init__(self, device: CudaDevice, budget: DeviceBudget | None = None):
        self.device = device
        self.budget = budget or DeviceBudget(device.memory_bytes()[1])
        device.device.set_current()
        self.stream = _guard(device.device.create_stream, "stream")

    @property
    def block_threads(self) -> int:
        """Threads of a block."""
        return BLOCK_THREADS

    @property
    def device_id(self) -> int:
        """Ordinal of the device."""
        return self.device.ordinal

    @property
    def host_addressable(self) -> bool:
        """Whether the CPU can use the device's memory as its own."""
        return self.device.host_addressable

    @property
    def stream_handle(self) -> int:
        """Handle of the stream."""
        return int(self.stream.handle)

    def enter(self) -> None:
        """Make the device current for the calling thread."""
        self.device.device.set_current()

    def empty(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> DeviceArray:
        """Allocate in stream order; the bytes are arbitrary."""
        shape = (shape,) if isinstance(shape, int) else shape
        count = max(int(np.prod(shape)) * np.dtype(dtype).itemsize, 8)
        self.budget.take(count)
        try:
            buffer = self.device.device.allocate(count, stream=self.stream)
        except Exception as error:
            self.budget.give(count)
            raise DeviceError(self._no_room(count, error)) from error
        return DeviceArray(int(buffer.handle), shape, dtype, Owned(self, buffer, count), self)

    def reserve(self, count: int, align: int) -> DeviceArray:
        """Allocate bytes of their own, at a multiple of ``align``. Drivers of storage pin no part of a memory pool."""
        from cuda.bindings import driver

        size = count + align
        self.budget.take(size)
        status, pointer = driver.cuMemAlloc(size)
        if int(status):
            self.budget.give(size)
            raise DeviceError(self._no_room(size, status.name))
        begin = -(-int(pointer) // align) * align
        return DeviceArray(begin, (count,), np.uint8, Reserved(self, int(pointer), size), self)

    def _no_room(self, count: int, error: object) -> str:
        free, total = self.device.memory_bytes()
        return (
            f"device memory of {self.device.name} must have {format_bytes(count)} free "
            f"({format_bytes(free)} of {format_bytes(total)} are; lower the device budget) ({error})"
        )

    def free(self, buffer: Any, count: int, consumers: Iterable[int]) -> None:
        """Give memory back in stream order, after what consumers' streams have queued."""
        for handle in consumers:
            if handle != self.stream_handle:
                self.order_after(handle)
        buffer.close(self.stream)
        self.budget.give(count)

    def upload(self, values: npt.NDArray[Any]) -> DeviceArray:
        """Copy an array to the device. Returns when the source may be reused."""
        values = np.ascontiguousarray(values)
        array = self.empty(values.shape, values.dtype)
        if values.nbytes:
            self._copy_bytes(array.pointer, values.ctypes.data, values.nbytes)
            self.synchronize()
        return array

    def upload_async(self, to: DeviceArray, pinned: npt.NDArray[Any]) -> Any:
        """Queue a copy from pinned memory; the source must stay until the returned event has passed."""
        if to.nbytes < pinned.nbytes:
            raise ConfigError(f"copy must fit in {to.nbytes} bytes (got {pinned.nbytes})")
        if pinned.nbytes:
            self._copy_bytes(to.pointer, pinned.ctypes.data, pinned.nbytes)
        return self.record()

    def download(self, array: DeviceArray) -> npt.NDArray[Any]:
        """Wait for all work before, and copy an array to the host."""
        values: npt.NDArray[Any] = np.empty(array.shape, array.dtype)
        if values.nbytes:
            self._copy_bytes(values.ctypes.data, array.pointer, values.nbytes)
        self.synchronize()
        return values

    def copy(self, to: DeviceArray, source: DeviceArray) -> None:
        """Queue a copy within the device."""
        if to.nbytes != source.nbytes:
            raise ConfigError(f"copy must be between arrays of equal size (got {source.nbytes} to {to.nbytes} bytes)")
        if source.nbytes:
            self._copy_bytes(to.pointer, source.pointer, source.nbytes)

    def fill(self, array: DeviceArray, byte: int) -> None:
        """Queue a memset."""
        from cuda.bindings import driver

        if array.nbytes:
            (status,) = driver.cuMemsetD8Async(array.pointer, byte, array.nbytes, self.stream.handle)
            _check(status, "memset")

    def launch(self, kernel: str, items: int, *arguments: Argument, lanes: int = 1, blocks: int | None = None) -> None:
        """Queue an entry point."""
        core = self.device._core
        grid = blocks or grid_blocks(items, lanes, BLOCK_THREADS)
        config = core.LaunchConfig(grid=grid, block=BLOCK_THREADS)
        values = [_pointer_or_scalar(kernel, i, argument) for i, argument in enumerate(arguments)]
        try:
            core.launch(self.stream, config, self.device.kernel(kernel), *values)
        except DeviceError:
            raise
        except Exception as error:
            raise DeviceError(f"kernel {kernel} must launch on {self.device.name} ({error})") from error

    def record(self) -> Any:
        """Give an event that passes when all work so far is done."""
        return _guard(self.stream.record, "event")

    def wait_event(self, event: Any) -> None:
        """Queue a wait for another stream's event."""
        _guard(lambda: self.stream.wait(event), "wait for an event")

    def order_before(self, stream_handle: int, event: Any = None) -> None:
        """Make later work of a consumer's stream wait for ``event``, or for all that is queued here."""
        from cuda.bindings import driver

        event = event or self.record()  # a name of its own: the handle does not keep the event alive
        (status,) = driver.cuStreamWaitEvent(stream_handle, event.handle, 0)
        _check(status, "the consumer's wait for a batch")

    def order_after(self, stream_handle: int) -> None:
        """Make later work here wait for what a consumer's stream has queued."""
        from cuda.bindings import driver

        event = _guard(self.device.device.create_event, "event")
        (status,) = driver.cuEventRecord(event.handle, stream_handle)
        _check(status, "an event on the consumer's stream")
        self.wait_event(event)

    def synchronize(self) -> None:
        """Wait for all work so far."""
        _guard(self.stream.sync, f"work on {self.device.name}")

    def close(self) -> None:
        """Wait for all work. The stream goes with the last array that is freed on it."""
        self.synchronize()

    def _copy_bytes(self, to: int, source: int, count: int) -> None:
        from cuda.bindings import driver

        (status,) = driver.cuMemcpyAsync(to, source, count, self.stream.handle)
        _check(status, f"copy of {format_bytes(count)}")


def _pointer_or_scalar(kernel: str, index: int, argument: Argument) -> Any:
    if argument is None:
        return 0
    if isinstance(argument, DeviceArray):
        return argument.pointer
    if isinstance(argument, np.generic):
        return argument
    raise ConfigError(
        f"argument {index} of {kernel} must be a device array, a NumPy scalar or None (got {type(argument).__name__})"
    )


def _guard(call: Any, what: str) -> Any:
    try:
        return call()
    except Exception as error:  # cuda.core has no public base class of its errors
        raise DeviceError(f"{what} failed ({error})") from error


def _check(status: Any, what: str) -> None:
    if int(status) != 0:
        raise DeviceError(f"{what} failed ({getattr(status, 'name', status)})")
