"""Work per kernel: the counters against literals, and bounds for the kernels that ask most of memory."""

import numpy as np
import pytest
from count import count, load
from ptx_machine import PtxMachine
from test_machine import kernel

from gids.cuda.choice import GPU_COMMAND_READS

ADDRESS = (
    "\tld.param.u64 %rd0, [k_param_0]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd1, %r1, STRIDE; add.s64 %rd2, %rd0, %rd1;"
)


def counted(body, memory, *, stride=4, region=None, threads=32):
    machine = PtxMachine(kernel(ADDRESS.replace("STRIDE", str(stride)) + body), counting=True)
    try:
        if region:
            machine.region(region, memory.ctypes.data, memory.nbytes)
        machine.launch("k", 1, threads, np.uint64(memory.ctypes.data))
        return machine.take_counts()["k"]
    finally:
        machine.forget_regions()
        machine.options(races=False, counting=False)


@pytest.fixture
def memory():
    raw = np.zeros(8192 + 128, np.uint8)
    return raw[-raw.ctypes.data % 128 :][:8192]


@pytest.mark.parametrize(
    ("stride", "body", "sectors", "count"),
    [
        (4, "ld.global.u32 %r2, [%rd2];", 4, 128),
        (8, "ld.global.u32 %r2, [%rd2];", 8, 128),
        (32, "ld.global.u32 %r2, [%rd2];", 32, 128),
        (0, "ld.global.u32 %r2, [%rd2];", 1, 128),
        (16, "ld.global.v4.u32 {%r2, %r3, %r4, %r5}, [%rd2];", 16, 512),
        (1, "ld.global.u8 %rs2, [%rd2+31];", 2, 32),
    ],
)
def test_sectors_of_a_warp_access(memory, stride, body, sectors, count):
    assert counted(body, memory, stride=stride)["hbm_loads"] == {
        "warp_accesses": 1, "lane_accesses": 32, "sectors": sectors, "bytes": count,
    }  # fmt: skip
    host = counted(body, memory, stride=stride, region="host")
    assert host["host_loads"]["sectors"] == sectors
    assert host["hbm_loads"]["sectors"] == 0


def test_atomics_by_contention(memory):
    same = counted("atom.add.relaxed.gpu.global.u32 %r2, [%rd2], 1;", memory, stride=0)
    assert (same["atomic_rounds"], same["hottest_address"]) == (32, 32)
    apart = counted("atom.add.relaxed.gpu.global.u32 %r2, [%rd2], 1;", memory, stride=4)
    assert (apart["atomic_rounds"], apart["hottest_address"]) == (1, 1)
    assert apart["hbm_atomics"] == {"warp_accesses": 1, "lane_accesses": 32}


def test_atomics_in_shared_memory_are_no_traffic_of_the_devices():
    """A counter of a block, by way of a generic address, as ``cuda::atomic_ref`` has it."""
    body = (
        "\tmov.u64 %rd3, cell; cvta.shared.u64 %rd4, %rd3; atom.add.relaxed.gpu.u32 %r2, [%rd4], 1;"
        " atom.add.relaxed.gpu.shared.u32 %r2, [cell], 1;"
    )
    text = kernel(ADDRESS.replace("STRIDE", "4") + body)
    at = text.index(".reg")
    machine = PtxMachine(f"{text[:at]}.shared .align 4 .b8 cell[4];\n\t{text[at:]}", counting=True)
    try:
        machine.launch("k", 1, 32, np.uint64(0))
        found = machine.take_counts()["k"]
    finally:
        machine.options(races=False, counting=False)
    assert (found["hbm_atomics"]["lane_accesses"], found["atomic_rounds"], found["shared_accesses"]) == (0, 0, 2)


def test_divergence(memory):
    body = "setp.lt.u32 %p1, %r1, 8; @!%p1 bra $L_end; add.s32 %r2, %r1, 1; add.s32 %r2, %r2, 1; $L_end: add.s32 %r3, %r1, 1;"
    straight, split = counted("add.s32 %r3, %r1, 1;", memory), counted(body, memory)
    assert straight["active_lanes"] == 32 * straight["instructions"]
    assert split["instructions"] == straight["instructions"] + 4
    assert split["active_lanes"] == straight["active_lanes"] + 2 * 32 + 2 * 8  # and both paths meet again
    assert split["split_branches"] == 1


