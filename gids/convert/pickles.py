"""``torch.load`` for files of strangers: tensors, arrays and plain values, never code unless the user trusts the file."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gids.errors import DatasetError
from gids.storage.system import read_errors


def _numpy_globals() -> list[Any]:
    """List what a pickled numpy array names, under its old and new module paths."""
    reconstruct = np.array(0).__reduce__()[0]
    scalar = np.int64(0).__reduce__()[0]
    names: list[Any] = [np.ndarray, np.dtype]
    for module in ("numpy.core.multiarray", "numpy._core.multiarray"):
        names += [(reconstruct, f"{module}._reconstruct"), (scalar, f"{module}.scalar")]
    kinds = [
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "float16",
        "float32",
        "float64",
        "bool",
    ]
    return names + [type(np.dtype(kind)) for kind in kinds]


def load_torch(path: Path, trust: bool = False, allow: tuple[Any, ...] = ()) -> Any:
    """Load a file of ``torch.save``.

    Parameters
    ----------
    trust : bool
        Allow any pickled object, which can run code of whoever made the file.
    allow : tuple
        Classes that are harmless besides tensors, arrays and plain values.
    """
    try:
        if trust:
            with read_errors(path):
                return torch.load(path, map_location="cpu", weights_only=False)
        with read_errors(path), torch.serialization.safe_globals([*_numpy_globals(), *allow]):
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if trust:
            raise DatasetError(f"{path} must be a file of torch.save ({error})") from error
        raise DatasetError(
            f"{path} holds more than tensors, arrays and plain values ({_strangers(path)}); loading it could run code. "
            "If you trust the file, say so with --trust"
        ) from error
    except (RuntimeError, EOFError, ValueError) as error:
        raise DatasetError(f"{path} must be a file of torch.save ({str(error).splitlines()[0]})") from error


def _strangers(path: Path) -> str:
    try:
        return ", ".join(sorted(torch.serialization.get_unsafe_globals_in_checkpoint(str(path))))
    except (RuntimeError, ValueError, pickle.UnpicklingError):
        return "an old or damaged file"


def as_ids(value: Any, name: str) -> np.ndarray:
    """Turn a tensor, array or mask into ``int64`` ids."""
    array = value.numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
    if array.dtype == bool:
        # PyG keeps several random splits as columns; the first one is meant.
        return np.flatnonzero(array if array.ndim == 1 else array[:, 0])
    if array.dtype.kind not in "iu" and array.size:
        raise DatasetError(f"{name} must be node ids or a mask (got {array.dtype})")
    return array.reshape(-1).astype(np.int64)
