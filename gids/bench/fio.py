"""fio, tuned: what a disk benchmark is compared with."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gids.errors import ConfigError, StorageError
from gids.storage import ReadPlan, engine_availability

Shape = tuple[int, int]

#: Depth and jobs that are tried: fio's defaults are half as fast here and would be too easy an opponent.
SHAPES = ((64, 1), (128, 1), (256, 1), (64, 2), (128, 2))


@dataclass(frozen=True)
class FioResult:
    """One run of fio: reads per second, bytes per second, and processor time per read."""

    iops: float
    bandwidth: float
    cpu_us: float


def require_fio() -> None:
    """Raise ConfigError where fio is not installed."""
    if shutil.which("fio") is None:
        raise ConfigError("fio must be installed to be compared with (apt install fio)")


def fio_engine() -> str:
    """Say what fio reads with: io_uring, or the kernel's older interface where a container forbids that."""
    return "libaio" if engine_availability()["uring"] else "io_uring"


def _fio(path: Path, arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> FioResult:
    command = [
        "fio", "--name=gids", "--direct=1", "--readonly", f"--ioengine={fio_engine()}",
        "--iodepth_batch_submit=16", "--iodepth_batch_complete_max=64", "--gtod_reduce=1",
        "--group_reporting", "--output-format=json", *arguments,
    ]  # fmt: skip
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if result.returncode != 0:
        # What goes wrong while it runs, as too little memory that may be locked, fio says before its JSON.
        words = result.stderr.strip() or result.stdout.partition("{")[0].strip()
        raise StorageError(f"fio failed: {words[-500:]}", str(path))
    job = json.loads(result.stdout[result.stdout.index("{") :])["jobs"][0]
    read = job["read"]
    busy_us = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] * 1e3
    return FioResult(read["iops"], read["bw_bytes"], busy_us / max(1, read["total_ios"]))


def run_fio(path: Path, rw: str, block_bytes: int, depth: int, jobs: int, seconds: float) -> FioResult:
    """Read ``path`` directly with batched submission: io_uring with registered files and buffers, or :func:`fio_engine`."""
    registered = ["--registerfiles", "--fixedbufs"] if fio_engine() == "io_uring" else []
    arguments = [
        f"--filename={path}", f"--rw={rw}", f"--bs={block_bytes}", f"--iodepth={depth}", f"--numjobs={jobs}",
        "--norandommap", "--randrepeat=0",  # the same offsets in every run would be in whatever cache the device has
        "--time_based", f"--runtime={round(seconds * 1000)}ms", *registered,
    ]  # fmt: skip
    return _fio(path, arguments)


@contextmanager
def plan_log(path: Path, plan: ReadPlan) -> Iterator[Path]:
    """Return the reads of a plan, all of them in ``path``, as a log that :func:`replay_fio` follows."""
    reads = "".join(
        f"{path} read {offset} {length}\n"
        for offset, length in zip(plan.offset.tolist(), plan.length.tolist(), strict=True)
    )
    with tempfile.NamedTemporaryFile("w", prefix="gids-fio-", suffix=".log") as log:
        log.write(f"fio version 2 iolog\n{path} add\n{path} open\n{reads}{path} close\n")
        log.flush()
        yield Path(log.name)


def replay_fio(path: Path, log: Path, longest_bytes: int, depth: int) -> FioResult:
    """Let fio make exactly the reads of a log, in its order, with the queue kept full and nothing done with the bytes.

    Its buffers are on huge pages, as ours are: a virtual disk has few descriptors, and a large read on small pages takes
    one of them per page. fio cannot register the files of a log.
    """
    registered = ["--fixedbufs"] if fio_engine() == "io_uring" else []
    arguments = [
        f"--read_iolog={log}",
        "--replay_no_stall=1",
        f"--bs={longest_bytes}",
        f"--iodepth={depth}",
        *registered,
    ]
    return _fio(path, arguments, os.environ | {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"})


def rates_of(shapes: Sequence[Shape], rate: Callable[[Shape], float]) -> dict[Shape, list[float]]:
    """Return the rates of every shape in three turns, up and down: one slow moment of the disk must not decide."""
    turns = [{shape: rate(shape) for shape in turn} for turn in (shapes, shapes[::-1], shapes)]
    return {shape: [turn[shape] for turn in turns] for shape in shapes}


def best_shapes(path: Path, rw: str, block_bytes: int, seconds: float, *, quick: bool) -> list[Shape]:
    """Return for every number of jobs the depth with which fio is fastest here, fastest first; unmeasured when quick."""
    if quick:
        return [shape for shape in SHAPES if shape[0] == SHAPES[0][0]]
    rates = rates_of(SHAPES, lambda shape: run_fio(path, rw, block_bytes, shape[0], shape[1], seconds).iops)
    fastest_first = sorted(SHAPES, key=lambda shape: -statistics.median(rates[shape]))
    best: dict[int, Shape] = {}  # by jobs
    for shape in fastest_first:
        best.setdefault(shape[1], shape)
    return list(best.values())


def best_shape(path: Path, rw: str, block_bytes: int, seconds: float, *, quick: bool) -> Shape:
    """Return the depth and jobs with which fio is fastest here; the first of them when quick."""
    return best_shapes(path, rw, block_bytes, seconds, quick=quick)[0]
