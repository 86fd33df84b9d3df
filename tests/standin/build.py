"""Builds the stand-in for libcuda.so.1 (test code: no GPU, kernels run lane by lane on the CPU)."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
OUT = HERE.parents[1] / "build" / "standin"


def build() -> Path:
    """Compile the stand-in and return its directory, for LD_LIBRARY_PATH."""
    OUT.mkdir(parents=True, exist_ok=True)
    with (OUT / "lock").open("w") as lock:  # test workers ask for it at the same time
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _build()


def _build() -> Path:
    library = OUT / "libcuda.so.1"
    newest = max(path.stat().st_mtime for path in HERE.glob("*.[ch]pp"))
    if library.exists() and library.stat().st_mtime > newest:
        return OUT
    compiler = [*([shutil.which("ccache")] if shutil.which("ccache") else []), "g++"]
    flags = ["-std=c++20", "-O1", "-g1", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror", "-pthread"]
    jobs = []
    for source in sorted(HERE.glob("*.cpp")):
        target = OUT / f"{source.stem}.o"
        command = [*compiler, *flags, "-c", str(source), "-o", str(target)]
        jobs.append((subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True), target))
    for process, target in jobs:
        output, _ = process.communicate()
        if process.returncode:
            raise RuntimeError(f"{target.name} of the stand-in does not compile:\n{output}")
    new = OUT / f"new.{os.getpid()}.so"
    link = ["g++", "-shared", "-pthread", "-Wl,-soname,libcuda.so.1", *(str(target) for _, target in jobs), "-ldl"]
    subprocess.run([*link, "-o", str(new)], check=True)
    new.rename(library)
    return OUT


if __name__ == "__main__":
    print(build())
