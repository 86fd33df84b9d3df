"""Builds kernels/ for one GPU architecture with NVRTC, and keeps the result on disk."""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import io
import json
import os
import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from gids.errors import ConfigError, DeviceError

#: Architectures that CI compiles for: Turing, Ampere (two), Ada, Hopper, Blackwell (data centre and consumer).
ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")

EXTRA_HINT = "pip install 'gids[cuda13]' (or 'gids[cuda12]' for a CUDA 12 driver)"


@dataclass(frozen=True)
class KernelResources:
    """What one entry point takes of a multiprocessor, as ptxas reports it."""

    kernel: str
    registers: int
    shared_bytes: int
    stack_bytes: int
    spill_bytes: int


@dataclass(frozen=True)
class Cubin:
    """Machine code of every entry point for one architecture."""

    arch: str
    code: bytes
    resources: tuple[KernelResources, ...]
    path: Path
    from_cache: bool
    #: What the compiler warned of: nothing with the compilers that CI has. A user's may be newer, and warn of more.
    warnings: tuple[str, ...] = ()


def kernel_dir() -> Path:
    """Return the directory of the device code: beside this package in a wheel, beside ``gids/`` in a clone."""
    package = Path(__file__).resolve().parents[1]
    for candidate in (package / "kernels", package.parent / "kernels"):
        if (candidate / "entry.cu").is_file():
            return candidate
    raise DeviceError(f"kernels/entry.cu must be beside the package (looked in {package} and {package.parent})")


def cache_dir() -> Path:
    """Return the directory of compiled kernels: ``$GIDS_CACHE_DIR``, else ``~/.cache/gids``."""
    chosen = os.environ.get("GIDS_CACHE_DIR")
    base = Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gids"
    return base / "cubin"


def load_cuda_core() -> ModuleType:
    """Import ``cuda.core``, or say which extra brings it."""
    try:
        return importlib.import_module("cuda.core")
    except ImportError as error:
        raise DeviceError(f"device='cuda' needs the packages of an extra: {EXTRA_HINT} ({error})") from error


def nvrtc_version() -> str:
    """Return NVRTC's version, e.g. ``"13.4"``."""
    load_cuda_core()
    from cuda.bindings import nvrtc

    preload("libnvrtc-builtins.so.1[0-9].*")  # NVRTC opens it by name, and 13.0's wheel does not say where it is
    preload("libnvrtc.so.1[0-9]")
    try:
        status, major, minor = nvrtc.nvrtcVersion()
    except Exception as error:  # cuda.pathfinder raises types of its own when libnvrtc is not installed
        raise DeviceError(f"NVRTC, the CUDA run-time compiler, must be installed: {EXTRA_HINT} ({error})") from error
    if int(status) != 0:
        raise DeviceError(f"NVRTC gives no version (status {status})")
    return f"{major}.{minor}"


def packages_cuda_major() -> int:
    """Return the CUDA version that the installed packages are for, e.g. 13."""
    load_cuda_core()
    import cuda.bindings

    return int(str(cuda.bindings.__version__).split(".", 1)[0])


def preload(pattern: str) -> None:
    """Load a library of NVIDIA's wheels: cuda.pathfinder takes one that is loaded, but looks in no .pth directory."""
    for library in (path for root in _wheel_roots() for path in sorted(root.glob(f"*/lib/{pattern}"))):
        ctypes.CDLL(str(library))


def _wheel_roots() -> list[Path]:
    try:
        import nvidia
    except ImportError:
        return []
    return [Path(root) for root in nvidia.__path__]


def include_dirs() -> list[Path]:
    """Return the directories with CCCL's headers (``cuda/atomic``), from the wheels or from a toolkit."""
    roots: list[Path] = []
    for base in _wheel_roots():
        roots += [base / "cu13" / "include", base / "cuda_cccl" / "include"]
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if name in os.environ:
            roots.append(Path(os.environ[name]) / "include")
    roots.append(Path("/usr/local/cuda/include"))
    for root in roots:
        for candidate in (root / "cccl", root):
            if (candidate / "cuda" / "atomic").is_file():
                return [candidate]
    raise DeviceError(f"CCCL's headers (cuda/atomic) must be installed: {EXTRA_HINT} (looked in {roots})")


def options(arch: str) -> dict[str, Any]:
    """Return the options of a build; they are part of the cache key."""
    if not re.fullmatch(r"sm_\d{2,3}[af]?", arch):
        raise ConfigError(f"arch must be a real architecture such as 'sm_90' (got {arch!r})")
    return {"arch": arch, "std": "c++20", "fma": False, "ptxas_options": ["-v"]}


def source_files() -> list[Path]:
    """Return every file of device code, in a fixed order."""
    return sorted(path for path in kernel_dir().iterdir() if path.suffix in (".cu", ".cuh"))


