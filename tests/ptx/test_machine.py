"""The PTX machine: instructions against literal values, layouts, collectives, rules of memory, and errors that name what they do not know."""

import numpy as np
import pytest
from ptx_machine import LaunchError, PtxMachine

HEAD = ".version 9.0\n.target sm_90\n.address_size 64\n"
REGISTERS = "\n".join(
    f"\t.reg .{type} \t%{name}<20>;"
    for type, name in (("pred", "p"), ("b16", "rs"), ("b32", "r"), ("b64", "rd"), ("f32", "f"), ("f64", "fd"))
)


def kernel(body, parameters=".u64 k_param_0"):
    declared = ",\n".join(f"\t.param {one}" for one in parameters.split(";"))
    return f"{HEAD}.visible .entry k(\n{declared}\n)\n{{\n{REGISTERS}\n{body}\n\tret;\n}}\n"


def run(body, out, *more, threads=1, parameters=".u64 k_param_0", seed=0, **options):
    """Run one block of a kernel whose first parameter is ``out``, in %rd0 as a global address."""
    prologue = "\tld.param.u64 \t%rd0, [k_param_0];\n\tcvta.to.global.u64 \t%rd0, %rd0;\n"
    machine = PtxMachine(kernel(prologue + body, parameters), **options)
    machine.launch("k", 1, threads, out, *more, seed=seed)
    return out


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("mov.u32 %r1, 0x80000000; shr.u32 %r2, %r1, 31;", 1),
        ("mov.u32 %r1, 5; mov.u32 %r3, 32; shl.b32 %r2, %r1, %r3;", 0),  # amounts are clamped, not taken modulo 32
        ("mov.u32 %r1, 1; mov.u32 %r3, 40; shr.u32 %r2, %r1, %r3;", 0),
        ("mov.u32 %r1, -8; mov.u32 %r3, 99; shr.s32 %r2, %r1, %r3;", 0xFFFFFFFF),
        ("mov.u32 %r1, 0x44332211; mov.u32 %r3, 0x88776655; prmt.b32 %r2, %r1, %r3, 4180;", 0x22116655),
        ("mov.u32 %r1, 0x80; mov.u32 %r3, 0; prmt.b32 %r2, %r1, %r3, 8;", 0x808080FF),  # byte 0's sign, then bytes
        ("mov.u32 %r1, 3; mov.u32 %r3, 0x1234; bfi.b32 %r2, %r1, %r3, 8, 4;", 0x1334),
        ("mov.u32 %r1, 0x00100000; bfind.shiftamt.u32 %r2, %r1;", 11),
        ("mov.u32 %r1, 0; bfind.shiftamt.u32 %r2, %r1;", 0xFFFFFFFF),
        ("mov.u32 %r1, 6; brev.b32 %r2, %r1;", 0x60000000),
        ("mov.u64 %rd1, 1; clz.b64 %r2, %rd1;", 63),
        ("mov.u32 %r1, -1; mul.wide.s32 %rd1, %r1, 7; cvt.u32.u64 %r2, %rd1;", 0xFFFFFFF9),
        ("mov.u64 %rd1, -1; mul.hi.u64 %rd2, %rd1, %rd1; cvt.u32.u64 %r2, %rd2;", 0xFFFFFFFE),
        ("mov.f64 %fd1, 0d43F0000000000000; cvt.rzi.u64.f64 %rd1, %fd1; shr.u64 %rd1, %rd1, 32; cvt.u32.u64 %r2, %rd1;",
         0xFFFFFFFF),  # 2^64 saturates
        ("mov.f64 %fd1, 0dBFF8000000000000; cvt.rzi.u32.f64 %r2, %fd1;", 0),  # -1.5
        ("mov.f32 %f1, 0fFFC12345; mov.f32 %f2, 0f3F800000; add.rn.f32 %f3, %f1, %f2; mov.b32 %r2, %f3;", 0x7FFFFFFF),
        ("mov.f64 %fd1, 0dFFF8000000001234; cvt.rn.f32.f64 %f3, %fd1; mov.b32 %r2, %f3;", 0x7FFFFFFF),
        ("mov.f32 %f1, 0f7FC00000; setp.leu.f32 %p1, %f1, 0f00000000; selp.u32 %r2, 5, 6, %p1;", 5),  # unordered holds
        ("mov.f32 %f1, 0f7FC00000; setp.lt.f32 %p1, %f1, 0f00000000; selp.u32 %r2, 5, 6, %p1;", 6),
        ("mov.f32 %f1, 0f7FC00000; max.f32 %f2, %f1, 0f3F800000; mov.b32 %r2, %f2;", 0x3F800000),
        ("mov.u32 %r3, 7; mov.u32 %r4, 9; mov.b64 %rd1, {%r3, %r4}; mov.b64 {%r5, %r2}, %rd1;", 9),
        ("mov.pred %p1, -1; not.pred %p2, %p1; selp.u32 %r2, 1, 2, %p2;", 2),
        ("mov.u16 %rs1, -3; cvt.u32.u16 %r2, %rs1;", 0xFFFD),
        ("mov.u32 %r2, 4; setp.eq.s32 %p1, %r2, 4; @!%p1 bra $L_end; mov.u32 %r2, 11; $L_end:", 11),
    ],
)  # fmt: skip
def test_instructions(body, expected):
    out = run(body + " st.global.u32 [%rd0], %r2;", np.zeros(1, np.uint32))
    assert out[0] == expected


