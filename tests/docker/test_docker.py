"""Container files: linted, and the paths they copy and commands they call exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

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


def test_bench_script_parses():
    subprocess.run(["bash", "-n", ROOT / "docker/bench"], check=True)
