"""What a user may choose about reading; every None is filled in from the device's curve."""

from __future__ import annotations

from dataclasses import dataclass

from gids.errors import ConfigError

ENGINES = ("auto", "uring", "pread", "memory", "nvme")


@dataclass(frozen=True)
class StorageOptions:
    """Options of :class:`gids.storage.RowReader`.

    Attributes
    ----------
    engine : str
        ``"auto"`` takes ``uring`` where the kernel allows it and ``pread`` elsewhere; ``"memory"`` loads the whole
        table and measures everything but the device; ``"nvme"`` reads drives that :mod:`gids.nvme` has opened.
    queue_depth : int or None
        Requests in flight; None takes what :func:`gids.storage.load_curve` found best.
    threads : int
        I/O threads, each with a queue of its own.
    staging_bytes : int
        Memory that the device writes to, over all threads. Fixed; larger groups flow through it.
    merge_gap_bytes : int or None
        Ranges at most this far apart become one read; None takes bandwidth / IOPS from the curve.
    max_io_bytes : int
        Longest single read.
    timeout_s : float
        A request that takes longer fails its read.
    sqpoll, iopoll : bool
        Let a kernel thread submit, or poll the device for completions (``uring`` only; costs a core).
    """

    engine: str = "auto"
    queue_depth: int | None = None
    threads: int = 1
    staging_bytes: int = 32 << 20
    merge_gap_bytes: int | None = None
    max_io_bytes: int = 128 << 10
    timeout_s: float = 30.0
    sqpoll: bool = False
    iopoll: bool = False

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise ConfigError(f"engine must be one of {', '.join(ENGINES)} (got {self.engine!r})")
        for name in ("queue_depth", "threads", "staging_bytes", "max_io_bytes", "timeout_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"{name} must be positive (got {value})")
        if self.merge_gap_bytes is not None and self.merge_gap_bytes < 0:
            raise ConfigError(f"merge_gap_bytes must not be negative (got {self.merge_gap_bytes})")
