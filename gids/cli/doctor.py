"""``gids doctor``: what this machine can do, and for every "no" the one step that changes it."""

from __future__ import annotations

import argparse
import ctypes
import importlib.metadata
import json
import mmap
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from gids.units import format_bytes


@dataclass(frozen=True)
class Finding:
    """One line: what was looked at, whether it is there, what was seen, and the step that changes a no."""

    name: str
    ok: bool
    seen: str
    step: str = ""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("path", nargs="?", type=Path, default=Path(), help="directory of the data (default: here)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def run(args: argparse.Namespace) -> int:
    """Look at everything and print it. Always succeeds: a missing GPU is a finding, not an error."""
    findings = examine(args.path)
    if args.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=1))
        return 0
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title="gids doctor")
    for head in ("what", "", "seen", "to change it"):
        table.add_column(head, overflow="fold")  # addresses and paths are to be copied: nothing is cut off
    for finding in findings:
        # escape: without it rich takes the extra of "gids[cuda13]" for markup and leaves it out
        step = "" if finding.ok else escape(finding.step)
        table.add_row(finding.name, "yes" if finding.ok else "no", escape(finding.seen), step)
    Console().print(table)
    return 0


def examine(path: Path) -> list[Finding]:
    """Make every finding, for data in ``path``."""
    checks: list[Callable[[], Finding]] = [
        gpu, packages, torch_build, gds, p2pdma, vfio, hugepages, io_uring, memlock,
        lambda: filesystem(path), lambda: direct_io(path),
    ]  # fmt: skip
    return [*(check() for check in checks), *drives()]


def drives() -> list[Finding]:
    """Collect what engine nvme depends on; where there is nothing to judge, nothing is missing."""
    from gids.nvme.facts import facts

    return [Finding(f"nvme: {fact.name}", fact.ok is not False, fact.value, fact.hint) for fact in facts()]


def gpu() -> Finding:
    """Driver, CUDA version and device, straight from the driver library."""
    step = "install NVIDIA's driver (https://www.nvidia.com/drivers), then run `nvidia-smi`"
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return Finding("GPU and driver", False, str(error), step)
    status = driver.cuInit(0)
    version, count = ctypes.c_int(), ctypes.c_int()
    if status != 0 or driver.cuDriverGetVersion(ctypes.byref(version)) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return Finding("GPU and driver", False, f"libcuda.so.1 is there, but cuInit gives error {status}", step)
    name = ctypes.create_string_buffer(256)
    driver.cuDeviceGetName(name, 256, 0)
    cuda = f"CUDA {version.value // 1000}.{version.value % 1000 // 10}"
    return Finding("GPU and driver", count.value > 0, f"{count.value} x {name.value.decode()}, {cuda}", step)


def packages() -> Finding:
    """Find what device='cuda' needs to build and launch kernels."""
    from gids.cuda.compile import EXTRA_HINT, include_dirs, nvrtc_version
    from gids.errors import DeviceError

    try:
        nvrtc, headers = nvrtc_version(), include_dirs()[0]
    except DeviceError as error:
        return Finding("CUDA packages", False, str(error).split(" (")[0], EXTRA_HINT)
    core = importlib.metadata.version("cuda-core")
    return Finding("CUDA packages", True, f"cuda-core {core}, NVRTC {nvrtc}, CCCL in {headers}")


def torch_build() -> Finding:
    """Whether torch can hold tensors on the device."""
    import torch

    cuda = torch.version.cuda
    seen = f"torch {torch.__version__}, {'no CUDA' if cuda is None else f'CUDA {cuda}'}"
    return Finding("torch on CUDA", cuda is not None, seen, "install a CUDA build of torch (https://pytorch.org)")


def gds() -> Finding:
    """GPUDirect Storage: reads that bypass host memory."""
    from gids.cuda.cufile import gds_availability

    refusal = gds_availability()
    loaded = Path("/proc/driver/nvidia-fs").exists()
    step = (
        "pip install 'gids[gds]'"
        if "not installed" in refusal
        else "load nvidia-fs (package nvidia-gds), mount ext4 or xfs"
    )
    return Finding(
        "GPUDirect Storage", not refusal, refusal or f"cuFile, nvidia-fs {'loaded' if loaded else 'absent'}", step
    )


