"""Boots a Debian cloud kernel in QEMU with an IOMMU and one NVMe drive, and runs our static binary as its first process."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / "build" / "guest"
MODULES = ("irqbypass", "vfio", "vfio_virqfd", "vfio_iommu_type1", "vfio-pci-core", "vfio-pci")
BOOT_SECONDS = 240


@functools.cache
def kernel() -> Path:
    """Return a directory with the unpacked kernel package; downloads it once, skips the test where that cannot be done."""
    unpacked = CACHE / "kernel"
    if list(unpacked.glob("boot/vmlinuz-*")):
        return unpacked
    CACHE.mkdir(parents=True, exist_ok=True)
    try:
        depends = subprocess.run(
            ["apt-cache", "depends", "linux-image-cloud-amd64"], capture_output=True, text=True, check=True, timeout=60
        ).stdout
        package = next(line.split()[-1] for line in depends.splitlines() if "Depends: linux-image" in line)
        download = ["apt-get", "-o", "APT::Sandbox::User=root", "download", package]
        subprocess.run(download, cwd=CACHE, check=True, capture_output=True, timeout=300)
        archive = next(CACHE.glob(f"{package}_*.deb"))
        subprocess.run(["dpkg-deb", "-x", archive, unpacked.with_suffix(".new")], check=True, timeout=120)
    except (OSError, StopIteration, subprocess.SubprocessError) as error:
        pytest.skip(f"no guest kernel, so VFIO IS NOT TESTED: {error}")
    unpacked.with_suffix(".new").rename(unpacked)
    archive.unlink()
    return unpacked


def build_init() -> Path:
    """Link the guest's first process statically against the host library of the installed build."""
    library = next(iter((ROOT / "build").glob("cp3*/libgids_host.a")), None)
    assert library is not None, "no build/cp3*/libgids_host.a: run make build"
    program = CACHE / "init"
    program.parent.mkdir(parents=True, exist_ok=True)
    command = ["g++", "-std=c++20", "-O1", "-static", f"-I{ROOT / 'cpp'}", f"-I{ROOT / 'kernels'}", "-pthread"]
    command += [str(ROOT / "tests/nvme/guest/init.cpp"), str(library), "-o", str(program)]
    if Path("/usr/include/liburing.h").exists():
        command.append("-luring")
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return program


def cpio(files: dict[str, bytes]) -> bytes:
    """Pack files as the kernel wants an initramfs: cpio, "newc"."""
    out = bytearray()
    names = sorted({str(parent) for name in files for parent in list(Path(name).parents)[:-1]})
    entries = [(name, 0o040755, b"") for name in names] + [(name, 0o100755, data) for name, data in files.items()]
    for inode, (name, mode, data) in enumerate([*entries, ("TRAILER!!!", 0, b"")], start=1):
        fields = [inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0]
        out += b"070701" + "".join(f"{field:08x}" for field in fields).encode() + name.encode() + b"\0"
        out += b"\0" * (-len(out) % 4) + data
        out += b"\0" * (-len(out) % 4)
    return bytes(out)


def boot(directory: Path, rows: int, row_bytes: int, drive_offset: int) -> list[str]:
    """Run the guest over a table of random rows and give the lines that it printed."""
    unpacked = kernel()
    table = np.random.default_rng(1).bytes(rows * row_bytes)
    image = directory / "drive.img"
    with image.open("wb") as file:
        file.truncate(drive_offset + (len(table) + (1 << 20)) // 4096 * 4096)
        file.seek(drive_offset)
        file.write(table)
    files = {"init": build_init().read_bytes(), "expected": table}
    files["plan"] = f"{rows} {row_bytes} {drive_offset}\n".encode()
    for module in MODULES:
        files[f"modules/{module}.ko"] = next(unpacked.rglob(f"{module}.ko")).read_bytes()
    initramfs = directory / "initramfs"
    initramfs.write_bytes(cpio(files))
    command = ["qemu-system-x86_64", "-machine", "q35,accel=tcg", "-cpu", "max", "-smp", "2", "-m", "768"]
    command += ["-display", "none", "-nodefaults", "-no-reboot", "-serial", "stdio"]
    command += ["-device", "intel-iommu,intremap=on"]
    command += ["-blockdev", f"driver=file,filename={image},node-name=d0"]
    command += ["-device", "nvme,serial=gids-guest,drive=d0,addr=4"]
    command += ["-kernel", str(next(unpacked.glob("boot/vmlinuz-*"))), "-initrd", str(initramfs)]
    # no_timer_check: on a busy host an emulated timer may tick too late for the kernel's own test of it at boot, and
    # the kernel panics ("IO-APIC + timer doesn't work"), which with panic=-1 ends the machine before it has said a word.
    command += ["-append", "console=ttyS0 intel_iommu=on panic=-1 loglevel=4 tsc=unstable no_timer_check"]
    try:
        result = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=BOOT_SECONDS, errors="replace"
        )
        ended, console, errors = f"QEMU ended with status {result.returncode}", result.stdout, result.stderr
    except subprocess.TimeoutExpired as late:
        ended, console, errors = f"QEMU was stopped after {BOOT_SECONDS} s", _text(late.stdout), _text(late.stderr)
    lines = [line.strip() for line in console.splitlines()]
    said = [line.split("GUEST ", 1)[1] for line in lines if "GUEST " in line]
    if not said or said[-1] != "OK":
        pytest.fail("\n".join([f"the guest did not come to its end: {ended}", *lines[-60:], errors]), pytrace=False)
    print("\n".join(said))  # with -s: what a long run is kept for
    return said


def _text(output: bytes | str | None) -> str:
    return output.decode(errors="replace") if isinstance(output, bytes) else output or ""
