"""The user's function on a batch before it is handed over, on the stream that the batch is handed over on."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch

from gids.errors import ConfigError

B = TypeVar("B")


def transform_batch(transform: Callable[[Any], Any], batch: B, device: torch.device | None) -> B:
    """Call ``transform(batch)`` on the calling thread, and return what it returned, or ``batch`` where that is None.

    torch's current stream is the one that the batch is in order with; CuPy's is made the same for the call, where CuPy is
    loaded. Numba has no current stream: its launches name one (``docs/examples/transform_numba.py``).
    """
    with _cupy_stream(device):
        result = transform(batch)
    if result is None:
        return batch
    if isinstance(result, type(batch)):
        return result
    raise ConfigError(
        f"transform must return None or a {type(batch).__name__} (got {type(result).__name__}): change its "
        "tensors in place, or return dataclasses.replace(batch, ...)"
    )


def _cupy_stream(device: torch.device | None) -> AbstractContextManager[Any]:
    cupy = sys.modules.get("cupy")
    if cupy is None or device is None or device.type != "cuda" or not torch.cuda.is_available():
        return nullcontext()
    stream = torch.cuda.current_stream(device)
    context: AbstractContextManager[Any] = cupy.cuda.ExternalStream(stream.cuda_stream, stream.device.index)
    return context
