"""Where files derived from a dataset go, also where the dataset itself cannot be written."""

from __future__ import annotations

import functools
import os
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from tokenize import TokenError
from typing import Any
from zipfile import BadZipFile

import numpy as np

from gids.errors import ConfigError

# What zipfile and numpy raise for the bytes of an archive: RuntimeError for one that says it is encrypted or compressed
# in a way that is not built in, MemoryError for a shape that nothing could hold, TypeError for what is no archive.
_DAMAGE = (
    OSError, EOFError, ValueError, KeyError, TypeError, RuntimeError, MemoryError, BadZipFile, TokenError, zlib.error,
)  # fmt: skip


def scratch_directory(dataset: Path, identity: str) -> Path:
    """Return a directory for what is derived from a dataset, made where it was not there.

    Parameters
    ----------
    dataset : Path
        The dataset's directory.
    identity : str
        Its id: derived files outside of it are found by that.

    Raises
    ------
    ConfigError
        Where ``GIDS_SCRATCH`` is set to a directory that cannot be written: what the user names is not replaced.
    """
    chosen = os.environ.get("GIDS_SCRATCH")
    if chosen:
        place = Path(chosen) / identity
        if not _writable(place):
            raise ConfigError(f"GIDS_SCRATCH must be a directory that can be written (got {chosen})")
        return place
    for place in _candidates(dataset, identity):
        if _writable(place):
            return place
    return _temporary(identity)


def _candidates(dataset: Path, identity: str) -> Iterator[Path]:
    yield dataset / "scratch"
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # a user without a home
        return
    yield cache / "gids" / "scratch" / identity


def _writable(place: Path) -> bool:
    """Whether a directory is there, or can be made, and takes files; tried, because root and read-only mounts differ."""
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=place):
            return True
    except OSError:
        return False


@functools.cache
def _temporary_root() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="gids-scratch-")  # private, and removed when the process ends


def _temporary(identity: str) -> Path:
    place = Path(_temporary_root().name) / identity
    place.mkdir(exist_ok=True)
    return place


def load_arrays(path: Path) -> Mapping[str, np.ndarray[Any, Any]] | None:
    """Read an ``.npz`` archive that was derived from a dataset; None where it is missing or damaged: it is made anew."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except _DAMAGE:
        return None


def load_array(path: Path) -> np.ndarray[Any, Any] | None:
    """Read a ``.npy`` file that was derived from a dataset; None where it is missing or damaged: it is made anew."""
    try:
        with path.open("rb") as file:
            return np.lib.format.read_array(file, allow_pickle=False)
    except _DAMAGE:
        return None
