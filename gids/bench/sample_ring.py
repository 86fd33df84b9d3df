"""The part of ``gids bench sample`` beside RingSampler: a stand-in for it after its paper, on the same files and memory."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from gids.bench.harness import Bar, Contender, Report, alternate
from gids.bench.page_cache import forget_pages
from gids.bench.sample_disk import BATCH, FANOUTS
from gids.bench.sample_limits import GIDS, Child, ChildEndedError, sampling_child, times_where_one_ended

#: Memory of each process, page cache included: one holds about half of the edge file beside a process, the other all.
RING_MIB = (512, 1536)
RING_THREADS = (1, 2)
RING = "RingSampler (stand-in)"

# The aim against RingSampler's own code, which is not part of this repository: what stands for it here follows its paper.
FLOOR_RING = 3.0


def ring_section(report: Report, directory: Path, shapes: Sequence[tuple[int, int]], batches: int, rounds: int) -> None:
    """Alternate gids and the stand-in under each limit (in MiB) with so many threads."""
    if missing := what_is_missing():
        report.extra["ring"] = f"not measured: {missing}"
        return
    with built_stand_in() as program:
        for limit, threads in shapes:
            forget_pages(directory / "indices.bin")
            children = [
                sampling_child(directory, GIDS, limit, threads),
                ring_child(program, directory, limit, threads),
            ]
            try:
                for child in children:  # to open, and fill what each keeps
                    child.ask(threads)
                contenders = [_rounds(child, batches * threads) for child in children]
                rates = alternate(contenders, unit="edges", rounds=rounds)
                report.measurements += rates.values()
                mine, theirs = (rates[child.name].rates for child in children)
                over: float | None = float(np.median([a / b for a, b in zip(mine, theirs, strict=True)]))
            except ChildEndedError as error:
                report.extra[f"ring at {limit} MiB, {threads} thread(s)"] = str(error)
                over = times_where_one_ended(error)
            finally:
                for child in children:
                    child.close()
            if over is not None:
                report.bars.append(Bar(f"disk: over {RING} at {limit} MiB, {threads} thread(s)", over, FLOOR_RING))


def _rounds(child: Child, batches: int) -> Contender:
    return Contender(child.name, lambda: child.ask(batches)["edges"])


def ring_child(program: Path, directory: Path, limit_mib: int, threads: int) -> Child:
    """Start the stand-in; like gids, it takes the last fan-out for the seeds."""
    files = [str(directory / "indptr.npy"), str(directory / "indices.bin")]
    command = [str(program), *files, str(threads), str(BATCH), *map(str, reversed(FANOUTS))]
    return Child(f"{RING}, {threads} thread(s)", command, limit_mib)


def what_is_missing() -> str:
    """Return what the stand-in needs to be built and is not there; empty where nothing is."""
    if shutil.which("g++") is None:
        return "g++ is not installed"
    return "" if Path("/usr/include/liburing.h").exists() else "liburing-dev is not installed"


@contextmanager
def built_stand_in() -> Iterator[Path]:
    """Return the stand-in as a program, built for this machine."""
    source = Path(__file__).with_name("ring_sampler.cpp")
    with tempfile.TemporaryDirectory(prefix="gids-ring-") as directory:
        program = Path(directory) / "ring_sampler"
        command = ["g++", "-O3", "-march=native", "-std=c++20", str(source), "-luring", "-lpthread", "-o", str(program)]
        subprocess.run(command, check=True, capture_output=True)
        yield program
