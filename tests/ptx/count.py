"""Counts what each entry point asks of memory, on the PTX machine in lockstep, and writes kernel_counts.json.

    python tests/ptx/count.py            print the table
    python tests/ptx/count.py --write    write kernel_counts.json (a test compares it with a new count)

The hot kernels run a batch as the product does (the stages' own Python code): sampling over a topology in host memory,
planning, gathering rows of 1 KiB from cache, host buffer and staging, a group's NVMe reads. The others run the checks
of ``gids selftest``. Every figure is per item of the launch unless its name says otherwise:

    items                    what was launched for in all: nodes, rows, values, reads, or threads where a launch names
                             its blocks; what the other figures divide by
    launches                 launches of them
    instructions             warp instructions
    active_lanes             of 32, on average: 32 without divergence (warps that are not full count too)
    {hbm,host}_{load,store}_sectors   sectors of 32 bytes, after lanes of a warp instruction that share one are merged
    {hbm,host}_sectors_per_access     sectors per warp load or store: 4 for 32 lanes x 4 bytes in a row, 32 for scattered
    mmio_stores              doorbells
    {hbm,host}_atomics       atomic operations, lane by lane
    atomic_rounds            of a warp atomic, on average: lanes that wait for each other at one address, at most 32
    hottest_address_share    share of a launch's atomic operations that go to the busiest address
    host_chain               the longest chain of host reads of one lane that wait for each other, in the whole launch
    host_chain_alone         for NVMe: that chain when the launch has one read and nobody else uses the queue
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TABLE = HERE / "kernel_counts.json"
sys.path[:0] = [str(HERE), str(HERE.parent / "kernels" / "simt"), str(HERE.parents[1])]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from nvme_drive import load_host, make_reads, stub  # noqa: E402
from ptx_machine import PtxMachine  # noqa: E402
from session import SimtSession  # noqa: E402

from gids.cuda.planner import CudaPlanner  # noqa: E402
from gids.cuda.sampling import CudaNeighborSampler, PinnedTopology  # noqa: E402
from gids.cuda.selftest import KERNEL_CHECKS  # noqa: E402
from gids.sampling import NeighborSampler, Relation, SampleKey, Topology  # noqa: E402
from gids.tiers.host_buffer import HostRows  # noqa: E402

BLOCK_THREADS, MAX_BLOCKS, PAGE = 256, 4096, 4096
Counts = dict[str, Any]


class CountingSession(SimtSession):
    """A session on the PTX machine that adds up the counts of each entry point."""

    def __init__(self, machine: PtxMachine):
        super().__init__(machine, BLOCK_THREADS, seed=1, max_blocks=MAX_BLOCKS)
        self._machine = machine
        self._kept: list[Any] = []
        self.kernels: dict[str, Counts] = {}

    def map_host(self, values):
        memory = np.empty(values.nbytes + PAGE, np.uint8)  # pinned memory begins on a page
        memory = memory[-memory.ctypes.data % PAGE :][: values.nbytes].view(values.dtype).reshape(values.shape)
        memory[...] = values
        self._kept.append(memory)  # its addresses are the region's as long as this counts
        mapped = super().map_host(memory)
        if mapped.array.nbytes:
            self._machine.region("host", mapped.array.pointer, mapped.array.nbytes)
        return mapped

    def launch(self, kernel, items, *arguments, lanes=1, blocks=None):
        super().launch(kernel, items, *arguments, lanes=lanes, blocks=blocks)
        self.add(kernel, items or (blocks or 0) * BLOCK_THREADS)

    def add(self, kernel: str, items: int) -> None:
        """Take the counts of the launch that ended."""
        (found,) = self._machine.take_counts().values()
        total = self.kernels.setdefault(kernel, {"items": 0})
        total["items"] += items
        for name, value in found.items():
            if isinstance(value, dict):
                into = total.setdefault(name, dict.fromkeys(value, 0))
                for part, count in value.items():
                    into[part] += count
            elif name == "host_chain":
                total[name] = max(total.get(name, 0), value)
            else:
                total[name] = total.get(name, 0) + value


def sampling(session: CountingSession) -> PinnedTopology:
    """Sample 64 seeds with fanouts 10, 10 over 50,000 nodes of degree 15 in host memory."""
    rng = np.random.default_rng(1)
    nodes = 50_000
    indptr = np.concatenate([[0], np.cumsum(rng.poisson(15, nodes))])
    relation = Relation(indptr, rng.integers(0, nodes, indptr[-1]).astype(np.int32))
    pinned = PinnedTopology(Topology({"_N": nodes}, {("_N", "_E", "_N"): relation}), session)
    sampler = CudaNeighborSampler(NeighborSampler([10, 10]))
    sampler.sample(session, pinned, {"_N": session.upload(rng.permutation(nodes)[:64])}, SampleKey(1, 0, 0))
    return pinned


def planning(session: CountingSession) -> None:
    """Plan groups of two batches of 2,000 rows each, with a window of two more."""
    rng = np.random.default_rng(2)
    rows = [np.unique((50_000 * rng.random(2500) ** 2).astype(np.int64))[:2000] for _ in range(6)]
    host = HostRows(torch.from_numpy(rng.permutation(50_000)[:2048]))
    planner = CudaPlanner(session, 50_000, 4096, "window(2)", host=host)
    arrays = [session.upload(r) for r in rows]
    for begin in (0, 2):
        planner.plan_group(arrays[begin : begin + 2], arrays[begin + 2 : begin + 4])
    planner.close()


def gathering(session: CountingSession, row_bytes: int = 1024) -> None:
    """Gather 2,048 rows of 1 KiB: half from the cache, a quarter each from host buffer and staging; admit 512."""
    rng = np.random.default_rng(3)
    dim = row_bytes // 4
    cache, staged = (session.upload(rng.random((rows, dim), np.float32)) for rows in (1024, 512))
    host = session.map_host(rng.random((512, dim), np.float32)).array
    location, bad = session.upload(rng.permutation(2048)), session.upload(np.zeros(1, np.uint32))
    sizes = [np.int64(n) for n in (1024, 512, 512, row_bytes)]
    session.launch(
        "gather_rows_32", 2048, cache, host, staged, *sizes, location, np.int64(2048), np.int64(dim), np.int32(2),
        np.int32(2), session.empty((2048, dim), np.float32), bad, lanes=32,
    )  # fmt: skip
    session.launch(
        "admit_rows_32", 512, cache, session.upload(rng.permutation(1024)[:512]), staged,
        session.upload(rng.permutation(512)), np.int64(0), np.int64(512), np.int64(row_bytes), lanes=32,
    )  # fmt: skip


def drive_reads(session: CountingSession, machine: PtxMachine, count: int) -> None:
    """Queue reads, one a lane, and poll when the drive has answered all of them: no time is spent waiting for it."""
    drive = stub(load_host(), depth=1024, answers=0)
    reads = make_reads(count)
    reads["lba"] = np.arange(count) * 97  # none of which the drive refuses
    for region in drive.regions():
        machine.region(*region)
    results, outcome = session.upload(np.zeros(count, np.uint32)), session.upload(np.zeros(4, np.uint32))
    set_of_reads = (session.upload(reads.view(np.uint8)), results, count, 60e9)
    session.launch("nvme_submit", count, *drive.submits(*set_of_reads), blocks=-(-count // BLOCK_THREADS))
    drive.answer()
    blocks = -(-(count + 32 * drive.queues) // BLOCK_THREADS)
    session.launch("nvme_poll", count, *drive.polls(*set_of_reads, outcome), blocks=blocks)
    assert (session.download(outcome)[:2] == 0).all()
    assert (session.download(results) == 1 << 31).all()
    machine.forget_regions()
    assert drive.stop() == {"violations": 0, "stray": 0, "commands": count}


def row(total: Counts) -> Counts:
    """Return the figures of one entry point, per item."""
    items, out = max(total["items"], 1), {"items": total["items"], "launches": total["launches"]}

    def per(value: float, of: float) -> float:
        return round(value / of, 3) if of else 0.0

    out["instructions"] = per(total["instructions"], items)
    out["active_lanes"] = per(total["active_lanes"], total["instructions"])
    for place in ("hbm", "host"):
        loads, stores = total[f"{place}_loads"], total[f"{place}_stores"]
        out[f"{place}_load_sectors"] = per(loads["sectors"], items)
        out[f"{place}_store_sectors"] = per(stores["sectors"], items)
        accesses = loads["warp_accesses"] + stores["warp_accesses"]
        out[f"{place}_sectors_per_access"] = per(loads["sectors"] + stores["sectors"], accesses)
        out[f"{place}_atomics"] = per(total[f"{place}_atomics"]["lane_accesses"], items)
    out["mmio_stores"] = per(total["mmio_stores"]["lane_accesses"], items)
    atomics = [total[f"{place}_atomics"] for place in ("hbm", "host")]
    out["atomic_rounds"] = per(total["atomic_rounds"], sum(part["warp_accesses"] for part in atomics))
    out["hottest_address_share"] = per(total["hottest_address"], sum(part["lane_accesses"] for part in atomics))
    out["host_chain"] = total["host_chain"]
    return out


def count() -> dict[str, Counts]:
    """Return the table: entry point -> figures, by name."""
    machine = PtxMachine(counting=True)
    try:
        batch, alone, checks = (CountingSession(machine) for _ in range(3))
        kept = sampling(batch)
        planning(batch)
        gathering(batch)
        drive_reads(batch, machine, 512)
        drive_reads(alone, machine, 1)
        for name, check in KERNEL_CHECKS.items():
            if name != "NVMe queue pair":
                machine.forget_regions()
                check(checks)
        kept.close()
    finally:
        machine.forget_regions()
        machine.options(races=False, counting=False)
    kernels = checks.kernels | batch.kernels
    table = {name: row(kernels[name]) for name in sorted(kernels)}
    for name, total in alone.kernels.items():
        table[name]["host_chain_alone"] = total["host_chain"]
    return table


def load() -> dict[str, Counts]:
    """Return the table as it is kept."""
    return dict(json.loads(TABLE.read_text())["kernels"])


if __name__ == "__main__":
    table = count()
    if "--write" in sys.argv:
        lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(figures)}" for name, figures in table.items())
        about = json.dumps("per item of a launch; counted by tests/ptx/count.py, whose first lines explain each figure")
        TABLE.write_text(f'{{"about": {about},\n"kernels": {{\n{lines}\n}}}}\n')
    for name, figures in table.items():
        print(name, figures)
