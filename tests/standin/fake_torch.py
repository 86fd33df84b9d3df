"""torch.cuda for a torch without CUDA: the calls that gids makes of it, over the stand-in for the driver, recorded.

``install()`` replaces them; ``python fake_torch.py COMMAND ...`` runs a command of gids with them. torch's own ``from_dlpack`` runs as it is: it asks for the current stream and gives it to
``__dlpack__``; only the last step, which makes a CUDA tensor of the capsule, is ours. Its answer is a CPU tensor with a
copy of the bytes, made on the consumer's stream, so that a missing order shows as wrong values. The capsule's deleter is
called when that tensor dies. What it cannot show: tensors that alias device memory, and torch's own kernels.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import mmap
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

_DTYPES = {
    (0, 8): torch.int8, (0, 16): torch.int16, (0, 32): torch.int32, (0, 64): torch.int64, (1, 8): torch.uint8,
    (1, 16): torch.uint16, (1, 32): torch.uint32, (1, 64): torch.uint64,
    (2, 16): torch.float16, (2, 32): torch.float32, (2, 64): torch.float64, (4, 16): torch.bfloat16,
}  # fmt: skip
_KDLCUDA = 2


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("manager", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


def _capsule_call(name: str, result: Any, *arguments: Any) -> Any:
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_pointer_of = _capsule_call("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
_is_valid = _capsule_call("PyCapsule_IsValid", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
_set_name = _capsule_call("PyCapsule_SetName", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
_USED = b"used_dltensor"


def checked(result: Any) -> Any:
    """Raise for a driver call that failed; give the rest of its answer."""
    status, *rest = result
    if int(status):
        raise RuntimeError(f"the driver refused ({status.name})")
    return rest[0] if len(rest) == 1 else tuple(rest)


def _driver() -> Any:
    from cuda.bindings import driver

    return driver


def current_device() -> int:
    """Return the device of the thread's context, as CUDA's runtime does; 0 for a thread without one."""
    driver = _driver()
    checked(driver.cuInit(0))
    if not int(checked(driver.cuCtxGetCurrent())):
        return 0
    return int(checked(driver.cuCtxGetDevice()))


_primary: dict[int, Any] = {}


def set_device(device: Any) -> None:
    """Make a device's primary context current."""
    driver, ordinal = _driver(), _ordinal(device)
    checked(driver.cuInit(0))
    if ordinal not in _primary:
        _primary[ordinal] = checked(driver.cuDevicePrimaryCtxRetain(ordinal))
    checked(driver.cuCtxSetCurrent(_primary[ordinal]))


def _ordinal(device: Any) -> int:
    if device is None:
        return current_device()
    if isinstance(device, int):
        return device
    index = torch.device(device).index
    return current_device() if index is None else index


class Device(contextlib.AbstractContextManager):  # type: ignore[type-arg]
    """``torch.cuda.device``: another current device for the body."""

    def __init__(self, device: Any):
        self._device, self._before = _ordinal(device), 0

    def __enter__(self) -> None:
        self._before = current_device()
        set_device(self._device)

    def __exit__(self, *_: object) -> None:
        set_device(self._before)


class Stream:
    """``torch.cuda.Stream``: a stream of the stand-in, or the default one with handle 0."""

    def __init__(self, device: Any = None, priority: int = 0, *, handle: int | None = None):
        self.device = torch.device("cuda", _ordinal(device))
        if handle is None:
            with Device(self.device):
                self._owned = checked(_driver().cuStreamCreate(1))
            handle = int(self._owned)
        self.cuda_stream = handle

    def synchronize(self) -> None:
        """Wait."""
        with Device(self.device):
            checked(_driver().cuStreamSynchronize(self.cuda_stream))

    def record_event(self, event: Event | None = None) -> Event:
        """Return an event behind what is queued."""
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        """Make later work wait for an event; one that was never recorded has passed."""
        if event.cuda_event:
            with Device(self.device):
                checked(_driver().cuStreamWaitEvent(self.cuda_stream, event.cuda_event, 0))

    def wait_stream(self, other: Stream) -> None:
        """Make later work wait for what the other stream has queued."""
        self.wait_event(other.record_event())


