"""fio, tuned: what a disk benchmark is compared with."""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gids.errors import ConfigError, StorageError
from gids.storage import engine_availability

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


def run_fio(path: Path, rw: str, block_bytes: int, depth: int, jobs: int, seconds: float) -> FioResult:
    """Read ``path`` directly with batched submission: io_uring with registered files and buffers, or :func:`fio_engine`."""
    engine = fio_engine()
    registered = ["--registerfiles", "--fixedbufs"] if engine == "io_uring" else []
    command = [
        "fio", "--name=gids", f"--filename={path}", f"--rw={rw}", f"--bs={block_bytes}", "--direct=1", "--readonly",
        f"--ioengine={engine}", *registered, f"--iodepth={depth}", f"--numjobs={jobs}",
        "--iodepth_batch_submit=16", "--iodepth_batch_complete_max=64", "--gtod_reduce=1", "--norandommap",
        "--randrepeat=0",  # the same offsets in every run would be in whatever cache the device has
        "--time_based", f"--runtime={round(seconds * 1000)}ms", "--group_reporting", "--output-format=json",
    ]  # fmt: skip
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise StorageError(f"fio failed: {result.stderr.strip()[-500:]}", str(path))
    job = json.loads(result.stdout[result.stdout.index("{") :])["jobs"][0]
    read = job["read"]
    busy_us = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] * 1e3
    return FioResult(read["iops"], read["bw_bytes"], busy_us / max(1, read["total_ios"]))


def rates_of(shapes: Sequence[Shape], rate: Callable[[Shape], float]) -> dict[Shape, list[float]]:
    """Give the rates of every shape in three turns, up and down: one slow moment of the disk must not decide."""
    turns = [{shape: rate(shape) for shape in turn} for turn in (shapes, shapes[::-1], shapes)]
    return {shape: [turn[shape] for turn in turns] for shape in shapes}


def best_shape(path: Path, rw: str, block_bytes: int, seconds: float, *, quick: bool) -> tuple[int, int]:
    """Give the depth and jobs with which fio is fastest here; the first of them when quick."""
    if quick:
        return SHAPES[0]
    rates = rates_of(SHAPES, lambda shape: run_fio(path, rw, block_bytes, shape[0], shape[1], seconds).iops)
    return max(rates, key=lambda shape: statistics.median(rates[shape]))