CHAINS = [
    ("ld.global.u64 %rd3, [%rd2]; ld.global.u64 %rd4, [%rd2+256];", 1),  # both at once
    ("ld.global.u64 %rd3, [%rd2]; add.s64 %rd4, %rd2, %rd3; ld.global.u64 %rd5, [%rd4];", 2),  # an address waits
    ("ld.global.u64 %rd3, [%rd2]; setp.eq.s64 %p1, %rd3, 1; @%p1 bra $L_end; ld.global.u64 %rd5, [%rd2]; $L_end:", 2),
    ("ld.acquire.sys.global.u64 %rd3, [%rd2]; ld.global.u64 %rd5, [%rd2];", 2),  # nothing passes an acquire
    ("ld.global.u64 %rd3, [%rd2]; membar.sys; ld.global.u64 %rd5, [%rd2];", 2),
    ("ld.global.u32 %r2, [%rd2]; shfl.sync.idx.b32 %r3|%p1, %r2, 0, 31, -1; cvt.u64.u32 %rd3, %r3; "
     "add.s64 %rd4, %rd2, %rd3; ld.global.u32 %r4, [%rd4];", 2),
]  # fmt: skip


@pytest.mark.parametrize(("body", "chain"), CHAINS)
def test_chains_of_host_reads(memory, body, chain):
    assert counted(body, memory, stride=8, region="host")["host_chain"] == chain
    assert counted(body, memory, stride=8)["host_chain"] == 0


@pytest.fixture(scope="module")
def table():
    return count()


def test_rows_move_in_whole_sectors_and_wide_words(table):
    """1 KiB is 32 sectors; what a row costs beyond them is the look at its location."""
    gather, admit = table["gather_rows_32"], table["admit_rows_32"]
    assert gather["hbm_load_sectors"] + gather["host_load_sectors"] <= 34
    assert gather["host_load_sectors"] == 8  # a quarter of the rows, each sector once
    assert gather["hbm_store_sectors"] == admit["hbm_store_sectors"] == 32
    assert gather["host_sectors_per_access"] == 16  # 32 lanes x 16 bytes
    assert gather["active_lanes"] == admit["active_lanes"] == 32


def test_the_worst_kernels_are_known(table):
    """A kernel that joins one of these lists needs a reason here, or another algorithm."""

    def names(figure, bad):
        return {name for name, figures in table.items() if bad(figures[figure])}

    # Lanes that queue up at one address: counters of a launch are added up by block first (kernels/block_counts.cuh).
    assert names("atomic_rounds", lambda rounds: rounds > 8) == set()
    # Fewer than a quarter of the lanes at work.
    assert names("active_lanes", lambda lanes: lanes < 8) <= {
        "choose_weighted_edges",
        "ladies_weights",
        "nvme_submit",
    }
    # Dependent reads over PCIe, 1.2 us each: binary searches in host memory, races over a node's list, the queue's tail.
    assert names("host_chain", lambda chain: chain > 4) <= {
        "choose_labor_edges_32",
        "choose_labor_edges_64",
        "choose_weighted_edges",
        "classify_rows",
        "ladies_parts",
        "nvme_poll",
        "nvme_submit",
    }
    assert table["nvme_submit"]["host_chain_alone"] <= 24
    assert table["nvme_poll"]["host_chain_alone"] <= 14


def test_what_auto_charges_for_a_command_of_kernels():
    """Each waits for the one before it on the same queue: the chain of a launch, by its commands."""
    submit, poll = (load()[name] for name in ("nvme_submit", "nvme_poll"))
    assert submit["items"] == poll["items"]
    assert pytest.approx((submit["host_chain"] + poll["host_chain"]) / submit["items"], rel=0.02) == GPU_COMMAND_READS


@pytest.mark.long
def test_the_kept_table_is_what_is_counted(table):
    """After a change of kernels: python tests/ptx/count.py --write."""
    names = {name for name in PtxMachine().names if not name.startswith("probe_")}
    assert table.keys() == names
    assert table == load()
