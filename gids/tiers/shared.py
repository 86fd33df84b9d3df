"""Memory that the processes of a machine share: the first fills it, the last removes it, the next clears up a crash."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import mmap
import os
import re
import stat
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from gids.errors import ConfigError, StorageError
from gids.units import format_bytes

_COMPLETE = b"gids-1-ok"
_NAME = re.compile(r"gids-[0-9a-f]{24}")
_POLL_S = 0.005


class SharedTensor:
    """A tensor in shared memory, made once for all processes that ask for the same name.

    Whoever uses the file holds a shared lock on it; whoever fills or removes it an exclusive one. The kernel drops the
    locks of a process that dies, so a half-filled file is filled again, and one that nobody holds any more is used by
    the next process that asks for its name or removed by the next that makes another (:func:`sweep`).

    Names can be guessed by other users of the machine. A file is used only if it is a regular file of this user that
    nobody else may open; links are not followed, and what is found under the name otherwise is left as it is.

    Parameters
    ----------
    identity : str
        What the contents are a function of; equal identities share.
    shape, dtype
        Of the tensor.
    fill : callable
        Writes the contents; called in one process only.
    directory : Path
        A file system in memory.
    what : str
        What it is, for messages.
    otherwise : str
        How to do without shared memory, for messages.
    """

    def __init__(
        self,
        identity: str,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        fill: Callable[[torch.Tensor], None],
        directory: Path = Path("/dev/shm"),
        what: str = "host_buffer",
        otherwise: str = "host_buffer=0 does without",
    ):
        self._what, self._otherwise = what, f"; {otherwise}" if otherwise else ""
        digest = hashlib.sha256(f"{os.getuid()} {identity} {shape} {dtype}".encode()).hexdigest()[:24]
        self.path = directory / f"gids-{digest}"
        self.nbytes = int(torch.Size(shape).numel()) * dtype.itemsize
        self._size = self.nbytes + len(_COMPLETE)
        sweep(directory, self.path.name)
        fd, self._map, self.filled_here = self._attach(shape, dtype, fill)
        # Whoever drops it without close() lets go of it too.
        self._finalizer = weakref.finalize(self, _let_go, fd, self.path, os.getpid())
        self.tensor = self._view(shape, dtype)

    def _attach(
        self, shape: tuple[int, ...], dtype: torch.dtype, fill: Callable[[torch.Tensor], None]
    ) -> tuple[int, mmap.mmap, bool]:
        while True:
            fd = self._open()
            try:
                _check_private(fd, self.path)
                fcntl.flock(fd, fcntl.LOCK_SH)  # waits while somebody fills it
                if self._is_complete(fd):
                    return fd, mmap.mmap(fd, self._size), False
                # Incomplete and nobody fills it: one of those that see this gets the lock, the others look again.
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_current(fd, self.path) and not self._is_complete(fd):
                    self._map = self._create(fd)
                    fill(self._view(shape, dtype))
                    self._map[self.nbytes :] = _COMPLETE
                    fcntl.flock(fd, fcntl.LOCK_SH)
                    return fd, self._map, True
            except BlockingIOError:
                pass
            except _NotOurs:
                os.close(fd)
                raise
            except BaseException:
                _release(fd, self.path)
                raise
            os.close(fd)
            time.sleep(_POLL_S)

    def _open(self) -> int:
        try:
            return os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            code = error.errno or 0
            if code == errno.ELOOP or (code in (errno.EACCES, errno.EISDIR) and os.path.lexists(self.path)):
                raise _NotOurs(self.path, "cannot be opened, or is a link") from error
            raise StorageError(
                f"{self._what} needs a writable {self.path.parent} to be shared by processes{self._otherwise}",
                str(self.path),
                0,
                self._size,
                code,
            ) from error

    def _create(self, fd: int) -> mmap.mmap:
        os.ftruncate(fd, 0)
        try:
            os.posix_fallocate(fd, 0, self._size)  # fails now rather than with SIGBUS at the first write
        except OSError as error:
            raise ConfigError(
                f"{self._what} must fit in {self.path.parent}: {format_bytes(self._size)} cannot be had "
                f"({error.strerror}){self._otherwise}"
            ) from error
        return mmap.mmap(fd, self._size)

    def _view(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        if self.nbytes == 0:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(self._map, dtype=torch.uint8, count=self.nbytes).view(dtype).view(shape)

    def _is_complete(self, fd: int) -> bool:
        if not _is_current(fd, self.path) or os.fstat(fd).st_size != self._size:
            return False
        return os.pread(fd, len(_COMPLETE), self.nbytes) == _COMPLETE

    def close(self) -> None:
        """Let go of the memory; the last process to do so removes it. Views of the tensor stay valid."""
        self._finalizer()


class SharedPlace:
    """Memory by name that the processes of a machine share; see :class:`gids.sampling.load.Place`.

    Parameters
    ----------
    identity : str
        Of whatever the names belong to.
    what : str
        What it is, for messages.
    """

    def __init__(self, identity: str, what: str):
        self._identity, self._what = identity, what
        self._held: list[SharedTensor] = []  # as long as this lives, nobody removes them

    def __call__(self, name: str, num_bytes: int, fill: Callable[[NDArray[Any]], None]) -> NDArray[Any]:
        """Return so many bytes that ``fill`` has written, in this process or in another."""
        identity = f"{self._identity} {name}"
        held = SharedTensor(
            identity, (num_bytes,), torch.uint8, lambda tensor: fill(tensor.numpy()), what=self._what, otherwise=""
        )
        self._held.append(held)
        return held.tensor.numpy()


class _NotOurs(ConfigError):
    """The name of a shared buffer is taken by something that another user may have put there."""

    def __init__(self, path: Path, what: str):
        super().__init__(f"{path} must be a private file of user {os.getuid()} ({what}): remove it, or have it removed")


def _check_private(fd: int, path: Path) -> None:
    status = os.fstat(fd)
    if not _is_own_file(status):
        raise _NotOurs(path, f"it belongs to user {status.st_uid}, or is no regular file")
    if status.st_mode & 0o077:
        raise _NotOurs(path, f"others may use it: mode {stat.S_IMODE(status.st_mode):o}")
    if status.st_nlink > 1:  # 0: another process has just removed it
        raise _NotOurs(path, f"it has {status.st_nlink} names")


def _let_go(fd: int, path: Path, pid: int) -> None:
    # A forked child shares the lock with its parent: to change it would take it from the parent.
    if pid == os.getpid():
        _release(fd, path)
    else:
        os.close(fd)


def sweep(directory: Path, keep: str) -> None:
    """Remove the files that processes of this user left here when they were killed: those that nobody has locked.

    A process that has opened such a file and not locked it yet finds that it is no longer the one of that name, and
    begins anew. Other users' files, and whatever else cannot be removed, stay.

    Parameters
    ----------
    directory : Path
        Where the files are.
    keep : str
        The name that the caller is about to use.
    """
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            with suppress(OSError):
                if (
                    entry.name != keep
                    and _NAME.fullmatch(entry.name)
                    and _is_own_file(entry.stat(follow_symlinks=False))
                ):
                    path = directory / entry.name
                    _release(os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW), path)


def _is_own_file(status: os.stat_result) -> bool:
    return status.st_uid == os.getuid() and stat.S_ISREG(status.st_mode)


def _release(fd: int, path: Path) -> None:
    """Close a file, and remove it if nobody else has locked it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_current(fd, path):
            path.unlink()
    except BlockingIOError:
        pass  # others still use it
    finally:
        os.close(fd)


def _is_current(fd: int, path: Path) -> bool:
    """Whether the path still names this file: another process may have removed it in between."""
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except FileNotFoundError:
        return False
