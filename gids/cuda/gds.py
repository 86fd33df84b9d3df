"""Engine ``gds``: rows go from the drive straight into device memory, through kvikio and GPUDirect Storage."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import numpy.typing as npt

from gids.cuda.array import DeviceArray
from gids.cuda.compile import preload
from gids.errors import StorageError
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


def plan_ranges(
    table: RowTable, rows: npt.NDArray[np.int64], max_bytes: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Merge rows that follow each other on disk into ranges of at most ``max_bytes``.

    Parameters
    ----------
    table : RowTable
        Where the rows are.
    rows : array of int64
        Sorted and unique; row ``rows[i]`` goes to place ``i``.
    max_bytes : int
        Longest range; a row is never divided.

    Returns
    -------
    first, count, stripe, offset : arrays of int64
        Range ``k`` is ``count[k]`` rows from place ``first[k]`` on, at ``offset[k]`` of file ``stripe[k]``. What is
        read must land where it belongs, so only rows without a gap become one range.
    """
    unit, within = np.divmod(rows, table.stripe_rows)
    local_unit, stripe = np.divmod(unit, len(table.stripes))
    starts = np.array([part.data_offset for part in table.stripes], np.int64)
    offset = starts[stripe] + (local_unit * table.stripe_rows + within) * table.row_stride
    begins = np.ones(len(rows), bool)
    begins[1:] = (stripe[1:] != stripe[:-1]) | (offset[1:] != offset[:-1] + table.row_bytes)
    first = np.flatnonzero(begins)
    length = np.diff(np.append(first, len(rows)))
    most = max(max_bytes // table.row_bytes, 1)
    pieces = -(-length // most)
    number = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    first = np.repeat(first, pieces) + number * most
    count = np.minimum(np.repeat(length, pieces) - number * most, most)
    return first, count, stripe[first], offset[first]


class _Range:
    """Device memory that kvikio writes to; says no stream, so that nothing is waited for a second time."""

    def __init__(self, pointer: int, count: int):
        self.__cuda_array_interface__ = {
            "shape": (count,), "typestr": "|u1", "data": (pointer, False), "version": 3, "strides": None,
        }  # fmt: skip


class PendingGdsRead:
    """Reads under way; the destination must live until :meth:`wait` or :meth:`cancel` has returned."""

    def __init__(self, futures: list[tuple[Any, int, int, int]], reader: GdsReader, out: DeviceArray):
        self._futures, self._reader, self._out = futures, reader, out

    def wait(self) -> None:
        """Return when every row has arrived; raise what went wrong, after all reads have ended."""
        failure: StorageError | None = None
        for future, stripe, offset, count in self._futures:
            path = str(self._reader.table.stripes[stripe].path)
            try:
                got = int(future.get())
                if got != count:
                    raise StorageError(f"gds read {got} of {count} bytes", path, offset, count)
            except StorageError as error:
                failure = failure or error
            except (OSError, RuntimeError) as error:
                failure = failure or StorageError(f"gds read failed ({error})", path, offset, count)
        self._futures = []
        if failure is not None:
            raise failure

    def cancel(self) -> None:
        """Wait for the reads without looking at them: kvikio cannot take a read back."""
        for future, *_ in self._futures:
            try:
                future.get()
            except (OSError, RuntimeError):
                continue
        self._futures = []


class GdsReader:
    """Reads rows of a table into device memory.

    Parameters
    ----------
    table : RowTable
        Where the rows are.
    max_io_bytes : int
        Longest single read.
    """

    engine = "gds"

    def __init__(self, table: RowTable, max_io_bytes: int):
        preload("libcufile.so.0")
        try:
            import kvikio

            self._files = [kvikio.CuFile(str(stripe.path), "r") for stripe in table.stripes]
        except (ImportError, OSError, RuntimeError) as error:
            raise StorageError(f"engine gds cannot open {table.name} ({error})", str(table.stripes[0].path)) from error
        self.table = table
        self._max_io_bytes = max_io_bytes
        refusal = gds_availability()
        #: What the engine has to do without, and why; empty when nothing.
        self.notes = f"kvikio's compatibility mode, through host memory: {refusal}" if refusal else ""
        self._stats = {"rows": 0, "reads": 0, "bytes_read": 0, "unaligned": 0}

    def submit(self, rows: npt.NDArray[np.int64], out: DeviceArray) -> PendingGdsRead:
        """Start reading; row ``rows[i]`` goes to row ``i`` of ``out``. Rows are sorted and unique."""
        row_bytes = self.table.row_bytes
        futures: list[tuple[Any, int, int, int]] = []
        for first, count, stripe, offset in zip(
            *(part.tolist() for part in plan_ranges(self.table, rows, self._max_io_bytes)), strict=True
        ):
            length = count * row_bytes
            target = _Range(out.pointer + first * row_bytes, length)
            try:  # kvikio reads short ranges at once and raises here
                future = self._files[stripe].pread(target, length, offset)
            except (OSError, RuntimeError) as error:
                PendingGdsRead(futures, self, out).cancel()
                path = str(self.table.stripes[stripe].path)
                raise StorageError(f"gds read failed ({error})", path, offset, length) from error
            futures.append((future, stripe, offset, length))
            self._stats["unaligned"] += bool(offset % _ALIGNMENT or length % _ALIGNMENT)
        self._stats["rows"] += len(rows)
        self._stats["reads"] += len(futures)
        self._stats["bytes_read"] += len(rows) * row_bytes
        return PendingGdsRead(futures, self, out)

    def stats(self) -> dict[str, int]:
        """Give counts since the opening: rows, reads, bytes_read, unaligned."""
        return dict(self._stats)

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()
        self._files = []
