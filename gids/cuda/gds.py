"""Engine ``gds``: rows go from the drive straight into device memory, through cuFile and GPUDirect Storage."""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy as np

from gids.cuda.array import DeviceArray
from gids.cuda.compile import preload
from gids.cuda.cufile import LIBRARY, BatchTransport, RegisteredMemory, Transport, open_transport
from gids.cuda.device_reader import DeviceRead, DeviceReader, Ints, Prepared, Reading, Round, pack_rounds
from gids.cuda.session import CudaSession
from gids.errors import DeviceError, StorageError
from gids.storage.curve import load_curve
from gids.storage.options import StorageOptions
from gids.storage.plan import PlanLimits, ReadPlan, plan_reads
from gids.table import RowTable

#: GPUDirect Storage moves whole pages between page-aligned places. cuFile reads anything, but what is not so it brings
#: through buffers of its own.
ALIGNMENT = 4096


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
        _, begins = table.places(plan.rows[plan.first])
        _, ends = table.places(plan.rows[plan.first + plan.count - 1])
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


def split_plan(
    table: RowTable, plan: ReadPlan, out: DeviceArray, to: Ints, *, to_slots: bool = True
) -> tuple[DirectReads, Ints]:
    """Divide a plan into reads that go straight to where the rows belong, and the numbers of those that do not.

    Parameters
    ----------
    table, plan
        What :func:`gids.storage.plan_reads` was given, and what it gave.
    out : DeviceArray
        Memory that drives can write to.
    to : int64[rows]
        Where each of the rows asked for begins, counted from ``out``; rows outside it go by way of a region.
    to_slots : bool
        False: all of them do.
    """
    spans = _Spans.of(table, plan)
    ordered = out.pointer + to[plan.positions]
    breaks = np.concatenate([[0], np.cumsum(np.diff(ordered) != table.row_bytes)])
    target = ordered[plan.first] + plan.row_begin
    adjacent = breaks[plan.first + plan.count - 1] == breaks[plan.first]
    inside = (target >= out.pointer) & (target + spans.length <= out.pointer + out.nbytes)
    straight = spans.packed & adjacent & inside & (target % ALIGNMENT == 0) & to_slots
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


