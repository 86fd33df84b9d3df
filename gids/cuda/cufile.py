"""cuFile behind one interface: a plan's reads go down in batches, or one by one through kvikio where there are none."""

from __future__ import annotations

import importlib.util
import threading
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gids import _native
from gids.cuda.array import DeviceArray
from gids.cuda.compile import preload
from gids.cuda.device_reader import Reading
from gids.cuda.session import CudaSession
from gids.errors import ConfigError, DeviceError, StorageError
from gids.table import RowTable
from gids.units import format_bytes

Ints = npt.NDArray[np.int64]

#: Loaded by name: kvikio has loaded it before, from wherever it was found.
LIBRARY = "libcufile.so.0"
#: Batches in flight: cuFile takes a new one only when all of the last has ended, so the others keep the drives busy.
BATCHES = 4
#: Reads in flight at most without batches: each has a thread of kvikio's, which waits for it.
MOST_THREADS = 64


def gds_availability() -> str:
    """Return why GPUDirect Storage cannot be used here; empty if it can."""
    if importlib.util.find_spec("kvikio") is None:
        return "kvikio is not installed (pip install 'gids[gds]')"
    try:
        preload(LIBRARY)
        import kvikio.cufile_driver

        if kvikio.cufile_driver.get("is_gds_available"):  # opens cuFile's driver
            return ""
        # Without nvidia-fs, cuFile 1.13 and later use the kernel's own peer-to-peer transfers.
        if _native.cufile_properties(LIBRARY)["p2p_supported"]:
            return ""
    except Exception as error:  # kvikio raises RuntimeError for a missing driver, ImportError for a missing library
        return f"kvikio cannot be used ({error})"
    return "cuFile reports no GPUDirect Storage: nvidia-fs is not loaded, and the kernel offers no P2PDMA"


class Transport(Protocol):
    """Reads ranges of a table's files into device memory."""

    @property
    def notes(self) -> str:
        """What is to be known of how it reads."""

    def read(self, base: int, file: Ints, offset: Ints, length: Ints, pointer: Ints) -> Reading:
        """Start reads into memory that was registered as ``base``."""

    @property
    def broken(self) -> str:
        """Why memory that was read into may still change, and nothing more is read; empty while all is well."""

    def close(self) -> None:
        """Close the files."""


