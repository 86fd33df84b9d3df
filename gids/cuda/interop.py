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


def to_torch(array: DeviceArray, device: torch.device) -> Tensor:
    """Share an array with torch, in order with the calling thread's current stream."""
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
    session = CudaSession(open_device())
    if interface.get("stream"):
        session.order_after(int(interface["stream"]))
    pointer = int(interface["data"][0])
    return torch.from_numpy(session.download(DeviceArray(pointer, shape, dtype, value)).astype(np.int64))