def test_loads_extend_to_their_register():
    body = "ld.global.s8 %rs1, [%rd0]; cvt.u32.u16 %r1, %rs1; ld.global.s32 %rd1, [%rd0+4]; ld.global.u8 %rs2, [%rd0];"
    body += "st.global.u32 [%rd0+8], %r1; st.global.u64 [%rd0+16], %rd1; st.global.u16 [%rd0+12], %rs2;"
    memory = np.zeros(6, np.int32)
    memory[:2] = 0x80, -2
    run(body, memory)
    assert memory.tolist() == [0x80, -2, 0xFF80, 0x80, -2, -1]


def test_parameters_lie_where_the_ptx_says():
    parameters = ".u64 k_param_0;.u32 k_param_1;.u64 k_param_2;.u16 k_param_3;.align 4 .b8 k_param_4[8]"
    body = "ld.param.u64 %rd1, [k_param_2]; ld.param.u32 %r1, [k_param_1]; ld.param.u16 %rs1, [k_param_3];"
    body += "ld.param.u32 %r2, [k_param_4+4]; cvt.u64.u32 %rd2, %r1; add.s64 %rd1, %rd1, %rd2; cvt.u64.u16 %rd3, %rs1;"
    body += "add.s64 %rd1, %rd1, %rd3; cvt.u64.u32 %rd4, %r2; add.s64 %rd1, %rd1, %rd4; st.global.u64 [%rd0], %rd1;"
    out = np.zeros(1, np.uint64)
    run(body, out, np.uint32(3), np.uint64(1 << 40), np.uint16(20), bytes([9, 9, 9, 9, 100, 0, 0, 0]),
        parameters=parameters)  # fmt: skip
    assert out[0] == (1 << 40) + 123
    machine = PtxMachine()
    assert machine.argument_sizes("nvme_poll") == [8, 4, 8, 8, 8, 4, 8, 8]


