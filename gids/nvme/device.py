"""Reads that kernels make: a GPU (or its stand-in) queues a plan's reads, other work runs, then it looks for the answers."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from gids import _native
from gids.cuda.session import CudaSession, Session
from gids.errors import ConfigError, DeviceError, StorageError
from gids.nvme.drives import Drives
from gids.nvme.facts import gpu_dma_buf

#: One read as kernels/nvme_spec.cuh lays it out: blocks of a drive's namespace into a byte offset of the data region.
READ = np.dtype(
    [("lba", "<u8"), ("offset", "<u8"), ("blocks", "<u4"), ("bytes", "<u4"), ("nsid", "<u4"), ("drive", "<u4")]
)
_LANES = 32
_SETTLED = 1 << 31
_STATUS = 0x7FFF
_LOCAL = {1 << 16: "breaks a rule of the queue", 2 << 16: "the queue was closed", 3 << 16: "no free command id in time"}
_REGISTER_MAPPED, _REGISTER_IOMEMORY = 2, 4
_MAX_BLOCKS = 64


def _data_notes() -> str:
    works, reason = gpu_dma_buf()
    if works:
        reason = "the GPU exports dma-buf, but VFIO type 1 maps memory of the process only"
    return f"data goes through pinned host memory: {reason}"


class DeviceQueues:
    """Queue pairs on drives, shown to one session's kernels.

    Memory is host memory: locked for the drives by VFIO, pinned and mapped for the GPU. Close it, or use a ``with``.

    Parameters
    ----------
    drives : Drives
        Where to read.
    session : Session
        Whose kernels drive the queues.
    data_bytes : int
        Memory that the drives write to.
    queue_pairs, ids : int
        Pairs on each drive, and commands in flight on each pair.
    timeout_s : float
        How long a kernel looks for answers; choose more than the drives' own time-out, which ends commands.
    """

    def __init__(
        self,
        drives: Drives,
        session: Session,
        *,
        data_bytes: int,
        queue_pairs: int = 2,
        ids: int = 255,
        timeout_s: float = 30.0,
    ):
        self.native = _native.NvmeDeviceQueues(drives.native, queue_pairs, ids, data_bytes)
        self._session = session
        self._timeout_ns = np.uint64(timeout_s * 1e9)
        self._timeout_s = timeout_s
        self._drives = drives
        self._registered: list[int] = []
        #: Why the drives do not write to the GPU's own memory; empty where there is no GPU to speak of.
        self.notes = _data_notes() if isinstance(session, CudaSession) else ""
        self._stop = threading.Event()
        self._pump: threading.Thread | None = None
        try:
            if isinstance(session, CudaSession):
                self._register(session)
        except BaseException:
            self.close()
            raise
        if any(drive.name.startswith("qtest:") for drive in drives.native):
            self._pump = threading.Thread(target=self._carry, name="gids-nvme-pump", daemon=True)
            self._pump.start()

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        """What the drives write to; bytes of a read are valid once it was waited for."""
        return np.asarray(self.native.data)

    def submit(self, reads: npt.NDArray[Any]) -> DeviceReads:
        """Queue reads (an array of :data:`READ`); returns when the kernel is launched."""
        if reads.dtype != READ or reads.ndim != 1:
            raise ConfigError(
                f"reads must be a vector of gids.nvme.device.READ (got {reads.dtype}, {reads.ndim} dimensions)"
            )
        if len(reads) and int(reads["drive"].max()) >= len(self._drives.native):
            raise ConfigError(
                f"drive of a read must be below {len(self._drives.native)} (got {int(reads['drive'].max())})"
            )
        self.native.begin()
        try:
            return DeviceReads(self, self._session, reads)
        except BaseException:
            self.native.end()
            raise

    def close(self) -> None:
        """Give the queue pairs back; nothing may be in flight that was not waited for."""
        self._stop.set()
        if self._pump is not None:
            self._pump.join()
        if self._registered:
            from cuda.bindings import driver

            for address in self._registered:
                driver.cuMemHostUnregister(address)
            self._registered.clear()

    def _carry(self) -> None:
        while not self._stop.is_set():
            self.native.pump()
            time.sleep(20e-6)

    def _register(self, session: CudaSession) -> None:
        from cuda.bindings import driver

        session.enter()
        for address, count, registers in self.native.regions():
            flags = _REGISTER_MAPPED | (_REGISTER_IOMEMORY if registers else 0)
            (status,) = driver.cuMemHostRegister(address, count, flags)
            if int(status):
                kind = "doorbells" if registers else "queue memory"
                raise DeviceError(f"{kind} must be mapped for the GPU: cuMemHostRegister failed ({status.name})")
            self._registered.append(address)
            status, mapped = driver.cuMemHostGetDevicePointer(address, 0)
            if int(status) or int(mapped) != address:
                raise DeviceError(
                    "the GPU must use host addresses as they are (canUseHostPointerForRegisteredMem is 0)"
                )

    def __enter__(self) -> DeviceQueues:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class DeviceReads:
    """A set of reads under way; made by :meth:`DeviceQueues.submit`. Wait for it before anything it needs goes away."""

    def __init__(self, owner: DeviceQueues, session: Session, reads: npt.NDArray[Any]):
        self._owner, self._session, self._host = owner, session, reads
        self._reads = session.upload(reads.view(np.uint8))
        self._results = session.empty(max(len(reads), 1), np.uint32)
        session.fill(self._results, 0)
        self._unsettled = session.empty(1, np.uint32)
        session.fill(self._unsettled, 0)
        self._launch("nvme_submit")

    def _launch(self, kernel: str, *rest: Any) -> None:
        warps = -(-max(len(self._host), 1) // _LANES)
        blocks = min(-(-warps * _LANES // self._session.block_threads), _MAX_BLOCKS)
        arguments = (np.uint64(self._owner.native.refs), self._reads, self._results, np.uint32(len(self._host)))
        self._session.launch(kernel, warps, *arguments, self._owner._timeout_ns, *rest, lanes=_LANES, blocks=blocks)

    def wait(self) -> None:
        """Poll on the device until every read is settled; raise StorageError for the first that failed."""
        self._launch("nvme_poll", self._unsettled)
        unsettled = int(self._session.download(self._unsettled)[0])
        results = self._session.download(self._results)[: len(self._host)]
        self._owner.native.end()
        if unsettled:
            raise self._given_up(results)
        failed = np.flatnonzero(results & ~np.uint32(_SETTLED))
        if len(failed):
            raise self._error(int(failed[0]), int(results[failed[0]]))

    def _place(self, index: int) -> tuple[str, str, int, int]:
        read = self._host[index]
        drive = self._owner._drives.native[int(read["drive"])]
        where = f"read of drive {drive.name}, namespace {read['nsid']}, LBA {read['lba']}, {read['blocks']} blocks"
        block = int(read["bytes"]) // max(int(read["blocks"]), 1)
        return where, drive.name, int(read["lba"]) * block, int(read["bytes"])

    def _error(self, index: int, result: int) -> StorageError:
        where, name, offset, length = self._place(index)
        local = _LOCAL.get(result & ~_SETTLED)
        reason = local or _native.nvme_describe_status(result & _STATUS)
        return StorageError(f"{where}: {reason}", name, offset, length, 0 if local else 5)

    def _given_up(self, results: npt.NDArray[Any]) -> StorageError:
        """Wait for the watchdog, which ends what the drive does not, and say what it says."""
        pending = np.flatnonzero(results == 0)
        deadline = time.monotonic() + self._owner._timeout_s
        while time.monotonic() < deadline:
            for _, error_number, reason in self._owner.native.take_failures():
                where, name, offset, length = self._place(int(pending[0]) if len(pending) else 0)
                return StorageError(f"{where}: {reason}", name, offset, length, error_number)
            time.sleep(0.005)
        where, name, offset, length = self._place(int(pending[0]) if len(pending) else 0)
        return StorageError(f"{where}: not answered", name, offset, length, 110)
