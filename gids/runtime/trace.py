"""What every stage did and when: spans for Perfetto (Chrome trace JSON), mirrored as NVTX ranges where CUDA is there."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch


class Trace:
    """Collects spans and counters while it is switched on; costs one attribute test per span while it is off.

    Open the file that :meth:`save` writes at https://ui.perfetto.dev or ``chrome://tracing``.
    """

    def __init__(self) -> None:
        self.enabled = False
        self._events: list[dict[str, Any]] = []  # list.append is atomic: stages record without a lock
        self._threads: dict[int, str] = {}
        self._nvtx = torch.cuda.is_available()

    def start(self) -> None:
        """Forget earlier spans and begin to record."""
        self._events, self._threads, self.enabled = [], {}, True

    def stop(self) -> None:
        """Record no more."""
        self.enabled = False

    @contextlib.contextmanager
    def span(self, name: str, **details: Any) -> Iterator[None]:
        """Record how long the body takes, on the thread that runs it."""
        if self._nvtx:
            torch.cuda.nvtx.range_push(f"gids {name}")  # type: ignore[no-untyped-call]
        begin = time.perf_counter_ns()
        try:
            yield
        finally:
            if self._nvtx:
                torch.cuda.nvtx.range_pop()  # type: ignore[no-untyped-call]
            if self.enabled:
                self._record(name, "X", begin, details, dur=(time.perf_counter_ns() - begin) / 1000)

    def count(self, name: str, **values: float) -> None:
        """Record the values of a counter at this moment, e.g. how full a queue is."""
        if self.enabled:
            self._record(name, "C", time.perf_counter_ns(), values)

    def _record(self, name: str, phase: str, at_ns: int, details: dict[str, Any], **extra: Any) -> None:
        thread = threading.get_native_id()
        self._threads.setdefault(thread, threading.current_thread().name)
        event = {"name": name, "ph": phase, "ts": at_ns / 1000, "pid": os.getpid(), "tid": thread, "args": details}
        self._events.append(event | extra)

    def as_dict(self) -> dict[str, Any]:
        """Return the trace as the Chrome trace event format's JSON object."""
        names = [
            {"name": "thread_name", "ph": "M", "pid": os.getpid(), "tid": thread, "args": {"name": name}}
            for thread, name in self._threads.items()
        ]
        process = {"name": "process_name", "ph": "M", "pid": os.getpid(), "args": {"name": "gids loader"}}
        return {"traceEvents": [process, *names, *self._events], "displayTimeUnit": "ms"}

    def save(self, path: str | Path) -> Path:
        """Write the trace to ``path`` and give the path back."""
        path = Path(path)
        path.write_text(json.dumps(self.as_dict()))
        return path