def test_shuffles_of_every_kind_and_votes():
    body = "mov.u32 %r1, %tid.x; mul.lo.s32 %r2, %r1, 10; mul.wide.u32 %rd1, %r1, 24; add.s64 %rd0, %rd0, %rd1;"
    for n, (kind, b, c) in enumerate([("idx", 3, 0x1F), ("up", 2, 0), ("down", 2, 0x1F), ("bfly", 1, 0x1F)]):
        body += f"shfl.sync.{kind}.b32 %r3|%p1, %r2, {b}, {c}, -1; st.global.u32 [%rd0+{4 * n}], %r3;"
    body += "setp.lt.u32 %p2, %r1, 3; vote.sync.ballot.b32 %r4, %p2, -1; st.global.u32 [%rd0+16], %r4;"
    body += "vote.sync.any.pred %p3, %p2, -1; selp.u32 %r5, 1, 0, %p3; st.global.u32 [%rd0+20], %r5;"
    for seed in range(4):
        out = run(body, np.zeros((32, 6), np.uint32), threads=32, seed=seed)
        lane = np.arange(32)
        assert (out[:, 0] == 30).all()
        assert (out[:, 1] == 10 * np.where(lane < 2, lane, lane - 2)).all()
        assert (out[:, 2] == 10 * np.where(lane > 29, lane, lane + 2)).all()
        assert (out[:, 3] == 10 * (lane ^ 1)).all()
        assert (out[:, 4:] == [7, 1]).all()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("mad.hi.sat.s32 %r1, %r1, %r1, %r1;", r"line 14: the opcode mad.hi.sat.s32 is not understood"),
        ("add.f32 %f1, %f1, %f1;", "the opcode add.f32 is not understood"),  # could be contracted: never emitted
        ("ld.global.L2::128B.u32 %r1, [%rd0];", r"the modifier .L2::128B of ld.global.L2::128B.u32 is not understood"),
        ("atom.global.add.f32 %f1, [%rd0], %f1;", "the modifier .f32 of atom.global.add.f32"),
        ("mov.u32 %r1, %clock;", "no register is called %clock"),
        ("bra $L_nowhere;", r"no label is called \$L_nowhere"),
        ("mov.u64 %rd1, nothing;", "no variable is called nothing"),
        ("bar.sync 1;", "bar.sync of a part of the block"),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_an_error_that_names_it(body, message):
    with pytest.raises(LaunchError, match=message):
        PtxMachine(kernel(f"\t{body}"))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("ld.global.u32 %r1, [%rd0+2];", "must be a multiple of 4"),
        ("ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd0+8];", "must be a multiple of 16"),
        ("mov.u64 %rd1, 16; ld.global.u32 %r1, [%rd1];", "address 16 is no memory"),
        ("mov.u64 %rd1, 0; ld.shared.u32 %r1, [%rd1];", "shared memory has 0 bytes"),
        ("mov.u64 %rd1, 0; div.u64 %rd2, %rd1, %rd1;", "divided by 0"),
    ],
)
def test_what_a_gpu_faults_on_is_an_error(body, message):
    with pytest.raises(LaunchError, match=message):
        run(body, np.zeros(8, np.uint32))


def test_a_block_larger_than_the_kernel_was_built_for_is_refused():
    with pytest.raises(LaunchError, match="at most the 256 threads"):
        PtxMachine().launch("damp_ranks", 1, 512, None, None, np.uint32(1), np.int64(0), None)


@pytest.mark.parametrize(
    ("publish", "exchange", "where"), [(1, 1, None), (0, 1, "probe_publish"), (1, 0, "probe_exchange"), (1, 2, "probe_exchange")]
)  # fmt: skip
def test_planted_races_are_found_and_their_absence_too(publish, exchange, where):
    machine = PtxMachine(races=True)
    reports = []
    for seed in range(3):
        cells = [np.zeros(n, np.uint32) for n in (4, 4, 128, 128)]
        try:
            machine.launch("probe_publish", 2, 64, *cells[:3], np.int32(publish), seed=seed)
            machine.launch("probe_exchange", 2, 64, cells[3], np.int32(exchange), seed=seed)
        except LaunchError as error:
            reports.append(str(error))
    assert all("nothing orders them" in report for report in reports)
    assert {report.split(":")[0] for report in reports} == ({where} if where else set())


