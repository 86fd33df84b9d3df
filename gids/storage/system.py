"""System calls as the rest of gids makes them: an interrupt is no answer, and a failed read names file and offset."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from gids.errors import StorageError

Result = TypeVar("Result")

_CALL_BYTES = 1 << 30  # one read takes less than 2 GiB


def retry_on_eintr(call: Callable[[], Result]) -> Result:
    """Return what ``call`` returns, and call again where a signal interrupted it.

    For the few calls that Python does not repeat by itself (PEP 475). Handlers of signals run between two calls, so
    that Ctrl-C ends the waiting.
    """
    while True:
        try:
            return call()
        except InterruptedError:
            continue
        except OSError as error:
            if error.errno != errno.EINTR:
                raise


def ioctl(descriptor: int, request: int, argument: Any) -> None:
    """Call ``ioctl(2)``, which changes ``argument`` in place, until no signal interrupts it."""
    retry_on_eintr(lambda: fcntl.ioctl(descriptor, request, argument))


@contextlib.contextmanager
def read_errors(path: str | os.PathLike[str], offset: int = 0, length: int = 0) -> Iterator[None]:
    """Turn what the kernel says about a failed read into a :class:`StorageError` that names file and offset."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        if error.errno is None:  # of a library, e.g. of gzip about a damaged file: no failed read
            raise
        raise StorageError("read failed", os.fspath(path), offset, length, error.errno) from error


def read_into(path: str | os.PathLike[str], offset: int, out: npt.NDArray[Any]) -> None:
    """Fill a contiguous array with the bytes of a file from ``offset`` on.

    Files of users are read, never mapped: an error or a file that shrinks is an exception here, and would be a signal
    that kills the process there.
    """
    view = memoryview(out.reshape(-1).view(np.uint8).data) if out.nbytes else memoryview(b"")
    done = 0
    with read_errors(path, offset, len(view)):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while done < len(view):
            with read_errors(path, offset + done, len(view) - done):
                count = os.preadv(descriptor, [view[done : done + _CALL_BYTES]], offset + done)
            if count == 0:
                raise StorageError("file ends early", os.fspath(path), offset + done, len(view) - done)
            done += count
    finally:
        os.close(descriptor)


def read_file(path: str | os.PathLike[str]) -> bytes:
    """Return the contents of a small file."""
    with read_errors(path):
        return Path(path).read_bytes()
