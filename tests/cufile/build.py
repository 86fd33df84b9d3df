"""Builds the fake libcufile.so.0, against NVIDIA's own header from the wheel nvidia-cufile."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
OUT = ROOT / "build" / "cufile"


def header_directory() -> Path | None:
    """Return where cufile.h is; None where no wheel brings it."""
    try:
        import nvidia
    except ImportError:
        return None
    found = [path.parent for root in nvidia.__path__ for path in Path(root).glob("*/include/cufile.h")]
    return found[0] if found else None


def build() -> Path:
    """Compile the fake and return its directory, for LD_LIBRARY_PATH."""
    OUT.mkdir(parents=True, exist_ok=True)
    library, sources = OUT / "libcufile.so.0", [HERE / "fake.cpp", ROOT / "cpp" / "cufile" / "library.hpp"]
    with (OUT / "lock").open("w") as lock:  # test workers ask for it at the same time
        fcntl.flock(lock, fcntl.LOCK_EX)
        if library.exists() and library.stat().st_mtime > max(path.stat().st_mtime for path in sources):
            return OUT
        new = OUT / f"new.{os.getpid()}.so"
        compiler = [*([shutil.which("ccache")] if shutil.which("ccache") else []), "g++"]
        flags = [
            "-std=c++20",
            "-O1",
            "-g1",
            "-fPIC",
            "-shared",
            "-pthread",
            "-Wall",
            "-Wextra",
            "-Wno-enum-compare",
            "-Wl,-soname,libcufile.so.0",
        ]
        includes = ["-I", str(HERE), "-I", str(header_directory()), "-I", str(ROOT / "cpp")]
        subprocess.run([*compiler, *flags, *includes, str(HERE / "fake.cpp"), "-o", str(new), "-ldl"], check=True)
        new.rename(library)
    return OUT


if __name__ == "__main__":
    print(build())
