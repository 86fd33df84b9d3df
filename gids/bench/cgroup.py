"""A memory limit for a child process: a cgroup of version 1 or 2, made for one contender and removed after it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from gids.errors import GidsError

_V1, _V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")


class MemoryCgroup:
    """Limits the memory, page cache included, of the processes that enter it.

    Parameters
    ----------
    name : str
        Name of the directory to make.
    limit_bytes : int
        The limit.
    """

    def __init__(self, name: str, limit_bytes: int):
        first = (_V1 / "memory.limit_in_bytes").exists()
        self.path = (_V1 if first else _own_v2()) / name
        self._peak = "memory.max_usage_in_bytes" if first else "memory.peak"
        try:
            self.path.mkdir()
            (self.path / ("memory.limit_in_bytes" if first else "memory.max")).write_text(str(limit_bytes))
        except OSError as error:
            with contextlib.suppress(OSError):
                self.path.rmdir()
            raise GidsError(
                f"the benchmark needs a memory cgroup, {self.path} cannot be made: {error.strerror}; "
                "run it as root, or with --no-limit"
            ) from error

    def enter(self) -> None:
        """Put the calling process in; for a child, before it runs its program."""
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    @property
    def peak_bytes(self) -> int | None:
        """Most memory, page cache included, that was charged; None where the kernel does not say."""
        file = self.path / self._peak
        return int(file.read_text()) if file.exists() else None

    def kill(self) -> None:
        """End all processes in it, also those that the one that entered has started."""
        for pid in (self.path / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)

    def remove(self) -> None:
        """Remove the group; its processes must have ended."""
        for _ in range(100):
            try:
                self.path.rmdir()
                return
            except OSError:
                time.sleep(0.02)  # the kernel takes a moment to see that they are gone


def _own_v2() -> Path:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        if line.startswith("0::"):
            return _V2 / line[3:].strip().lstrip("/")
    return _V2