class GdsReader(DeviceReader):
    """Reads rows of a table into device memory: whole pages of rows to their slots, the rest by way of a region.

    Only memory that is registered with cuFile is read into. Where the arena is beyond cuFile's limit, every row goes by
    way of a region, which is smaller and registered first.

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
    """

    engine = "gds"

    def __init__(self, table: RowTable, options: StorageOptions, session: CudaSession, region_bytes: int, groups: int):
        preload(LIBRARY)
        curve = load_curve(table.stripes[0].path)
        depth = curve.best_depth if options.queue_depth is None else options.queue_depth
        longest = max(options.max_io_bytes // ALIGNMENT, 4) * ALIGNMENT
        self._sizes = _file_sizes(table)
        try:
            self.transport: Transport = open_transport(table, session, depth, longest, options.timeout_s)
        except (ImportError, OSError, RuntimeError) as error:
            raise StorageError(f"engine gds cannot open {table.name} ({error})", str(table.stripes[0].path)) from error
        self.table, self.session = table, session
        gap = curve.merge_gap_bytes if options.merge_gap_bytes is None else options.merge_gap_bytes
        self.limits = PlanLimits(ALIGNMENT, gap, longest)
        self._region_bytes = max(region_bytes // ALIGNMENT * ALIGNMENT, self.limits.max_io_bytes)
        self._regions: queue.Queue[DeviceArray] = queue.Queue()  # that no group uses
        self._unmade = groups  # guarded by _lock; regions that nobody asked for yet
        self._lock = threading.Lock()
        self._timeout_s = options.timeout_s
        self._registered: dict[int, RegisteredMemory] = {}  # by the address at which we use it
        self._to_slots = True  # whether rows may be read to where they stay
        self.notes = self.transport.notes
        self._stats = dict.fromkeys(("rows", "rows_direct", "rows_staged", "reads", "reads_staged", "bytes_read"), 0)

    def attach(self, memory: DeviceArray) -> None:
        """Let the drives write to this memory themselves, or read by way of regions where cuFile's limit is too low."""
        # A region is used again and again: it is worth more than the same bytes of slots.
        regions_bytes = self._unmade * (self._region_bytes + ALIGNMENT)
        self._to_slots = self._register(memory, regions_bytes, "rows go through regions that are registered")

    def _register(self, memory: DeviceArray, spare_bytes: int, otherwise: str) -> bool:
        try:
            self._registered[memory.pointer] = RegisteredMemory(memory, spare_bytes)
        except DeviceError as error:
            self.notes = f"{self.notes}; {error}: {otherwise}"
            return False
        return True

    def prepare(self, rows: Ints) -> Prepared:
        """Plan the reads for some rows, sorted and unique."""
        prepared = prepare_reads(self.table, rows, self.limits)
        if self._to_slots:
            return prepared
        return Prepared(prepared.plan, prepared.run_begin[:0], prepared.run_length[:0])

    def submit(self, prepared: Prepared, out: DeviceArray, to: Ints) -> DeviceRead:
        """Start reading; the ``i``-th of the rows asked for begins at byte ``to[i]``, counted from ``out``."""
        plan = prepared.plan
        direct, rest = split_plan(self.table, plan, out, to, to_slots=self._to_slots)
        rounds = pack_rounds(self.table, plan, rest, to, self._region_bytes, ALIGNMENT)
        staged = _rows_served(plan, rest)
        self._stats["rows"] += plan.num_rows
        self._stats["rows_staged"] += staged
        self._stats["rows_direct"] += plan.num_rows - staged
        self._stats["reads_staged"] += len(rest)
        work = self._read(out, direct.file, direct.offset, direct.length, direct.target)
        return DeviceRead(self, out, rounds, work).start()

    def _read(self, memory: DeviceArray, file: Ints, offset: Ints, length: Ints, pointer: Ints) -> Reading:
        registered = self._registered.get(memory.pointer)
        base = memory.pointer if registered is None else registered.base
        work = self.transport.read(base, file, offset, length, pointer)
        self._stats["reads"] += len(file)
        self._stats["bytes_read"] += int(length.sum())
        return work

    def take_region(self, count: int, *, wait: bool) -> DeviceArray | None:
        """Return a region; each group in flight can have one."""
        self._check_usable()
        with self._lock:
            make = self._regions.empty() and self._unmade > 0
            self._unmade -= make
        if make:
            region = self.session.reserve(self._region_bytes, ALIGNMENT)
            self._register(region, 0, "cuFile copies once more")
            return region
        try:
            return self._regions.get(block=wait, timeout=self._timeout_s if wait else None)
        except queue.Empty:
            if not wait:
                return None
            raise DeviceError(f"a group must give its staging memory back within {self._timeout_s} s") from None

    def _check_usable(self) -> None:
        if self.transport.broken:
            raise StorageError(self.transport.broken, str(self.table.stripes[0].path))

    def give_region(self, region: DeviceArray) -> None:
        """Keep it for the next group, unless a read that was given up may still write to some region."""
        if not self.transport.broken:
            self._regions.put(region)

    def begin(self, reads: Round, region: DeviceArray) -> Reading:
        """Start the reads of a round; the last read of a file ends where the file does."""
        length = np.minimum(reads.length, np.maximum(self._sizes[reads.file] - reads.offset, 0))
        return self._read(region, reads.file, reads.offset, length, region.pointer + reads.target)

    def stats(self) -> dict[str, int]:
        """Return counts since the opening.

        ``rows_direct`` went straight to their slots and ``rows_staged`` by way of a region, with ``reads_staged`` of the
        ``reads``; ``batches`` were handed to cuFile, 0 where kvikio was called for each read.
        """
        batches = self.transport.submitted[0] if isinstance(self.transport, BatchTransport) else 0
        return self._stats | {"batches": batches}

    def close(self) -> None:
        """Close the files, and let go of the memory."""
        self.transport.close()
        while self._registered:
            self._registered.popitem()[1].close()
        while not self._regions.empty():
            self._regions.get()


def _file_sizes(table: RowTable) -> Ints:
    """Return the sizes of a table's files; raise StorageError where one is too short for its rows."""
    sizes = []
    for number, stripe in enumerate(table.stripes):
        try:
            size = stripe.path.stat().st_size
        except OSError as error:
            raise StorageError(f"engine gds cannot open {table.name} ({error})", str(stripe.path)) from error
        end = table.file_bytes(number)
        if size < end:
            raise StorageError(
                f"file must have {end} bytes for its rows (has {size})", str(stripe.path), size, end - size
            )
        sizes.append(size)
    return np.array(sizes, np.int64)
