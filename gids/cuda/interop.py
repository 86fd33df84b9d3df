"""Hand-over between the device and frameworks: batches as torch tensors, seeds from anything with a CUDA pointer."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gids.cuda.array import DeviceArray
from gids.cuda.session import CudaSession, open_device
from gids.errors import ConfigError, DeviceError


def torch_device(session: CudaSession) -> torch.device:
    """Give the torch device that shares memory with ``session``, or say why there is none.

    A torch without CUDA can still share memory with a device whose memory the CPU addresses: an integrated one, and
    the tests' stand-in for the driver.
    """
    if torch.cuda.is_available():
        return torch.device("cuda", session.device_id)
    if session.host_addressable:
        return torch.device("cpu")
    raise DeviceError(
        f"torch must be a CUDA build to receive batches on {session.device.name} (got torch {torch.__version__})"
    )


def torch_ordinal(device: torch.device) -> int:
    """Return the ordinal that torch means: of ``"cuda"`` the calling thread's current device, as everywhere in torch."""
    index: int | None = device.index
    if index is not None:
        return index
    return torch.cuda.current_device() if torch.cuda.is_available() else 0


def pointer_ordinal(pointer: int) -> int:
    """Return the device that a pointer belongs to."""
    from cuda.bindings import driver

    attribute = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    status, ordinal = driver.cuPointerGetAttribute(attribute, pointer)
    if int(status):
        raise ConfigError(f"the pointer of __cuda_array_interface__ must be CUDA's (got {pointer:#x}: {status.name})")
    return int(ordinal)


def to_torch(array: DeviceArray, device: torch.device) -> Tensor:
    """Share an array with torch, in order with the calling thread's current stream.

    The memory stays as long as the tensor, and is not reused before what the stream that is current *now* has queued by
    then. A consumer that goes on to use it on another stream makes that stream and this one wait for each other, as
    torch asks for tensors of its own; ``Tensor.record_stream`` does nothing for memory that torch did not allocate.
    """
    if device.type == "cpu":
        return torch.utils.dlpack.from_dlpack(array.__dlpack__(dl_device=(1, 0)))
    with torch.cuda.device(device):
        return torch.utils.dlpack.from_dlpack(array)


def seeds_to_host(value: Any) -> Tensor:
    """Copy seeds from CUDA memory: their order is made on the host. Waits for the producer's stream."""
    if isinstance(value, Tensor):
        return value.cpu()
    interface = value.__cuda_array_interface__
    dtype, shape = np.dtype(interface["typestr"]), tuple(interface["shape"])
    if dtype.kind not in "iu" or len(shape) != 1:
        raise ConfigError(f"seeds must be integers of one dimension (got {dtype}, {len(shape)} dimensions)")
    if interface.get("strides") not in (None, (dtype.itemsize,)):
        raise ConfigError(f"seeds must be contiguous (got strides {interface['strides']})")
    pointer = int(interface["data"][0])
    if not pointer:
        return torch.empty(0, dtype=torch.int64)
    session = CudaSession(open_device(pointer_ordinal(pointer)))
    if interface.get("stream"):
        session.order_after(int(interface["stream"]))
    return torch.from_numpy(session.download(DeviceArray(pointer, shape, dtype, value)).astype(np.int64))
