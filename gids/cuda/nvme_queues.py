"""Reads that kernels make: a GPU (or its stand-in) queues a plan's reads, other work runs, then it looks for the answers."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from gids import _native
from gids.cuda.array import DeviceArray
from gids.cuda.dma_buf import probe_dma_buf
from gids.cuda.pages import PageKind, RegisteredPages, RegistrationError
from gids.cuda.session import CudaDevice, CudaSession, Session
from gids.errors import ConfigError, DeviceError, StorageError
from gids.nvme.drives import Drives
from gids.runtime.threads import Worker

#: One read as kernels/nvme_spec.cuh lays it out: blocks of a drive's namespace into a byte offset of the data region.
READ = np.dtype(
    [("lba", "<u8"), ("offset", "<u8"), ("blocks", "<u4"), ("bytes", "<u4"), ("nsid", "<u4"), ("drive", "<u4")]
)
_LANES = 32
_SETTLED = 1 << 31
_STATUS = 0x7FFF
_LOCAL = {1 << 16: "breaks a rule of the queue", 2 << 16: "the queue was closed", 3 << 16: "no free command id in time"}
_NOT_PERMITTED = 800  # CUDA_ERROR_NOT_PERMITTED
_PRIVILEGE = (
    "registers of a drive are mapped for root, or for everybody where the module nvidia was loaded with "
    'NVreg_RegistryDwords="PeerMappingOverride=1;"'
)
_UNREACHED = (
    "the GPU's write to its doorbell must reach the drive: devices on one PCIe root or switch that routes between peers "
    "(ACS redirection off), and an IOMMU that translates nothing for them (iommu=pt, or intel_iommu=off / amd_iommu=off)"
)
_HOST_NATIVE_ATOMICS = 86  # CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED
_MAX_BLOCKS = 64
#: How often reads are sent again that a drive may answer better another time.
RETRIES = 3
#: Of ``Outcome`` in kernels/nvme_read.cuh.
OUTCOME_WORDS = 4


def _data_notes(session: CudaSession) -> str:
    probe = probe_dma_buf(session)
    reason = probe.reason
    if probe.works:
        reason = "GPU memory could be mapped, but its order with completions is unproven (gids/cuda/dma_buf.py)"
    return f"data goes through pinned host memory: {reason}"


def host_atomics_refusal(device: CudaDevice) -> str:
    """Return why kernels and the watchdog cannot both change a word of the queues on this machine; empty where they can.

    A command that is late is the watchdog's or its answer's: a compare-and-swap of either side decides (``exchange_if`` of
    kernels/nvme_queue.cuh), which must be one for the other side too. What only kernels change need not be.
    """
    from cuda.bindings import driver

    if not hasattr(driver, "cuDeviceGetHostAtomicCapabilities"):  # CUDA 12 tells only whether all of them are
        attribute = driver.CUdevice_attribute(_HOST_NATIVE_ATOMICS)
        status, native = driver.cuDeviceGetAttribute(attribute, device.ordinal)
        if not int(status) and native:
            return ""
        return (
            "atomic operations between host and device must be known to work, which CUDA 12 tells of few links "
            "(CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED is 0): packages for CUDA 13 may know better"
        )
    swap, capability = driver.CUatomicOperation.CU_ATOMIC_OPERATION_CAS, driver.CUatomicOperationCapability
    needed = int(capability.CU_ATOMIC_CAPABILITY_UNSIGNED) | int(capability.CU_ATOMIC_CAPABILITY_SCALAR_32)
    status, found = driver.cuDeviceGetHostAtomicCapabilities([swap], 1, device.ordinal)
    if not int(status) and int(found[0]) & needed == needed:
        return ""
    answer = status.name if int(status) else f"capabilities {int(found[0]):#x}"
    return (
        f"the link between {device.name} and the host must carry compare-and-swap of 32 bits "
        f"(cuDeviceGetHostAtomicCapabilities: {answer})"
    )


class DeviceQueues:
    """Queue pairs on drives, shown to one session's kernels.

    What drives and the watchdog use is host memory: locked for the drives by VFIO, pinned and mapped for the GPU. What
    only kernels use is in the device's. Close it, or use a ``with``.

    Parameters
    ----------
    drives : Drives or sequence of NvmeDrive
        Where to read; a read names its drive by the place in this order.
    session : Session
        Whose kernels submit.
    polling : Session, optional
        Whose kernels look for answers, where that is another stream.
    data_bytes : int
        Memory that the drives write to.
    queue_pairs, ids : int
        Pairs on each drive, and commands in flight on each pair.
    timeout_s : float
        How long a kernel looks for answers; choose more than the drives' own time-out, which ends commands.
    """

    def __init__(
        self,
        drives: Drives | Sequence[_native.NvmeDrive],
        session: Session,
        *,
        polling: Session | None = None,
        data_bytes: int,
        queue_pairs: int = 2,
        ids: int = 255,
        timeout_s: float = 30.0,
    ):
        self._drives = drives.native if isinstance(drives, Drives) else list(drives)
        self.native = _native.NvmeDeviceQueues(self._drives, queue_pairs, ids, data_bytes)
        self.session, self._queue_pairs = session, queue_pairs
        self.polling = session if polling is None else polling
        self._state = session.empty(self.native.device_bytes, np.uint8)
        self.share(self._state)
        self._timeout_ns = np.uint64(timeout_s * 1e9)
        self._timeout_s = timeout_s
        self._registered: list[RegisteredPages] = []
        #: Why the drives do not write to the GPU's own memory; empty where there is no GPU to speak of.
        self.notes = _data_notes(session) if isinstance(session, CudaSession) else ""
        self._lock = threading.Lock()
        self._failures: list[tuple[int, int, str]] = []  # guarded by _lock; sets of reads share the queues
        self._stop = threading.Event()
        self._pump: Worker | None = None
        try:
            if isinstance(session, CudaSession):
                refusal = host_atomics_refusal(session.device)
                if refusal:
                    raise DeviceError(f"{refusal}; submit='cpu' needs none")
                self._register(session)
            if any(drive.name.startswith("qtest:") for drive in self._drives):
                self._pump = Worker(self._carry, "gids-nvme-pump")
                self._pump.start()
            if isinstance(session, CudaSession):
                self.check_doorbells()
        except BaseException:
            self.close()
            raise

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        """What the drives write to; bytes of a read are valid once it was waited for."""
        return np.asarray(self.native.data)

    def submit(self, reads: npt.NDArray[Any], *, poll: bool = False) -> DeviceReads:
        """Queue reads; returns when the kernel is launched.

        Parameters
        ----------
        reads : array of :data:`READ`
            What to read.
        poll : bool
            Queue the polling kernel behind it at once, rather than when the reads are waited for. A caller that may
            wait late must: answers that nobody takes look to the watchdog like a drive that does not answer.
        """
        return self._submit(reads, 0, poll)

    def begin(self) -> _native.NvmeKernels:
        """Announce kernels to the watchdog, before their launch: after a recovery, their queues begin anew."""
        kernels = self.native.begin()
        try:
            for offset, content in self.native.images(self._state.pointer):
                part = self._state[offset : offset + len(content)]
                self.session.copy(part, self.session.upload(np.frombuffer(content, np.uint8)))
        except BaseException:
            kernels.end()
            raise
        return kernels

    def share(self, *arrays: DeviceArray) -> None:
        """Let the polling stream use arrays of the submitting one."""
        if isinstance(self.polling, CudaSession) and self.polling is not self.session:
            for array in arrays:
                array.share_with(self.polling)

    def launch_submit(self, work: DeviceWork) -> None:
        """Queue the kernel that sends reads."""
        warps = -(-max(work.bound, 1) // _LANES)
        arguments = (work.reads, work.results, work.range, np.uint32(work.bound))
        self.session.launch(
            "nvme_submit", warps, self._state, *arguments, self._timeout_ns, lanes=_LANES, blocks=self._blocks(warps)
        )

    def launch_poll(self, work: DeviceWork, kernels: _native.NvmeKernels) -> None:
        """Queue the kernel that waits for them, behind what was submitted so far; ``kernels`` end with it."""
        session, queues = self.polling, self._queue_pairs * len(self._drives)
        if session is not self.session and isinstance(self.session, CudaSession):
            assert isinstance(session, CudaSession)
            session.wait_event(self.session.record())
        warps = queues + -(-max(work.bound, 1) // _LANES)
        least = -(-(queues + 1) * _LANES // session.block_threads)  # a warp for each queue, and one that waits
        arguments = (work.reads, work.results, work.range, np.uint32(work.bound), self._timeout_ns, work.outcome)
        session.launch(
            "nvme_poll", warps, self._state, np.uint32(len(self._drives)), *arguments, lanes=_LANES,
            blocks=max(least, self._blocks(warps)),
        )  # fmt: skip
        if isinstance(session, CudaSession):
            session.notify(kernels)

    def _blocks(self, warps: int) -> int:
        return min(-(-warps * _LANES // self.session.block_threads), _MAX_BLOCKS)

    def check_doorbells(self) -> None:
        """Read a block by way of each queue pair; raise DeviceError where a drive does not hear of it.

        Registering a drive's registers tells nothing of whether the GPU's writes get there.
        """
        for number, drive in enumerate(self._drives):
            space = cast("list[dict[str, int]]", drive.info["namespaces"])[0]
            reads = np.zeros(
                _LANES * (self._queue_pairs - 1) + 1, READ
            )  # a warp of them for each pair; the last has one
            reads["blocks"], reads["bytes"] = 1, space["block_bytes"]
            reads["nsid"], reads["drive"] = space["nsid"], number
            try:
                self.submit(reads).wait()
            except StorageError as error:
                if error.errno == errno.ETIMEDOUT:
                    raise DeviceError(f"{error}: {_UNREACHED}") from error
                if error.errno != errno.EIO:  # of a read that failed the drive has heard
                    raise

    def _submit(self, reads: npt.NDArray[Any], retries: int, poll: bool) -> DeviceReads:
        if reads.dtype != READ or reads.ndim != 1:
            raise ConfigError(
                f"reads must be a vector of gids.cuda.nvme_queues.READ (got {reads.dtype}, {reads.ndim} dimensions)"
            )
        if len(reads) and int(reads["drive"].max()) >= len(self._drives):
            raise ConfigError(f"drive of a read must be below {len(self._drives)} (got {int(reads['drive'].max())})")
        kernels = self.begin()
        try:
            return DeviceReads(self, reads, kernels, retries, poll)
        except BaseException:
            kernels.end()
            raise

    def failure(self, read: Any, result: int, retries: int) -> StorageError:
        """Return what to say of a read that was settled with this word."""
        where, name, offset, length = self._place(read)
        local = _LOCAL.get(result & ~_SETTLED)
        reason = local or _native.nvme_describe_status(result & _STATUS)
        if retries:
            reason += f", after {retries} retries"
        return StorageError(f"{where}: {reason}", name, offset, length, 0 if local else 5)

    def given_up(self, reads: npt.NDArray[Any], address: int, results: npt.NDArray[Any]) -> StorageError:
        """Wait for the watchdog, which ends what the drive does not, and return what it says of reads.

        Parameters
        ----------
        reads : array of :data:`READ`
            What was read.
        address : int
            Of their result words, ...
        results : uint32[reads]
            ... and the words.
        """
        deadline = time.monotonic() + self._timeout_s
        while time.monotonic() < deadline:
            failures = self._take_failures(address, len(reads))
            if failures:
                # The one that was late is the cause; others were only in flight when the drive was stopped for it.
                index, error_number, reason = min(failures, key=lambda one: not one[2].startswith("no answer"))
                where, name, offset, length = self._place(reads[index])
                return StorageError(f"{where}: {reason}", name, offset, length, error_number)
            time.sleep(0.005)
        pending = np.flatnonzero(results == 0)
        where, name, offset, length = self._place(reads[int(pending[0]) if len(pending) else 0])
        return StorageError(f"{where}: not answered", name, offset, length, 110)

    def _place(self, read: Any) -> tuple[str, str, int, int]:
        drive = self._drives[int(read["drive"])]
        where = f"read of drive {drive.name}, namespace {read['nsid']}, LBA {read['lba']}, {read['blocks']} blocks"
        block = int(read["bytes"]) // max(int(read["blocks"]), 1)
        return where, drive.name, int(read["lba"]) * block, int(read["bytes"])

    def _take_failures(self, results: int, count: int) -> list[tuple[int, int, str]]:
        """Return (number of the read, errno, reason) of what the watchdog ended among reads with these result words."""
        with self._lock:
            self._failures += self.native.take_failures()
            mine = [failure for failure in self._failures if 0 <= failure[0] - results < 4 * count]
            self._failures = [failure for failure in self._failures if failure not in mine]
        return [((user - results) // 4, error_number, reason) for user, error_number, reason in mine]

    def close(self) -> None:
        """Release the queue pairs; nothing may be in flight that was not waited for."""
        self._stop.set()
        if self._pump is not None:
            self._pump.wait_until_ended(threading.TIMEOUT_MAX)
        while self._registered:
            self._registered.pop().close()

    def _carry(self) -> None:
        while not self._stop.is_set():
            self.native.pump()
            time.sleep(20e-6)

    def _register(self, session: CudaSession) -> None:
        for address, count, registers in self.native.regions():
            kind = "doorbells" if registers else "queue memory"
            try:
                pages = RegisteredPages(
                    session.device, address, count, PageKind.REGISTERS if registers else PageKind.MEMORY
                )
            except RegistrationError as error:
                remedy = f"; {_PRIVILEGE}" if int(error.status) == _NOT_PERMITTED else ""
                raise DeviceError(f"{kind} must be mapped for the GPU: {error}{remedy}") from error
            self._registered.append(pages)
            if pages.pointer != address:
                raise DeviceError(
                    "the GPU must use host addresses as they are (canUseHostPointerForRegisteredMem is 0)"
                )

    def __enter__(self) -> DeviceQueues:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True)
class DeviceWork:
    """Reads as kernels are given them.

    Attributes
    ----------
    reads : DeviceArray
        Of :data:`READ`, as bytes.
    results : DeviceArray
        uint32: a word for each, 0 at first.
    outcome : DeviceArray
        uint32[4], 0 at first: ``Outcome`` of kernels/nvme_read.cuh.
    bound : int
        At most so many.
    range : DeviceArray, optional
        int64[2]: first, and one past the last; without it, the first ``bound``.
    """

    reads: DeviceArray
    results: DeviceArray
    outcome: DeviceArray
    bound: int
    range: DeviceArray | None = None


def may_retry(result: int) -> bool:
    """Whether the read that was settled with this word may fare better another time."""
    return (result & ~_SETTLED) not in _LOCAL and bool(_native.nvme_may_retry(result & _STATUS))


def failed_reads(results: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return the numbers of the reads whose words tell of a failure."""
    return np.flatnonzero(results & ~np.uint32(_SETTLED))


