"""Engine ``nvme`` on a device: kernels turn a group's rows into commands of drives, send them, and unpack what came."""

from __future__ import annotations

import contextlib
import math
import threading
from typing import Any, cast

import numpy as np

from gids import _native
from gids.cuda.array import DeviceArray
from gids.cuda.arrivals import Arrival
from gids.cuda.choice import QUEUE_PAIRS
from gids.cuda.nvme_queues import (
    OUTCOME_WORDS,
    READ,
    RETRIES,
    DeviceQueues,
    DeviceWork,
    failed_reads,
    may_retry,
    zeros,
)
from gids.cuda.passes import empty_prefix, turnstile
from gids.cuda.session import CudaSession, Session
from gids.errors import StorageError
from gids.storage.curve import load_curve
from gids.storage.options import StorageOptions
from gids.table import RowTable

_PAGE = 4096
#: Parts of the staging memory: one is read into while the other is unpacked.
PARTS = 2


class TablePlan:
    """How kernels turn rows of a table into commands: ``TablePlan`` of kernels/nvme_plan.cuh, in device memory.

    Parameters
    ----------
    session : Session
        Where its memory is from.
    table : RowTable
        Which.
    maps : list of NvmeFileMap
        Where each of its files is on the drives.
    spaces : list of list of (int, int)
        Namespace and bits of its block, by drive.
    block_bytes : int
        Of all namespaces.
    gap_bytes : int
        Widest gap that reads are merged over.
    max_bytes : int
        Of a command; a multiple of the block.
    part_bytes : int
        Staging memory of a round, more than a command's.
    """

    def __init__(
        self,
        session: Session,
        table: RowTable,
        maps: list[_native.NvmeFileMap],
        spaces: list[list[tuple[int, int]]],
        *,
        block_bytes: int,
        gap_bytes: int,
        max_bytes: int,
        part_bytes: int,
    ):
        # Reads are merged whose beginnings are in one window: then they end within the longest command.
        span_bytes = min(-(-table.row_bytes // block_bytes) * block_bytes + block_bytes, max_bytes)
        files = [
            (str(stripe.path), file_map, stripe.data_offset, table.file_bytes(number))
            for number, (stripe, file_map) in enumerate(zip(table.stripes, maps, strict=True))
        ]

        def image(base: int) -> bytes:
            return _native.nvme_table_plan(
                files,
                spaces,
                stripe_rows=table.stripe_rows,
                row_stride=table.row_stride,
                row_bytes=table.row_bytes,
                block_bytes=block_bytes,
                gap_bytes=gap_bytes,
                window_bytes=max_bytes - span_bytes,
                max_bytes=max_bytes,
                part_bytes=part_bytes,
                parts=PARTS,
                base=base,
            )

        self.memory = session.empty(len(image(0)), np.uint8)
        session.copy(self.memory, session.upload(np.frombuffer(image(self.memory.pointer), np.uint8)))
        self.row_bytes, self.round_bytes, self.block_bytes = table.row_bytes, part_bytes - max_bytes, block_bytes


class GroupCommands:
    """The commands of one group, in device memory: only how many there are is known to the host.

    Parameters
    ----------
    session : Session
        Whose stream makes them.
    plan : TablePlan
        Of the table.
    rows : DeviceArray
        int64, ascending and distinct.
    first_part : int
        Which part of the staging memory the first round takes.
    """

    _COUNT_BITS = 38  # kBytesBits

    def __init__(self, session: Session, plan: TablePlan, rows: DeviceArray, first_part: int):
        count = len(rows)
        self._plan, self._rows = plan, rows
        sums, bad = empty_prefix(session, count), zeros(session, 1)
        session.launch("nvme_count_reads", count, plan.memory, rows, np.int64(count), *sums, bad, turnstile(session))
        total, wrong = session.download_later([sums.total, bad]).wait()
        if wrong[0]:
            raise StorageError("the drives must have every row of a group", "")
        packed = int(total[0])
        self.count = packed >> self._COUNT_BITS
        self.bytes = (packed & ((1 << self._COUNT_BITS) - 1)) * plan.block_bytes
        self.rounds = -(-self.bytes // plan.round_bytes)
        self.first_part = first_part
        self.reads = session.empty(self.count * READ.itemsize, np.uint8)
        self.targets, self.at = session.empty(self.count, np.int64), session.empty(count, np.int64)
        self.ranges = session.empty(self.rounds + 1, np.int64)
        session.launch(
            "nvme_place_reads", count, plan.memory, rows, np.int64(count), *sums, self.reads, self.targets, self.at
        )
        session.launch(
            "nvme_split_reads", self.count, plan.memory, self.reads, self.targets, np.int64(self.count),
            np.int64(self.bytes), np.uint64(first_part), np.int64(self.rounds), self.ranges,
        )  # fmt: skip

    @property
    def arrays(self) -> list[DeviceArray]:
        """Everything that kernels of other streams use."""
        return [self._plan.memory, self._rows, self.reads, self.targets, self.at, self.ranges]

    def unpack(self, session: Session, number: int, staging: int, out: DeviceArray) -> None:
        """Queue the copy of what round ``number`` brought to the rows' places in ``out``."""
        count = len(self._rows)
        session.launch(
            "nvme_unpack_rows", min(count, self._plan.round_bytes // self._plan.row_bytes + 2), self._plan.memory,
            np.uint64(staging), self.targets, np.int64(self.count), np.int64(self.bytes), np.uint64(self.first_part),
            np.int64(number), self.ranges, self.at, np.int64(count), out, lanes=32,
        )  # fmt: skip


class NvmeRead:
    """A group's rows under way. The destination must live until :meth:`wait` or :meth:`cancel` has returned."""

    def __init__(self, reader: NvmeDeviceReader, commands: GroupCommands, to: DeviceArray):
        self._reader, self._commands, self._to = reader, commands, to
        self._lock = threading.Lock()
        self._retries = 0
        self._begin()

    def _begin(self) -> None:
        """Queue all rounds: each as soon as its part of the staging memory was unpacked."""
        commands, reader = self._commands, self._reader
        self._results = zeros(reader.submitting, commands.count)
        self._outcomes = zeros(reader.submitting, OUTCOME_WORDS * commands.rounds)
        for array in (*commands.arrays, self._results, self._outcomes):
            array.share_with(reader.polling)
            array.share_with(reader.unpacking)
        self._kernels = []
        for number in range(commands.rounds):
            words = slice(OUTCOME_WORDS * number, OUTCOME_WORDS * (number + 1))
            work = DeviceWork(
                commands.reads,
                self._results,
                self._outcomes[words],
                commands.count,
                commands.ranges[number : number + 2],
            )
            self._kernels.append(reader.queue_round(work, commands, number, self._to))
        self._arrival: Arrival = reader.unpacking.download_later([self._outcomes])
        self._event = reader.unpacking.record()

    def wait(self) -> Any:
        """Return the event behind the last copy, when all reads have ended; raise what went wrong."""
        with self._lock:
            while not self._ended():
                self._retries += 1
                with self._reader.lock:
                    self._begin()
            return self._event

    def _ended(self) -> bool:
        """Wait; return False where reads failed that may fare better another time."""
        reader, commands = self._reader, self._commands
        try:
            (outcomes,) = self._arrival.wait()
        finally:
            for kernels in self._kernels:
                kernels.end()
        unsettled, failed = outcomes.reshape(-1, OUTCOME_WORDS)[:, :2].sum(axis=0).tolist()
        if not unsettled and not failed:
            return True
        with reader.lock:
            results, reads = reader.unpacking.download_all([self._results, commands.reads])
        reads = reads.view(READ)
        if unsettled:
            reader.give_up()
            raise reader.queues.given_up(reads, self._results.pointer, results)
        for index in failed_reads(results).tolist():
            if self._retries == RETRIES or not may_retry(int(results[index])):
                raise reader.queues.failure(reads[index], int(results[index]), self._retries)
        return False

    def cancel(self) -> None:
        """Wait for what was begun, without looking at the outcome: no drive takes a command back."""
        with self._lock, contextlib.suppress(StorageError):
            self._ended()


class NvmeDeviceReader:
    """Reads rows of a table from drives that :mod:`gids.nvme` has opened and attached to it.

    Nothing of a group's plan leaves the device: kernels find where its rows are, merge reads, and queue the commands
    (``nvme_submit``), take the answers (``nvme_poll``), and move the rows from the drives' memory to their places
    (``nvme_unpack_rows``), each on a stream of its own with the greatest priority. A group is read in rounds, which take
    the two halves of the staging memory in turn: one is read into while the other is unpacked.

    Parameters
    ----------
    table : RowTable
        Its files must be attached.
    options : StorageOptions
        Depth, longest read, widest gap, staging memory, time-out.
    session : CudaSession
        Of the device whose kernels drive the queues.
    """

    engine = "nvme"

    def __init__(self, table: RowTable, options: StorageOptions, session: CudaSession):
        paths = [str(stripe.path) for stripe in table.stripes]
        drives = _native.nvme_drives_of(paths)
        curve = load_curve(table.stripes[0].path)
        depth = curve.best_depth if options.queue_depth is None else options.queue_depth
        spaces = [cast("list[dict[str, Any]]", drive.info["namespaces"]) for drive in drives]
        block = max(space["block_bytes"] for mine in spaces for space in mine)
        gap = curve.merge_gap_bytes if options.merge_gap_bytes is None else options.merge_gap_bytes
        # No group reads more than the table with the blocks around it, and a round ends with a whole command.
        useful = table.num_rows * table.row_stride + len(table.stripes) * 2 * block + options.max_io_bytes + _PAGE
        part_bytes = max(min(options.staging_bytes // PARTS, useful), 2 * options.max_io_bytes) // _PAGE * _PAGE
        self.table, self._name = table, paths[0]
        self.submitting, self.polling, self.unpacking = (
            CudaSession(session.device, session.budget, urgent=True) for _ in range(3)
        )
        self.queues = DeviceQueues(
            drives,
            self.submitting,
            polling=self.polling,
            data_bytes=PARTS * part_bytes,
            queue_pairs=QUEUE_PAIRS,
            ids=min(depth, 255),
            timeout_s=options.timeout_s,
        )
        longest = min(options.max_io_bytes, self.queues.native.max_bytes) // block * block
        self._plan = TablePlan(
            self.submitting,
            table,
            [_native.nvme_map_of(path) for path in paths],
            [[(space["nsid"], int(math.log2(space["block_bytes"]))) for space in mine] for mine in spaces],
            block_bytes=block,
            gap_bytes=gap // block * block,
            max_bytes=longest,
            part_bytes=part_bytes,
        )
        self.notes = f"kernels drive {QUEUE_PAIRS} queue pairs on each of {len(drives)} drives; {self.queues.notes}"
        self.lock = threading.Lock()  # of the three streams, and of what follows
        self._unpacked: list[Any] = [None] * PARTS  # event behind the last use of each part
        self._next_part = 0
        self._dirty = False  # for good: memory is not used again after a command that had no answer
        self._stats = {"rows": 0, "reads": 0, "bytes_read": 0}

    def submit(self, rows: DeviceArray, to: DeviceArray) -> NvmeRead:
        """Begin to read rows, one behind the other, into device memory that :attr:`unpacking` may use.

        Waits for the number of commands, and for nothing later.
        """
        with self.lock:
            if self._dirty:
                raise StorageError("a drive did not answer, and may still write to the staging memory", self._name)
            rows.share_with(self.submitting)
            commands = GroupCommands(self.submitting, self._plan, rows, self._next_part)
            self._next_part = (self._next_part + commands.rounds) % PARTS
            self._stats["rows"] += len(rows)
            self._stats["reads"] += commands.count
            self._stats["bytes_read"] += commands.bytes
            return NvmeRead(self, commands, to)

    def queue_round(
        self, work: DeviceWork, commands: GroupCommands, number: int, to: DeviceArray
    ) -> _native.NvmeKernels:
        """Queue the kernels of one round; the caller holds :attr:`lock`."""
        part = (commands.first_part + number) % PARTS
        if self._unpacked[part] is not None:
            self.submitting.wait_event(self._unpacked[part])
        kernels = self.queues.begin()
        try:
            self.queues.launch_submit(work)
            self.queues.launch_poll(work, kernels)
        except BaseException:
            kernels.end()
            raise
        self.unpacking.wait_event(self.polling.record())
        commands.unpack(self.unpacking, number, int(self.queues.data.ctypes.data), to)
        self._unpacked[part] = self.unpacking.record()
        return kernels

    def give_up(self) -> None:
        """Use the staging memory no more: a drive may still write to it."""
        self._dirty = True

    def stats(self) -> dict[str, int]:
        """Return counts since the opening: rows, reads, bytes_read."""
        return dict(self._stats)

    def close(self) -> None:
        """Release the queue pairs."""
        for session in (self.submitting, self.polling, self.unpacking):
            session.synchronize()
        self.queues.close()
        for session in (self.submitting, self.polling, self.unpacking):
            session.close()
