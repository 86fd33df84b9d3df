"""Progress of long jobs for people: one bar per table, with rate and time left."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from gids.dataset.table_writer import Progress

#: Steps of a job that count batches; everything else reports bytes of a table.
COUNTED = frozenset({"samples", "layout", "batches"})


@contextlib.contextmanager
def progress_bars(enabled: bool = True) -> Iterator[Progress | None]:
    """Show a bar on standard error for every table that reports to the yielded function."""
    if not enabled:
        yield None
        return
    from rich import progress as rich_progress
    from rich.console import Console
    from rich.text import Text

    class Done(rich_progress.DownloadColumn):
        def render(self, task: rich_progress.Task) -> Text:
            if task.description not in COUNTED:
                return super().render(task)
            return Text(f"{task.completed:,.0f}/{task.total or 0:,.0f}", style="progress.download")

    class Speed(rich_progress.TransferSpeedColumn):
        def render(self, task: rich_progress.Task) -> Text:
            if task.description not in COUNTED:
                return super().render(task)
            speed = task.finished_speed or task.speed
            return Text("?" if speed is None else f"{speed:,.0f}/s", style="progress.data.speed")

    columns = (
        rich_progress.TextColumn("{task.description}"),
        rich_progress.BarColumn(),
        Done(binary_units=True),
        Speed(),
        rich_progress.TimeRemainingColumn(elapsed_when_finished=True),
    )
    with rich_progress.Progress(*columns, console=Console(stderr=True)) as bars:
        tasks: dict[str, rich_progress.TaskID] = {}

        def report(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=total, completed=done)
            bars.update(tasks[name], completed=done)

        yield report
