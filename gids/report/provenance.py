"""Where a number comes from: commit, machine, disk, memory limit, versions."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import gids
from gids.machine import memory_limit_bytes


def _commit() -> str:
    root = Path(gids.__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return f"gids {gids.__version__} (not a checkout)"
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return result.stdout.strip() or "unknown"


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def provenance() -> dict[str, object]:
    """Collect what a reader needs to judge a number."""
    return {
        "commit": _commit(),
        "command": sys.argv,
        "time_utc": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "memory_limit_bytes": memory_limit_bytes(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in ("gids", "numpy", "torch", "dgl", "torch-geometric")},
        "load_average": os.getloadavg(),
    }