def cache_key(arch: str) -> str:
    """Return the name of a build: sources x arch x options x versions of NVRTC, CCCL and gids."""
    from gids import __version__

    digest = hashlib.sha256()
    for path in source_files():
        digest.update(f"{path.name}\0".encode() + path.read_bytes() + b"\0")
    headers = hashlib.sha256((include_dirs()[0] / "cuda" / "__cccl_config").read_bytes()).hexdigest()
    digest.update(json.dumps([options(arch), nvrtc_version(), str(headers), __version__]).encode())
    return digest.hexdigest()[:32]


def compile_kernels(arch: str, directory: Path | None = None) -> Cubin:
    """Build every entry point for ``arch``, or take it from the cache.

    Parameters
    ----------
    arch : str
        For example ``"sm_90"``.
    directory : Path, optional
        Where results are kept (default: :func:`cache_dir`).

    Raises
    ------
    DeviceError
        If a package is missing, or the sources do not compile.
    """
    directory = directory or cache_dir()
    path = directory / f"{arch}-{cache_key(arch)}.cubin"
    cached = _read_cached(arch, path)
    return cached or _build(arch, path)


def compile_all(archs: Sequence[str] = ARCHITECTURES, directory: Path | None = None) -> list[Cubin]:
    """Build for several architectures at once."""
    nvrtc_version()  # imports cuda.core before threads do
    with ThreadPoolExecutor(max_workers=os.cpu_count(), thread_name_prefix="gids-nvrtc") as pool:
        return list(pool.map(lambda arch: compile_kernels(arch, directory), archs))


def _read_cached(arch: str, path: Path) -> Cubin | None:
    try:
        code = path.read_bytes()
        record = json.loads(path.with_suffix(".json").read_text())
        if record["sha256"] != hashlib.sha256(code).hexdigest():
            return None  # torn by a crash or a full disk: build it again
        resources = tuple(KernelResources(**entry) for entry in record["resources"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Cubin(arch, code, resources, path, True, tuple(record.get("warnings", ())))


def _build(arch: str, path: Path) -> Cubin:
    core = load_cuda_core()
    source = kernel_dir() / "entry.cu"
    includes = [str(kernel_dir()), *(str(directory) for directory in include_dirs())]
    log = io.StringIO()
    try:
        program = core.Program(
            source.read_text(),
            "c++",
            core.ProgramOptions(name=str(source), include_path=includes, **options(arch)),
        )
        code = program.compile("cubin", logs=log).code
    except Exception as error:  # cuda.core has no public base class of its errors
        raise DeviceError(f"kernels/entry.cu must compile for {arch} with NVRTC {nvrtc_version()}: {error}") from error
    resources, warnings = read_log(log.getvalue())
    directory = path.parent
    directory.mkdir(parents=True, exist_ok=True)
    record = {
        "sha256": hashlib.sha256(code).hexdigest(),
        "resources": [asdict(entry) for entry in resources],
        "warnings": warnings,
    }
    _write_atomically(path, code)
    _write_atomically(path.with_suffix(".json"), json.dumps(record, indent=1).encode())
    return Cubin(arch, code, tuple(resources), path, False, tuple(warnings))


def _write_atomically(path: Path, data: bytes) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_bytes(data)
    temporary.rename(path)


def read_log(log: str) -> tuple[list[KernelResources], list[str]]:
    """Return what each entry point uses, and the warnings, from the compiler's log."""
    warnings = [line for line in log.splitlines() if re.search(r"\bwarning\b", line, re.IGNORECASE)]
    found: list[KernelResources] = []
    for section in log.split("Compiling entry function '")[1:]:
        numbers = {
            name: int(match[1]) if (match := re.search(pattern, section)) else 0
            for name, pattern in (
                ("registers", r"Used (\d+) registers"),
                ("shared_bytes", r"(\d+) bytes smem"),
                ("stack_bytes", r"(\d+) bytes stack frame"),
                ("stores", r"(\d+) bytes spill stores"),
                ("loads", r"(\d+) bytes spill loads"),
            )
        }
        spill = numbers.pop("stores") + numbers.pop("loads")
        found.append(KernelResources(section.split("'", 1)[0], spill_bytes=spill, **numbers))
    return sorted(found, key=lambda entry: entry.kernel), warnings


def resource_table(cubins: Iterable[Cubin]) -> str:
    """Write what each entry point uses as a Markdown table: registers / shared bytes, per architecture."""
    cubins = list(cubins)
    names = sorted({entry.kernel for cubin in cubins for entry in cubin.resources})
    lines = ["| kernel | " + " | ".join(cubin.arch for cubin in cubins) + " |", "| --- |" + " --- |" * len(cubins)]
    for name in names:
        cells = []
        for cubin in cubins:
            entry = next(entry for entry in cubin.resources if entry.kernel == name)
            spills = f" **{entry.spill_bytes} spilled**" if entry.spill_bytes else ""
            cells.append(f"{entry.registers} / {entry.shared_bytes}{spills}")
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)
