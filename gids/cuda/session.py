"""One device, one stream: memory within a budget, copies, and kernel launches by name.

Every call here makes the device's context current for itself and restores the caller's: on any thread, in destructors too,
and the user's current device stays what it was.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gids.cuda.array import DeviceArray
from gids.cuda.arrivals import Arrival, Arrivals, launch_host_function
from gids.cuda.blocks import Block, BlockPool, DeviceBudget
from gids.cuda.compile import EXTRA_HINT, compile_kernels, load_cuda_core, packages_cuda_major
from gids.cuda.transfer import Downloads, Uploads
from gids.errors import ConfigError, DeviceError
from gids.units import format_bytes

__all__ = [
    "BLOCK_THREADS",
    "Argument",
    "CudaDevice",
    "CudaSession",
    "Current",
    "DeviceBudget",
    "Session",
    "check_driver_version",
    "grid_blocks",
    "open_device",
]

#: Threads of a block; the entry points are compiled for at most this many.
BLOCK_THREADS = 256
#: Blocks of the largest grid. Entry points loop, so any grid covers any count; more blocks than this only queue.
MAX_BLOCKS = 4096

Argument = DeviceArray | np.generic | None


class Session(Protocol):
    """What the stages need of a device. Work is done in the order in which it is asked for."""

    @property
    def scratch(self) -> dict[str, DeviceArray]:
        """Arrays that live as long as the session, by name."""

    def empty(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> DeviceArray:
        """Allocate; the bytes are arbitrary."""

    def upload(self, values: npt.NDArray[Any]) -> DeviceArray:
        """Copy an array to the device; the source may be reused at once."""

    def download(self, array: DeviceArray) -> npt.NDArray[Any]:
        """Wait for all work before, and copy an array to the host."""

    def download_all(self, arrays: Sequence[DeviceArray]) -> list[npt.NDArray[Any]]:
        """Wait once for all work before, and copy several arrays to the host."""

    def download_later(self, arrays: Sequence[DeviceArray]) -> Arrival:
        """Queue copies of several arrays to the host; nobody waits for them but who asks for the values."""

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
    """Return the blocks that cover ``items`` groups of ``lanes`` lanes, bounded by MAX_BLOCKS."""
    return max(1, min((items * lanes + threads - 1) // threads, MAX_BLOCKS))


class HostFunction(Protocol):
    """A function of C++ that the driver may call in a stream; :class:`gids._native.Signal` has one."""

    @property
    def function(self) -> int:
        """Its address."""

    @property
    def address(self) -> int:
        """What it is given."""


class Current:
    """Makes a context current for the body, on the calling thread, and the one before it afterwards."""

    __slots__ = ("_context", "_pushed")

    def __init__(self, context: Any):
        self._context, self._pushed = context, False

    def __enter__(self) -> None:
        from cuda.bindings import driver

        status, before = driver.cuCtxGetCurrent()
        _check(status, "the current context")
        if int(before) != int(self._context):
            (status,) = driver.cuCtxPushCurrent(self._context)
            _check(status, "making the device current")
            self._pushed = True

    def __exit__(self, *_: object) -> None:
        from cuda.bindings import driver

        if self._pushed:
            self._pushed = False
            driver.cuCtxPopCurrent()


class CudaDevice:
    """A CUDA device with the kernels built for it. Opened once per process and shared; see :func:`open_device`."""

    def __init__(self, ordinal: int):
        core = load_cuda_core()
        self._core = core
        self.ordinal = ordinal
        check_driver_version(ordinal)
        try:
            self._context = _primary_context(ordinal)
            with self.current():
                self.device = core.Device(ordinal)
                self.device.set_current()  # cuda.core's own state of the thread; the context is current already
        except Exception as error:  # cuda.core has no public base class of its errors
            raise DeviceError(
                f"device='cuda:{ordinal}' needs a GPU and its driver; `gids doctor` tells what is missing ({error})"
            ) from error
        with self.current():
            self._load_kernels(core)

    def _load_kernels(self, core: Any) -> None:
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

    def current(self) -> Current:
        """Return a ``with`` block in which the device is current on the calling thread."""
        return Current(self._context)

    def kernel(self, name: str) -> Any:
        """Return an entry point."""
        if name not in self._kernels:
            raise DeviceError(f"kernel must be an entry point of kernels/ (got {name!r})")
        return self._kernels[name]

    def memory_bytes(self) -> tuple[int, int]:
        """Return free and total bytes of the device's memory."""
        from cuda.bindings import driver

        with self.current():
            status, free, total = driver.cuMemGetInfo()
        _check(status, f"memory of {self.name}")
        return int(free), int(total)

    def stream_options(self, *, urgent: bool) -> Any:
        """Return options of a stream, with the device's greatest priority or its least."""
        from cuda.bindings import driver

        with self.current():
            status, least, greatest = driver.cuCtxGetStreamPriorityRange()
        _check(status, f"priorities of {self.name}")
        return self._core.StreamOptions(nonblocking=True, priority=int(greatest if urgent else least))

    def allocate(self, count: int, stream: Any) -> Any:
        """Return a buffer that work of ``stream`` may use from now on."""
        try:
            with self.current():
                return self.device.allocate(count, stream=stream)
        except Exception as error:  # cuda.core has no public base class of its errors
            raise DeviceError(self.no_room(count, error)) from error

    def no_room(self, count: int, error: object) -> str:
        """Return what to say where memory is short."""
        free, total = self.memory_bytes()
        return (
            f"device memory of {self.name} must have {format_bytes(count)} free "
            f"({format_bytes(free)} of {format_bytes(total)} are; lower the device budget) ({error})"
        )


