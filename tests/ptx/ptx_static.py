"""Checks PTX and SASS for what an interpreter cannot see: what a compiler might do to polls, fences and widths.

Each check takes one entry point and returns the breaches that it finds, one line each. The same checks read both:
PTX is what NVRTC emits, SASS what ptxas makes of it (``nvdisasm`` of the cubin), the last that can be read before a GPU.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

#: Entry points whose memory a drive or the host writes while they run.
SHARED_WITH_DRIVES = ("nvme_submit", "nvme_poll")
#: Entry points that move whole rows: they must have a path of 16 bytes a lane, for loads and for stores.
ROW_MOVERS = (
    "gather_rows_8",
    "gather_rows_32",
    "admit_rows_8",
    "admit_rows_32",
    "unpack_pieces",
    "nvme_unpack_rows",
)


@dataclass(frozen=True)
class Instruction:
    """One statement of either language: its place among the entry's, its opcode, and what follows it."""

    index: int
    line: int
    opcode: str
    operands: str
    guard: str  # the predicate that decides whether it runs; empty: it always does

    @property
    def guarded(self) -> bool:
        """Whether a predicate decides whether it runs."""
        return bool(self.guard)

    @property
    def written(self) -> list[str]:
        """Registers that a PTX instruction writes."""
        if self.parts[0] in ("st", "bra", "red", "bar", "barrier", "membar", "fence", "nanosleep", "ret"):
            return []
        return re.findall(r"%\w+", re.match(r"\{[^}]*\}|[^,]*", self.operands)[0])  # type: ignore[index]

    @property
    def parts(self) -> list[str]:
        """Opcode and modifiers, in lower case."""
        return self.opcode.lower().split(".")

    @property
    def is_load(self) -> bool:
        """Whether it reads memory that others can write."""
        return self.parts[0] in ("ld", "ldg") and "param" not in self.parts

    @property
    def is_access(self) -> bool:
        """Whether it reads or writes memory that others can see."""
        return self.is_load or self.parts[0] in ("st", "stg", "atom", "atomg", "red")

    @property
    def is_non_coherent(self) -> bool:
        """Whether it goes through a cache that no other's store reaches."""
        return self.is_load and ("nc" in self.parts or "constant" in self.parts)

    @property
    def polls(self) -> bool:
        """Whether it looks for what a drive, the host or another thread writes meanwhile."""
        return self.is_load and ("sys" in self.parts or "acquire" in self.parts)

    @property
    def is_doorbell(self) -> bool:
        """Whether it writes a register of a device."""
        return "mmio" in self.parts

    @property
    def is_system_fence(self) -> bool:
        """Whether it orders all before it with all after it, for devices too."""
        return self.parts[0] in ("membar", "fence") and "sys" in self.parts and not self.guarded

    @property
    def access_bytes(self) -> int:
        """Bytes of a vector access of 16, else 0."""
        wide = re.search(r"\.(v4\.[ubf]32|v2\.[ubf]64|128)\b", self.opcode)
        return 16 if wide else 0


@dataclass(frozen=True)
class Entry:
    """An entry point: instructions and where its labels stand."""

    name: str
    code: tuple[Instruction, ...]
    labels: dict[str, int]


def parse_ptx(text: str) -> dict[str, Entry]:
    """Return the entry points of a PTX text."""
    entries: dict[str, Entry] = {}
    name: str | None = None
    code: list[Instruction] = []
    labels: dict[str, int] = {}
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.split("//")[0].strip()
        if match := re.match(r"\.visible \.entry (\w+)\(", line):
            name, code, labels = match[1], [], {}
        elif name is not None and line == "}":
            entries[name] = Entry(name, tuple(code), labels)
            name = None
        elif name is not None and (match := re.match(r"(\$[\w$]+):", line)):
            labels[match[1]] = len(code)
        elif name is not None and (match := re.match(r"(@!?%p\d+\s+)?([a-z][\w.:]*)\s*([^;]*);", line)):
            code.append(Instruction(len(code), number, match[2], match[3], (match[1] or "").strip()))
    return entries


