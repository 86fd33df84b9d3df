"""How much the process grows while something runs."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from types import TracebackType

from gids._native import give_back_memory

_STATUS = Path("/proc/self/status")
#: A process with a loader may grow by a little more than the loader's budget: stacks and heaps of threads, Python's own
#: objects.
GROWTH_SHARE = 1.05
GROWTH_BYTES = 32 << 20


def growth_allowed(budget_bytes: int) -> int:
    """Return by how much a process with a loader of this budget may grow."""
    return int(GROWTH_SHARE * budget_bytes) + GROWTH_BYTES


def resident_bytes() -> int:
    """Memory of this process that only it can give back: anonymous and shared, without pages of mapped files."""
    fields = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
    return sum(int(fields[name].split()[0]) * 1024 for name in ("RssAnon", "RssShmem"))


def peak_resident_bytes() -> int:
    """Most memory that this process ever held, pages of mapped files included.

    ``getrusage`` does not say that: what the kernel counts there begins with the memory of the process that started this
    one, so that a small child of a large test process looks large.
    """
    fields = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
    return int(fields["VmHWM"].split()[0]) * 1024


class MemoryMeter:
    """Highest resident memory inside a ``with`` block, over what it was at its begin; looks every few milliseconds."""

    def __init__(self, interval_s: float = 0.005):
        self._interval_s = interval_s
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="gids-memory-meter", daemon=True)
        self._before = self._peak = 0

    @property
    def growth_bytes(self) -> int:
        """Peak minus begin."""
        return self._peak - self._before

    def _watch(self) -> None:
        while not self._done.wait(self._interval_s):
            self._peak = max(self._peak, resident_bytes())

    def __enter__(self) -> MemoryMeter:
        gc.collect()
        give_back_memory()  # what is then taken anew is seen as growth
        self._before = self._peak = resident_bytes()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()
        self._peak = max(self._peak, resident_bytes())
