"""Ranks of one machine have one copy of a graph in memory between them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gids import generate

_RANK = """
import json, os, sys
import torch
import gids
from gids.loader.graph import open_topology
from gids.runtime.options import MemoryOptions, RuntimeOptions
from gids.sampling import NeighborSampler, SampleKey

dataset = gids.open(sys.argv[1])
options = RuntimeOptions(budget="1GiB", memory=MemoryOptions(topology="memory"))
topology = open_topology(dataset, options)
(relation,) = topology.relations.values()
sample = NeighborSampler([5, 5]).sample(topology, torch.arange(50), SampleKey())
maps = {line.split()[-1] for line in open("/proc/self/maps") if "/dev/shm/gids-" in line}
files = {name: os.stat(name).st_ino for name in maps}
print(json.dumps([sorted(files.items()), int(sample.input_nodes["_N"].sum()), topology.resident_bytes()]), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def dataset(tmp_path):
    return generate.rmat(tmp_path / "graph", num_nodes=5000, degree=20, dim=1)


def start(dataset, ranks):
    import os

    environment = os.environ | {"LOCAL_WORLD_SIZE": str(ranks)}
    command = [sys.executable, "-c", _RANK, str(dataset.path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen(command, **pipes, text=True, env=environment)


def test_ranks_map_the_same_memory_and_the_last_removes_it(dataset):
    ranks = [start(dataset, 2) for _ in range(2)]
    alone = start(dataset, 1)
    try:
        (files, check, own), (other_files, other_check, _) = (json.loads(rank.stdout.readline()) for rank in ranks)
        none, alone_check, whole = json.loads(alone.stdout.readline())
        assert files == other_files
        assert len(files) == 2  # offsets and neighbours
        assert none == []
        assert check == other_check == alone_check
        arrays = 8 * 5001 + 4 * dataset.num_edges()
        assert abs((whole - own) - arrays // 2) < 4096
    finally:
        for process in (*ranks, alone):
            process.communicate("")
    assert not [name for name, _ in files if Path(name).exists()]
