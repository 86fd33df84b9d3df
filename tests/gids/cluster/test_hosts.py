"""Ranks on hosts with addresses of their own: torchrun's rendezvous, a slow network, a network that is cut, a restart."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gids.bench.hosts import Hosts, refusal
from tests.gids.cluster import rank_script
from tests.gids.cluster.test_ranks import check

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = "tests.gids.cluster.rank_script"
REASON = refusal()
pytestmark = pytest.mark.skipif(bool(REASON), reason=f"no hosts of our own: {REASON}")


def torchrun(hosts, host, *arguments):
    launch = ["--nnodes", str(len(hosts.names)), "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-id", "gids"]
    meet = ["--rdzv-endpoint", f"{hosts.addresses[0]}:29400", "--rdzv-conf", f"is_host={int(host == 0)}"]
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        *launch,
        *meet,
        "--local-addr",
        hosts.addresses[host],
        *arguments,
    ]


def start(hosts, host, command):
    env = os.environ | {"DOORS": "loader"}  # the others are compared in test_ranks
    return hosts.popen(host, command, cwd=ROOT, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def ended(processes, within_s=200):
    errors = [process.communicate(timeout=within_s)[1] for process in processes]
    codes = [process.returncode for process in processes]
    return codes, "\n".join(error[-3000:] for error in errors)


def results(tmp_path):
    return [json.loads(path.read_text()) for path in sorted(tmp_path.glob("result.*"))]


@pytest.mark.slow
def test_two_hosts_on_a_slow_network(graph, parts, tmp_path):
    where = [str(tmp_path / "group"), str(graph.path), str(parts(2)), str(tmp_path / "result"), "close"]
    with Hosts(2, delay_s=0.001, bytes_per_s=125e6) as hosts:
        commands = [[sys.executable, "-m", SCRIPT, str(rank), "2", *where] for rank in range(2)]
        codes, errors = ended([start(hosts, host, command) for host, command in enumerate(commands)])
    assert codes == [0, 0], errors
    for found in results(tmp_path):
        assert found.pop("end") == {"raised": None}
        check(found)


@pytest.mark.long
def test_two_hosts_under_torchrun(graph, parts, tmp_path):
    arguments = ["env", "2", "-", str(graph.path), str(parts(2)), str(tmp_path / "result"), "close"]
    with Hosts(2, delay_s=0.0005, bytes_per_s=125e6) as hosts:
        codes, errors = ended(
            [start(hosts, host, torchrun(hosts, host, "-m", SCRIPT, *arguments)) for host in range(2)]
        )
    assert codes == [0, 0], errors
    for found in results(tmp_path):
        assert found.pop("end") == {"raised": None}
        check(found)


@pytest.mark.long
@pytest.mark.parametrize(("end", "lost"), [("cut", 2), ("die", 1), ("stop", 1)])
def test_every_survivor_of_three_hosts_hears_that_one_is_lost(graph, parts, tmp_path, end, lost):
    """The network of one is cut, its rank is killed, or its rank is slower than the time-out: halted, that is."""
    where = [str(tmp_path / "group"), str(graph.path), str(parts(3)), str(tmp_path / "result"), end]
    with Hosts(3, delay_s=0.001) as hosts:
        ranks = [start(hosts, rank, [sys.executable, "-m", SCRIPT, str(rank), "3", *where]) for rank in range(3)]
        survivors = [rank for rank in range(3) if rank != lost]
        try:
            if end == "cut":
                give_up = time.monotonic() + 200
                while len(list(tmp_path.glob("result.*"))) < 3 and time.monotonic() < give_up:
                    assert all(rank.poll() is None for rank in ranks)
                    time.sleep(0.1)
                hosts.cut(lost)
            codes, errors = ended([ranks[rank] for rank in survivors])
        finally:
            for rank in ranks:
                rank.kill()
                rank.communicate()
    assert codes == [0, 0], errors
    for rank in survivors:
        found = json.loads((tmp_path / f"result.{rank}").read_text())
        raised = found.pop("end")
        check(found)
        assert "is gone or did not answer" in raised["raised"] or "has left" in raised["raised"]
        assert raised["again"] == raised["raised"]
        assert raised["waited_s"] < 4 * rank_script.TIMEOUT_S


@pytest.mark.long
def test_a_restart_delivers_exactly_what_is_left(graph, parts, tmp_path):
    arguments = ["env", "2", "-", str(graph.path), str(parts(2)), str(tmp_path / "result"), "restart"]
    with Hosts(2) as hosts:
        commands = [torchrun(hosts, host, "--max-restarts", "1", "-m", SCRIPT, *arguments) for host in range(2)]
        codes, errors = ended([start(hosts, host, command) for host, command in enumerate(commands)])
    assert codes == [0, 0], errors
    first, second = results(tmp_path)
    assert second["resumed_at"] == 3
    for found in (first, second):
        delivered, whole = found["batches"]
        assert delivered == whole
