"""Arrays in device memory: what kernels take and give, and what frameworks receive without a copy."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gids.errors import ConfigError

_KDLCPU, _KDLCUDA = 1, 2
_DLPACK_CODES = {"i": 0, "u": 1, "f": 2}


class Consumer(Protocol):
    """Who orders an array's bytes with a consumer's stream; :class:`gids.cuda.session.CudaSession` does."""

    @property
    def device_id(self) -> int:
        """Ordinal of the device."""

    def order_before(self, stream_handle: int, event: Any = None) -> None:
        """Make later work of that stream wait for ``event``, or for all that this side has queued."""

    def synchronize(self) -> None:
        """Wait until what this side has queued is done."""


class StreamUser(Protocol):
    """A session, as far as the freeing of memory is concerned."""

    @property
    def stream_handle(self) -> int:
        """Handle of its stream."""


class StreamOrdered(Protocol):
    """An owner that frees memory in stream order and must know who else works on it."""

    def used_on(self, stream_handle: int, keep: object = None) -> None:
        """Remember a consumer's stream, and what must live as long as it."""


class DeviceArray:
    """A contiguous array in device memory. Slices along the first axis share it.

    Parameters
    ----------
    pointer : int
        Device address.
    shape : tuple of int
        Row-major.
    dtype : dtype
        NumPy's; ``bfloat16`` bits travel as ``uint16`` with ``dlpack_code`` 4.
    owner : object
        Keeps the memory alive.
    consumer : Consumer, optional
        Needed only to hand the array over.
    """

    def __init__(
        self,
        pointer: int,
        shape: tuple[int, ...],
        dtype: npt.DTypeLike,
        owner: object,
        consumer: Consumer | None = None,
        dlpack_code: int | None = None,
    ) -> None:
        self.pointer = pointer
        self.shape = shape
        self.dtype = np.dtype(dtype)
        self.owner = owner
        self._consumer = consumer
        self._dlpack_code = _DLPACK_CODES.get(self.dtype.kind) if dlpack_code is None else dlpack_code
        #: Event after which the values are complete; None: when all that its session has queued is done.
        self.ready: Any = None
        self._capsule: Any = None  # made ahead, see export()

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def size(self) -> int:
        """Number of values."""
        return int(np.prod(self.shape))

    @property
    def nbytes(self) -> int:
        """Bytes of the values."""
        return self.size * self.dtype.itemsize

    def __getitem__(self, part: slice) -> DeviceArray:
        begin, end, step = part.indices(len(self))
        if step != 1:
            raise ConfigError(f"step of a device array's slice must be 1 (got {step})")
        row_bytes = self.nbytes // len(self) if len(self) else 0
        shape = (max(end - begin, 0), *self.shape[1:])
        pointer = self.pointer + begin * row_bytes
        part_of = DeviceArray(pointer, shape, self.dtype, self.owner, self._consumer, self._dlpack_code)
        part_of.ready = self.ready
        return part_of

    def view(self, shape: tuple[int, ...], dtype: npt.DTypeLike, dlpack_code: int | None = None) -> DeviceArray:
        """Return the same bytes with another shape and type."""
        other = DeviceArray(self.pointer, shape, dtype, self.owner, self._consumer, dlpack_code)
        if other.nbytes > self.nbytes:
            raise ConfigError(f"a view must fit in {self.nbytes} bytes (got {other.nbytes})")
        other.ready = self.ready
        return other

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Protocol version 3; the producer's work is waited for, so that no stream needs to be named."""
        self._handing_over().synchronize()
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.pointer, False),
            "version": 3,
            "strides": None,
            "stream": None,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        """DLPack: kDLCUDA and the device's ordinal."""
        return _KDLCUDA, self._handing_over().device_id

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """DLPack capsule over the same memory, ordered before later work of the consumer's ``stream``.

        As the protocol says, ``stream`` is a CUDA stream handle, 1 or None is the legacy default stream, 2 the
        per-thread default stream, and −1 asks for no ordering.
        """
        consumer = self._handing_over()
        if copy:
            raise BufferError("a device array is handed over without a copy")
        if dl_device is not None and dl_device[0] == _KDLCPU:
            # Allowed where the device's memory is host memory (integrated devices; the tests' stand-in).
            if not getattr(consumer, "host_addressable", False):
                raise BufferError("device memory must be copied to reach the CPU")
            consumer.synchronize()
            return make_capsule(self, (_KDLCPU, 0), self._dlpack_code)
        if stream != -1:
            handle = 1 if stream is None else stream
            consumer.order_before(handle, self.ready)
            self._used_on(handle)
        if self._capsule is None:
            self.export()
        capsule, self._capsule = self._capsule, None
        return capsule

    def export(self) -> None:
        """Make the next DLPack capsule now, where it costs the consumer no time."""
        self._capsule = make_capsule(self, self.__dlpack_device__(), self._dlpack_code)

    def share_with(self, session: StreamUser) -> None:
        """Let another session's kernels use this array: its memory is not reused before what they have queued."""
        self._used_on(session.stream_handle, session)

    def _used_on(self, stream_handle: int, keep: object = None) -> None:
        used_on = getattr(self.owner, "used_on", None)  # a StreamOrdered owner's; isinstance takes microseconds
        if used_on is not None:
            used_on(stream_handle, keep)

    def _handing_over(self) -> Consumer:
        if self._consumer is None:
            raise ConfigError("this array is a kernel's scratch and cannot be handed over")
        return self._consumer


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _DLManagedTensor(ctypes.Structure):
    pass


_DELETER = ctypes.CFUNCTYPE(None, ctypes.POINTER(_DLManagedTensor))
_DLManagedTensor._fields_ = (("dl_tensor", _DLTensor), ("manager_ctx", ctypes.c_void_p), ("deleter", _DELETER))
_DESTRUCTOR = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

# Prototypes of our own: attributes of ctypes.pythonapi are shared, and others set their types too.
_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, _DESTRUCTOR)(
    ("PyCapsule_New", ctypes.pythonapi)
)
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)

_exported: dict[int, tuple[object, ...]] = {}  # address of a managed tensor -> what must live as long as it


def _release(managed: Any) -> None:
    _exported.pop(ctypes.addressof(managed.contents), None)


_release_callback = _DELETER(_release)


def _drop_unused(capsule: int) -> None:
    # A consumer renames the capsule to "used_dltensor" and then calls the deleter itself.
    if _is_valid(capsule, b"dltensor"):
        _exported.pop(int(_get_pointer(capsule, b"dltensor")), None)


_drop_callback: Callable[..., None] = _DESTRUCTOR(_drop_unused)


def make_capsule(array: DeviceArray, device: tuple[int, int], code: int | None) -> Any:
    """Make a DLPack capsule that keeps ``array`` alive until its consumer lets go."""
    if code is None:
        raise BufferError(f"dtype must be one that DLPack knows (got {array.dtype})")
    shape = (ctypes.c_int64 * len(array.shape))(*array.shape)
    managed = _DLManagedTensor()
    tensor = managed.dl_tensor
    tensor.data = array.pointer
    tensor.device_type, tensor.device_id = device
    tensor.ndim = len(array.shape)
    tensor.code, tensor.bits, tensor.lanes = code, array.dtype.itemsize * 8, 1
    tensor.shape = ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64))
    tensor.strides = None
    tensor.byte_offset = 0
    managed.deleter = _release_callback
    address = ctypes.addressof(managed)
    _exported[address] = (managed, shape, array.owner)
    return _new_capsule(address, b"dltensor", _drop_callback)
