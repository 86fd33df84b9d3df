"""Which way rows take to a device where the user leaves it open: what each is expected to bring, and why one was chosen.

Pure arithmetic on the drives' curve and on the reads that a group is expected to need; nothing is opened or measured here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gids.errors import DeviceError
from gids.storage.curve import SECTOR_BYTES, DeviceCurve, device_key, expected_reads, load_curve
from gids.storage.options import StorageOptions
from gids.table import RowTable
from gids.units import format_bytes

#: Queue pairs that a table takes on each of its drives where kernels queue the commands; warps choose among them.
QUEUE_PAIRS = 2
#: GPUDirect Storage moves whole pages.
GDS_BLOCK_BYTES = 4096
#: A read in a batch of cuFile's, on the one thread that submits them: assumed, io_uring's 2 µs for a direct read and as much
#: again for nvidia-fs, which looks the GPU's pages up.
GDS_READ_S = 4e-6
#: A read through kvikio, one Python call: 10 µs (FACTS.md).
KVIKIO_READ_S = 10e-6
#: Rows copied out of the memory that drives write to, by each I/O thread: one core, about 10 GB/s.
COPY_BYTES_S = 10e9
#: A kernel that reads pinned memory over PCIe 4 x16 in whole lines.
LINK_BYTES_S = 25e9
#: Reads of host memory that wait for each other, for each command that kernels queue and take the answer of: the rings and
#: what the watchdog looks at are there (``nvme_submit`` and ``nvme_poll`` in tests/ptx/kernel_counts.json, which a test
#: compares).
GPU_COMMAND_READS = 0.133
#: One of them over PCIe: 1.2 µs (FACTS.md).
HOST_READ_S = 1.2e-6
#: A command that a thread queues and whose answer it takes: below 0.4 µs (``gids bench nvme``, no device behind it).
CPU_COMMAND_S = 0.4e-6
#: The default way stays unless another is expected to bring so much more.
MARGIN = 1.05


@dataclass(frozen=True)
class Estimate:
    """Rows that a way is expected to bring to the device.

    Attributes
    ----------
    rows_per_second : float
        Distinct rows of a group.
    mean_read_bytes : float
        Mean size of its merged reads.
    bound : str
        What limits it.
    """

    rows_per_second: float
    mean_read_bytes: float
    bound: str

    def __str__(self) -> str:
        return (
            f"{self.rows_per_second / 1e6:.2g} M rows/s in reads of {format_bytes(round(self.mean_read_bytes))} "
            f"(limit: {self.bound})"
        )


@dataclass(frozen=True)
class Workload:
    """What a table's groups ask of its drives.

    Attributes
    ----------
    row_bytes : int
        Of a row.
    coverage : float
        Share of the table that a group reads.
    drives : int
        Distinct devices under its files.
    curve : DeviceCurve
        Of one of them.
    options : StorageOptions
        Longest read, widest gap, I/O threads.
    link_bytes_s : float
        What kernels read of pinned memory in a second.
    """

    row_bytes: int
    coverage: float
    drives: int
    curve: DeviceCurve
    options: StorageOptions
    link_bytes_s: float = LINK_BYTES_S

    @classmethod
    def of(cls, table: RowTable, group_bytes: int, options: StorageOptions) -> Workload:
        """Return what groups of ``group_bytes`` are expected to ask."""
        rows = max(group_bytes // table.row_bytes, 1)
        coverage = min(max(rows / max(table.num_rows, 1), 1e-9), 1.0)
        drives = len({device_key(stripe.path) for stripe in table.stripes})
        return cls(table.row_bytes, coverage, max(drives, 1), load_curve(table.stripes[0].path), options)

    def _estimate(
        self, block_bytes: int, per_read_s: float, bytes_s: float, read_what: str, byte_what: str
    ) -> Estimate:
        """Take the slowest of the drives, the work for each read, and the way of the bytes: they overlap."""
        gap = self.curve.merge_gap_bytes if self.options.merge_gap_bytes is None else self.options.merge_gap_bytes
        reads, read_bytes = expected_reads(
            self.row_bytes,
            self.coverage,
            merge_gap_bytes=gap,
            max_io_bytes=self.options.max_io_bytes,
            block_bytes=block_bytes,
        )
        seconds = {
            f"the drives, by their curve ({self.curve.source})": self.curve.cost.seconds(reads, read_bytes)
            / self.drives,
            read_what: reads * per_read_s,
            byte_what: self.row_bytes / bytes_s,
        }
        bound = max(seconds, key=lambda name: seconds[name])
        return Estimate(1 / seconds[bound], read_bytes / reads, bound)

    def uring(self) -> Estimate:
        """Read to staging, copied to pinned memory by the I/O threads, then to the device."""
        threads = self.options.threads or self.curve.threads
        return self._estimate(SECTOR_BYTES, 0.0, COPY_BYTES_S * threads, "reads", "copies in host memory")

    def gds(self, *, batches: bool = True) -> Estimate:
        """Read by cuFile, in batches or by a call of kvikio for each read."""
        per_read, what = (GDS_READ_S, "cuFile's reads") if batches else (KVIKIO_READ_S, "calls of kvikio")
        return self._estimate(GDS_BLOCK_BYTES, per_read, float("inf"), what, "bytes")

    def nvme(self, submit: str) -> Estimate:
        """Read drives in userspace, commands by kernels or by a thread; data in pinned memory."""
        if submit == "gpu":
            pairs = (
                QUEUE_PAIRS * self.drives
            )  # a queue pair is one chain of reads: each command waits for the one before
            return self._estimate(
                SECTOR_BYTES,
                GPU_COMMAND_READS * HOST_READ_S / pairs,
                self.link_bytes_s,
                "commands of kernels",
                "the link, that the kernel reads over",
            )
        threads = self.options.threads or self.curve.threads
        return self._estimate(
            SECTOR_BYTES,
            CPU_COMMAND_S / threads,
            COPY_BYTES_S * threads,
            "commands of a thread",
            "copies in host memory",
        )


@dataclass(frozen=True)
class Choice:
    """A way, and the sentence that says why."""

    name: str
    reason: str


def choose(default: str, estimates: Mapping[str, Estimate]) -> Choice:
    """Take ``default`` unless another way is expected to bring more by more than the margin."""
    best = max(estimates, key=lambda name: estimates[name].rows_per_second)
    if estimates[best].rows_per_second <= MARGIN * estimates[default].rows_per_second:
        best = default
    others = "; ".join(f"{name} {estimate}" for name, estimate in estimates.items() if name != best)
    return Choice(
        best, f"expected, not measured: {best} {estimates[best]}" + (f", rather than {others}" if others else "")
    )


def choose_engine(table: RowTable, group_bytes: int, options: StorageOptions, gds_refusal: str) -> Choice:
    """Choose between ``uring`` with pinned staging and ``gds``."""
    if gds_refusal:
        return Choice("uring", f"gds cannot be used: {gds_refusal}")
    workload = Workload.of(table, group_bytes, options)
    return choose("uring", {"uring": workload.uring(), "gds": workload.gds()})


def choose_submit(table: RowTable, group_bytes: int, options: StorageOptions, gpu_refusal: str = "") -> Choice:
    """Choose who queues the commands of engine ``nvme``: kernels (``"gpu"``) or threads (``"cpu"``)."""
    if options.submit == "gpu" and gpu_refusal:
        raise DeviceError(f"submit='gpu' cannot be had: {gpu_refusal}")
    if options.submit != "auto":
        return Choice(options.submit, f"submit={options.submit!r} was asked for")
    if gpu_refusal:
        return Choice("cpu", f"kernels cannot queue them: {gpu_refusal}")
    workload = Workload.of(table, group_bytes, options)
    return choose("cpu", {submit: workload.nvme(submit) for submit in ("cpu", "gpu")})