def _primary_context(ordinal: int) -> Any:
    """Retain the context that torch and every other user of CUDA's runtime has on this device."""
    from cuda.bindings import driver

    (status,) = driver.cuInit(0)
    _check(status, "cuInit")
    status, device = driver.cuDeviceGet(ordinal)
    _check(status, f"device {ordinal}")
    status, context = driver.cuDevicePrimaryCtxRetain(device)
    _check(status, f"the context of device {ordinal}")
    return context


def check_driver_version(ordinal: int = 0) -> None:
    """Raise DeviceError where NVIDIA's driver is older than the packages that were installed for it."""
    from cuda.bindings import driver

    try:
        status, version = driver.cuDriverGetVersion()
    except Exception as error:  # cuda.bindings raises RuntimeError where there is no libcuda.so.1
        raise DeviceError(
            f"device='cuda:{ordinal}' needs a GPU and its driver; `gids doctor` tells what is missing ({error})"
        ) from error
    _check(status, "the driver's version")
    needed = packages_cuda_major() * 1000
    if int(version) < needed:
        raise DeviceError(
            f"NVIDIA's driver must be for CUDA {needed // 1000} or later (it is for CUDA {int(version) // 1000}."
            f"{int(version) % 1000 // 10}): update the driver, or install packages for it: {EXTRA_HINT}"
        )


_devices: dict[int, CudaDevice] = {}  # guarded by _devices_lock
_devices_lock = threading.Lock()


def open_device(ordinal: int = 0) -> CudaDevice:
    """Open a device, or give the one that is open."""
    with _devices_lock:
        if ordinal not in _devices:
            _devices[ordinal] = CudaDevice(ordinal)
        return _devices[ordinal]


