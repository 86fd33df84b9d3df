"""A directory for what is packed on trial, found and removed by the next run where a killed one left it behind."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gids.dataset.table_writer import write_errors

PREFIX = ".gids-pack-"


@contextmanager
def trial_directory(home: Path) -> Iterator[Path]:
    """Yield a new directory in ``home``; it is locked while it is used, and removed at the end."""
    with write_errors(home, "packed epochs on trial"):
        new = Path(tempfile.mkdtemp(prefix=".gids-new-", dir=home))
        held = _lock(new)
        path = new.rename(
            home / f"{PREFIX}{new.name.rpartition('-')[2]}"
        )  # locked before it can be taken for an orphan
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        if held is not None:
            os.close(held)


def remove_orphans(home: Path) -> None:
    """Remove the trial directories in ``home`` that no process holds: whoever made them was killed."""
    for path in home.glob(f"{PREFIX}*"):
        held = _lock(path)
        if held is not None:
            shutil.rmtree(path, ignore_errors=True)
            os.close(held)


def _lock(path: Path) -> int | None:
    """Take the lock of a directory; None where a process has it, or where the file system has no such locks."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
