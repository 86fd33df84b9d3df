"""Builds the PTX machine and the PTX that it runs: what NVRTC emits on the way to the cubin of kernels/entry.cu."""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
OUT = ROOT / "build" / "ptx"
PROBE = ROOT / "tests" / "kernels" / "simt" / "probe.cu"
#: The text does not depend on it, but for its .target line: no kernel asks which architecture it is built for.
ARCH = "sm_90"
FLAGS = ["-std=c++20", "-O2", "-g1", "-fPIC", "-Wall", "-Wextra", "-Werror", "-pthread"]
FLAGS += ["-ffp-contract=off", "-fno-strict-aliasing"]  # no fused operations: NVRTC is told the same


def emit(source: Path, includes: list[Path], arch: str = ARCH) -> tuple[str, bytes]:
    """Return the PTX and the cubin of one compilation by NVRTC, with the options of the product."""
    from gids.cuda import compile as product

    product.nvrtc_version()
    core = product.load_cuda_core()
    paths = [str(path) for path in (*includes, *product.include_dirs())]
    options = core.ProgramOptions(name=str(source), include_path=paths, **product.options(arch))
    program = core.Program(source.read_text(), "c++", options)
    cubin = program.compile("cubin", logs=io.StringIO()).code
    from cuda.bindings import nvrtc

    status, count = nvrtc.nvrtcGetPTXSize(program.handle)
    text = bytes(count)
    (read,) = nvrtc.nvrtcGetPTX(program.handle, text)
    if int(status) or int(read):
        raise RuntimeError(f"NVRTC gives no PTX for {source} ({status}, {read})")
    return text.rstrip(b"\0").decode(), cubin


def _key(paths: list[Path]) -> str:
    digest = hashlib.sha256(ARCH.encode())
    for path in sorted(paths):
        digest.update(f"{path.name}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _emit_once(name: str, source: Path, includes: list[Path], arch: str = ARCH) -> None:
    """Write name.ptx and name.cubin unless those on disk come from the same sources."""
    from gids.cuda import compile as product

    inputs = [source, *(path for folder in includes for path in folder.glob("*.cu*")), HERE / "ptx_build.py"]
    key = f"{_key(inputs)}-{product.nvrtc_version()}-{arch}"
    stamp = OUT / f"{name}.key"
    if stamp.exists() and stamp.read_text() == key and (OUT / f"{name}.ptx").exists():
        return
    text, cubin = emit(source, includes, arch)
    (OUT / f"{name}.ptx").write_text(text)
    (OUT / f"{name}.cubin").write_bytes(cubin)
    stamp.write_text(key)


def build() -> Path:
    """Compile the machine, emit the PTX beside it, and return the library; it has the lane-by-lane build's interface."""
    OUT.mkdir(parents=True, exist_ok=True)
    with (OUT / "lock").open("w") as lock:  # test workers ask for it at the same time
        fcntl.flock(lock, fcntl.LOCK_EX)
        _emit_once("entry", ROOT / "kernels" / "entry.cu", [ROOT / "kernels"])
        _emit_once("probe", PROBE, [ROOT / "kernels"])
        return _compile()


def _compile() -> Path:
    library = OUT / "libgids_ptx.so"
    sources = sorted(HERE.glob("*.cpp"))
    newest = max(path.stat().st_mtime for path in [*HERE.glob("*.hpp"), *sources, HERE / "ptx_build.py"])
    if library.exists() and library.stat().st_mtime > newest:
        return library
    compiler = [*([shutil.which("ccache")] if shutil.which("ccache") else []), "g++"]
    jobs: list[tuple[Any, Path]] = []
    for source in sources:
        target = OUT / f"{source.stem}.o"
        command = [*compiler, *FLAGS, "-c", str(source), "-o", str(target)]
        jobs.append((subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True), target))
    for process, target in jobs:
        output, _ = process.communicate()
        if process.returncode:
            raise RuntimeError(f"{target.name} of the PTX machine does not compile:\n{output}")
    new = OUT / f"new.{os.getpid()}.so"
    link = ["g++", "-shared", "-pthread", *(str(target) for _, target in jobs), "-ldl", "-o", str(new)]
    subprocess.run(link, check=True)
    new.rename(library)
    return library


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    print(build())
