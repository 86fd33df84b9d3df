"""Two processes that hold half of every table each: the batches of whole tables to the bit; a rank that dies is named."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gids.cluster import rank_script
from tests.resources import DEADLINE_S

ROOT = Path(__file__).resolve().parents[3]


def check(found):
    """What every rank must have seen before its last epoch."""
    for door, (split, whole) in found.items():
        batches = split["batches"] if door == "loader" else split
        assert batches == (whole["batches"] if door == "loader" else whole), door
        assert len(batches) > 2
    split, whole = found["loader"]
    assert whole["exchange"] is None
    for name in ("rows_asked", "rows_answered", "bytes_received", "bytes_sent"):
        assert split["exchange"][name] > 0
    # Host buffer and cache hold rows of either node: those are not asked for again.
    served = split["served"]["_N/feat"]
    assert all(count > 0 for count in served)


def run(graph, parts, tmp_path, end):
    command = [sys.executable, "-m", "tests.gids.cluster.rank_script"]
    where = [str(tmp_path / "group"), str(graph.path), str(parts(2)), str(tmp_path / "result"), end]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), "2", *where], cwd=ROOT, stderr=subprocess.PIPE, text=True, env=os.environ
        )
        for rank in range(2)
    ]
    try:
        errors = [ranks[0].communicate(timeout=DEADLINE_S)[1]]
        if end == "stop":
            ranks[1].send_signal(signal.SIGKILL)
        errors.append(ranks[1].communicate(timeout=DEADLINE_S)[1])
    finally:
        for rank in ranks:
            rank.kill()
    return (
        [rank.returncode for rank in ranks],
        errors,
        [json.loads(path.read_text()) for path in sorted(tmp_path.glob("result.*"))],
    )


@pytest.mark.slow
def test_batches_of_split_tables_and_a_rank_that_dies(graph, parts, tmp_path):
    codes, errors, results = run(graph, parts, tmp_path, "die")
    assert codes == [0, -signal.SIGKILL], "\n".join(error[-3000:] for error in errors)
    first, second = results
    end = first.pop("end")
    check(first)
    check(second)
    assert first["loader"][0]["batches"] != second["loader"][0]["batches"]
    assert end["raised"].startswith("rank 0 on ")
    assert "rank 1 on " in end["raised"]
    assert end["again"] == end["raised"]
    assert end["waited_s"] < 2 * rank_script.TIMEOUT_S + 5  # in fact at once: its connections are gone


@pytest.mark.long
def test_a_rank_that_is_halted_ends_the_waiting(graph, parts, tmp_path):
    codes, errors, results = run(graph, parts, tmp_path, "stop")
    assert codes == [0, -signal.SIGKILL], "\n".join(error[-3000:] for error in errors)
    end = results[0]["end"]
    assert "did not answer within 5 s" in end["raised"]
    assert end["waited_s"] < 4 * rank_script.TIMEOUT_S


@pytest.mark.long
def test_ranks_that_close_together_end_in_good_order(graph, parts, tmp_path):
    codes, errors, results = run(graph, parts, tmp_path, "close")
    assert codes == [0, 0], "\n".join(error[-3000:] for error in errors)
    assert [result["end"]["raised"] for result in results] == [None, None]


@pytest.mark.long
def test_the_example_trains_under_torchrun(parts, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    launch = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    meet = ["--master-addr", "127.0.0.1", "--master-port", port, "--node-rank"]
    script = str(ROOT / "docs" / "examples" / "cluster" / "train_sharded.py")
    nodes = [
        subprocess.Popen(
            [*launch, *meet, str(node), script, str(parts(2) / str(node)), str(tmp_path)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        for node in range(2)
    ]
    said = [node.communicate(timeout=DEADLINE_S) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], said
    for rank, (out, _) in enumerate(said):
        assert out.startswith(f"rank {rank}: loss ")
        assert "'rows_asked'" in out
        assert (tmp_path / f"rank{rank}.pt").exists()


@pytest.mark.long
def test_the_example_trains_under_ray_train(graph, tmp_path, monkeypatch):
    pytest.importorskip("ray", reason="ray is not installed: pip install 'gids[ray]'")
    packages = Path(sys.prefix) / "ray-train"  # see the Makefile
    if not packages.is_dir():
        pytest.skip(f"Ray Train's packages are not in {packages}: make test-long ONLY=tests/gids/cluster")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{packages}")
    monkeypatch.setenv("HOME", str(tmp_path))  # where Ray Train keeps what it says about its runs
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=1)  # one worker a node: Ray takes them for two machines
        script = ROOT / "docs" / "examples" / "cluster" / "train_sharded_ray.py"
        environment = {"RAY_ADDRESS": cluster.address, "GLOO_SOCKET_IFNAME": "lo", "RAY_DEDUP_LOGS": "0"}
        done = subprocess.run(
            [sys.executable, str(script), str(graph.path), "2"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            env=os.environ | environment,
            check=False,
        )
    finally:
        cluster.shutdown()
    assert done.returncode == 0, done.stderr[-3000:]
    said = done.stdout + done.stderr
    for rank in range(2):
        assert re.search(rf"rank {rank}: loss [0-9.]+, .*'rows_asked': [1-9]", said), said[-3000:]
