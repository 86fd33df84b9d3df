"""Engine ``gds``: rows go from the drive straight into device memory, through kvikio and GPUDirect Storage."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any

import numpy as np

from gids.cuda.array import DeviceArray
from gids.cuda.compile import preload
from gids.cuda.session import CudaSession
from gids.cuda.staged import Ints, Round, StagedRead, StagedReader, pack_rounds, row_places
from gids.errors import StorageError
from gids.storage.curve import load_curve
from gids.storage.options import StorageOptions
from gids.storage.plan import PlanLimits, ReadPlan, plan_reads
from gids.table import RowTable

_ALIGNMENT = 4096  # what cuFile wants of offsets and lengths; other reads pass through its bounce buffer


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
    file, offset, length, target : int64 arrays
        Bytes of a file, and the byte of the destination that the first of them goes to.
    """

    file: Ints
    offset: Ints
    length: Ints
    target: Ints


def split_plan(table: RowTable, plan: ReadPlan) -> tuple[DirectReads, Ints]:
    """Divide a plan into reads that go straight to their place, and the numbers of those that need unpacking."""
    last = plan.first + plan.count - 1
    _, begins = row_places(table, plan.rows[plan.first])
    _, ends = row_places(table, plan.rows[last])
    packed = (ends - begins == (plan.count - 1) * table.row_bytes) & (
        plan.positions[last] - plan.positions[plan.first] == plan.count - 1
    )
    reads = np.flatnonzero(packed)
    served = plan.row_end[reads] - plan.row_begin[reads]
    return (
        DirectReads(
            plan.file[reads],
            begins[reads] + plan.row_begin[reads],
            (plan.count[reads] - 1) * table.row_bytes + served,
            plan.positions[plan.first[reads]] * table.row_bytes + plan.row_begin[reads],
        ),
        np.flatnonzero(~packed),
    )


class _Range:
    """Device memory that kvikio writes to; says no stream, so that nothing is waited for a second time."""

    def __init__(self, pointer: int, count: int):
        self.__cuda_array_interface__ = {
            "shape": (count,), "typestr": "|u1", "data": (pointer, False), "version": 3, "strides": None,
        }  # fmt: skip


Futures = list[tuple[Any, int, int, int]]  # kvikio's future, file, offset, bytes


class GdsReader(StagedReader):
    """Reads rows of a table into device memory: runs of rows to their place, runs with small gaps by way of a region.

    Parameters
    ----------
    table : RowTable
        Where the rows are.
    options : StorageOptions
        Longest read and widest gap to read over.
    session : CudaSession
        Whose stream unpacks what was read over gaps.
    region_bytes : int
        Device memory for that, per group.
    """

    engine = "gds"

    def __init__(self, table: RowTable, options: StorageOptions, session: CudaSession, region_bytes: int):
        preload("libcufile.so.0")
        try:
            import kvikio

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
        gap = options.merge_gap_bytes
        if gap is None:
            gap = load_curve(table.stripes[0].path).merge_gap_bytes
        self.limits = PlanLimits(_ALIGNMENT, gap, max(options.max_io_bytes // _ALIGNMENT, 4) * _ALIGNMENT)
        self._region_bytes = max(region_bytes, self.limits.max_io_bytes)
        refusal = gds_availability()
        #: What the engine has to do without, and why; empty when nothing.
        self.notes = f"kvikio's compatibility mode, through host memory: {refusal}" if refusal else ""
        self._stats = {"rows": 0, "reads": 0, "bytes_read": 0, "unaligned": 0, "over_gaps": 0}

    def submit(self, rows: Ints, out: DeviceArray) -> StagedRead:
        """Start reading; row ``rows[i]`` (sorted and unique) goes to row ``i`` of ``out``."""
        plan = plan_reads(self.table, rows, self.limits)
        direct, rest = split_plan(self.table, plan)
        rounds = pack_rounds(self.table, plan, rest, self._region_bytes, _ALIGNMENT)
        self._stats["rows"] += len(rows)
        self._stats["over_gaps"] += len(rest)
        futures = self._read(direct.file, direct.offset, direct.length, out.pointer + direct.target)
        return StagedRead(self, out, rounds, futures).start()

    def _read(self, file: Ints, offset: Ints, length: Ints, pointer: Ints) -> Futures:
        futures: Futures = []
        for number, at, count, to in zip(*(part.tolist() for part in (file, offset, length, pointer)), strict=True):
            try:  # kvikio reads short ranges at once and raises here
                future = self._files[number].pread(_Range(to, count), count, at)
            except (OSError, RuntimeError) as error:
                self.abandon(futures)
                path = str(self.table.stripes[number].path)
                raise StorageError(f"gds read failed ({error})", path, at, count) from error
            futures.append((future, number, at, count))
        self._stats["reads"] += len(futures)
        self._stats["bytes_read"] += int(length.sum())
        self._stats["unaligned"] += int(((offset % _ALIGNMENT != 0) | (length % _ALIGNMENT != 0)).sum())
        return futures

    def take_region(self, count: int, *, wait: bool) -> DeviceArray | None:
        """Allocate; waits for the stream, which kvikio knows nothing of."""
        region = self.session.empty(count, np.uint8)
        self.session.synchronize()
        return region

    def give_region(self, region: DeviceArray) -> None:
        """Free it, in stream order, with its last reference."""

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
        """Give counts since the opening: rows, reads, bytes_read, unaligned, over_gaps."""
        return dict(self._stats)

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()
        self._files = []
