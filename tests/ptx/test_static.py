"""NVRTC's PTX and ptxas' SASS keep the static rules, and each rule finds a text that was changed to break it."""

import re

import pytest
from ptx_build import OUT, build
from ptx_static import (
    ROW_MOVERS,
    SHARED_WITH_DRIVES,
    check,
    depths_of_polls,
    disassemble,
    parse_ptx,
    parse_sass,
    polls_moved_out,
)


@pytest.fixture(scope="module")
def ptx():
    build()
    return (OUT / "entry.ptx").read_text()


@pytest.fixture(scope="module")
def sass(ptx):
    return disassemble(OUT / "entry.cubin")


def entry_text(text, name):
    """The text of one entry point, of either language."""
    begin, end = (f".visible .entry {name}(", "\n}\n") if ".visible" in text else (f"- .text.{name} ", "//-------")
    at = text.index(begin)
    return text[at : text.index(end, at + len(begin)) + 3]


def changed(text, name, pattern, replacement):
    old = entry_text(text, name)
    new, times = re.subn(pattern, replacement, old)
    assert times >= 1, f"{name} has nothing like {pattern}"
    return text.replace(old, new)


def test_the_ptx_keeps_every_rule(ptx):
    assert check(parse_ptx(ptx)) == []


def test_the_sass_keeps_every_rule(sass):
    assert check(parse_sass(sass)) == []


def moved_out(ptx, sass):
    emitted, made = parse_ptx(ptx), parse_sass(sass)
    return [breach for name in emitted for breach in polls_moved_out(emitted[name], made[name])]


def test_ptxas_leaves_polls_in_their_loops(ptx, sass):
    assert moved_out(ptx, sass) == []
    assert max(depths_of_polls(parse_ptx(ptx)["nvme_submit"])) >= 3


def test_every_statement_of_the_ptx_is_read(ptx):
    entries = parse_ptx(ptx)
    assert len(entries) == ptx.count(".visible .entry ")
    assert entries.keys() >= {*ROW_MOVERS, *SHARED_WITH_DRIVES}
    assert sum(i.is_doorbell for e in entries.values() for i in e.code) == ptx.count("st.mmio") > 0
    assert sum(len(e.labels) for e in entries.values()) == len(re.findall(r"^\$\w+:", ptx, re.MULTILINE))
    texts = [entry_text(ptx, name) for name in entries]
    directives = sum(len(re.findall(r"^\t\.(?:reg|shared|local|pragma)", text, re.MULTILINE)) for text in texts)
    assert sum(len(e.code) for e in entries.values()) == sum(text.count(";") for text in texts) - directives


def test_every_statement_of_the_sass_is_read(ptx, sass):
    entries = parse_sass(sass)
    assert entries.keys() == parse_ptx(ptx).keys()
    assert sum(i.is_doorbell for e in entries.values() for i in e.code) == sass.count("MMIO") == ptx.count("st.mmio")
    assert sum(len(e.code) for e in entries.values()) == len(re.findall(r"^\s+/\*[0-9a-f]{4,}\*/", sass, re.MULTILINE))


NO_FENCE = "a path to the doorbell has no fence of system scope"
BREACHES = [
    ("ptx", "nvme_poll", r"ld\.acquire\.sys\.b32", "ld.global.nc.u32", "ld.global.nc.u32 is not coherent"),
    ("ptx", "nvme_poll", r"ld\.(acquire|relaxed)\.\w+\.b32", "ld.u32", "nvme_poll: nothing polls"),
    ("ptx", "nvme_submit", r"membar\.sys;", "membar.gl;", NO_FENCE),
    ("ptx", "nvme_poll", r"membar\.sys;", "", NO_FENCE),
    ("ptx", "nvme_poll", r"(membar\.sys;)", r"\1\n\tld.global.u32 %r1, [%rd1];", NO_FENCE),
    ("ptx", "admit_rows_32", r"ld\.global\.v4\.u32", "ld.global.v2.u32", "admit_rows_32: no load of 16 bytes"),
    ("ptx", "gather_rows_8", r"st\.global\.v4\.u32", "st.global.v2.u32", "gather_rows_8: no store of 16 bytes"),
    ("sass", "nvme_poll", r"LD\.E\.STRONG\.SYS", "LDG.E.CONSTANT", "LDG.E.CONSTANT is not coherent"),
    ("sass", "nvme_poll", r"MEMBAR\.SC\.SYS", "MEMBAR.SC.GPU", NO_FENCE),
    ("sass", "nvme_submit", r"(MEMBAR\.SC\.SYS ;)", r"\1\n        /*0000*/   ST.E [R8], R11 ;", NO_FENCE),
    ("sass", "unpack_pieces", r"LDG\.E\.128", "LDG.E.64", "unpack_pieces: no load of 16 bytes"),
]


@pytest.mark.parametrize(("language", "name", "pattern", "replacement", "breach"), BREACHES)
def test_each_rule_finds_a_text_that_breaks_it(ptx, sass, language, name, pattern, replacement, breach):
    text, parse = (ptx, parse_ptx) if language == "ptx" else (sass, parse_sass)
    found = check(parse(changed(text, name, pattern, replacement)))
    assert any(breach in line for line in found), found


def test_a_poll_that_left_its_loop_is_found(ptx, sass):
    """The look at a completion is made once before everything else, and its loop sees only a register."""
    old = entry_text(ptx, "nvme_poll")
    (load, *_) = re.findall(r"\tld\.acquire\.sys\.b32 %r\d+,\[%rd\d+\];", old)
    hoisted = old.replace(load, "").replace("\tld.param.u64", f"{load}\n\tld.param.u64", 1)
    assert any("ld.acquire.sys.b32 runs once" in line for line in check(parse_ptx(ptx.replace(old, hoisted))))
    old = entry_text(sass, "nvme_poll")
    (load, *_) = re.findall(r" +/\*\w+\*/ +LD\.E\.STRONG\.SYS [^;]*;", old)
    hoisted = old.replace(load, "").replace("nvme_poll:\n", f"nvme_poll:\n{load}\n", 1)
    assert any("LD.E.STRONG.SYS runs once" in line for line in check(parse_sass(sass.replace(old, hoisted))))


def test_a_poll_that_left_only_the_innermost_loop_is_found(ptx, sass):
    """The one who rings looks at a place of the ring once, and goes on for as long as that was ready."""
    lines = entry_text(ptx, "nvme_submit").splitlines(keepends=True)
    (at,) = [
        n for n, line in enumerate(lines) if "ld.acquire.sys" in line and any("bra" in one for one in lines[n : n + 5])
    ]
    (label,) = [n for n in range(at - 12, at) if lines[n].startswith("$L")]
    hoisted = "".join([*lines[:label], lines[at], *lines[label:at], *lines[at + 1 :]])
    found = check(parse_ptx(ptx.replace("".join(lines), hoisted)))
    assert any("the loop waits for ld.acquire.sys.b32 outside of it" in line for line in found), found
    lines = entry_text(sass, "nvme_submit").splitlines(keepends=True)
    polls = [n for n, line in enumerate(lines) if "LD.E.STRONG.SYS" in line]
    labels = [max(n for n in range(poll) if lines[n].startswith(".L")) for poll in polls]
    changed = [
        "".join([*lines[:label], lines[poll], *lines[label:poll], *lines[poll + 1 :]])
        for poll, label in zip(polls, labels, strict=True)
    ]
    found = [moved_out(ptx, sass.replace("".join(lines), text)) for text in changed]
    assert any("polls are in" in line for lines in found for line in lines), found
