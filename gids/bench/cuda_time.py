"""Virtual time: what a trace of driver calls would take on a machine with a GPU. Estimated, not measured.

The stand-in for the driver writes one line per call (tests/standin/trace.cpp). Calls of a host thread follow each other;
work of a stream follows its queue, its events, and the call that queued it; a wait ends when what it waits for has ended.
Kernels take as long as the slowest of what was counted of them needs (sectors of device memory and of the link,
instructions, atomic operations on one address, chains of host reads), or the shortest kernel's time; kernels of different
streams overlap freely, which is kind.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gids.bench.cuda_profiles import SECTOR_BYTES, Profile

ESTIMATED = "estimated, not measured"
#: How the names of streams' tracks begin.
STREAM = "stream"
#: Kernels whose work is per byte of a row; their counts are of rows of so many bytes.
ROW_KERNELS, COUNTED_ROW_BYTES = ("gather_rows", "admit_rows"), 1024
#: Kernels that read neighbour lists and nothing else of the host's.
LIST_KERNELS = ("gather_neighbors", "choose_labor")
#: Below this, a launch or copy has one size whatever the batch: counters, shapes, offsets of a group.
FIXED_ITEMS, FIXED_BYTES = 512, 4096
#: Which stage a kernel is of, by what its name begins with; scans and sorts are of their stream's stage.
STAGES = {
    "sample": ("choose_", "count_edges", "count_weighted", "gather_neighbors", "unique_", "flag_numbered", "ladies_",
               "exclude_", "draw_", "pair_", "keep_pairs", "mark_items", "take_weights"),
    "plan": ("classify_", "collect_", "count_classes", "fill_slots", "flag_new", "rank_",
             "map_", "observe_", "order_", "place_", "plan_", "sieve_", "slots_"),
    "gather": ("gather_rows", "admit_", "resolve_", "widen_"),
    "storage": ("nvme_", "unpack_"),
}  # fmt: skip


@dataclass(frozen=True)
class Call:
    """One driver call, as the stand-in wrote it down."""

    kind: str
    thread: int
    stream: int
    name: str
    size: int  # bytes; of a launch, the items that it is for (0: not told)
    more: str
    reads_host: bool = True  # of a launch: whether any of its arguments is host memory, as far as is known

    @classmethod
    def parse(cls, line: str) -> Call:
        """Read a line ``kind|thread|stream|name|size|more|work``; ``work`` of a launch is ``device=bytes,host=bytes``."""
        kind, thread, stream, name, size, more, *work = line.split("|")
        return cls(kind, int(thread), int(stream), name, int(size), more, not any(w.endswith("host=0") for w in work))


@dataclass(frozen=True)
class Scale:
    """How a small run stands for a large one.

    Attributes
    ----------
    rows : float
        Rows of the large batch for each of the small one; work and copies above a fixed size grow by it.
    row_bytes : int
        Bytes of a row, the same in both.
    held_neighbors : float
        Share of the sampled neighbours that are in pieces of lists on the device.
    """

    rows: float = 1.0
    row_bytes: int = COUNTED_ROW_BYTES
    held_neighbors: float = 0.0


@dataclass
class Span:
    """Something that took time, on a host thread or on a stream."""

    track: str
    name: str
    begin_us: float
    end_us: float
    stage: str
    part: str = ""  # the batch, or the batches of a group, that it was for


@dataclass
class Timeline:
    """What a trace came to."""

    spans: list[Span] = field(default_factory=list)
    marks: list[tuple[str, float]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    link_bytes: float = 0.0  # all of it: copies and reads by kernels
    copied_bytes: Counter[str] = field(default_factory=Counter)
    host_us: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))  # by stage
    device_us: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))  # by stage
    waited_us: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))  # by stage
    told_us: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))  # asleep, by stage
    kernels_us: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))  # by name
    link_us: float = 0.0
    sample_sectors: float = 0.0  # of the link, that sampling reads, as in the small run: small launches do not grow

    def perfetto(self) -> dict[str, Any]:
        """Return the timeline in the trace-event format, which ui.perfetto.dev opens.

        It is there twice: by thread and stream, and what streams do also by batch and stage.
        """
        by_track = [(span.track, span) for span in self.spans]
        by_part = [
            (f"{span.part}: {span.stage}", span) for span in self.spans if span.part and span.track.startswith(STREAM)
        ]
        events = [
            *_tracks(1, f"threads and streams ({ESTIMATED})", by_track),
            *_tracks(2, f"batches ({ESTIMATED})", by_part),
        ]
        events += [{"ph": "i", "s": "g", "name": name, "pid": 1, "tid": 0, "ts": at} for name, at in self.marks]
        return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"note": ESTIMATED}}


def _tracks(process: int, name: str, spans: Sequence[tuple[str, Span]]) -> list[dict[str, Any]]:
    """Return one process of a trace: its tracks by name, numbers in it as numbers, and their spans."""

    def natural(track: str) -> list[tuple[int, str]]:
        return [(int(word), "") if word.isdigit() else (-1, word) for word in re.split(r"(\d+)", track)]

    tracks = {track: number for number, track in enumerate(sorted({track for track, _ in spans}, key=natural), 1)}
    events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": process, "args": {"name": name}}]
    for track, number in tracks.items():
        events.append({"ph": "M", "name": "thread_name", "pid": process, "tid": number, "args": {"name": track}})
    for track, span in spans:
        event = {"ph": "X", "name": span.name, "cat": span.stage, "pid": process, "tid": tracks[track]}
        event |= {"ts": span.begin_us, "dur": span.end_us - span.begin_us}
        events.append(event | ({"args": {"for": span.part}} if span.part else {}))
    return events


def stage_of(kernel: str) -> str | None:
    """Return the stage that a kernel is of, or None for those that several stages use."""
    if kernel.startswith("choose_turns"):  # others that begin so choose edges
        return "plan"
    for stage, begins in STAGES.items():
        if kernel.startswith(begins):
            return stage
    return None


def stages_of_streams(calls: Iterable[Call]) -> dict[int, str]:
    """Return the stage of each stream: that of most of its kernels; one that only copies to the device is storage's."""
    seen: dict[int, Counter[str]] = defaultdict(Counter)
    for call in calls:
        if call.kind == "launch" and (stage := stage_of(call.name)) is not None:
            seen[call.stream][stage] += 1_000_000
        elif call.kind.startswith("copy h2d"):
            seen[call.stream]["storage"] += 1
    return {stream: counts.most_common(1)[0][0] for stream, counts in seen.items()}