def _kernel_option(name: str) -> str | None:
    """Value of a kernel build option, or None where the configuration is not readable."""
    import gzip

    release = os.uname().release
    try:
        text = (
            gzip.decompress(Path("/proc/config.gz").read_bytes()).decode()
            if Path("/proc/config.gz").exists()
            else Path(f"/boot/config-{release}").read_text()
        )
    except OSError:
        return None
    return next((line.split("=")[1] for line in text.splitlines() if line.startswith(f"{name}=")), "n")


def p2pdma() -> Finding:
    """Whether the kernel lets drives write to other PCI devices."""
    value = _kernel_option("CONFIG_PCI_P2PDMA")
    seen = "the kernel's configuration cannot be read" if value is None else f"CONFIG_PCI_P2PDMA={value}"
    return Finding("PCI peer-to-peer DMA", value == "y", seen, "boot a kernel built with CONFIG_PCI_P2PDMA=y")


def vfio() -> Finding:
    """Whether a drive can be driven from user space (engine nvme)."""
    groups = list(Path("/sys/kernel/iommu_groups").glob("*"))
    device = Path("/dev/vfio/vfio").exists()
    seen = f"/dev/vfio/vfio {'present' if device else 'absent'}, {len(groups) or 'no'} IOMMU groups"
    step = "modprobe vfio-pci" if groups else "enable the IOMMU: boot with intel_iommu=on or amd_iommu=on"
    return Finding("VFIO", device and bool(groups), seen, step)


def hugepages() -> Finding:
    """Huge pages for topology and queues."""
    meminfo = Path("/proc/meminfo")
    lines = meminfo.read_text().splitlines() if meminfo.exists() else []  # a container may hide it
    reserved = int(dict(line.split(":", 1) for line in lines).get("HugePages_Total", "0").strip())
    mode_path = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    mode = mode_path.read_text().split("[")[1].split("]")[0] if mode_path.exists() else "absent"
    seen = f"transparent: {mode}, reserved: {reserved}"
    step = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
    return Finding("huge pages", mode in ("always", "madvise") or reserved > 0, seen, step)


def io_uring() -> Finding:
    """Ask for the default storage engine."""
    from gids.storage.reader import engine_availability

    refusal = engine_availability()["uring"]
    step = "sysctl kernel.io_uring_disabled=0, allow io_uring in the container's seccomp profile, install liburing-dev"
    return Finding("io_uring", not refusal, refusal or f"kernel {os.uname().release}", step)


def memlock() -> Finding:
    """How much memory may be pinned."""
    from gids.cuda.transfer import memlock_limit

    limit = memlock_limit()
    seen = "unlimited" if limit is None else format_bytes(limit)
    step = "ulimit -l unlimited (memlock in /etc/security/limits.conf; --ulimit memlock=-1 for a container)"
    return Finding("locked memory", limit is None or limit >= 1 << 30, seen, step)


def filesystem(path: Path) -> Finding:
    """Type of the file system under the data."""
    here = path.resolve()
    best, kind = "", "unknown"
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, name, *_ = line.split()
        inside = mount == "/" or here == Path(mount) or Path(mount) in here.parents
        if inside and len(mount) >= len(best):
            best, kind = mount, name
    good = kind not in ("overlay", "tmpfs", "nfs", "nfs4", "9p", "fuse")
    return Finding(
        "file system", good, f"{kind} at {best} for {here}", "put the data on ext4 or xfs on a local NVMe drive"
    )


def direct_io(path: Path) -> Finding:
    """Smallest direct read that the file system allows."""
    step = "put the data on a file system with O_DIRECT: ext4 or xfs"
    target = path.resolve() / f".gids-doctor.{os.getpid()}"
    try:
        target.write_bytes(bytes(8192))
    except OSError as error:
        return Finding(
            "direct I/O", False, f"no test file can be written ({error.strerror})", "run it in a writable directory"
        )
    try:
        file = os.open(target, os.O_RDONLY | os.O_DIRECT)
        try:
            for size in (512, 4096):
                buffer = mmap.mmap(-1, 8192)
                try:
                    with memoryview(buffer) as view, view[:size] as part:
                        os.preadv(file, [part], size)
                    return Finding("direct I/O", True, f"reads aligned to {size} bytes")
                except OSError:
                    continue
                finally:
                    buffer.close()
        finally:
            os.close(file)
        return Finding("direct I/O", False, "no alignment up to 4096 bytes is accepted", step)
    except OSError as error:
        return Finding("direct I/O", False, f"O_DIRECT: {error.strerror}", step)
    finally:
        target.unlink()
