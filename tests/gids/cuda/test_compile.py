"""NVRTC builds every entry point without a warning or a spill, and the disk cache is honest.

For the oldest architecture and the one that the stand-in has; for all of them in ``make test-long``.
"""

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("cuda.core", reason="cuda-core is not installed (tests/requirements.txt brings it)")

from gids.cuda import compile as nvrtc
from gids.errors import ConfigError, DeviceError

#: A block of 256 threads must fit twice on a multiprocessor with 65536 registers.
MAX_REGISTERS = 128
#: Entry points that may keep something in local memory, which is not a spill: a value that an atomic writes back.
STACK_BYTES = {"nvme_submit": 16, "nvme_poll": 16}


SOME = (nvrtc.ARCHITECTURES[0], "sm_90")


@pytest.fixture(scope="module", params=[SOME, pytest.param(nvrtc.ARCHITECTURES, marks=pytest.mark.long)], ids="-".join)
def cubins(request):
    found = nvrtc.compile_all(request.param)
    assert [cubin.arch for cubin in found] == list(request.param)
    return found


@pytest.mark.timeout(900)  # a build takes about 4 s on two quiet cores
@pytest.mark.slow
@pytest.mark.xdist_group("nvrtc")
class TestCompileTable:
    def test_cubins_are_elf_files_for_their_architecture(self, cubins):
        for cubin in cubins:
            assert cubin.code[:4] == b"\x7fELF"
            machine = struct.unpack_from("<H", cubin.code, 18)[0]
            assert machine == 190  # EM_CUDA
            for entry in cubin.resources:
                assert f".text.{entry.kernel}\0".encode() in cubin.code

    def test_no_spills_no_local_memory_and_registers_within_bounds(self, cubins):
        table = nvrtc.resource_table(cubins)
        print(table)
        for cubin in cubins:
            assert cubin.resources, f"no entry point for {cubin.arch}"
            for entry in cubin.resources:
                assert entry.spill_bytes == 0, (cubin.arch, entry)
                assert entry.stack_bytes <= STACK_BYTES.get(entry.kernel, 0), (cubin.arch, entry)
                assert 0 < entry.registers <= MAX_REGISTERS, (cubin.arch, entry)
                assert entry.shared_bytes <= 48 << 10, (cubin.arch, entry)
        assert table.count("\n") == 1 + len(cubins[0].resources)

    def test_the_compiler_warns_of_nothing(self, cubins):
        assert {cubin.arch: cubin.warnings for cubin in cubins if cubin.warnings} == {}

    def test_every_architecture_has_the_same_entry_points(self, cubins):
        names = {tuple(entry.kernel for entry in cubin.resources) for cubin in cubins}
        assert len(names) == 1


def test_second_build_comes_from_the_cache_and_a_torn_file_does_not(tmp_path):
    source = nvrtc.compile_kernels("sm_90")
    for suffix in (".cubin", ".json"):
        (tmp_path / source.path.with_suffix(suffix).name).write_bytes(source.path.with_suffix(suffix).read_bytes())
    again = nvrtc.compile_kernels("sm_90", tmp_path)
    assert again.from_cache
    assert again.code == source.code
    assert again.resources == source.resources
    again.path.write_bytes(source.code[:-1])
    rebuilt = nvrtc.compile_kernels("sm_90", tmp_path)
    assert not rebuilt.from_cache
    assert nvrtc.compile_kernels("sm_90", tmp_path).from_cache
    assert json.loads(rebuilt.path.with_suffix(".json").read_text())["resources"][0]["kernel"]


def test_key_depends_on_source_arch_and_version(tmp_path, monkeypatch):
    keys = {nvrtc.cache_key("sm_90"), nvrtc.cache_key("sm_80")}
    monkeypatch.setattr(nvrtc, "nvrtc_version", lambda: "99.0")
    keys.add(nvrtc.cache_key("sm_90"))
    for path in nvrtc.source_files():
        (tmp_path / path.name).write_text(path.read_text())
    monkeypatch.setattr(nvrtc, "kernel_dir", lambda: tmp_path)
    assert nvrtc.cache_key("sm_90") in keys
    (tmp_path / "exec.cuh").write_text("// changed")
    keys.add(nvrtc.cache_key("sm_90"))
    assert len(keys) == 4


@pytest.fixture
def sources(tmp_path, monkeypatch):
    """Compile other sources than the kernels."""
    monkeypatch.setattr(nvrtc, "kernel_dir", lambda: tmp_path)
    return tmp_path / "entry.cu"


def test_errors_fail_the_build(sources, tmp_path):
    sources.write_text("__global__ void broken( {")
    with pytest.raises(DeviceError, match="must compile for sm_80"):
        nvrtc.compile_kernels("sm_80", tmp_path / "cache")
    assert not list(tmp_path.glob("cache/*.cubin"))


def test_warnings_are_kept_and_fail_nobody_but_ci(sources, tmp_path):
    sources.write_text("__global__ void unused() { int never_used; }")
    for from_cache in (False, True):
        cubin = nvrtc.compile_kernels("sm_80", tmp_path / "cache")
        assert cubin.from_cache == from_cache
        assert any("never_used" in line for line in cubin.warnings)


CUDA_12 = """
import sys
from gids.cuda.compile import compile_all, nvrtc_version
cubins = compile_all(sys.argv[1:])
print(nvrtc_version(), [len(c.resources) for c in cubins], sum(e.spill_bytes for c in cubins for e in c.resources))
"""
CUDA_12_PACKAGES = Path(os.environ.get("GIDS_CUDA12") or Path(sys.prefix) / "cuda12")


@pytest.mark.long
@pytest.mark.xdist_group("nvrtc")
@pytest.mark.timeout(300)
@pytest.mark.skipif(
    not CUDA_12_PACKAGES.is_dir(),
    reason=f"{CUDA_12_PACKAGES} (or GIDS_CUDA12) has no NVRTC 12; make test installs it: NOT COMPILED",
)
@pytest.mark.skipif(
    (torch.version.cuda or "").startswith("13."),
    reason=f"torch {torch.__version__} is built for CUDA 13 and loads NVRTC 13 itself: NVRTC 12 NOT COMPILED",
)
def test_nvrtc_12_compiles_the_kernels_too(cubin_cache):
    environment = os.environ | {"PYTHONPATH": str(CUDA_12_PACKAGES), "GIDS_CACHE_DIR": str(cubin_cache.parent)}
    command = [sys.executable, "-c", CUDA_12, "sm_75", "sm_90"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    kernels = len(nvrtc.compile_kernels("sm_90").resources)
    version, rest = result.stdout.split(maxsplit=1)
    assert version.startswith("12.")
    assert rest.strip() == f"{[kernels] * 2} 0"


def test_arch_must_be_a_real_one():
    with pytest.raises(ConfigError, match="got 'compute_90'"):
        nvrtc.compile_kernels("compute_90")
