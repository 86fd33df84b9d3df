"""Builds the device code for the CPU, lane by lane, and launches its entry points by name on NumPy arrays."""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[3]
HERE = Path(__file__).resolve().parent
KERNELS = ROOT / "kernels"
FLAGS = [
    "-std=c++20",
    "-O1",
    "-g1",
    "-fPIC",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
]


def build(sanitize: str = "", variant: Path | None = None) -> Path:
    """Compile ``kernels/entry*.cu`` and the probe kernels with g++ and return the library.

    ``variant`` is a directory with other headers, whose ``entry.cu`` is compiled instead, and where the library goes.
    """
    out = variant or ROOT / "build" / (f"simt-{sanitize}" if sanitize else "simt")
    out.mkdir(parents=True, exist_ok=True)
    with (out / "lock").open("w") as lock:  # test workers ask for it at the same time
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _build(out, sanitize, variant or KERNELS)


def _build(out: Path, sanitize: str, kernels: Path) -> Path:
    library = out / "libgids_simt.so"
    compiler = [*([shutil.which("ccache")] if shutil.which("ccache") else []), "g++"]
    device = [*sorted(kernels.glob("entry*.cu")), *([HERE / "probe.cu"] if kernels == KERNELS else [])]
    inputs = [*kernels.glob("*.cu*"), *HERE.glob("*.[ch]*"), Path(__file__)]
    newest = max(path.stat().st_mtime for path in inputs)
    if library.exists() and library.stat().st_mtime > newest:
        return library
    jobs = []
    for source in [HERE / "simt.cpp", HERE / "weak.cpp", *device]:
        target = out / f"{source.stem}.o"
        flags = [*FLAGS, "-DGIDS_SIMT", "-I", str(kernels), "-I", str(HERE)]
        if source.suffix == ".cu":  # the machine itself stays unsanitized: it tells TSan what orders what
            flags += ["-include", "simt.hpp", "-x", "c++", *([f"-fsanitize={sanitize}"] if sanitize else [])]
        command = [*compiler, *flags, "-c", str(source), "-o", str(target)]
        jobs.append((subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True), target))
    for process, target in jobs:
        output, _ = process.communicate()
        if process.returncode:
            raise RuntimeError(f"{target.name} does not compile for the CPU, lane by lane:\n{output}")
    new = out / f"new.{os.getpid()}.so"
    link = ["g++", "-shared", *([f"-fsanitize={sanitize}"] if sanitize else []), *(str(t) for _, t in jobs)]
    subprocess.run([*link, "-o", str(new)], check=True)
    new.rename(library)
    return library


class LaunchError(RuntimeError):
    """The lane-by-lane machine refused or stopped a launch."""


class Simt:
    """Launches entry points of one built library.

    Arguments are NumPy arrays (passed as pointers), NumPy scalars (passed by value with their own size), or ``None``
    (a null pointer). Arrays get red zones around them, checked after the launch. With ``weak`` atomic loads may see
    older stores, as far as the orders of both allow it; ThreadSanitizer looks at the orders itself.
    """

    RED_BYTES = 64

    def __init__(self, library: Path, *, weak: bool = False):
        self.launched: set[str] = set()  # entry points that ran to their end
        self._library = ctypes.CDLL(str(library))
        if weak:
            self._library.gids_simt_weak(1)
        self._library.gids_simt_names.restype = ctypes.c_char_p
        self.names: list[str] = self._library.gids_simt_names().decode().split()

    def argument_sizes(self, name: str) -> list[int]:
        sizes = (ctypes.c_size_t * 64)()
        count = self._library.gids_simt_arguments(name.encode(), sizes, 64)
        if count < 0:
            raise LaunchError(f"no kernel is called {name}")
        return list(sizes[:count])

    def launch(self, name: str, grid, block, *args, seed: int = 0) -> None:
        sizes = self.argument_sizes(name)
        if len(sizes) != len(args):
            raise LaunchError(f"{name} takes {len(sizes)} arguments (got {len(args)})")
        pointers = (ctypes.c_void_p * len(args))()
        keep, guarded = [], {}
        for i, (value, size) in enumerate(zip(args, sizes, strict=True)):
            if value is None or isinstance(value, np.ndarray):
                if size != 8:
                    raise LaunchError(f"argument {i} of {name} has {size} bytes: it is not a pointer")
                if value is None:
                    cell = ctypes.c_void_p(None)
                else:
                    if id(value) not in guarded:  # the same array twice must stay one array
                        guarded[id(value)] = (value, *self._guard(value))
                    cell = ctypes.c_void_p(guarded[id(value)][2])
            elif isinstance(value, np.generic | bytes):
                data = value if isinstance(value, bytes) else value.tobytes()
                if len(data) != size:
                    raise LaunchError(f"argument {i} of {name} has {size} bytes (got {value!r}, {len(data)} bytes)")
                cell = ctypes.create_string_buffer(data, size)
            else:
                raise TypeError(
                    f"argument {i} of {name} must be an array, a NumPy scalar, bytes or None (got {value!r})"
                )
            keep.append(cell)
            pointers[i] = ctypes.cast(ctypes.byref(cell), ctypes.c_void_p)
        dims = [(*((d,) if isinstance(d, int) else d), 1, 1)[:3] for d in (grid, block)]
        error = ctypes.create_string_buffer(2048)
        status = self._library.gids_simt_launch(
            name.encode(), *dims[0], *dims[1], pointers, ctypes.c_uint64(seed), error, ctypes.c_size_t(2048)
        )
        if status:
            raise LaunchError(f"{name}: {error.value.decode()}")
        self.launched.add(name)
        red = self.RED_BYTES
        for value, memory, _ in guarded.values():
            if (memory[:red] != 0xA5).any() or (memory[red + value.nbytes :] != 0xA5).any():
                raise LaunchError(f"{name} wrote outside an array of {value.shape} {value.dtype}")
            if value.flags.writeable and value.nbytes:
                flat = memory[red : red + value.nbytes].view(value.dtype)
                value[...] = flat.reshape(value.shape)

    def _guard(self, value: np.ndarray) -> tuple[np.ndarray, int]:
        red = self.RED_BYTES
        memory = np.full(value.nbytes + 2 * red + 16, 0xA5, np.uint8)
        start = -memory.ctypes.data % 16
        memory = memory[start : start + value.nbytes + 2 * red]
        if value.nbytes:
            memory[red : red + value.nbytes] = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        return memory, memory.ctypes.data + red