def test_scopes_count_for_races():
    """A release of one block that another block acquires with .cta is no order between them."""
    text = (
        "mov.u32 %r1, %ctaid.x; setp.eq.s32 %p1, %r1, 0; @%p1 bra $L_write;"
        "$L_wait: ld.acquire.SCOPE.global.u32 %r2, [%rd0]; setp.eq.s32 %p2, %r2, 0; @%p2 bra $L_wait;"
        "ld.global.u32 %r3, [%rd0+8]; st.global.u32 [%rd0+16], %r3; ret;"
        "$L_write: mov.u32 %r4, 7; st.global.u32 [%rd0+8], %r4; mov.u32 %r4, 1; st.release.SCOPE.global.u32 [%rd0], %r4;"
    )
    prologue = "\tld.param.u64 \t%rd0, [k_param_0];\n"
    out = np.zeros(6, np.uint32)
    PtxMachine(kernel(prologue + text.replace("SCOPE", "gpu")), races=True).launch("k", 2, 1, out)
    assert out[4] == 7
    with pytest.raises(LaunchError, match="nothing orders them"):
        PtxMachine(kernel(prologue + text.replace("SCOPE", "cta")), races=True).launch("k", 2, 1, out * 0)


FENCED = (
    "mov.u32 %r1, WRITER; mov.u32 %r5, READER; setp.eq.s32 %p1, %r1, 1; @%p1 bra $L_write;"
    "setp.eq.s32 %p3, %r5, 0; @%p3 bra $L_end;"
    "$L_wait: ld.relaxed.gpu.global.u32 %r2, [%rd0]; setp.eq.s32 %p2, %r2, 0; @%p2 bra $L_wait; ACQUIRE"
    "ld.global.u32 %r3, [%rd0+8]; st.global.u32 [%rd0+16], %r3; ret;"
    "$L_write: mov.u32 %r4, 7; st.global.u32 [%rd0+8], %r4; RELEASE mov.u32 %r4, 1; st.relaxed.gpu.global.u32 [%rd0], %r4;"
    "$L_end:"
)
ONE_BLOCK = {"WRITER": "%tid.x", "READER": "1"}  # threads 0 and 1
TWO_BLOCKS = {"WRITER": "%ctaid.x", "READER": "1"}  # of one thread each


@pytest.mark.parametrize(
    ("who", "release", "acquire", "ordered"),
    [
        (TWO_BLOCKS, "fence.acq_rel.gpu;", "fence.acq_rel.gpu;", True),
        (TWO_BLOCKS, "membar.sys;", "fence.sc.sys;", True),
        (TWO_BLOCKS, "membar.cta;", "membar.gl;", False),
        (TWO_BLOCKS, "fence.acq_rel.gpu;", "fence.acq_rel.cta;", False),
        (TWO_BLOCKS, "", "membar.gl;", False),
        (TWO_BLOCKS, "membar.gl;", "", False),
        (ONE_BLOCK, "fence.acq_rel.cta;", "membar.cta;", True),
        (ONE_BLOCK, "fence.acq_rel.gpu;", "membar.cta;", True),
        (ONE_BLOCK, "membar.cta;", "membar.gl;", True),
        (ONE_BLOCK, "membar.cta;", "", False),
    ],
)
def test_scopes_of_fences_count_for_races(who, release, acquire, ordered):
    """A fence for the lanes of a block is no order for another block's, whatever the scope of what they meet at."""
    text = FENCED.replace("RELEASE", release).replace("ACQUIRE", acquire)
    for name, value in who.items():
        text = text.replace(name, value)
    machine = PtxMachine(kernel(f"\tld.param.u64 \t%rd0, [k_param_0];\n{text}"), races=True)
    grid, out = ((2, 1) if who is TWO_BLOCKS else (1, 2)), np.zeros(6, np.uint32)
    if ordered:
        machine.launch("k", *grid, out)
        assert out[4] == 7
    else:
        with pytest.raises(LaunchError, match="nothing orders them"):
            machine.launch("k", *grid, out)


