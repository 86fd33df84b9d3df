"""Exceptions of gids. Every message gives the name, the rule and the value."""

from __future__ import annotations

import os


class GidsError(Exception):
    """Base of every error that gids raises on purpose."""


class ConfigError(GidsError, ValueError):
    """An argument or option breaks a rule; nothing was read or written."""


class DatasetError(GidsError):
    """A dataset on disk is missing, damaged, unfinished or of another version."""


class OverloadError(GidsError):
    """Too many requests wait: this one was refused, or had to make room for a client with fewer."""


class CancelledError(GidsError):
    """A request was cancelled, or came after its service was closed."""


class DeviceError(GidsError):
    """A GPU, driver or device memory problem."""


class PeerError(GidsError):
    """Another rank is gone, does not answer, or could not read the rows that it holds."""


class StorageError(GidsError, OSError):
    """A read failed.

    Parameters
    ----------
    message : str
        What happened, in words.
    path : str
        File or drive that was read.
    offset, length : int
        Bytes that were asked for.
    error_number : int
        ``errno`` of the kernel, or 0 where it reported none (a short read, a time-out).
    """

    def __init__(self, message: str, path: str = "", offset: int = 0, length: int = 0, error_number: int = 0):
        reason = f": {os.strerror(error_number)} (errno {error_number})" if error_number else ""
        super().__init__(f"{message}{reason} [{path}, offset {offset}, length {length}]")
        self.path = path
        self.offset = offset
        self.length = length
        self.errno = error_number or None

    def __str__(self) -> str:
        return str(self.args[0])