class Owned:
    """A block that goes back to its session when the last array over it is gone."""

    def __init__(self, session: CudaSession, block: Block):
        self._session, self._block = session, block
        self._consumers: dict[int, object] = {}  # streams that may still work on it when it is dropped

    def used_on(self, stream_handle: int, keep: object = None) -> None:
        """Remember a consumer's stream (and its owner): the memory is not reused before what it has queued."""
        self._consumers[stream_handle] = keep

    def __del__(self, _finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not _finalizing():  # then the driver takes everything back at once, and modules may be gone
            self._session.free(self._block, self._consumers)


class Reserved:
    """Memory of :meth:`CudaSession.reserve`; freed with the last array over it, after all work of the device."""

    def __init__(self, session: CudaSession, pointer: int, count: int):
        self._session, self._pointer, self._count = session, pointer, count

    def __del__(self, _finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not _finalizing():
            from cuda.bindings import driver

            with self._session.current():
                driver.cuCtxSynchronize()  # cuMemFree "may perform implicit synchronization": that is no promise
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
    urgent : bool
        Whether its kernels come before those of other streams, as soon as there is room for a block: for work that
        training waits for, and that holds a drive's answers up.
    """

    def __init__(self, device: CudaDevice, budget: DeviceBudget | None = None, *, urgent: bool = False):
        self.device = device
        self.budget = budget or DeviceBudget(device.memory_bytes()[1])
        with self.current():
            options = device.stream_options(urgent=urgent)
            self.stream = _guard(lambda: device.device.create_stream(options=options), "stream")
        self.scratch: dict[str, DeviceArray] = {}
        self._blocks = BlockPool(device, self.stream, self.budget)
        self._uploads, self._downloads, self._arrivals = Uploads(device), Downloads(device), Arrivals(device)
        self._closed = False

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

    def current(self) -> Current:
        """Return a ``with`` block in which the device is current on the calling thread."""
        return self.device.current()

    def enter(self) -> None:
        """Make the device current for a thread that has none; a thread of the user's keeps its own."""
        from cuda.bindings import driver

        status, before = driver.cuCtxGetCurrent()
        _check(status, "the current context")
        if not int(before):
            (status,) = driver.cuCtxSetCurrent(self.device._context)
            _check(status, "making the device current")

    def empty(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> DeviceArray:
        """Return memory for work that is queued from now on; the bytes are arbitrary."""
        shape = (shape,) if isinstance(shape, int) else shape
        count = max(int(np.prod(shape)) * np.dtype(dtype).itemsize, 8)
        block = self._blocks.take(count)
        return DeviceArray(block.pointer, shape, dtype, Owned(self, block), self)

    def reserve(self, count: int, align: int) -> DeviceArray:
        """Allocate bytes of their own, at a multiple of ``align``. Drivers of storage pin no part of a memory pool."""
        from cuda.bindings import driver

        size = count + align
        self.budget.take(size)
        with self.current():
            status, pointer = driver.cuMemAlloc(size)
        if int(status):
            self.budget.give(size)
            raise DeviceError(self.device.no_room(size, status.name))
        begin = -(-int(pointer) // align) * align
        return DeviceArray(begin, (count,), np.uint8, Reserved(self, int(pointer), size), self)

    def free(self, block: Block, consumers: Iterable[int]) -> None:
        """Take memory back. Later work here may use it once consumers' streams have done what they have queued now."""
        with self.current():
            events = [self._event_on(handle) for handle in consumers if handle != self.stream_handle]
        self._blocks.give(block, events)

    def upload(self, values: npt.NDArray[Any]) -> DeviceArray:
        """Copy an array to the device. Returns when the source may be reused; waits for arrays above 1 MiB only."""
        values = np.ascontiguousarray(values)
        array = self.empty(values.shape, values.dtype)
        if not values.nbytes:
            return array
        with self._uploads.lock:
            placed = self._uploads.place(values, self.record)
            if placed is not None:
                self.copy_bytes(array.pointer, placed, values.nbytes)
                return array
        self.copy_bytes(array.pointer, values.ctypes.data, values.nbytes)
        self.synchronize()
        return array

    def upload_async(self, to: DeviceArray, pinned: npt.NDArray[Any]) -> Any:
        """Queue a copy from pinned memory; the source must stay until the returned event has passed."""
        if to.nbytes < pinned.nbytes:
            raise ConfigError(f"copy must fit in {to.nbytes} bytes (got {pinned.nbytes})")
        if pinned.nbytes:
            self.copy_bytes(to.pointer, pinned.ctypes.data, pinned.nbytes)
        return self.record()

    def download(self, array: DeviceArray) -> npt.NDArray[Any]:
        """Wait for all work before, and copy an array to the host."""
        return self.download_all([array])[0]

    def download_all(self, arrays: Sequence[DeviceArray]) -> list[npt.NDArray[Any]]:
        """Wait once for all work before, and copy several arrays to the host."""
        return self._downloads.copy(arrays, self.copy_bytes, self.record)

    def download_later(self, arrays: Sequence[DeviceArray]) -> Arrival:
        """Queue copies of several arrays to the host, which the stream itself tells of."""
        return self._arrivals.begin(arrays, self.copy_bytes, self.record, self.notify)

    def notify(self, function: HostFunction) -> None:
        """Let the stream call a function of C++ when it gets here, as a signal's; it does not, once the device has failed."""
        with self.current():
            status = launch_host_function()(self.stream_handle, function.function, function.address)
        _check(status, "a function of the host's in the stream")

    def copy(self, to: DeviceArray, source: DeviceArray) -> None:
        """Queue a copy within the device."""
        if to.nbytes != source.nbytes:
            raise ConfigError(f"copy must be between arrays of equal size (got {source.nbytes} to {to.nbytes} bytes)")
        if source.nbytes:
            self.copy_bytes(to.pointer, source.pointer, source.nbytes)

    def fill(self, array: DeviceArray, byte: int) -> None:
        """Queue a memset."""
        from cuda.bindings import driver

        if array.nbytes:
            with self.current():
                (status,) = driver.cuMemsetD8Async(array.pointer, byte, array.nbytes, self.stream.handle)
            _check(status, "memset")

    def launch(self, kernel: str, items: int, *arguments: Argument, lanes: int = 1, blocks: int | None = None) -> None:
        """Queue an entry point."""
        core = self.device._core
        grid = blocks or grid_blocks(items, lanes, BLOCK_THREADS)
        config = core.LaunchConfig(grid=grid, block=BLOCK_THREADS)
        values = [_pointer_or_scalar(kernel, i, argument) for i, argument in enumerate(arguments)]
        try:
            with self.current():
                core.launch(self.stream, config, self.device.kernel(kernel), *values)
        except DeviceError:
            raise
        except Exception as error:
            raise DeviceError(f"kernel {kernel} must launch on {self.device.name} ({error})") from error

    def record(self) -> Any:
        """Return an event that passes when all work so far is done."""
        with self.current():
            return _guard(self.stream.record, "event")

    def wait_event(self, event: Any) -> None:
        """Queue a wait for another stream's event."""
        with self.current():
            _guard(lambda: self.stream.wait(event), "wait for an event")

    def order_before(self, stream_handle: int, event: Any = None) -> None:
        """Make later work of a consumer's stream wait for ``event``, or for all that is queued here."""
        from cuda.bindings import driver

        event = event or self.record()  # a name of its own: the handle does not keep the event alive
        with self.current():  # whose default stream the handles 1 and 2 mean
            (status,) = driver.cuStreamWaitEvent(stream_handle, event.handle, 0)
        _check(status, "the consumer's wait for a batch")

    def order_after(self, stream_handle: int) -> None:
        """Make later work here wait for what a consumer's stream has queued."""
        with self.current():
            self.wait_event(self._event_on(stream_handle))

    def _event_on(self, stream_handle: int) -> Any:
        """Return an event that passes when all that a stream has queued is done."""
        from cuda.bindings import driver

        event = _guard(self.device.device.create_event, "event")
        (status,) = driver.cuEventRecord(event.handle, stream_handle)
        _check(status, "an event on the consumer's stream")
        return event

    def synchronize(self) -> None:
        """Wait for all work so far."""
        with self.current():
            _guard(self.stream.sync, f"work on {self.device.name}")

    def close(self) -> None:
        """Wait for all work, and give back what is kept. The stream goes with the last array that is freed on it."""
        self._closed = True
        with ExitStack() as stack:  # all of it, whatever fails
            for part in (self._arrivals, self._downloads, self._uploads, self._blocks):
                stack.callback(part.close)
            stack.callback(self.scratch.clear)  # first: what it holds goes back to the blocks
            self.synchronize()

    def __del__(self, _finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # A closed one may be collected at any time, beside another loader's batches: it must not wait for anything.
        if not _finalizing() and not getattr(self, "_closed", True):
            with suppress(DeviceError):  # nobody is there to be told; what came before has raised it already
                self.close()

    def copy_bytes(self, to: int, source: int, count: int) -> None:
        """Queue a copy between two addresses; memory of the host must be pinned, or it is waited for."""
        from cuda.bindings import driver

        if not count:
            return
        with self.current():
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
        raise DeviceError(f"{what} failed ({error}{_ended_by()})") from error


def _ended_by() -> str:
    """Return the error that the device has ended with, if it has: cuda.core does not name it whatever call hears of it."""
    from cuda.bindings import driver

    status, event = driver.cuEventCreate(driver.CUevent_flags.CU_EVENT_DISABLE_TIMING)
    if int(status):
        return f": {status.name}"
    driver.cuEventDestroy(event)
    return ""


def _check(status: Any, what: str) -> None:
    if int(status) != 0:
        raise DeviceError(f"{what} failed ({getattr(status, 'name', status)})")
