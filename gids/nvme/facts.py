"""What a machine offers for drives in userspace, and the exact steps to hand a drive over and to take it back."""

from __future__ import annotations

import ctypes
import resource
from dataclasses import dataclass
from pathlib import Path

_CLASS_NVME = "0x010802"
_CLASS_DISPLAY = "0x03"
_NVIDIA = "0x10de"
_ATTRIBUTE_DMA_BUF = 124


@dataclass(frozen=True)
class Fact:
    """One line of ``gids doctor``: ``ok`` is None where there is nothing to judge; ``hint`` says what to do."""

    name: str
    value: str
    ok: bool | None = None
    hint: str = ""


def facts(root: Path = Path("/")) -> list[Fact]:
    """Collect everything that engine ``nvme`` depends on.

    Parameters
    ----------
    root : Path
        Where ``sys`` and ``proc`` are; another directory in tests.
    """
    return [*_iommu(root), *_memory(root), *_drives(root), *_gpus(root)]


def give_steps(address: str, root: Path = Path("/")) -> list[str]:
    """Return the shell commands (as root) that hand the drive at a PCI address to gids."""
    device = f"/sys/bus/pci/devices/{address}"
    group = _link(root / device[1:] / "iommu_group") or "GROUP"
    steps = [f"umount {mount}" for mount in _mounts(root, address)]
    return [
        *steps,
        "modprobe vfio-pci",
        f"echo vfio-pci > {device}/driver_override",
        f"test ! -e {device}/driver || echo {address} > {device}/driver/unbind",
        f"echo {address} > /sys/bus/pci/drivers_probe",
        f'chown "$SUDO_USER" /dev/vfio/{group}',
        "echo 512 > /proc/sys/vm/nr_hugepages",
        "ulimit -l unlimited",
    ]


def take_back_steps(address: str) -> list[str]:
    """Return the shell commands (as root) that return the drive to the kernel's own driver."""
    device = f"/sys/bus/pci/devices/{address}"
    return [
        f"echo > {device}/driver_override",
        f"echo {address} > {device}/driver/unbind",
        f"echo {address} > /sys/bus/pci/drivers_probe",
    ]


def bar_bytes(device: Path, bar: int) -> int:
    """Size of a base address register, 0 where it is not used."""
    lines = (device / "resource").read_text().splitlines()
    if bar >= len(lines):
        return 0
    start, end, _ = (int(field, 16) for field in lines[bar].split())
    return end - start + 1 if end else 0


def gpu_dma_buf(library: str = "libcuda.so.1") -> tuple[bool, str]:
    """Whether every GPU can export its memory as a dma-buf, and why not where it cannot."""
    try:
        cuda = ctypes.CDLL(library)
    except OSError:
        return False, f"no CUDA driver ({library})"
    if status := cuda.cuInit(0):
        return False, f"cuInit returned {status}"
    count = ctypes.c_int()
    if (status := cuda.cuDeviceGetCount(ctypes.byref(count))) or count.value == 0:
        return False, f"no GPU (cuDeviceGetCount returned {status})"
    for number in range(count.value):
        device, value = ctypes.c_int(), ctypes.c_int()
        cuda.cuDeviceGet(ctypes.byref(device), number)
        status = cuda.cuDeviceGetAttribute(ctypes.byref(value), _ATTRIBUTE_DMA_BUF, device)
        if status or not value.value:
            return False, f"GPU {number} does not export dma-buf (open kernel modules and driver 535 or later do)"
    return True, f"{count.value} GPU(s) export dma-buf"


def _link(path: Path) -> str:
    try:
        return path.readlink().name
    except OSError:
        return ""


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _pci(root: Path, kind: str) -> list[Path]:
    base = root / "sys/bus/pci/devices"
    return [d for d in sorted(base.iterdir()) if _text(d / "class").startswith(kind)] if base.is_dir() else []


def _mounts(root: Path, address: str) -> list[str]:
    blocks = {path.name for path in (root / "sys/bus/pci/devices" / address).glob("nvme/nvme*/nvme*n*")}
    found = []
    for line in _text(root / "proc/mounts").splitlines():
        source, target, *_ = line.split()
        name = source.removeprefix("/dev/")
        if any(name == block or name.startswith(f"{block}p") for block in blocks):
            found.append(target)
    return found


def _iommu(root: Path) -> list[Fact]:
    groups = root / "sys/kernel/iommu_groups"
    count = len(list(groups.iterdir())) if groups.is_dir() else 0
    driver = (root / "sys/bus/pci/drivers/vfio-pci").is_dir()
    return [
        Fact(
            "IOMMU groups",
            str(count or "none"),
            count > 0,
            "" if count else "boot with intel_iommu=on (AMD: on by default)",
        ),
        Fact("vfio-pci", "loaded" if driver else "not loaded", driver, "" if driver else "modprobe vfio-pci"),
    ]


def _memory(root: Path) -> list[Fact]:
    fields = dict(line.split(":", 1) for line in _text(root / "proc/meminfo").splitlines() if ":" in line)
    free, total = (int(fields.get(name, "0").split()[0]) for name in ("HugePages_Free", "HugePages_Total"))
    size = fields.get("Hugepagesize", "0 kB").strip()
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    locked = "unlimited" if limit == resource.RLIM_INFINITY else f"{limit >> 20} MiB"
    enough = limit == resource.RLIM_INFINITY or limit >= 1 << 30
    return [
        Fact(
            "huge pages",
            f"{free} free of {total} ({size})",
            free > 0,
            "" if free else "echo 512 > /proc/sys/vm/nr_hugepages (works without, with more page table entries)",
        ),
        Fact("locked memory", locked, enough, "" if enough else "ulimit -l unlimited, or memlock in limits.conf"),
    ]


def _drives(root: Path) -> list[Fact]:
    found = []
    for device in _pci(root, _CLASS_NVME):
        group = device / "iommu_group/devices"
        others = sorted(d.name for d in group.iterdir() if d.name != device.name) if group.is_dir() else []
        driver = _link(device / "driver") or "no driver"
        mounts = _mounts(root, device.name)
        serial = next((_text(path) for path in device.glob("nvme/nvme*/serial")), "")
        parts = [f"driver {driver}", f"IOMMU group {_link(device / 'iommu_group') or 'none'}"]
        parts += [f"serial {serial}"] if serial else []
        parts += [f"BAR 0 {bar_bytes(device, 0) >> 10} KiB"]
        hint = ""
        if mounts:
            hint = f"in use: mounted on {', '.join(mounts)}"
        elif others:
            hint = f"shares its IOMMU group with {', '.join(others)}: all of them must be bound to vfio-pci"
        elif driver != "vfio-pci":
            hint = f"to give it to gids: gids nvme give {device.name}"
        found.append(Fact(f"NVMe {device.name}", ", ".join(parts), driver == "vfio-pci" and not others, hint))
    return found or [Fact("NVMe drives", "none on the PCI bus", None)]


def _gpus(root: Path) -> list[Fact]:
    found = []
    for device in _pci(root, _CLASS_DISPLAY):
        if _text(device / "vendor") != _NVIDIA:
            continue
        size = bar_bytes(device, 1)
        large = size >= 1 << 30
        hint = "" if large else "switch on Above 4G Decoding and Resizable BAR: peers reach GPU memory through BAR 1"
        found.append(Fact(f"GPU {device.name}", f"BAR 1 {size >> 20} MiB", large, hint))
    if found:
        works, reason = gpu_dma_buf()
        hint = "" if works else "data then goes through pinned host memory, which the GPU reads"
        found.append(Fact("GPU memory as dma-buf", reason, works, hint))
    return found