class Clock:
    """Plays a trace on a machine."""

    def __init__(self, profile: Profile, kernels: Mapping[str, Mapping[str, float]], scale: Scale):
        self._profile, self._kernels, self._scale = profile, kernels, scale

    def play(self, calls: Sequence[Call]) -> Timeline:
        """Set the time of every call."""
        profile, timeline = self._profile, Timeline()
        stages = stages_of_streams(calls)
        homes = _homes(calls, stages)
        host: dict[int, float] = defaultdict(float)
        stream: dict[int, float] = defaultdict(float)
        events: dict[str, float] = {}
        parts: dict[int, str] = {}  # what each thread's calls are for
        for call in calls:
            if call.kind == "part":
                parts[call.thread] = call.name
                continue
            part = parts.get(call.thread, "")
            stage = stages.get(call.stream) or homes.get(call.thread, "other")
            kind = "copy" if call.kind.startswith("copy") else call.kind
            if kind == "mark":
                timeline.marks.append((call.name, max([*host.values(), *stream.values()], default=0.0)))
                continue
            begin = host[call.thread]
            busy = self._host_us(call)
            ready = begin + busy
            if kind in ("launch", "copy", "fill"):
                timeline.counts["launches" if kind == "launch" else call.kind] += 1
                took = self._device_us(call, timeline)
                start = max(stream[call.stream], ready)
                stream[call.stream] = start + took
                track = f"{STREAM} {call.stream} ({stage})"
                timeline.spans.append(Span(track, call.name, start, start + took, stage, part))
                timeline.device_us[stage] += took
            elif kind == "record event":
                events[call.more] = max(stream[call.stream], ready)
            elif kind == "wait event":
                stream[call.stream] = max(stream[call.stream], events.get(call.more, 0.0), ready)
            elif kind == "host function":
                timeline.counts["host functions"] += 1
                start = max(stream[call.stream], ready)
                stream[call.stream] = start + profile.host_function_us
                track = f"{STREAM} {call.stream} ({stage})"
                timeline.spans.append(Span(track, kind, start, stream[call.stream], stage, part))
                timeline.device_us[stage] += profile.host_function_us
            elif kind in ("pool alloc", "alloc", "pin", "register"):
                timeline.counts[f"allocations: {kind}"] += 1
            until = ready
            if kind == "sync stream" or call.kind in ("copy d2h pageable", "copy h2h"):
                until = max(ready, stream[call.stream])
            elif kind == "sync event":
                until = max(ready, events.get(call.more, 0.0))
            elif kind in ("sync context", "free", "unpin", "unregister"):
                until = max([ready, *stream.values()])
            elif (
                kind == "told"
            ):  # it slept until the stream's function ran: no call of the driver's, no wait of its kind
                until = max(ready, events.get(call.more, 0.0) + profile.host_function_us)
                timeline.told_us[stage] += until - ready
            waits = kind.startswith("sync") or (until > ready and kind != "told")
            if waits:
                timeline.counts["host waits"] += 1
                until += profile.wait_us
                timeline.waited_us[stage] += until - ready
            timeline.host_us[stage] += busy
            host[call.thread] = until
            timeline.spans.append(Span(f"host thread {call.thread}", call.kind, begin, until, stage, part))
        return timeline

    def _host_us(self, call: Call) -> float:
        profile = self._profile
        if call.kind == "launch":
            return profile.launch_us
        if call.kind.startswith("copy") or call.kind == "fill":
            staged = self._bytes(call) / profile.staging_bytes_s * 1e6 if "h2d pageable" in call.kind else 0.0
            return profile.copy_us + staged
        if call.kind.startswith("pool"):
            return profile.pool_us
        if call.kind in ("alloc", "free"):
            return profile.alloc_us
        if call.kind in ("pin", "register"):
            return profile.pin_us + call.size / 4096 * profile.pin_page_us
        if call.kind in ("unpin", "unregister"):
            return profile.pin_us
        if call.kind == "told":
            return 0.0
        return profile.event_us

    def _bytes(self, call: Call) -> float:
        return call.size * (self._scale.rows if call.size > FIXED_BYTES else 1.0)

    def _device_us(self, call: Call, timeline: Timeline) -> float:
        profile = self._profile
        if call.kind != "launch":
            count = self._bytes(call)
            timeline.copied_bytes[call.kind] += int(count)
            if call.kind in ("fill", "copy d2d"):
                return max(profile.kernel_us, 2 * count / (profile.hbm_bytes_s * profile.hbm_share) * 1e6)
            timeline.link_bytes += count
            timeline.link_us += count / profile.link_bytes_s * 1e6
            return profile.kernel_us + count / profile.link_bytes_s * 1e6
        counts = self._kernels.get(call.name)
        if counts is None or call.size == 0:
            return profile.kernel_us
        items = call.size * (self._scale.rows if call.size > FIXED_ITEMS else 1.0)
        if call.name.startswith(ROW_KERNELS):
            items *= self._scale.row_bytes / COUNTED_ROW_BYTES
        hbm = items * (counts["hbm_load_sectors"] + counts["hbm_store_sectors"]) * SECTOR_BYTES
        link = items * (counts["host_load_sectors"] + counts["host_store_sectors"]) * SECTOR_BYTES
        if not call.reads_host:  # counted with a host buffer that this run has not: the same is read from the device
            hbm, link = hbm + link, 0.0
        elif call.name.startswith(LIST_KERNELS):
            held = link * self._scale.held_neighbors
            hbm, link = hbm + held, link - held
        whole = counts["host_sectors_per_access"] >= 4  # 128 bytes in a row fill a request
        rate = profile.link_bytes_s * (1.0 if whole else profile.scattered_link_share)
        timeline.link_bytes += link
        timeline.link_us += link / rate * 1e6
        if stage_of(call.name) == "sample":
            timeline.sample_sectors += link / SECTOR_BYTES * call.size / items  # of the run itself
        seconds = max(
            hbm / (profile.hbm_bytes_s * profile.hbm_share),
            link / rate,
            items * counts["instructions"] / profile.warp_instructions_s,
            # Lanes queue up at the busiest address, and a lane for its reads of host memory that wait for each other.
            items * counts["hbm_atomics"] * counts["hottest_address_share"] / profile.atomics_s,
            counts["host_chain"] * profile.chained_read_us / 1e6 if call.reads_host else 0.0,
        )
        took = max(profile.kernel_us, seconds * 1e6)
        timeline.kernels_us[call.name] += took
        return took


def _homes(calls: Iterable[Call], stages: Mapping[int, str]) -> dict[int, str]:
    """Return the stage of each host thread: that of most of the streams it uses."""
    seen: dict[int, Counter[str]] = defaultdict(Counter)
    for call in calls:
        if call.stream in stages:
            seen[call.thread][stages[call.stream]] += 1
    return {thread: counts.most_common(1)[0][0] for thread, counts in seen.items()}
