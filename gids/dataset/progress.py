"""Progress of long jobs for people: one bar per table, with rate and time left."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from gids.dataset.table_writer import Progress


@contextlib.contextmanager
def progress_bars(enabled: bool = True) -> Iterator[Progress | None]:
    """Show a bar on standard error for every table that reports to the yielded function."""
    if not enabled:
        yield None
        return
    from rich import progress as rich_progress
    from rich.console import Console

    columns = (
        rich_progress.TextColumn("{task.description}"),
        rich_progress.BarColumn(),
        rich_progress.DownloadColumn(binary_units=True),
        rich_progress.TransferSpeedColumn(),
        rich_progress.TimeRemainingColumn(elapsed_when_finished=True),
    )
    with rich_progress.Progress(*columns, console=Console(stderr=True)) as bars:
        tasks: dict[str, rich_progress.TaskID] = {}

        def report(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=total, completed=done)
            bars.update(tasks[name], completed=done)

        yield report
