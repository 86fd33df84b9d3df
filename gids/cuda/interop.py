"""Hand-over between the device and frameworks: batches as torch tensors, seeds from anything with a CUDA pointer."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gids.cuda.array import DeviceArray
from gids.cuda.sampling.packing import Packed
from gids.cuda.session import CudaSession, open_device
from gids.errors import ConfigError, DeviceError

LEGACY_STREAM = 1  # DLPack's name of the stream that torch calls 0
TORCH_DTYPES: dict[np.dtype[Any], torch.dtype] = {np.dtype(np.float32): torch.float32}


def torch_device(session: CudaSession) -> torch.device:
    """Return the torch device that shares memory with ``session``, or say why there is none.

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


def torch_memory(ordinal: int) -> int:
    """Return the bytes that torch has taken on a device: 0 before the first tensor."""
    return int(torch.cuda.memory_reserved(ordinal)) if torch.cuda.is_available() else 0


def pointer_ordinal(pointer: int) -> int:
    """Return the device that a pointer belongs to."""
    from cuda.bindings import driver

    attribute = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    status, ordinal = driver.cuPointerGetAttribute(attribute, pointer)
    if int(status):
        raise ConfigError(f"the pointer of __cuda_array_interface__ must be CUDA's (got {pointer:#x}: {status.name})")
    return int(ordinal)


def to_torch(array: DeviceArray, device: torch.device) -> Tensor:
    """Share an array with torch, in order with the calling thread's current stream of its device.

    The memory stays as long as the tensor, and is not reused before what the stream that is current *now* has queued by
    then. A consumer that goes on to use it on another stream makes that stream and this one wait for each other, as
    torch asks for tensors of its own; ``Tensor.record_stream`` does nothing for memory that torch did not allocate.
    """
    if device.type == "cpu":
        return torch.utils.dlpack.from_dlpack(array.__dlpack__(dl_device=(1, 0)))
    stream = torch.cuda.current_stream(device).cuda_stream
    return torch.utils.dlpack.from_dlpack(array.__dlpack__(stream=stream or LEGACY_STREAM))


def packed_to_torch(packed: Packed, device: torch.device) -> dict[Hashable, Tensor]:
    """Share arrays of one piece of memory, by name: one hand-over, and one call that makes views of it."""
    words = to_torch(packed.memory, device).split_with_sizes(packed.sizes)[::2]
    tensors = dict(zip(packed.pieces, words, strict=True))
    for name in packed.others:
        piece = packed.pieces[name]
        tensors[name] = tensors[name].view(TORCH_DTYPES[piece.dtype])[: len(piece)]
    return tensors


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
