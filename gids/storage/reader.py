"""RowReader: rows of one table, in the caller's order, as fast as the device delivers them."""

from __future__ import annotations

import mmap
import time
import warnings
from dataclasses import asdict
from types import TracebackType

import numpy as np
import numpy.typing as npt
import torch

from gids import _native
from gids.errors import ConfigError, StorageError
from gids.storage.curve import load_curve
from gids.storage.options import StorageOptions
from gids.storage.plan import PlanLimits, as_rows, native_layout
from gids.table import RowTable


def aligned_empty(rows: int, dim: int, dtype: torch.dtype) -> torch.Tensor:
    """Return an uninitialised ``[rows, dim]`` tensor that begins at a page, so that rows can be read without a copy."""
    size = rows * dim * dtype.itemsize
    memory = torch.empty(size + mmap.PAGESIZE, dtype=torch.uint8)
    begin = -memory.data_ptr() % mmap.PAGESIZE
    return memory[begin : begin + size].view(dtype).view(rows, dim)


def engine_availability() -> dict[str, str]:
    """Engines of this build, each with why it cannot be used here; an empty reason means that it can."""
    return dict(_native.engine_availability())


class PendingRead:
    """A read that is under way. Dropping it cancels it.

    Attributes
    ----------
    out : Tensor [n, dim]
        Where the rows go; complete when :meth:`wait` has returned.
    """

    def __init__(self, native: _native.PendingRead, out: torch.Tensor):
        self._native = native
        self.out = out

    def wait(self) -> torch.Tensor:
        """Block until every row is in place and give ``out``; raises StorageError if a read failed."""
        self._native.wait()
        return self.out

    def done(self) -> bool:
        """Whether :meth:`wait` would return (or raise) at once."""
        return bool(self._native.done())

    def cancel(self) -> None:
        """Cancel; ``out`` is not written to any more when this returns."""
        self._native.cancel()