class DeviceReads:
    """A set of reads under way; made by :meth:`DeviceQueues.submit`. Wait for it before anything it needs goes away."""

    def __init__(
        self,
        owner: DeviceQueues,
        reads: npt.NDArray[Any],
        kernels: _native.NvmeKernels,
        retries: int = 0,
        poll: bool = False,
    ):
        self._owner, self._session, self._host, self._retries = owner, owner.session, reads, retries
        #: What the watchdog looks at before it takes a queue away; ended by the stream, behind the kernel that polls.
        self.kernels = kernels
        #: Whether the drives are done with the data region; False once they were given up while they may still write.
        self.settled = True
        session = self._session
        self._work = DeviceWork(
            session.upload(reads.view(np.uint8)),
            zeros(session, max(len(reads), 1)),
            zeros(session, OUTCOME_WORDS),
            len(reads),
        )
        owner.share(self._work.reads, self._work.results, self._work.outcome)
        owner.launch_submit(self._work)
        self._polling = poll
        if poll:
            owner.launch_poll(self._work, kernels)

    def wait(self) -> None:
        """Poll on the device until every read is settled; raise StorageError for the first that failed.

        Reads that the drive may answer better another time are sent up to three times more.
        """
        work, polling = self._work, self._owner.polling
        try:
            if not self._polling:
                self._owner.launch_poll(work, self.kernels)
            unsettled = int(polling.download(work.outcome)[0])
            results = polling.download(work.results)[: len(self._host)]
        finally:
            self.kernels.end()
        self.settled = unsettled == 0
        if unsettled:
            raise self._owner.given_up(self._host, work.results.pointer, results)
        failed = failed_reads(results)
        for index in failed.tolist():
            if self._retries == RETRIES or not may_retry(int(results[index])):
                raise self._owner.failure(self._host[index], int(results[index]), self._retries)
        if len(failed):
            again = self._owner._submit(self._host[failed], self._retries + 1, self._polling)
            try:
                again.wait()
            finally:
                self.settled = again.settled


def zeros(session: Session, words: int) -> DeviceArray:
    """Return words of 32 bits that are 0."""
    array = session.empty(words, np.uint32)
    session.fill(array, 0)
    return array
