"""Engine ``gds``: rows go from the drive straight into device memory, through kvikio and GPUDirect Storage."""

from __future__ import annotations

import importlib.util
import queue
import threading
from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy as np

from gids.cuda.array import DeviceArray
from gids.cuda.compile import preload
from gids.cuda.device_reader import DeviceRead, DeviceReader, Ints, Prepared, Round, pack_rounds, row_places
from gids.cuda.session import CudaSession
from gids.errors import DeviceError, StorageError
from gids.storage.curve import load_curve
from gids.storage.options import StorageOptions
from gids.storage.plan import PlanLimits, ReadPlan, plan_reads
from gids.table import RowTable

#: GPUDirect Storage moves whole pages between page-aligned places. kvikio reads anything, but what is not so it cuts up
#: or brings through buffers of its own.
ALIGNMENT = 4096
#: Reads in flight at most: each has a thread of kvikio's, which waits for it.
MOST_THREADS = 64


def gds_availability() -> str:
    """Why GPUDirect Storage cannot be used here; empty if it can."""
    if importlib.util.find_spec("kvikio") is None:
        return "kvikio is not installed (pip install 'gids[gds]')"
    try:
        preload("libcufile.so.0")
        import kvikio.cufile_driver

        if not kvikio.cufile_driver.get("is_gds_available"):
            return "cuFile reports no GPUDirect Storage: nvidia-fs is not loaded or the file system cannot do it"
    except Exception as error:  # kvikio raises RuntimeError for a missing driver, ImportError for a missing library
        return f"kvikio cannot be used ({error})"
    return ""


@dataclass(frozen=True)
class DirectReads:
    """Reads whose bytes are rows without a gap, so that they go straight to their place.

    Attributes
    ----------
    file, offset, length : int64 arrays
        Bytes of a file.
    target : int64 array
        Where the first of them goes.
    """

    file: Ints
    offset: Ints
    length: Ints
    target: Ints


@dataclass(frozen=True)
class _Spans:
    """The bytes of rows within each read of a plan, from the first to the last."""

    offset: Ints
    length: Ints
    packed: np.ndarray[Any, np.dtype[np.bool_]]  # nothing lies between the rows, and all is whole pages of the file

    @classmethod
    def of(cls, table: RowTable, plan: ReadPlan) -> _Spans:
        _, begins = row_places(table, plan.rows[plan.first])
        _, ends = row_places(table, plan.rows[plan.first + plan.count - 1])
        offset = begins + plan.row_begin
        length = (plan.count - 1) * table.row_bytes + plan.row_end - plan.row_begin
        packed = (ends - begins == (plan.count - 1) * table.row_bytes) & ((offset | length) % ALIGNMENT == 0)
        return cls(offset, length, packed)


def prepare_reads(table: RowTable, rows: Ints, limits: PlanLimits) -> Prepared:
    """Plan reads, and find the runs of rows that can go straight to adjacent slots."""
    plan = plan_reads(table, rows, limits)
    unit = ALIGNMENT // gcd(ALIGNMENT, table.row_bytes)
    whole = plan.row_end - plan.row_begin == table.row_bytes
    runs = np.flatnonzero(_Spans.of(table, plan).packed & whole & (plan.count > 1))
    return Prepared(plan, plan.first[runs], plan.count[runs], unit)


def split_plan(table: RowTable, plan: ReadPlan, to: Ints) -> tuple[DirectReads, Ints]:
    """Divide a plan into reads that go straight to where the rows belong, and the numbers of those that do not.

    Parameters
    ----------
    table, plan
        What :func:`gids.storage.plan_reads` was given, and what it gave.
    to : int64[rows]
        Address at which each of the rows asked for begins.
    """
    spans = _Spans.of(table, plan)
    ordered = to[plan.positions]
    breaks = np.concatenate([[0], np.cumsum(np.diff(ordered) != table.row_bytes)])
    target = ordered[plan.first] + plan.row_begin
    adjacent = breaks[plan.first + plan.count - 1] == breaks[plan.first]
    straight = spans.packed & adjacent & (target % ALIGNMENT == 0)
    reads = np.flatnonzero(straight)
    return (
        DirectReads(plan.file[reads], spans.offset[reads], spans.length[reads], target[reads]),
        np.flatnonzero(~straight),
    )


