"""The product's own Python path on the compiler's own code: the stand-in for the driver launches the PTX machine."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ptx_build import OUT, ROOT, build

GIDS = ROOT / "tests" / "standin" / "fake_torch.py"  # gids, with the calls of torch.cuda that it makes
CASES = ROOT / "tests" / "gids" / "cuda" / "standin"


def environment(kernels: Path) -> dict[str, str]:
    """Return the environment of a process whose driver is the stand-in, with kernels of this library."""
    spec = importlib.util.spec_from_file_location("standin_build", ROOT / "tests" / "standin" / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return os.environ | {
        "LD_LIBRARY_PATH": f"{module.build()}:{os.environ.get('LD_LIBRARY_PATH', '')}",
        "GIDS_STANDIN_KERNELS": str(kernels),
        "GIDS_CACHE_DIR": str(ROOT / "build" / "cache"),
    }


def run(kernels, *command):
    return subprocess.run(
        [sys.executable, *command], env=environment(kernels), cwd=ROOT, capture_output=True, text=True, check=False
    )


FILL = """
import numpy as np
from gids.cuda.session import CudaSession, open_device
session = CudaSession(open_device())
array = session.empty(4, np.int64)
session.fill(array, 0)
session.launch("set_values", 4, np.int64(7), np.int64(4), array)
print(session.download(array).tolist())
"""


def test_the_text_decides_what_a_launch_does(tmp_path):
    """A store taken out of the PTX is missing from the result: nothing else computes it."""
    library = build()
    assert "[7, 7, 7, 7]" in run(library, "-c", FILL).stdout
    shutil.copy(library, tmp_path)
    shutil.copy(OUT / "probe.ptx", tmp_path)
    head, rest = (OUT / "entry.ptx").read_text().split(".visible .entry set_values(")
    body, tail = rest.split("\n}\n", 1)
    changed = "\n".join(line for line in body.splitlines() if "st.global" not in line)
    assert changed != body
    (tmp_path / "entry.ptx").write_text(f"{head}.visible .entry set_values({changed}\n}}\n{tail}")
    assert "[0, 0, 0, 0]" in run(tmp_path / library.name, "-c", FILL).stdout


TOUCH = """
import sys
import numpy as np
from gids.cuda.array import DeviceArray
from gids.cuda.blocks import BlockPool
from gids.cuda.session import CudaSession, open_device
BlockPool.keeps = False  # what is asked for is what the driver gives
session = CudaSession(open_device())
table, taken = session.upload(np.arange(8)), session.empty(2, np.int64)
rows = session.upload(np.array([7, int(sys.argv[1])]))
print(hex(table.pointer))
try:
    session.launch("take_values", 2, table, rows, None, np.int64(2), taken)
    print(session.download(taken).tolist())
except Exception as error:
    print(type(error).__name__, error)
"""


def test_every_access_must_be_of_live_memory():
    """A read past the end of an array, which changes nothing that could be checked afterwards, and one within it."""
    library = build()
    assert "[7, 3]" in run(library, "-c", TOUCH, "3").stdout
    for row in (8, 1 << 40):
        result = run(library, "-c", TOUCH, str(row))
        begin, said = result.stdout.split(maxsplit=1)
        assert said.startswith("DeviceError")
        assert "ILLEGAL_ADDRESS" in said
        wrong = f"{int(begin, 16) + 8 * row:#x}, 8 bytes that a kernel touches, are not all in live or pinned memory"
        assert row > 8 or wrong in result.stderr
        assert "take_values: ld.global" in result.stderr


@pytest.mark.slow
@pytest.mark.xdist_group("standin")
def test_a_loader_gives_the_batches_of_the_cpu():
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "python_files=case_*.py"]
    result = run(build(), *command, str(CASES / "case_loader.py"), "-k", "test_every_policy and belady")
    assert result.returncode == 0, f"{result.stdout[-6000:]}\n{result.stderr[-3000:]}"
    assert " passed" in result.stdout


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.xdist_group("standin")
def test_selftest_on_the_compilers_own_code(tmp_path):
    result = run(build(), GIDS, "selftest", "--device", "cuda", "--evidence", str(tmp_path))
    assert result.returncode == 0, result.stdout + result.stderr
    assert "15 of 15 checks passed" in result.stdout
