"""Container files: linted, and the paths they copy and commands they call exist."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.resources import DEADLINE_S

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILES = sorted((ROOT / "docker").glob("Dockerfile.*"))


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_hadolint_has_nothing_to_say(dockerfile):
    result = subprocess.run(
        [Path(sys.executable).parent / "hadolint", dockerfile], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_copied_paths_exist(dockerfile):
    for line in re.findall(r"^COPY (?!--from)(.+) \S+$", dockerfile.read_text(), re.MULTILINE):
        for source in line.split():
            assert (ROOT / source).exists(), source


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_last_user_is_not_root(dockerfile):
    users = re.findall(r"^USER (\S+)$", dockerfile.read_text(), re.MULTILINE)
    assert users[-1] == "1000"


def test_compose_services_use_files_that_exist():
    services = yaml.safe_load((ROOT / "docker/compose.yaml").read_text())["services"]
    assert set(services) == {"bench", "bench-uring", "selftest-cuda"}
    for service in services.values():
        assert (ROOT / service["build"]["dockerfile"]).exists()


@pytest.mark.parametrize("script", ["bench", "build-here"])
def test_scripts_parse(script):
    subprocess.run(["bash", "-n", ROOT / "docker" / script], check=True)


def run_script(*command):
    return subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=False, timeout=DEADLINE_S
    )


def test_bench_names_a_folder_that_it_cannot_write_to():
    if Path("/data").exists():
        pytest.skip("this machine has a /data of its own")
    result = run_script(ROOT / "docker/bench", "--quick", "disk")
    assert result.returncode == 1
    assert "/data must be writable for user" in result.stderr


def test_build_here_refuses_what_it_does_not_know():
    result = run_script(ROOT / "docker/build-here", "--fast")
    assert result.returncode == 2
    assert "option must be --keep, --cuda or --until (got --fast)" in result.stderr
    result = run_script(ROOT / "docker/build-here", "--until", "dinner")
    assert result.returncode == 2
    assert "--until must be base or image (got dinner)" in result.stderr


def test_the_profile_forbids_io_uring_and_nothing_else():
    profile = json.loads((ROOT / "docker/no-io-uring.json").read_text())
    assert profile["defaultAction"] == "SCMP_ACT_ALLOW"
    (rule,) = profile["syscalls"]
    assert {name.rpartition("_")[0] for name in rule["names"]} == {"io_uring"}
    assert rule["errnoRet"] == 1  # EPERM, as Docker answers


def test_settings_of_the_building_machine_stay_out_of_the_image():
    for dockerfile in DOCKERFILES:
        text = dockerfile.read_text()
        for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_CERT"):
            assert re.search(rf"^ARG {name}$", text, re.MULTILINE), (dockerfile.name, name)
            assert not re.search(rf"^ENV .*{name}", text, re.MULTILINE), (dockerfile.name, name)
