"""Threads and open files of this process, by name, so that a test can say what was left behind and not only how much."""

import gc
import os
import re
import threading
import time
from collections import Counter
from pathlib import Path

#: For a process that a test starts: only what hangs takes so long, also where other processes have the machine. Less than
#: pytest's own for a test, so that the test says what it waited for.
DEADLINE_S = 800


def held() -> Counter[str]:
    """Threads and open files. The kernel's own workers for io_uring are not ours: they come and go as it likes."""
    found = []
    for folder, name in (
        ("/proc/self/task", lambda entry: (entry / "comm").read_text().strip()),
        ("/proc/self/fd", os.readlink),
    ):
        for entry in Path(folder).iterdir():
            try:
                found.append(f"{entry.parent.name} {name(entry)}")
            except OSError:
                continue  # a thread that has ended, or the descriptor that listed the folder
    numbered = re.compile(r"\d+\]$")
    return Counter(numbered.sub("]", name) for name in found if not name.startswith("task iou-"))


def settled(quiet_s: float = 0.3, deadline_s: float = 20) -> Counter[str]:
    """What is held once it has not changed for a while: a thread that was joined may still be on its way out."""
    gc.collect()
    deadline = time.monotonic() + deadline_s
    last, since = held(), time.monotonic()
    while time.monotonic() < min(since + quiet_s, deadline):
        time.sleep(0.01)
        if (now := held()) != last:
            last, since = now, time.monotonic()
    return last


def left_behind(before: Counter[str], deadline_s: float = 20) -> Counter[str]:
    """What is held beyond ``before``, after waiting for it to go."""
    gc.collect()
    deadline = time.monotonic() + deadline_s
    while (left := held() - before) and time.monotonic() < deadline:
        time.sleep(0.01)
    return left


def gids_threads() -> list[str]:
    """Names of the Python threads of gids that run.

    One whose start() was interrupted before the system made it stays listed by Python for ever; it has no identifier.
    """
    running = (thread for thread in threading.enumerate() if thread.ident is not None)
    return sorted(thread.name for thread in running if thread.name.startswith("gids"))


def threads_left(deadline_s: float = 30) -> list[str]:
    """Names of the Python threads of gids that are left, after waiting for them to go.

    One that was started as its run was closed is not waited for by close(): it begins, sees that, and ends.
    """
    deadline = time.monotonic() + deadline_s
    while (left := gids_threads()) and time.monotonic() < deadline:
        time.sleep(0.001)
    return left


def open_files() -> int:
    """Count the open files."""
    return len(list(Path("/proc/self/fd").iterdir()))
