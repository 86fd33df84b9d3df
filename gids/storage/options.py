"""What a user may choose about reading; every None is filled in from the device's curve."""

from __future__ import annotations

from dataclasses import dataclass

from gids.errors import ConfigError

ENGINES = ("auto", "uring", "pread", "mmap", "memory", "nvme", "gds")
#: Who queues commands of engine ``nvme`` where a GPU could.
SUBMITTERS = ("auto", "gpu", "cpu")


@dataclass(frozen=True)
class FaultOptions:
    """What goes wrong on purpose, for tests; requests are counted from 0 in each I/O thread.

    Attributes
    ----------
    fail_at, error_number : int
        That request fails with this errno (EIO).
    short_at, short_bytes : int
        That request delivers only so many bytes.
    stuck_at : int
        That request never returns.
    delay_us : int
        Every completion is held back this long.
    reorder : bool
        Completions come out in reverse order.
    block_at, block_us : int
        That request blocks the thread that submits it for so long, as a hung file server does.
    """

    fail_at: int = -1
    error_number: int = 5
    short_at: int = -1
    short_bytes: int = 0
    stuck_at: int = -1
    delay_us: int = 0
    reorder: bool = False
    block_at: int = -1
    block_us: int = 0


@dataclass(frozen=True)
class StorageOptions:
    """Options of :class:`gids.storage.RowReader`.

    Attributes
    ----------
    engine : str
        ``"auto"`` takes ``uring`` where the kernel allows it and ``pread`` elsewhere. ``"mmap"`` is the baseline that
        leaves everything to the page cache; ``"memory"`` loads the whole table and measures everything but the device;
        ``"nvme"`` reads drives that :mod:`gids.nvme` has opened; ``"gds"`` reads into GPU
        memory (``device="cuda"`` only).
    queue_depth : int or None
        Requests in flight; None takes what :func:`gids.storage.load_curve` found best.
    threads : int or None
        I/O threads, each with a queue of its own; None takes what the curve needed: one, unless another brings a
        tenth more, because processor time is for training.
    staging_bytes : int
        Memory that the device writes to, over all threads. Fixed; larger groups flow through it.
    merge_gap_bytes : int or None
        Ranges at most this far apart become one read; None takes what one more read costs by the curve.
    max_io_bytes : int
        Longest single read.
    timeout_s : float
        A request that takes longer fails its read.
    sqpoll, iopoll : bool
        ``uring`` only; each keeps a processor busy. ``sqpoll`` lets a kernel thread submit, so that the I/O thread makes
        no system calls while it is busy. ``iopoll`` asks the device for completions instead of waiting for interrupts;
        the drive needs poll queues (``nvme.poll_queues=N`` on the kernel's command line; virtual disks have none), and
        without them the first read raises StorageError.
    submit : {"auto", "gpu", "cpu"}
        With ``engine="nvme"`` and ``device="cuda"``: who queues the commands, kernels or threads of the CPU. Data lands in
        pinned memory either way; ``"auto"`` takes what is expected to bring more (:mod:`gids.cuda.choice`) and says so in
        ``loader.notes``.
    fault : FaultOptions or None
        Make chosen requests go wrong, for tests.
    """

    engine: str = "auto"
    queue_depth: int | None = None
    threads: int | None = None
    staging_bytes: int = 16 << 20
    merge_gap_bytes: int | None = None
    max_io_bytes: int = 128 << 10
    timeout_s: float = 30.0
    sqpoll: bool = False
    iopoll: bool = False
    submit: str = "auto"
    fault: FaultOptions | None = None

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise ConfigError(f"engine must be one of {', '.join(ENGINES)} (got {self.engine!r})")
        if self.submit not in SUBMITTERS:
            raise ConfigError(f"submit must be one of {', '.join(SUBMITTERS)} (got {self.submit!r})")
        for name in ("queue_depth", "threads", "staging_bytes", "max_io_bytes", "timeout_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"{name} must be positive (got {value})")
        if self.merge_gap_bytes is not None and self.merge_gap_bytes < 0:
            raise ConfigError(f"merge_gap_bytes must not be negative (got {self.merge_gap_bytes})")
