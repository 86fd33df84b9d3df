"""A run out of a loader: settings, rows by source, memory and, where it was recorded, the timeline."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path

from gids.loader import Loader
from gids.report.run import SOURCES, Epoch, Memory, Run
from gids.units import format_bytes


def record(loader: Loader, directory: str | os.PathLike[str], title: str | None = None) -> Path:
    """Write what a loader has done so far as a run that ``gids report`` makes a page of.

    Parameters
    ----------
    loader : Loader
        After some training; spans are included if it was iterated inside :meth:`gids.Loader.tracing`.
    directory : path-like
        Where to write ``run.json``.
    title : str, optional
        Heading of the page.

    Returns
    -------
    Path
        The file that was written.

    Examples
    --------
    >>> with loader.tracing("trace.json"):
    ...     train(loader)
    >>> gids.report.record(loader, "my-run")  # then: gids report my-run
    """
    stats, options = loader.stats(), loader.options
    tables = stats.tables.values()
    rows = {source: sum(getattr(table, source) for table in tables) for source in SOURCES}
    read_bytes = sum(table.bytes_read for table in tables)
    total, memory = sum(rows.values()), None
    if stats.memory is not None:
        parts = {name: size for name, size in asdict(stats.memory).items() if name != "budget"}
        table_bytes = sum(
            loader.dataset.feature_table(ntype, name).total_bytes
            for ntype in loader.dataset.node_types
            for name in loader.dataset.feature_names(ntype)
        )
        memory = Memory(stats.memory.budget, stats.memory.total, table_bytes, parts=parts)
    settings = {
        "dataset": str(loader.dataset.path),
        "sampler": type(loader.sampler).__name__,
        "batch_size": loader.order().batch_size,
        "parts": loader.order().identity[4:] or None,
        "seed": options.seed,
        "budget": options.budget,
        "device": None if options.device is None else str(options.device),
        "storage": options.reading.engine,
    }
    plain = {name: value for name, value in vars(options.memory).items() if isinstance(value, int | str)}
    run = Run(
        name="loader",
        title=title or f"Loader over {loader.dataset.path.name}",
        settings={**settings, **plain, "pipeline": asdict(options.pipeline)},
        headline={
            "batches": f"{stats.batches:,}",
            "rows": f"{total:,}",
            "served without the disk": f"{100 * (1 - rows['disk'] / max(1, total)):.1f} %",
            "input nodes per seed (RR)": f"{stats.redundancy_ratio:.2f}",
            "read": format_bytes(read_bytes),
            **({"approximate": ", ".join(stats.approximate)} if stats.approximate else {}),
            "training waited": f"{stats.stall_s:.2f} s",
        },
        results={name: asdict(table) for name, table in stats.tables.items()},
        epochs=[Epoch("loader", 0, 0.0, stats.batches, rows=rows, bytes_read=read_bytes)],
        memory=memory,
        trace=loader.trace.as_dict()["traceEvents"],
    )
    return run.save(Path(directory))
