"""gids doctor, gids selftest and gids status, as a user runs them."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gids.cli import main
from gids.cli.doctor import direct_io, gpu
from gids.cuda import status
from gids.errors import ConfigError

ROOT = Path(__file__).resolve().parents[3]


def load(path):
    spec = importlib.util.spec_from_file_location(f"{path.parent.name}_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_doctor_finds_everything_and_every_no_has_a_step(tmp_path, capsys):
    names = ["GPU and driver", "CUDA packages", "torch on CUDA", "GPUDirect Storage", "PCI peer-to-peer DMA", "VFIO"]
    names += ["huge pages", "io_uring", "locked memory", "file system", "direct I/O"]
    assert main(["doctor", str(tmp_path), "--json"]) == 0
    findings = json.loads(capsys.readouterr().out)
    assert [finding["name"] for finding in findings][: len(names)] == names
    assert all(finding["name"].startswith("nvme: ") for finding in findings[len(names) :])
    assert all(finding["seen"] for finding in findings)
    assert all(finding["ok"] or finding["step"] for finding in findings)
    assert not list(tmp_path.iterdir())
    assert main(["doctor", str(tmp_path)]) == 0
    assert "to change it" in capsys.readouterr().out


def test_doctor_tells_a_missing_driver_and_an_unwritable_directory(monkeypatch):
    def refuse(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr("gids.cli.doctor.ctypes.CDLL", refuse)
    found = gpu()
    assert not found.ok
    assert "libcuda.so.1: cannot open" in found.seen
    assert "install NVIDIA's driver" in found.step
    assert not direct_io(Path("/proc")).ok


@pytest.mark.slow
def test_selftest_on_the_stand_in_and_the_status_table(tmp_path):
    pytest.importorskip("cuda.core", reason="cuda-core is not installed (tests/requirements.txt brings it)")
    environment = os.environ | {
        "LD_LIBRARY_PATH": str(load(ROOT / "tests" / "standin" / "build.py").build()),
        "GIDS_STANDIN_KERNELS": str(load(ROOT / "tests" / "kernels" / "simt" / "runner.py").build()),
        "GIDS_CACHE_DIR": str(ROOT / "build" / "cache"),
    }
    gids = ROOT / "tests" / "standin" / "fake_torch.py"  # gids, with the calls of torch.cuda that it makes
    command = [sys.executable, gids, "selftest", "--device", "cuda", "--evidence"]
    evidence = ROOT / "build" / "evidence"
    result = subprocess.run([*command, evidence], env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "stand-in" in result.stdout
    record = json.loads((evidence / "selftest-standin.json").read_text())
    assert record["passed"]
    elsewhere = {"storage: nvme"}  # needs drives: tests/nvme/test_device.py records it
    assert {check["name"] for check in record["results"]} >= {f.check for f in status.FEATURES} - elsewhere
    failing = environment | {"GIDS_STANDIN_FAIL": "cuLaunchKernel:0:719"}
    result = subprocess.run([*command, tmp_path], env=failing, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    record = json.loads((tmp_path / "selftest-standin.json").read_text())
    assert {check["name"] for check in record["results"] if check["passed"]} == set()
    assert "FAILED" in result.stdout


def test_one_failed_check_fails_the_selftest(monkeypatch, capsys):
    from gids.cuda.selftest import Result

    results = [Result("a", True, "fine", (), 0.1), Result("b", None, "not run: why", (), 0.0)]
    monkeypatch.setattr("gids.cuda.selftest.run_selftest", lambda *_: ("some GPU", results))
    monkeypatch.setattr("gids.cuda.interop.torch_ordinal", lambda _: 0)  # this process has no driver to ask
    assert main(["selftest"]) == 0
    results.append(Result("c", False, "wrong", (), 0.1))
    assert main(["selftest"]) == 1
    assert "FAILED" in capsys.readouterr().out


def test_a_report_is_two_files(monkeypatch, tmp_path, capsys):
    from gids.bench.cuda_engines import Speed
    from gids.cuda.selftest import Result

    results = [Result("a <b>", True, "fine", (), 0.1), Result("c", False, "wrong & late", (), 0.1)]
    monkeypatch.setattr("gids.cuda.selftest.run_selftest", lambda *_: ("some GPU", results))
    monkeypatch.setattr("gids.cuda.interop.torch_ordinal", lambda _: 0)  # this process has no driver to ask
    speeds = [Speed("uring", 1234567.8, "how"), Speed("gds", None, "kvikio is not installed")]
    monkeypatch.setattr("gids.bench.cuda_engines.measure_engines", lambda *_, **__: speeds)
    assert main(["selftest", "--report", str(tmp_path / "r")]) == 1
    assert "nothing is sent anywhere" in capsys.readouterr().out.replace("\n", " ")
    record = json.loads((tmp_path / "r" / "selftest.json").read_text())
    assert record["speeds"][0]["rows_per_second"] == 1234567.8
    assert {"io_uring", "GPUDirect Storage"} <= {finding["name"] for finding in record["machine"]}
    page = (tmp_path / "r" / "selftest.html").read_text()
    assert "a &lt;b&gt;" in page
    assert "<td class='no'>FAILED</td>" in page
    assert "<td>1,234,568</td>" in page
    assert "<td>not run</td>" in page


def test_status_cells_come_from_evidence(tmp_path):
    from gids.cuda.compile import Cubin, KernelResources

    entry = KernelResources("random_blocks", 20, 0, 0, 0)
    cubins = [Cubin("sm_90", b"", (entry,), tmp_path, True)]

    def row():
        table = status.status_table(cubins, tmp_path)
        return next(line for line in table.splitlines() if "Philox" in line).split(" | ")[1:]

    assert row() == ["1 kernel, 1 of 7 architectures", "not run", "not run", "not run", "not run |"]
    (tmp_path / "lanes-plain-gw0.json").write_text('["random_blocks"]')
    assert row()[1] == "run, not known to be compared"
    (tmp_path / "compared.json").write_text('{"random_blocks": "a test that fails without it"}')
    assert row()[1] == "equal to the CPU"
    (tmp_path / "lanes-thread-main.json").write_text('["random_blocks"]')
    assert row()[1] == "equal to the CPU, no race under TSan"
    (tmp_path / "lanes-ptx-main.json").write_text('["random_blocks"]')
    assert row()[2] == "equal to the CPU, no race"
    check = {"name": "kernels: random numbers", "passed": False}
    (tmp_path / "selftest-standin.json").write_text(json.dumps({"results": [check]}))
    assert row()[3:] == ["**failed**", "not run |"]


def test_the_table_goes_between_its_markers():
    page = f"before\n{status.BEGIN}\nold\n{status.END}\nafter"
    assert status.insert(page, "| new |") == f"before\n{status.BEGIN}\n| new |\n{status.END}\nafter"
    with pytest.raises(ConfigError, match="must have the lines"):
        status.insert("nothing", "| new |")


def test_the_status_page_claims_no_hardware():
    text = (ROOT / "docs" / "status.md").read_text()
    table = text.split(status.BEGIN)[1].split(status.END)[0].strip().splitlines()
    assert [line.split(" | ")[0].strip("| ") for line in table[2:]] == [feature.name for feature in status.FEATURES]
    assert all(line.endswith(f"| {status.NOT_RUN} |") for line in table[2:])
