"""The C++ tests on another processor: built for aarch64 and run under QEMU's user mode. There, without io_uring."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
LIBRARIES = Path("/usr/aarch64-linux-gnu")
# What the emulator does not translate (process_vm_readv, direct reads), and QEMU within QEMU.
LEFT_OUT = "*QEMU*,*qtest*"


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.skipif(shutil.which(COMPILER) is None, reason="g++-aarch64-linux-gnu is not installed")
@pytest.mark.skipif(shutil.which(EMULATOR) is None, reason="qemu-user is not installed")
def test_native_unit_tests_on_aarch64():
    build = ROOT / "build" / "cpp-tests-aarch64"
    headers = build / "include"
    headers.mkdir(parents=True, exist_ok=True)
    if not (headers / "doctest").exists():
        (headers / "doctest").symlink_to("/usr/include/doctest")
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    configure = ["cmake", "-S", ROOT / "cpp", "-B", build, "-GNinja", "-DGIDS_TESTS=ON"]
    configure += ["-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64", f"-DCMAKE_CXX_COMPILER={COMPILER}"]
    configure += [f"-DCMAKE_CXX_FLAGS=-I{headers} -O1", "-DLIBURING_LIBRARY=", "-DLIBURING_INCLUDE="]
    if shutil.which("ccache"):
        configure.append("-DCMAKE_CXX_COMPILER_LAUNCHER=ccache")
    run = [EMULATOR, "-L", LIBRARIES, build / "gids_tests", f"--test-case-exclude={LEFT_OUT}"]
    for command in (configure, ["cmake", "--build", build], run):
        result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert result.returncode == 0, f"{command}\n{result.stdout[-8000:]}\n{result.stderr[-4000:]}"
    assert "FAILED" not in result.stdout
    assert "test cases" in result.stdout
