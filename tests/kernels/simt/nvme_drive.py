"""Drives for tests of the NVMe entry points: one made of memory and QEMU's, built from nvme_host.cpp."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
from runner import ROOT

READ = np.dtype(
    [("lba", "<u8"), ("offset", "<u8"), ("blocks", "<u4"), ("bytes", "<u4"), ("nsid", "<u4"), ("drive", "<u4")]
)
SOURCES = [
    "tests/kernels/simt/nvme_host.cpp",
    *(f"cpp/nvme/{n}.cpp" for n in ("drive", "controller", "qtest", "status")),
]


def load_host(sanitize: str = "") -> ctypes.CDLL:
    """Build the host's side with the lanes' sanitizer; without one, most of it is in the installed build already."""
    out = ROOT / "build" / (f"simt-{sanitize}" if sanitize else "simt")
    out.mkdir(parents=True, exist_ok=True)
    flags = [
        "-std=c++20",
        "-O1",
        "-g1",
        "-fPIC",
        "-Icpp",
        "-Ikernels",
        *([f"-fsanitize={sanitize}"] if sanitize else []),
    ]
    compiler = [*([shutil.which("ccache")] if shutil.which("ccache") else []), "g++"]
    archives = [] if sanitize else [str(path) for path in (ROOT / "build").glob("cp3*/libgids_host.a")]
    sources = SOURCES[:1] if archives else SOURCES
    jobs = []
    environment = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    for source in sources:
        target = out / f"host-{Path(source).stem}.o"
        command = [*compiler, *flags, "-c", source, "-o", str(target)]
        jobs.append((subprocess.Popen(command, cwd=ROOT, env=environment), target))
    assert all(process.wait() == 0 for process, _ in jobs)
    library = out / f"libgids_nvme_host.{os.getpid()}.so"
    objects = [str(target) for _, target in jobs]
    link = ["g++", "-shared", *flags[-1:], *objects, *archives[:1], "-pthread", "-o", str(library)]
    subprocess.run(link, check=True, env=environment)
    loaded = ctypes.CDLL(str(library))
    library.unlink()
    for name in ("gids_nvme_stub", "gids_nvme_qemu", "gids_nvme_drives", "gids_nvme_data"):
        getattr(loaded, name).restype = ctypes.c_void_p
    return loaded


class Drive:
    """A drive with its queues; stops it at the end and checks that no rule was broken."""

    def __init__(self, host, handle):
        assert handle
        self.host, self.handle = host, ctypes.c_void_p(handle)
        self.address = np.uint64(host.gids_nvme_drives(self.handle))
        self.queues = int(host.gids_nvme_queues(self.handle))

    def regions(self):
        """Who uses what memory while kernels run: kind, address, bytes."""
        told = []
        tell = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_uint64)
        self.host.gids_nvme_regions(self.handle, tell(lambda *region: told.append(region)))
        return [(kind.decode(), address, count) for kind, address, count in told]

    def data(self, queue, size):
        pointer = self.host.gids_nvme_data(self.handle, ctypes.c_uint32(queue))
        return np.ctypeslib.as_array(ctypes.cast(pointer, ctypes.POINTER(ctypes.c_uint8)), (size,))

    def submits(self, reads, results, count, timeout_ns):
        """Return the arguments of nvme_submit for the first ``count`` reads."""
        return [self.address, reads, results, None, np.uint32(count), np.uint64(timeout_ns)]

    def polls(self, reads, results, count, timeout_ns, outcome):
        """Return the arguments of nvme_poll, which takes a warp for each queue and at least one more."""
        return [
            self.address, np.uint32(1), reads, results, None, np.uint32(count), np.uint64(timeout_ns), outcome
        ]  # fmt: skip

    def answer(self):
        """Let a drive that does not answer by itself answer everything that it was sent, on this thread."""
        self.host.gids_nvme_answer(self.handle)

    def stop(self):
        out = (ctypes.c_uint64 * 3)()
        self.host.gids_nvme_stop(self.handle, out)
        return dict(zip(("violations", "stray", "commands"), out, strict=True))


def stub(host, depth=64, ids=None, queues=1, ack_batch=16, hold_every=0, answers=1):
    arguments = [ctypes.c_uint32(v) for v in (depth, ids or depth - 1, queues, ack_batch, hold_every)]
    return Drive(host, host.gids_nvme_stub(*arguments, ctypes.c_int(answers)))


def make_reads(count, blocks=1, nsid=1):
    reads = np.zeros(count, READ)
    reads["lba"] = np.random.default_rng(count).permutation(count * 8)[:count]
    reads["offset"] = np.arange(count) * blocks * 512
    reads["blocks"], reads["bytes"], reads["nsid"] = blocks, blocks * 512, nsid
    return reads
