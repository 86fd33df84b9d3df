"""The kernel's page cache: what an earlier run left there would serve a mapped contender beyond its memory limit."""

from __future__ import annotations

import os
from pathlib import Path


def forget_pages(path: Path) -> None:
    """Write a file back and drop its pages from the page cache."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
