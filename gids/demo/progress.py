"""Progress bars of the demo on standard error; silent where nobody looks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class Step:
    """One bar."""

    def __init__(self, progress: Progress, task: TaskID):
        self._progress, self._task = progress, task

    def tick(self) -> None:
        """Advance by one."""
        self._progress.advance(self._task)

    def bytes_of(self, table: str) -> Callable[[str, int, int], None]:
        """Return a function that follows the bytes written of one table of a dataset."""

        def follow(name: str, done: int, total: int) -> None:
            if name.endswith(table):
                self._progress.update(self._task, completed=done, total=total)

        return follow


class Steps:
    """The bars of a demo, one after the other."""

    def __init__(self, visible: bool):
        self._progress = Progress(
            TextColumn("{task.description:<34}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not visible,
        )

    @contextlib.contextmanager
    def step(self, name: str, total: float) -> Iterator[Step]:
        """Show a bar while the body runs."""
        task = self._progress.add_task(name, total=total)
        yield Step(self._progress, task)
        self._progress.update(task, completed=total, total=total)

    def __enter__(self) -> Steps:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._progress.stop()