def disassemble(cubin: Path) -> str:
    """Return the SASS of a cubin."""
    import nvidia

    tools = [tool for root in nvidia.__path__ for tool in Path(root).glob("*/bin/nvdisasm")]
    if not tools:
        raise RuntimeError("nvdisasm must be installed (tests/requirements.txt: nvidia-cuda-nvdisasm)")
    return subprocess.run([str(tools[0]), "-c", str(cubin)], capture_output=True, text=True, check=True).stdout


def parse_sass(text: str) -> dict[str, Entry]:
    """Return the functions of nvdisasm's text, each with the subroutines that stand in its section."""
    entries: dict[str, Entry] = {}
    for section in text.split("//--------------------- .text.")[1:]:
        name = section.split(maxsplit=1)[0]
        code: list[Instruction] = []
        labels: dict[str, int] = {}
        for number, line in enumerate(section.splitlines(), 1):
            if match := re.match(r"([.$\w]+):", line):
                labels[match[1]] = len(code)
            elif match := re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(@!?U?P\d+ )?([A-Z][\w.]*)\s*([^;]*);", line):
                code.append(Instruction(len(code), number, match[2], match[3], (match[1] or "").strip()))
        entries[name] = Entry(name, tuple(code), labels)
    return entries


def successors(entry: Entry, at: int) -> list[int]:
    """Return where control may go after an instruction. A call comes back."""
    instruction = entry.code[at]
    after = [at + 1] if at + 1 < len(entry.code) else []
    if instruction.parts[0] in ("ret", "exit"):
        return after if instruction.guarded else []
    if instruction.parts[0] == "bra":
        (label,) = re.findall(r"[.$]L[\w$]+", instruction.operands)
        conditional = instruction.guarded or "DIV" in instruction.opcode or "," in instruction.operands
        return [entry.labels[label], *(after if conditional else [])]
    return after


def reachable(entry: Entry, start: int) -> set[int]:
    """Return the instructions that may run after one, itself only if a loop comes back to it."""
    seen: set[int] = set()
    todo = successors(entry, start)
    while todo:
        at = todo.pop()
        if at not in seen:
            seen.add(at)
            todo += successors(entry, at)
    return seen


def loops(entry: Entry) -> dict[int, set[int]]:
    """Return the natural loops by their first instruction: what a jump back to it can come from without passing it."""
    count = len(entry.code)
    before: list[list[int]] = [[] for _ in range(count)]
    for at in range(count):
        for after in successors(entry, at):
            before[after].append(at)
    ways = [(1 << count) - 1] * count  # instructions on every way to one, itself included, as bits
    ways[0], changed = 1, True
    while changed:
        changed = False
        for at in range(1, count):
            found = (1 << count) - 1 if before[at] else 0
            for earlier in before[at]:
                found &= ways[earlier]
            found |= 1 << at
            changed, ways[at] = changed or found != ways[at], found
    bodies: dict[int, set[int]] = {}
    for last in range(count):
        for first in successors(entry, last):
            if ways[last] >> first & 1:
                body = bodies.setdefault(first, {first})
                todo = [last]
                while todo:
                    at = todo.pop()
                    if at not in body:
                        body.add(at)
                        todo += before[at]
    return bodies


def in_loop(entry: Entry, instruction: Instruction) -> bool:
    """Return whether an instruction may run again."""
    return instruction.index in reachable(entry, instruction.index)


def non_coherent_loads(entry: Entry) -> Iterator[str]:
    """No load of an entry that shares memory with drives goes through the non-coherent cache."""
    for i in entry.code:
        if entry.name in SHARED_WITH_DRIVES and i.is_non_coherent:
            yield f"{entry.name}, line {i.line}: {i.opcode} is not coherent with a drive"


def polls_outside_loops(entry: Entry) -> Iterator[str]:
    """Every load that polls is in a loop, at least the one over commands: none was taken out of it."""
    polls = [i for i in entry.code if i.polls]
    if entry.name not in SHARED_WITH_DRIVES:
        return
    if not polls:
        yield f"{entry.name}: nothing polls"
    for i in polls:
        if not in_loop(entry, i):
            yield f"{entry.name}, line {i.line}: {i.opcode} runs once"


