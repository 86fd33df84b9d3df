"""QEMU with NVMe devices and no guest: the processor halts at once, RAM is a file, registers go through a socket."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

QEMU = shutil.which("qemu-system-x86_64")
needs_qemu = pytest.mark.skipif(
    QEMU is None, reason="qemu-system-x86 is not installed: NOTHING of the NVMe path is tested"
)
FIRST_SLOT = 4
RAM_BYTES = 256 << 20
FIRMWARE = b"\xf4" * (65536 - 16) + b"\xfa\xf4\xeb\xfd" + b"\xf4" * 12  # reset vector: cli; hlt; jmp back


class Machine:
    """One QEMU process; ``drives`` is a list of lists of namespaces, each a ``-blockdev`` option string or an image path.

    Namespaces of a drive get ids 1, 2, ...; drive ``i`` sits in PCI slot ``FIRST_SLOT + i``. With ``connect=False`` the
    socket is left to somebody else (QEMU serves one client), and the native module is not loaded.
    """

    def __init__(self, drives: list[list[Path | str]], *, mdts: int = 7, block_bytes: int = 512, connect: bool = True):
        memory = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(tempfile.gettempdir())
        self.directory = Path(tempfile.mkdtemp(prefix="gids-qemu-", dir=memory))
        self.socket, self.ram = self.directory / "qtest", self.directory / "ram"
        socket, ram, firmware = self.socket, self.ram, self.directory / "firmware"
        firmware.write_bytes(FIRMWARE)
        with ram.open("wb") as file:
            file.truncate(RAM_BYTES)
        command = [str(QEMU), "-qtest", f"unix:{socket},server=on,wait=off", "-qtest-log", "/dev/null"]
        command += ["-display", "none", "-nodefaults", "-bios", str(firmware), "-m", str(RAM_BYTES >> 20)]
        command += ["-machine", "pc,accel=tcg,memory-backend=ram"]
        command += ["-object", f"memory-backend-file,id=ram,size={RAM_BYTES},mem-path={ram},share=on"]
        for i, namespaces in enumerate(drives):
            command += ["-device", f"nvme,id=nvme{i},serial=gids-test-{i},addr={FIRST_SLOT + i},mdts={mdts}"]
            for n, backing in enumerate(namespaces):
                node = f"d{i}n{n}"
                option = backing if isinstance(backing, str) else f"driver=file,filename={backing}"
                command += ["-blockdev", f"{option},node-name={node}"]
                sizes = f"logical_block_size={block_bytes},physical_block_size={block_bytes}"
                command += ["-device", f"nvme-ns,drive={node},bus=nvme{i},nsid={n + 1},{sizes}"]
        # Without a sanitizer's runtime that the test itself may run under.
        environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, env=environment)
        deadline = time.monotonic() + 60
        while True:
            try:
                if connect:
                    from gids import _native

                    self.native = _native.NvmeTestMachine(str(socket), str(ram))
                elif not socket.exists():
                    raise FileNotFoundError(socket)
                return
            except OSError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    errors = self.process.stderr.read().decode() if self.process.poll() is not None else "no socket"
                    self.close()
                    raise RuntimeError(f"QEMU did not start: {errors}") from None
                time.sleep(0.01)

    def open(self, drive=0, *, depth=256, pairs=4, max_io_bytes=128 << 10, timeout_s=10.0, admin_timeout_s=2.0):
        from gids import _native

        return _native.nvme_open_test(
            self.native, FIRST_SLOT + drive, depth, pairs, max_io_bytes, timeout_s, admin_timeout_s
        )

    def poke(self, drive: int, register: int, value: int) -> None:
        """Write a register behind the driver's back."""
        self.native.command(f"writel {0xE0000000 + (FIRST_SLOT + drive) * 0x100000 + register:#x} {value:#x}")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stderr.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