RULES = [
    ("drive_writes", "ld.acquire.sys.global.u32 %r1, [%rd1];", None),
    ("drive_writes", "ld.acquire.gpu.global.u32 %r1, [%rd1];", "must be read with an order and .sys"),
    ("drive_writes", "ld.global.u32 %r1, [%rd1];", "must be read with an order and .sys"),
    ("drive_writes", "ld.global.nc.u32 %r1, [%rd1];", "must be read with an order and .sys"),
    ("drive_data", "ld.global.u32 %r1, [%rd1];", None),
    ("drive_data", "ld.global.nc.u32 %r1, [%rd1];", "non-coherent cache"),
    ("drive_reads", "ld.global.nc.u32 %r1, [%rd1];", "non-coherent cache"),
    ("host_writes", "atom.acquire.sys.global.cas.b32 %r1, [%rd1], %r2, %r3;", None),
    ("host_writes", "st.relaxed.gpu.global.u32 [%rd1], %r1;", "with an order and .sys"),
    ("mmio", "membar.sys; st.mmio.relaxed.sys.global.u32 [%rd1], %r1;", None),
    ("mmio", "fence.acq_rel.sys; st.mmio.relaxed.sys.global.u32 [%rd1], %r1;", None),
    ("mmio", "membar.gl; st.mmio.relaxed.sys.global.u32 [%rd1], %r1;", "must follow a fence of system scope"),
    ("mmio", "membar.sys; st.global.u32 [%rd2], %r1; st.mmio.relaxed.sys.global.u32 [%rd1], %r1;", "must follow a fence"),
    ("mmio", "st.mmio.relaxed.sys.global.u32 [%rd1], %r1;", "must follow a fence of system scope"),
    ("mmio", "membar.sys; st.global.u32 [%rd1], %r1;", "with an order and .sys"),
    ("mmio", "membar.sys; st.relaxed.sys.global.u64 [%rd1], %rd2;", "as 4 bytes"),
    ("mmio", "ld.relaxed.sys.global.u32 %r1, [%rd1];", "must only be written"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "body", "broken"), RULES)
def test_rules_for_memory_that_others_use(kind, body, broken):
    memory = np.zeros(8, np.uint32)
    prologue = (
        "\tld.param.u64 %rd1, [k_param_0]; add.s64 %rd2, %rd1, 16;\n\tmov.u32 %r2, 0; mov.u32 %r3, 1; mov.u32 %r1, 4;"
    )
    machine = PtxMachine(kernel(prologue + body))
    machine.region(kind, memory.ctypes.data, 16)
    try:
        if broken is None:
            machine.launch("k", 1, 1, np.uint64(memory.ctypes.data))
        else:
            with pytest.raises(LaunchError, match=broken):
                machine.launch("k", 1, 1, np.uint64(memory.ctypes.data))
    finally:
        machine.forget_regions()


def test_a_range_takes_its_part_out_of_an_earlier_one():
    memory = np.zeros(8, np.uint32)
    text = "\tld.param.u64 %rd1, [k_param_0]; ld.global.u32 %r1, [%rd1];"
    machine = PtxMachine(kernel(text))
    machine.region("host_writes", memory.ctypes.data, 32)
    machine.region("host", memory.ctypes.data + 8, 8)
    try:
        for word in range(8):
            address = np.uint64(memory.ctypes.data + 4 * word)
            if word in (2, 3):
                machine.launch("k", 1, 1, address)
            else:
                with pytest.raises(LaunchError, match=r"with an order and \.sys"):
                    machine.launch("k", 1, 1, address)
        with pytest.raises(LaunchError, match="a region must be one of device, host"):
            machine.region("disk", memory.ctypes.data, 8)
    finally:
        machine.forget_regions()