def _rows_served(plan: ReadPlan, reads: Ints) -> int:
    edges = np.zeros(plan.num_rows + 1, np.int64)  # a long row is in several reads
    np.add.at(edges, plan.first[reads], 1)
    np.add.at(edges, plan.first[reads] + plan.count[reads], -1)
    return int(np.count_nonzero(np.cumsum(edges)))


class _Range:
    """Device memory that kvikio writes to; says no stream, so that nothing is waited for a second time."""

    def __init__(self, pointer: int, count: int):
        self.__cuda_array_interface__ = {
            "shape": (count,), "typestr": "|u1", "data": (pointer, False), "version": 3, "strides": None,
        }  # fmt: skip


Futures = list[tuple[Any, int, int, int]]  # kvikio's future, file, offset, bytes


class GdsReader(DeviceReader):
    """Reads rows of a table into device memory: whole pages of rows to their slots, the rest by way of a region.

    Parameters
    ----------
    table : RowTable
        Where the rows are.
    options : StorageOptions
        Longest read, widest gap to read over, and reads in flight.
    session : CudaSession
        Whose stream unpacks what was read by way of a region.
    region_bytes : int
        Device memory for that, per group.
    groups : int
        Groups in flight.

    Notes
    -----
    kvikio has one pool of threads and one threshold for the process, and its defaults (one thread; reads below 16 KiB
    go around GPUDirect Storage) do not suit rows. Opening a reader raises the one and lowers the other, and lowers the
    size of the buffers of pinned memory that every thread has in compatibility mode: 16 MiB each would be a GiB.
    """

    engine = "gds"

    def __init__(self, table: RowTable, options: StorageOptions, session: CudaSession, region_bytes: int, groups: int):
        preload("libcufile.so.0")
        curve = load_curve(table.stripes[0].path)
        depth = curve.best_depth if options.queue_depth is None else options.queue_depth
        longest = max(options.max_io_bytes // ALIGNMENT, 4) * ALIGNMENT
        try:
            import kvikio
            import kvikio.defaults as defaults

            threads = max(defaults.get("num_threads"), min(depth, MOST_THREADS))
            bounce = min(defaults.get("bounce_buffer_size"), longest)
            defaults.set({"gds_threshold": 0, "num_threads": threads, "bounce_buffer_size": bounce})
            self._files = [kvikio.CuFile(str(stripe.path), "r") for stripe in table.stripes]
            self._sizes = np.array([stripe.path.stat().st_size for stripe in table.stripes], np.int64)
        except (ImportError, OSError, RuntimeError) as error:
            raise StorageError(f"engine gds cannot open {table.name} ({error})", str(table.stripes[0].path)) from error
        for stripe, size in zip(table.stripes, self._sizes.tolist(), strict=True):
            end = stripe.data_offset + max(stripe.num_rows - 1, 0) * table.row_stride + table.row_bytes
            if stripe.num_rows and size < end:
                raise StorageError(
                    f"file must have {end} bytes for its rows (has {size})", str(stripe.path), size, end - size
                )
        self.table, self.session = table, session
        gap = curve.merge_gap_bytes if options.merge_gap_bytes is None else options.merge_gap_bytes
        self.limits = PlanLimits(ALIGNMENT, gap, longest)
        self._region_bytes = max(region_bytes // ALIGNMENT * ALIGNMENT, self.limits.max_io_bytes)
        self._regions: queue.Queue[DeviceArray] = queue.Queue()  # that no group uses
        self._unmade = groups  # guarded by _lock; regions that nobody asked for yet
        self._lock = threading.Lock()
        self._timeout_s = options.timeout_s
        self._attached: list[_Range] = []
        refusal = gds_availability()
        self.notes = f"kvikio's compatibility mode, through host memory: {refusal}" if refusal else ""
        self._stats = dict.fromkeys(("rows", "rows_direct", "rows_staged", "reads", "reads_staged", "bytes_read"), 0)

    def attach(self, memory: DeviceArray) -> None:
        """Let the drives write to this memory themselves; without it cuFile copies through buffers of its own."""
        import kvikio.buffer

        span = _Range(memory.pointer, memory.nbytes)
        try:
            kvikio.buffer.memory_register(span)
            self._attached.append(span)
        except RuntimeError as error:
            refused = f"cuFile did not register device memory, and copies once more ({error})"
            self.notes = "; ".join(part for part in (self.notes, refused) if part)

    def prepare(self, rows: Ints) -> Prepared:
        """Plan the reads for some rows, sorted and unique."""
        return prepare_reads(self.table, rows, self.limits)

    def submit(self, prepared: Prepared, out: DeviceArray, to: Ints) -> DeviceRead:
        """Start reading; the ``i``-th of the rows asked for begins at byte ``to[i]``, counted from ``out``."""
        plan = prepared.plan
        direct, rest = split_plan(self.table, plan, out.pointer + to)
        rounds = pack_rounds(self.table, plan, rest, to, self._region_bytes, ALIGNMENT)
        staged = _rows_served(plan, rest)
        self._stats["rows"] += plan.num_rows
        self._stats["rows_staged"] += staged
        self._stats["rows_direct"] += plan.num_rows - staged
        self._stats["reads_staged"] += len(rest)
        futures = self._read(direct.file, direct.offset, direct.length, direct.target)
        return DeviceRead(self, out, rounds, futures).start()

    def _read(self, file: Ints, offset: Ints, length: Ints, pointer: Ints) -> Futures:
        futures: Futures = []
        for number, at, count, to in zip(*(part.tolist() for part in (file, offset, length, pointer)), strict=True):
            try:
                future = self._files[number].pread(_Range(to, count), count, at)
            except (OSError, RuntimeError) as error:
                self.abandon(futures)
                path = str(self.table.stripes[number].path)
                raise StorageError(f"gds read failed ({error})", path, at, count) from error
            futures.append((future, number, at, count))
        self._stats["reads"] += len(futures)
        self._stats["bytes_read"] += int(length.sum())
        return futures

    def take_region(self, count: int, *, wait: bool) -> DeviceArray | None:
        """Give a region; each group in flight can have one."""
        with self._lock:
            make = self._regions.empty() and self._unmade > 0
            self._unmade -= make
        if make:
            region = self.session.reserve(self._region_bytes, ALIGNMENT)
            self.attach(region)
            return region
        try:
            return self._regions.get(block=wait, timeout=self._timeout_s if wait else None)
        except queue.Empty:
            if not wait:
                return None
            raise DeviceError(f"a group must give its staging memory back within {self._timeout_s} s") from None

    def give_region(self, region: DeviceArray) -> None:
        """Keep it for the next group."""
        self._regions.put(region)

    def begin(self, reads: Round, region: DeviceArray) -> Futures:
        """Start the reads of a round; the last read of a file ends where the file does."""
        length = np.minimum(reads.length, np.maximum(self._sizes[reads.file] - reads.offset, 0))
        return self._read(reads.file, reads.offset, length, region.pointer + reads.target)

    def finish(self, work: Futures | None) -> None:
        """Wait; a short read is an error."""
        failure: StorageError | None = None
        for future, file, offset, count in work or ():
            path = str(self.table.stripes[file].path)
            try:
                got = int(future.get())
                if got != count:
                    raise StorageError(f"gds read {got} of {count} bytes", path, offset, count)
            except StorageError as error:
                failure = failure or error
            except (OSError, RuntimeError) as error:
                failure = failure or StorageError(f"gds read failed ({error})", path, offset, count)
        if failure is not None:
            raise failure

    def abandon(self, work: Futures | None) -> None:
        """Wait without looking: kvikio cannot take a read back."""
        for future, *_ in work or ():
            try:
                future.get()
            except (OSError, RuntimeError):
                continue

    def stats(self) -> dict[str, int]:
        """Give counts since the opening.

        ``rows_direct`` went straight to their slots and ``rows_staged`` by way of a region, with ``reads_staged`` of the
        ``reads``.
        """
        return dict(self._stats)

    def close(self) -> None:
        """Close the files, and let go of the memory."""
        import kvikio.buffer

        while self._attached:
            kvikio.buffer.memory_deregister(self._attached.pop())
        while not self._regions.empty():
            self._regions.get()
        for file in self._files:
            file.close()
        self._files = []