class Event:
    """``torch.cuda.Event``: an event of the stand-in, made on the device of the stream that records it first."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False):
        self.cuda_event: Any = None
        self.device: torch.device | None = None

    def record(self, stream: Stream | None = None) -> None:
        """Pass when what the stream has queued is done."""
        stream = stream or torch.cuda.current_stream()
        with Device(stream.device):
            if self.cuda_event is None:
                self.cuda_event, self.device = checked(_driver().cuEventCreate(2)), stream.device
            checked(_driver().cuEventRecord(self.cuda_event, stream.cuda_stream))

    def wait(self, stream: Stream | None = None) -> None:
        """Make later work of a stream wait for it."""
        (stream or torch.cuda.current_stream()).wait_event(self)

    def query(self) -> bool:
        """Whether it has passed."""
        return self.cuda_event is None or int(_driver().cuEventQuery(self.cuda_event)[0]) == 0

    def synchronize(self) -> None:
        """Wait for it."""
        if self.cuda_event is not None:
            with Device(self.device):
                checked(_driver().cuEventSynchronize(self.cuda_event))


@dataclass
class Handed:
    """One tensor that torch was given."""

    pointer: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: int
    stream: int  # torch's current stream there, as a handle
    thread: int
    released: bool = False


@dataclass
class FakeTorch:
    """What was asked of torch.cuda."""

    handed: list[Handed] = field(default_factory=list)
    recorded: list[tuple[int, int]] = field(default_factory=list)  # data_ptr and stream of every record_stream
    moved: list[tuple[tuple[int, ...], str]] = field(default_factory=list)  # shape and device of every Tensor.to
    #: Whether tensors get the bytes. Not where only the calls matter.
    copies: bool = True
    #: Bytes that torch's allocator has taken, by device.
    reserved: dict[int, int] = field(default_factory=dict)


class _Streams(threading.local):
    def __init__(self) -> None:
        self.current: dict[int, Stream] = {}


def _take(capsule: Any, fake: FakeTorch, real: Any) -> torch.Tensor:
    if not _is_valid(capsule, b"dltensor"):
        return real(capsule)
    managed = _Managed.from_address(_pointer_of(capsule, b"dltensor"))
    described = managed.tensor
    if described.device_type != _KDLCUDA:
        return real(capsule)
    assert not described.strides, "gids hands over contiguous arrays"
    assert described.byte_offset == 0
    shape = tuple(described.shape[i] for i in range(described.ndim))
    dtype = _DTYPES[described.code, described.bits]
    stream = torch.cuda.current_stream(described.device_id).cuda_stream
    entry = Handed(int(described.data or 0), shape, dtype, described.device_id, stream, threading.get_ident())
    count = int(np.prod(shape)) * (described.bits // 8)
    # Pages of its own: a piece of the heap may end on a page that gids has registered, where a copy must not begin.
    values = np.frombuffer(mmap.mmap(-1, max(count, 1)), np.uint8, count)
    if count and fake.copies:
        driver, library = _driver(), ctypes.CDLL("libcuda.so.1")
        with Device(described.device_id):
            library.gids_standin_quiet(1)  # no real hand-over copies
            try:
                checked(driver.cuMemcpyDtoHAsync(values.ctypes.data, entry.pointer, count, stream))
                checked(driver.cuStreamSynchronize(stream))
            finally:
                library.gids_standin_quiet(0)
    _set_name(capsule, _USED)
    tensor = torch.from_numpy(values).view(dtype).view(shape) if count else torch.empty(shape, dtype=dtype)
    delete = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(managed.deleter)
    address = ctypes.addressof(managed)

    def release() -> None:
        entry.released = True
        delete(address)

    weakref.finalize(tensor, release).atexit = False
    fake.handed.append(entry)
    return tensor


def install() -> FakeTorch:
    """Replace the calls for the rest of the process."""
    fake, streams = FakeTorch(), _Streams()
    real_from_dlpack, real_to = torch._C._from_dlpack, torch.Tensor.to

    def current_stream(device: Any = None) -> Stream:
        ordinal = _ordinal(device)
        return streams.current.get(ordinal) or Stream(ordinal, handle=0)

    @contextlib.contextmanager
    def stream_context(stream: Stream | None) -> Iterator[None]:
        if stream is None:  # as in torch: nothing is chosen
            yield
            return
        ordinal = stream.device.index
        before, streams.current[ordinal] = streams.current.get(ordinal), stream
        try:
            with Device(ordinal):
                yield
        finally:
            if before is None:
                del streams.current[ordinal]
            else:
                streams.current[ordinal] = before

    def to(tensor: torch.Tensor, *arguments: Any, **more: Any) -> torch.Tensor:
        rest = [part for part in arguments if not _is_cuda(part)]
        device = more.get("device")
        gone = [part for part in arguments if _is_cuda(part)] + ([device] if _is_cuda(device) else [])
        if not gone:
            return real_to(tensor, *arguments, **more)
        more.pop("device", None)
        fake.moved.append((tuple(tensor.shape), str(gone[0])))
        return real_to(tensor, *rest, **more) if rest or more else tensor

    def record_stream(tensor: torch.Tensor, stream: Stream) -> None:
        fake.recorded.append((tensor.data_ptr(), stream.cuda_stream))  # torch skips memory that it did not allocate

    names = itertools.count()
    cuda: Any = torch.cuda
    cuda.is_available = lambda: True
    cuda.device_count = lambda: int(checked(_driver().cuDeviceGetCount()))
    cuda.current_device, cuda.set_device, cuda.device = current_device, set_device, Device
    cuda.current_stream, cuda.stream, cuda.Stream = current_stream, stream_context, Stream
    cuda.default_stream = lambda device=None: Stream(device, handle=0)
    cuda.Event = Event
    cuda.memory_reserved = lambda device=None: fake.reserved.get(_ordinal(device), 0)
    cuda.synchronize = lambda device=None: current_stream(device).synchronize()
    cuda.nvtx.range_push, cuda.nvtx.range_pop = lambda _: next(names), lambda: next(names)
    anything: Any = torch
    anything._C._from_dlpack = lambda capsule: _take(capsule, fake, real_from_dlpack)
    anything.Tensor.to, anything.Tensor.record_stream = to, record_stream
    return fake


def _is_cuda(value: Any) -> bool:
    return (isinstance(value, torch.device) and value.type == "cuda") or (
        isinstance(value, str) and value.startswith("cuda")
    )


if __name__ == "__main__":
    import sys

    from gids.cli import main

    install()
    sys.exit(main(sys.argv[1:]))