def waits_for_polls_outside(entry: Entry) -> Iterator[str]:
    """No loop of PTX ends by what a poll outside of it saw: it would look at the same value for ever."""
    if entry.name not in SHARED_WITH_DRIVES:
        return
    writers: dict[str, list[int]] = {}
    for i in entry.code:
        for register in i.written:
            writers.setdefault(register, []).append(i.index)
    for body in loops(entry).values():
        for at in sorted(body):
            leaves = entry.code[at].guarded and any(after not in body for after in successors(entry, at))
            seen: set[int] = set()
            todo = [entry.code[at].guard] if leaves else []
            while todo:  # back through registers with one writer, to polls among those that have none in the loop
                for register in re.findall(r"%\w+", todo.pop()):
                    of = writers.get(register, [])
                    if len(of) == 1 and of[0] not in seen and not entry.code[of[0]].polls:
                        todo.append(entry.code[of[0]].operands)
                    if len(of) == 1 or not body & set(of):
                        seen.update(of)
            for poll in (entry.code[one] for one in sorted(seen - body) if entry.code[one].polls):
                yield f"{entry.name}, line {entry.code[at].line}: the loop waits for {poll.opcode} outside of it"


def depths_of_polls(entry: Entry) -> list[int]:
    """Return in how many loops each load is that looks at what a drive or the host writes, the deepest first."""
    bodies = loops(entry).values()
    return sorted((sum(i.index in b for b in bodies) for i in entry.code if i.polls and "sys" in i.parts), reverse=True)


def polls_moved_out(ptx: Entry, sass: Entry) -> Iterator[str]:
    """No poll of the PTX is in fewer loops of the SASS: ptxas may copy loads, but not take them out."""
    if ptx.name in SHARED_WITH_DRIVES:
        emitted, made = depths_of_polls(ptx), depths_of_polls(sass)
        if len(made) < len(emitted) or any(found < depth for depth, found in zip(emitted, made, strict=False)):
            yield f"{ptx.name}: polls are in {emitted} loops of the PTX, and in {made} of the SASS"


def doorbells_without_fence(entry: Entry) -> Iterator[str]:
    """Before every doorbell, on every path, there is a fence of system scope and no access of memory after it."""
    before: dict[int, list[int]] = {}
    for at in range(len(entry.code)):
        for after in successors(entry, at):
            before.setdefault(after, []).append(at)
    for bell in (i for i in entry.code if i.is_doorbell):
        todo, seen, fenced = [bell.index], set(), True
        while todo and fenced:
            at = todo.pop()
            for earlier in before.get(at, []):
                if earlier in seen or entry.code[earlier].is_system_fence:
                    continue
                seen.add(earlier)
                fenced = fenced and not entry.code[earlier].is_access
                todo.append(earlier)
            fenced = fenced and at in before  # else the entry's begin was reached
        if not fenced:
            yield f"{entry.name}, line {bell.line}: a path to the doorbell has no fence of system scope"


def narrow_row_moves(entry: Entry) -> Iterator[str]:
    """Entries that move rows have loads and stores of 16 bytes, in a loop."""
    if entry.name not in ROW_MOVERS:
        return
    for what, wide in (
        ("load", [i for i in entry.code if i.access_bytes == 16 and i.is_load]),
        ("store", [i for i in entry.code if i.access_bytes == 16 and i.is_access and not i.is_load]),
    ):
        if not any(in_loop(entry, i) for i in wide):
            yield f"{entry.name}: no {what} of 16 bytes in a loop"


CHECKS = (non_coherent_loads, polls_outside_loops, waits_for_polls_outside, doorbells_without_fence, narrow_row_moves)


def check(entries: dict[str, Entry]) -> list[str]:
    """Return every breach."""
    return [breach for entry in entries.values() for one in CHECKS for breach in one(entry)]
