"""Two processes under torchrun: every seed once, gradients in step, one host buffer for both."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.resources import DEADLINE_S


@pytest.mark.slow
def test_torchrun_with_two_processes(graph, tmp_path):
    script = Path(__file__).with_name("ddp_script.py")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*launch, str(script), str(graph.path), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    results = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    # 161 seeds in chunks of 16: ten whole ones, and one seed that only one rank can have.
    for uneven, counts in (("pad", [[11, 11], [11, 11]]), ("join", [[11, 11], [10, 10]])):
        ranks = [result[uneven] for result in results]
        assert [r["world"] for r in ranks] == [2, 2]
        assert [r["counts"] for r in ranks] == counts
        for epoch in range(2):
            assert sorted(ranks[0]["seen"][epoch] + ranks[1]["seen"][epoch]) == list(range(161))
        assert ranks[0]["seen"][0] != ranks[0]["seen"][1]
        assert ranks[0]["weights"] == ranks[1]["weights"]
        assert ranks[0]["host"]["inodes"] == ranks[1]["host"]["inodes"]
        assert len(ranks[0]["host"]["inodes"]) == 3  # the host buffer, offsets and lists of the graph
        assert all(r["host"]["rows"] > 0 for r in ranks)
