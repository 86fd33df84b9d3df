"""Builds the C++ tests under ASan+UBSan and under TSan, and runs them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.timeout(1200)  # two builds of everything, without a compiler cache
@pytest.mark.xdist_group("cpp")
@pytest.mark.parametrize("sanitize", ["address,undefined", "thread"])
def test_cpp(sanitize):
    if not Path("/usr/include/doctest/doctest.h").exists():
        pytest.skip("doctest-dev is not installed")
    build = ROOT / "build" / f"cpp-tests-{sanitize.replace(',', '-')}"
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    configure = ["cmake", "-S", ROOT / "cpp", "-B", build, "-GNinja", "-DGIDS_TESTS=ON", f"-DGIDS_SANITIZE={sanitize}"]
    if shutil.which("ccache"):
        configure.append("-DCMAKE_CXX_COMPILER_LAUNCHER=ccache")
    for command in (configure, ["cmake", "--build", build], [build / "gids_tests"]):
        result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert result.returncode == 0, f"{command}\n{result.stdout[-8000:]}\n{result.stderr[-8000:]}"
    assert "FAILED" not in result.stdout