class RowReader:
    """Reads rows of a table.

    Parameters
    ----------
    table : RowTable
        Where the rows are.
    options : StorageOptions, optional
        Engine, depth, staging memory, time-out.
    pool : ThreadPool, optional
        Threads that plan and copy; one of its own if not given.

    Attributes
    ----------
    curve : DeviceCurve
        What is known about the device; its ``source`` says whether ``gids probe`` has measured it.
    queue_depth, threads : int
        What is used, whether asked for or taken from the curve.
    engine_reason : str
        Why this engine.
    """

    def __init__(self, table: RowTable, options: StorageOptions | None = None, pool: _native.ThreadPool | None = None):
        self.table = table
        self.options = options = options or StorageOptions()
        self.curve = curve = load_curve(table.stripes[0].path)
        engine, self.engine_reason = choose_engine(options.engine)
        depth = curve.best_depth if options.queue_depth is None else options.queue_depth
        gap = options.merge_gap_bytes
        if gap is None:  # in memory, what lies between two rows costs nothing
            gap = options.max_io_bytes if engine in ("memory", "mmap") else curve.merge_gap_bytes
        threads = options.threads
        if threads is None:
            # Every thread needs room for a few of the largest reads; memory answers without waiting.
            roomy = options.staging_bytes // (8 * options.max_io_bytes)
            threads = 1 if engine in ("memory", "mmap") else max(1, min(curve.threads, depth, roomy))
        self._native = _native.Reader(
            native_layout(table),
            engine,
            depth,
            threads,
            options.staging_bytes,
            gap,
            options.max_io_bytes,
            options.timeout_s,
            options.sqpoll,
            options.iopoll,
            None if options.fault is None else _native.FaultOptions(**asdict(options.fault)),
            pool,
        )
        self.queue_depth, self.threads = depth, threads
        self._closed = False

    @property
    def engine(self) -> str:
        """Name of the engine in use."""
        return str(self._native.engine)

    @property
    def notes(self) -> str:
        """What the engine had to do without, and why; empty when nothing."""
        return str(self._native.notes)

    @property
    def limits(self) -> PlanLimits:
        """What the planner keeps to for this device."""
        return PlanLimits(*self._native.limits)

    def submit(
        self,
        rows: object,
        out: torch.Tensor,
        places: npt.NDArray[np.int32] | None = None,
    ) -> PendingRead:
        """Start reading; ``out[i]`` becomes row ``rows[i]``, or ``out[places[i]]`` does.

        Parameters
        ----------
        rows : array or tensor of integers [n]
            Any order, duplicates allowed; may be changed or dropped once this returns.
        out : Tensor [n, dim], contiguous, on the CPU
            Must not be touched until the read has ended; with ``places``, only those rows of it. Rows of
            4 KiB are put there by the device itself where ``out`` begins at a page (:func:`aligned_empty`); after a
            time-out, it may still do so.
        places : array of int32 [n], optional
            Rows of ``out`` to fill, each once; ``out`` may then have any number of rows.
        """
        if self._closed:
            raise StorageError("the reader is closed", str(self.table.stripes[0].path))
        row_array = as_rows(rows)
        dtype = self.table.torch_dtype
        shape = (len(row_array) if places is None else out.shape[0], self.table.dim)
        if out.device.type != "cpu" or not out.is_contiguous() or out.dtype != dtype or tuple(out.shape) != shape:
            raise ConfigError(
                f"out must be a contiguous {dtype} tensor of shape {shape} on the CPU "
                f"(got {out.dtype}, {tuple(out.shape)}, {out.device}, contiguous {out.is_contiguous()})"
            )
        if self.table.held is not None and len(row_array):
            self.table.check_held(int(row_array.min()), int(row_array.max()))
        if places is not None and len(places) and int(places.max()) >= len(out):
            raise ConfigError(f"places must be in [0, {len(out)}) (got {int(places.max())})")
        self._await_orphaned_reads()
        return PendingRead(self._native.submit(row_array, out.data_ptr(), places, out), out)

    def read(self, rows: object, out: torch.Tensor | None = None) -> torch.Tensor:
        """Read rows and wait for them.

        Parameters
        ----------
        rows : array or tensor of integers [n]
            Any order, duplicates allowed.
        out : Tensor [n, dim], optional
            Made if not given.
        """
        row_array = as_rows(rows)
        if out is None:
            out = aligned_empty(len(row_array), self.table.dim, self.table.torch_dtype)
        return self.submit(row_array, out).wait()

    def _await_orphaned_reads(self) -> None:
        """Return when reads that were given up are back: they may write to memory that the caller uses again."""
        deadline = time.monotonic() + self.options.timeout_s
        while self._native.orphaned_reads and not self._closed:
            if time.monotonic() > deadline:
                raise StorageError(
                    f"the reader must be closed: {self._native.orphaned_reads} reads that timed out may still write to memory",
                    str(self.table.stripes[0].path),
                )
            time.sleep(0.005)

    def stats(self) -> dict[str, int]:
        """Return counts since the opening: jobs, rows, unique_rows, reads, bytes_read, placed, retries, errors, timeouts.

        ``placed`` are the reads that needed no copy.
        """
        return dict(self._native.stats())

    def close(self) -> None:
        """Cancel what runs and give everything back; returns within a few seconds.

        Threads that are blocked in the kernel are left behind, with a warning that names them.
        """
        self._closed = True
        if left := self._native.close():
            warnings.warn(
                f"closing {self.table.name} left {', '.join(left)} behind, blocked in the kernel: "
                f"{self.table.stripes[0].path} or its device does not answer",
                RuntimeWarning,
                stacklevel=2,
            )

    def __enter__(self) -> RowReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"RowReader({self.table.name!r}, engine={self.engine!r}, queue_depth={self.queue_depth})"


def choose_engine(wanted: str) -> tuple[str, str]:
    """Return the engine that a reader takes for ``StorageOptions.engine``, and why."""
    if wanted == "gds":
        raise ConfigError(
            "engine 'gds' reads into GPU memory and needs a loader with device='cuda' (got a host reader)"
        )
    if wanted != "auto":
        return wanted, "asked for"
    refusal = engine_availability()["uring"]
    return ("pread", f"uring cannot be used: {refusal}") if refusal else ("uring", "the kernel offers io_uring")
