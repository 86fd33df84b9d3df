"""``gids bench cuda``: what a batch asks of a GPU, counted on the stand-in, and how long it would take. Estimated."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gids.bench.cuda_profiles import PROFILES, Profile
from gids.bench.cuda_time import ESTIMATED, Call, Clock, Scale, Timeline
from gids.bench.harness import Bar, Report
from gids.cuda.backend import LISTS_SHARE
from gids.cuda.choice import COPY_BYTES_S, Workload
from gids.cuda.passes import sort_rounds
from gids.errors import ConfigError, GidsError
from gids.storage.curve import ReadCost, modelled_curve
from gids.storage.options import StorageOptions

ROOT = Path(__file__).resolve().parents[2]

# Promises of issue "The CUDA path as hardware wants it", for each batch in steady state.
MOST_WAITS, MOST_ALLOCATIONS, MOST_PAGEABLE, MOST_LAUNCHES = 1, 0, 0, 40
#: Of the time that the link needs for a batch's bytes, what sampling, planning and gathering may take of the GPU, and of
#: Python: where they take more, it is not the link that they leave to the rows, and not the GPU to the model.
MOST_DEVICE, MOST_PYTHON = 0.35, 0.35
PYTHON = "Python, all threads (one at a time)"


@dataclass(frozen=True)
class Setting:
    """A batch as users have it, and the small one that stands for it here.

    The lane-by-lane build runs some hundred thousand lanes a second, so that a million rows would take hours. The small
    run has the same hops, row size, policy and share of the table in cache. Calls are counted as they are; kernels and
    copies above a fixed size are taken to grow with the rows; a sort has more rounds where row numbers have more digits.
    """

    name: str
    rows: int
    table_rows: int
    dim: int
    nodes: int
    batch_size: int
    table_edges: int
    device_bytes: int = 64 << 30  # what a loader takes of 80 GB

    @property
    def lists_share(self) -> float:
        """Return the share of the neighbour lists, of 4 bytes an edge, that such a device holds."""
        return min(1.0, self.device_bytes / LISTS_SHARE / (4 * self.table_edges))


SETTINGS = (
    Setting(
        "1 M rows of 4 KiB", 1_000_000, 269_364_174, 1024, nodes=1600, batch_size=32, table_edges=3_995_777_033
    ),  # as IGB-full
    Setting(
        "100 k rows of 1 KiB", 100_000, 111_059_956, 256, nodes=1600, batch_size=32, table_edges=1_615_685_872
    ),  # as papers100M
)
FANOUTS, DEGREE, GROUP, CACHE_SHARE = [3, 3, 3], 8, 2, 0.05


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--profile", choices=sorted(PROFILES), action="append", help="machine (default: all)")
    parser.add_argument("--storage", default="uring", help="storage engine of the run (default uring)")
    parser.add_argument("--timeline", type=Path, help="directory for timelines that ui.perfetto.dev opens")


def run(args: argparse.Namespace) -> Report:
    """Count on the stand-in, and estimate for each machine."""
    report = Report("cuda", settings={"estimated": ESTIMATED, "storage": args.storage, "fanouts": FANOUTS})
    report.extra["note"] = f"{ESTIMATED}: calls are counted on the stand-in for libcuda, times come from a cost table"
    environment = standin_environment()
    kernels = json.loads((ROOT / "tests" / "ptx" / "kernel_counts.json").read_text())["kernels"]
    for setting in SETTINGS[1:] if args.quick else SETTINGS:
        answer = worker(setting, args.storage, environment)
        calls = [Call.parse(line) for line in answer["trace"].splitlines()]
        mean_rows = sum(answer["rows"]) / len(answer["rows"])
        scale = Scale(setting.rows / mean_rows, 4 * setting.dim, answer["held_neighbors"])
        for name in args.profile or PROFILES:
            timeline = Clock(PROFILES[name], kernels, scale).play(calls)
            staged = any("pinned staging" in note for note in answer["notes"].values())
            found = per_batch(
                timeline, len(answer["rows"]), setting, PROFILES[name], answer["reads"], scale, staged=staged
            )
            found["sectors over the link for each sampled edge"] = timeline.sample_sectors / answer["edges"]
            found["neighbour lists in device memory"] = {
                "share of their bytes": setting.lists_share, "share of sampled edges": answer["held_neighbors"]
            }  # fmt: skip
            found["scaled"] = (
                f"run with {mean_rows:,.0f} rows a batch; kernels over 512 items and copies over 4 KiB times "
                f"{scale.rows:,.0f}; sorts as for {setting.table_rows:,} rows"
            )
            found["notes"] = answer["notes"]
            found["ways to the device, by gids/cuda/choice.py"] = ways(setting, PROFILES[name])
            report.extra[f"{setting.name}, {name} ({ESTIMATED})"] = found
            report.bars += shares_of_the_link(setting.name, name, found["time by resource, us"])
            if args.timeline:
                args.timeline.mkdir(parents=True, exist_ok=True)
                path = args.timeline / f"{setting.name.replace(' ', '-')}-{name}.json"
                path.write_text(json.dumps(timeline.perfetto()))
        report.bars += [
            Bar(f"{setting.name}: host waits a batch", found["host waits"], MOST_WAITS, lower_is_better=True),
            Bar(f"{setting.name}: allocations a batch", found["allocations"], MOST_ALLOCATIONS, lower_is_better=True),
            Bar(f"{setting.name}: pageable copies a batch", found["pageable copies"], MOST_PAGEABLE, True),
            Bar(f"{setting.name}: launches a batch", found["launches"], MOST_LAUNCHES, lower_is_better=True),
        ]
    return report


def shares_of_the_link(setting: str, machine: str, resources: dict[str, float]) -> list[Bar]:
    """Return the promises about estimated time: the link, or a drive, is what a batch waits for."""
    device = sum(resources.get(f"stream of {stage}", 0.0) for stage in ("sample", "plan", "gather"))
    shares = {"sample, plan and gather": (device, MOST_DEVICE), "Python": (resources[PYTHON], MOST_PYTHON)}
    return [
        Bar(f"{setting}, {machine}: {what}, of the link's time ({ESTIMATED})", us / resources["link"], most, True)
        for what, (us, most) in shares.items()
    ]


def ways(setting: Setting, profile: Profile) -> dict[str, str]:
    """Return what each way of rows to the device is expected to bring where a batch is a group: both of ``submit=`` too."""
    cost = ReadCost(1 / profile.drive_reads_s, 1 / profile.drive_bytes_s)
    curve = modelled_curve(cost, latency_us=80.0)  # deep queues hide it: no estimate depends on it
    load = Workload(
        4 * setting.dim,
        setting.rows / setting.table_rows,
        profile.drives,
        replace(curve, source=profile.name),
        StorageOptions(),
        link_bytes_s=profile.link_bytes_s,
    )
    expected = {"uring": load.uring(), "gds": load.gds()}
    expected |= {f"nvme, submit={submit!r}": load.nvme(submit) for submit in ("gpu", "cpu")}
    return {way: str(estimate) for way, estimate in expected.items()}


def standin_environment() -> dict[str, str]:
    """Build the stand-in and the lane-by-lane kernels, and return the environment of a process that uses them."""
    standin = ROOT / "tests" / "standin" / "build.py"
    if not standin.is_file():
        raise ConfigError(
            "gids bench cuda runs on the stand-in for NVIDIA's driver, which is in a clone of the repository "
            f"(looked for {standin})"
        )
    library = _load(standin).build()
    kernels = _load(ROOT / "tests" / "kernels" / "simt" / "runner.py").build()
    return os.environ | {
        "LD_LIBRARY_PATH": f"{library}:{os.environ.get('LD_LIBRARY_PATH', '')}",
        "GIDS_STANDIN_KERNELS": str(kernels),
    }


def _load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"{path.parent.name}_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def worker(setting: Setting, storage: str, environment: dict[str, str]) -> dict[str, Any]:
    """Run a setting in a process of its own."""
    row_bytes = 4 * setting.dim
    options = {
        "nodes": setting.nodes,
        "degree": DEGREE,
        "dim": setting.dim,
        "batch_size": setting.batch_size,
        "fanouts": FANOUTS,
        "group": GROUP,
        "cache": int(setting.nodes * CACHE_SHARE) * row_bytes,
        "lists_share": setting.lists_share,
        "storage": storage,
        # As the estimated drives would have it, not as this machine's were probed: what is read must not depend on that.
        "merge_gap_bytes": int(min(p.drive_bytes_s / p.drive_reads_s for p in PROFILES.values())),
        "fake_torch": str(ROOT / "tests" / "standin"),
    }
    command = [sys.executable, "-m", "gids.bench.cuda_worker", json.dumps(options)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if result.returncode:
        raise GidsError(f"the run on the stand-in failed: {result.stderr[-2000:]}")
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def per_batch(
    timeline: Timeline,
    batches: int,
    setting: Setting,
    profile: Profile,
    reads: list[int],
    scale: Scale,
    *,
    staged: bool,
) -> dict[str, Any]:
    """Divide what a run came to by its batches."""
    counts = timeline.counts
    # Rows are sorted by their number once for each group, two launches a digit; admissions by batch, whatever the table.
    sorts = sum(span.name == "place_misses" for span in timeline.spans)
    more_launches = 2.0 * sorts * (sort_rounds(setting.table_rows) - sort_rounds(setting.nodes))
    more_us = more_launches * profile.launch_us
    host_us = sum(timeline.host_us.values()) + sum(timeline.waited_us.values()) + more_us
    read_count, read_bytes, read_rows = (value * scale.rows for value in reads)
    drive_us = 1e6 * max(
        read_count / (profile.drives * profile.drive_reads_s), read_bytes / (profile.drives * profile.drive_bytes_s)
    )
    # `uring` and `pread` read to memory of their own, and copy rows from there to what is pinned.
    io_copies_us = 1e6 * read_rows * scale.row_bytes / COPY_BYTES_S if staged else 0.0
    stages = sorted({*timeline.host_us, *timeline.device_us})
    resources = {
        PYTHON: (sum(timeline.host_us.values()) + more_us) / batches,
        "link": timeline.link_us / batches,
        "drives": drive_us / batches,
        "copies of one I/O thread; StorageOptions(threads=) divides them": io_copies_us / batches,
        **{f"stream of {stage}": timeline.device_us[stage] / batches for stage in stages if timeline.device_us[stage]},
    }
    slowest = max(resources, key=lambda name: resources[name])
    slow_kernels = sorted(((took, name) for name, took in timeline.kernels_us.items()), reverse=True)
    waits = {stage: timeline.waited_us[stage] / batches for stage in stages}
    allocations = {name: count / batches for name, count in counts.items() if name.startswith("allocations: ")}
    return {
        "estimated": ESTIMATED,
        "machine": profile.name,
        "launches": (counts["launches"] + more_launches) / batches,
        "launches counted": counts["launches"] / batches,
        "launches that larger row numbers add": more_launches / batches,
        "host waits": counts["host waits"] / batches,
        "functions of the host in streams": counts["host functions"] / batches,
        "allocations": sum(allocations.values()),
        "allocations by kind": {name.removeprefix("allocations: "): value for name, value in allocations.items()},
        "copies by kind": {
            name: counts[name] / batches for name in sorted(counts) if name.startswith(("copy", "fill"))
        },
        "pageable copies": sum(count for name, count in counts.items() if "pageable" in name) / batches,
        "bytes over the link": timeline.link_bytes / batches,
        "bytes by kind of copy": {name: value / batches for name, value in sorted(timeline.copied_bytes.items())},
        "reads from drives": read_count / batches,
        "time by stage, us": {
            stage: {
                "host": timeline.host_us[stage] / batches,
                "device": timeline.device_us[stage] / batches,
                "waiting": waits[stage],
                "asleep until told": timeline.told_us[stage] / batches,
            }
            for stage in stages
        },
        "time by resource, us": resources,
        "time by kernel, us": {name: took / batches for took, name in slow_kernels[:12]},
        "slowest resource": slowest,
        "rows a second, if all else overlaps": setting.rows / resources[slowest] * 1e6,
        "rows a second, if nothing overlaps": setting.rows
        / ((host_us + drive_us + io_copies_us) / batches + sum(timeline.device_us.values()) / batches)
        * 1e6,
    }