class BatchTransport:
    """Reads by cuFile's batch interface, from C++: one call for all reads of a round.

    Parameters
    ----------
    table : RowTable
        Whose files.
    session : CudaSession
        Of the device whose memory is read into.
    depth : int
        Reads in flight, over all batches.
    timeout_s : float
        How long cuFile may give no answer.

    Raises
    ------
    ConfigError
        Where cuFile has no batches.
    """

    def __init__(self, table: RowTable, session: CudaSession, depth: int, timeout_s: float):
        allowed = _native.cufile_properties(LIBRARY)
        if not allowed["batch_supported"] or not allowed["max_batch_entries"]:
            raise ConfigError("cuFile must support batches (its properties say that it does not)")
        entries = max(min(allowed["max_batch_entries"], -(-depth // BATCHES)), 1)
        paths = [str(stripe.path) for stripe in table.stripes]
        self._native = _native.CufileBatches(LIBRARY, paths, _context(session), BATCHES, entries, timeout_s)
        self.notes = f"cuFile reads in batches of up to {entries}, {BATCHES} in flight"

    def read(self, base: int, file: Ints, offset: Ints, length: Ints, pointer: Ints) -> _native.CufileJob:
        """Queue reads, whatever their number, by one call."""
        columns = (np.ascontiguousarray(part, np.int64) for part in (file, offset, length, pointer - base))
        return self._native.submit(base, *columns)

    @property
    def broken(self) -> str:
        """What cuFile did not answer."""
        return self._native.broken

    @property
    def submitted(self) -> tuple[int, int]:
        """Batches handed to cuFile, and reads in them."""
        return self._native.submitted_batches, self._native.submitted_ranges

    def close(self) -> None:
        """Wait for what is in flight, and close the files."""
        self._native.close()


class _Range:
    """Device memory that kvikio writes to; says no stream, so that nothing is waited for a second time."""

    def __init__(self, pointer: int, count: int):
        self.__cuda_array_interface__ = {
            "shape": (count,), "typestr": "|u1", "data": (pointer, False), "version": 3, "strides": None,
        }  # fmt: skip


class KvikioReads:
    """Reads on kvikio's threads."""

    def __init__(self, table: RowTable):
        self._table = table
        self._futures: list[tuple[Any, int, int, int]] = []  # kvikio's future, file, offset, bytes

    def add(self, future: Any, file: int, offset: int, count: int) -> None:
        """Take note of one more, by what kvikio returned for it."""
        self._futures.append((future, file, offset, count))

    def wait(self) -> None:
        """Wait; a short read is an error."""
        failure: StorageError | None = None
        for future, file, offset, count in self._futures:
            path = str(self._table.stripes[file].path)
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

    def abandon(self) -> None:
        """Wait without looking: kvikio cannot take a read back."""
        for future, *_ in self._futures:
            try:
                future.get()
            except (OSError, RuntimeError):
                continue


class KvikioTransport:
    """Reads one by one on kvikio's threads: where cuFile has no batches, and in kvikio's compatibility mode.

    kvikio has one pool of threads and one threshold for the process, and its defaults (one thread; reads below 16 KiB
    go around GPUDirect Storage) do not suit rows. Opening this raises the one and lowers the other, and lowers the size
    of the buffers of pinned memory that every thread has in compatibility mode: 16 MiB each would be a GiB.
    """

    broken = ""  # kvikio waits for as long as the kernel does

    def __init__(self, table: RowTable, depth: int, longest: int, reason: str):
        import kvikio
        import kvikio.defaults as defaults

        threads = max(defaults.get("num_threads"), min(depth, MOST_THREADS))
        bounce = min(defaults.get("bounce_buffer_size"), longest)
        defaults.set({"gds_threshold": 0, "num_threads": threads, "bounce_buffer_size": bounce})
        self._table = table
        self.files = [kvikio.CuFile(str(stripe.path), "r") for stripe in table.stripes]
        self.notes = f"one call of kvikio for each read: {reason}"

    def read(self, base: int, file: Ints, offset: Ints, length: Ints, pointer: Ints) -> KvikioReads:
        """Start reads, each by a call of its own."""
        reads = KvikioReads(self._table)
        for number, at, count, to in zip(*(part.tolist() for part in (file, offset, length, pointer)), strict=True):
            try:
                reads.add(self.files[number].pread(_Range(to, count), count, at), number, at, count)
            except (OSError, RuntimeError) as error:
                reads.abandon()
                path = str(self._table.stripes[number].path)
                raise StorageError(f"gds read failed ({error})", path, at, count) from error
        return reads

    def close(self) -> None:
        """Close the files."""
        for file in self.files:
            file.close()
        self.files = []


def open_transport(table: RowTable, session: CudaSession, depth: int, longest: int, timeout_s: float) -> Transport:
    """Open a table's files for the best way that there is; its notes say why it is no better."""
    refusal = gds_availability()
    if refusal:
        return KvikioTransport(table, depth, longest, f"compatibility mode, through host memory: {refusal}")
    try:
        return BatchTransport(table, session, depth, timeout_s)
    except (ConfigError, StorageError) as error:
        return KvikioTransport(table, depth, longest, str(error))


class RegisteredMemory:
    """Device memory that drives may write to themselves, registered with cuFile through kvikio.

    cuFile registers at most ``max_device_pinned_mem_size_kb`` of ``cufile.json`` (32 GiB by default) in a process, its own
    buffers among them; what is not registered goes through those buffers.

    Parameters
    ----------
    memory : DeviceArray
        Part of one allocation, all of which is registered.
    spare_bytes : int
        Of the limit, so much is to stay for others.

    Raises
    ------
    DeviceError
        Where the limit does not allow it, or cuFile refuses.
    """

    _lock = threading.Lock()
    _used = 0  # of the process; guarded by _lock

    def __init__(self, memory: DeviceArray, spare_bytes: int = 0):
        import kvikio.buffer

        self.base, self.size_bytes = _allocation(memory.pointer)
        self._range = _Range(memory.pointer, memory.nbytes)
        limit = pinned_limit()
        with RegisteredMemory._lock:
            if limit and RegisteredMemory._used + self.size_bytes + spare_bytes > limit:
                raise DeviceError(
                    f"cuFile registers at most {format_bytes(limit)} (properties.max_device_pinned_mem_size_kb of "
                    f"cufile.json): {format_bytes(RegisteredMemory._used + spare_bytes)} are taken, "
                    f"{format_bytes(self.size_bytes)} were to be"
                )
            try:
                kvikio.buffer.memory_register(self._range)
            except RuntimeError as error:
                raise DeviceError(f"cuFile did not register {format_bytes(self.size_bytes)} ({error})") from error
            RegisteredMemory._used += self.size_bytes

    def close(self) -> None:
        """Unregister."""
        import kvikio.buffer

        with RegisteredMemory._lock:
            RegisteredMemory._used -= self.size_bytes
            kvikio.buffer.memory_deregister(self._range)


def pinned_limit() -> int:
    """Return how many bytes cuFile may have registered, beside its own buffers; 0: it does not say."""
    if gds_availability():
        return 0
    allowed = _native.cufile_properties(LIBRARY)
    return max(allowed["max_pinned_bytes"] - allowed["cache_bytes"], 0)


def _allocation(pointer: int) -> tuple[int, int]:
    """Return where the allocation around a pointer begins, and its size: cuFile knows registered memory by them."""
    from cuda.bindings import driver

    status, base, size = driver.cuMemGetAddressRange(pointer)
    if int(status):
        raise DeviceError(f"memory for drives must be an allocation of the device ({status.name})")
    return int(base), int(size)


def _context(session: CudaSession) -> int:
    from cuda.bindings import driver

    with session.current():
        status, context = driver.cuCtxGetCurrent()
    if int(status):
        raise DeviceError(f"the device's context failed ({status.name})")
    return int(context)
