"""Engine ``nvme`` on a device: kernels queue a group's reads on the drives, and later look for the answers."""

from __future__ import annotations

import contextlib
import queue
from typing import Any, cast

import numpy as np

from gids import _native
from gids.cuda.array import DeviceArray
from gids.cuda.choice import QUEUE_PAIRS
from gids.cuda.device_reader import DeviceRead, DeviceReader, Ints, Prepared, Reading, Round, pack_rounds
from gids.cuda.nvme_queues import READ, DeviceQueues, DeviceReads
from gids.cuda.session import CudaSession
from gids.errors import DeviceError, StorageError
from gids.storage.curve import load_curve
from gids.storage.options import StorageOptions
from gids.storage.plan import PlanLimits, plan_reads
from gids.table import RowTable

_PAGE = 4096


class NvmeDeviceReader(DeviceReader):
    """Reads rows of a table from drives that :mod:`gids.nvme` has opened and attached to it.

    The kernel ``nvme_submit`` sends the merged reads of a group, ``nvme_poll`` takes the answers as they come, and
    ``unpack_pieces`` moves the rows from the drives' memory to their slots. They have a stream of their own, so
    that everything else goes on meanwhile, and the greatest priority: a drive holds its answers until they are taken.

    Parameters
    ----------
    table : RowTable
        Its files must be attached.
    options : StorageOptions
        Depth, longest read, widest gap, staging memory, time-out.
    session : CudaSession
        Of the device whose kernels drive the queues.
    groups : int
        Groups in flight, each with its part of the staging memory.
    """

    engine = "nvme"

    def __init__(self, table: RowTable, options: StorageOptions, session: CudaSession, groups: int):
        self._paths = [str(stripe.path) for stripe in table.stripes]
        drives = _native.nvme_drives_of(self._paths)
        curve = load_curve(table.stripes[0].path)
        depth = curve.best_depth if options.queue_depth is None else options.queue_depth
        region_bytes = max(options.staging_bytes // groups, options.max_io_bytes) // _PAGE * _PAGE
        self.table, self.session = table, CudaSession(session.device, session.budget, urgent=True)
        self._queues = DeviceQueues(
            drives,
            self.session,
            data_bytes=region_bytes * groups,
            queue_pairs=QUEUE_PAIRS,
            ids=min(depth, 255),
            timeout_s=options.timeout_s,
        )
        spaces = [space for drive in drives for space in cast("list[dict[str, Any]]", drive.info["namespaces"])]
        block = max(space["block_bytes"] for space in spaces)
        gap = curve.merge_gap_bytes if options.merge_gap_bytes is None else options.merge_gap_bytes
        longest = min(options.max_io_bytes, self._queues.native.max_bytes)
        self.limits = PlanLimits(block, gap, longest // block * block)
        self.notes = f"kernels drive {QUEUE_PAIRS} queue pairs on each of {len(drives)} drives; {self._queues.notes}"
        self._region_bytes, self._timeout_s = region_bytes, options.timeout_s
        data = self._queues.data
        self._base = int(data.ctypes.data)
        self._free: queue.Queue[int] = queue.Queue()  # offsets of regions that no group uses
        for number in range(groups):
            self._free.put(number * region_bytes)
        self._dirty = False  # for good: a buffer is not used again after a command that had no answer
        self._stats = {"rows": 0, "reads": 0, "bytes_read": 0, "commands": 0}

    def attach(self, memory: DeviceArray) -> None:
        """Do nothing: drives write to memory of their own."""

    def prepare(self, rows: Ints) -> Prepared:
        """Plan the reads; drives write to memory of their own, so no row asks for a certain place."""
        return Prepared(plan_reads(self.table, rows, self.limits), np.empty(0, np.int64), np.empty(0, np.int64))

    def submit(self, prepared: Prepared, out: DeviceArray, to: Ints) -> DeviceRead:
        """Start reading; the ``i``-th of the rows asked for begins at byte ``to[i]``, counted from ``out``."""
        plan = prepared.plan
        every = np.arange(plan.num_reads)
        rounds = pack_rounds(self.table, plan, every, to, self._region_bytes, self.limits.block_bytes)
        self._stats["rows"] += plan.num_rows
        self._stats["reads"] += plan.num_reads
        self._stats["bytes_read"] += plan.total_bytes
        return DeviceRead(self, out, rounds, None).start()

    def take_region(self, count: int, *, wait: bool) -> DeviceArray | None:
        """Return a part of the drives' memory."""
        if self._dirty:
            raise StorageError("a drive did not answer, and may still write to the staging memory", self._paths[0])
        try:
            offset = self._free.get(block=wait, timeout=self._timeout_s if wait else None)
        except queue.Empty:
            if not wait:
                return None
            raise DeviceError(f"a group must give its staging memory back within {self._timeout_s} s") from None
        return DeviceArray(self._base + offset, (self._region_bytes,), np.uint8, self._queues)

    def give_region(self, region: DeviceArray) -> None:
        """Take it back, unless a drive that was given up may still write to some region."""
        if not self._dirty:
            self._free.put(region.pointer - self._base)

    def begin(self, reads: Round, region: DeviceArray) -> Reading:
        """Queue a round's commands."""
        target = reads.target + (region.pointer - self._base)
        commands = _native.nvme_cut_reads(
            self._paths, reads.file, reads.offset, reads.length, target, self.limits.max_io_bytes
        )
        self._stats["commands"] += len(commands) // READ.itemsize
        return _Polled(self, self._queues.submit(commands.view(READ), poll=True))

    def settle(self, reads: DeviceReads) -> None:
        """Note whether a drive may still write to the staging memory."""
        self._dirty = self._dirty or not reads.settled

    def stats(self) -> dict[str, int]:
        """Return counts since the opening: rows, reads, bytes_read, commands."""
        return dict(self._stats)

    def close(self) -> None:
        """Release the queue pairs."""
        self._queues.close()
        self.session.close()


class _Polled:
    """A round's commands, which a kernel polls for."""

    def __init__(self, reader: NvmeDeviceReader, reads: DeviceReads):
        self._reader, self._reads = reader, reads

    def wait(self) -> None:
        """Poll until every command is answered."""
        try:
            self._reads.wait()
        finally:
            self._reader.settle(self._reads)

    def abandon(self) -> None:
        """Poll without looking at the outcome."""
        with contextlib.suppress(StorageError):
            self.wait()
