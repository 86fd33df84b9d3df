"""use_ddp: over two processes every seed is visited once, with features from disk and gradients averaged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.packages import NO_DGL

pytest.importorskip("dgl", reason=NO_DGL)

import dgl

from gids.dataset import Dataset
from tests.resources import DEADLINE_S

ROOT = Path(__file__).resolve().parents[3]

SCRIPT = """
import json, sys, warnings
import dgl, dgl.nn, numpy, torch
import gids
from gids import OrderOptions, PipelineOptions
from gids.dgl import DataLoader
from gids.partition import make
warnings.simplefilter("ignore")
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
(graph,), _ = dgl.load_graphs(sys.argv[1] + "/graph.bin")
sampler = dgl.dataloading.NeighborSampler([3], prefetch_node_feats=["feat"], prefetch_labels=["label"])
loader = DataLoader(
    graph, torch.arange(300), sampler, batch_size=16, shuffle=True, use_ddp=True, ddp_seed=3,
    gids=sys.argv[2], budget="64MiB", pipeline=PipelineOptions(threads=1),
)
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(7, 6))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
seeds = []
for epoch in range(2):
    for input_nodes, output_nodes, blocks in loader:
        x = blocks[0].srcdata["feat"]
        assert torch.equal(x[:, 0], input_nodes.float())
        loss = torch.nn.functional.cross_entropy(model(x[: len(output_nodes)]), blocks[-1].dstdata["label"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seeds.append([epoch, *output_nodes.tolist()])
weights = model.module.weight.flatten().tolist()
loader.close()
# In the order of parts: every rank takes its own seeds part by part.
partition = make(gids.open(sys.argv[2]), 5, store=False, threads=1)
with DataLoader(
    graph, torch.arange(300), sampler, batch_size=16, shuffle=True, use_ddp=True, ddp_seed=3,
    gids=sys.argv[2], budget="64MiB", order=OrderOptions(parts=partition),
) as by_parts:
    ordered = [node for _, output_nodes, _ in by_parts for node in output_nodes.tolist()]
(parts,) = partition.parts.values()
with open(f"{sys.argv[1]}/rank{rank}.json", "w") as file:
    found = {"seeds": seeds, "weights": weights, "ordered": ordered, "parts": parts[ordered].tolist()}
    json.dump(found, file)
torch.distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_two_processes(bare_homogeneous: Any, homogeneous_dataset: Dataset, tmp_path: Path) -> None:
    dgl.save_graphs(str(tmp_path / "graph.bin"), [bare_homogeneous])
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    arguments = [str(tmp_path), str(homogeneous_dataset.path)]
    result = subprocess.run(
        [*command, *arguments], env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert result.returncode == 0, result.stderr[-3000:]
    ranks = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    assert ranks[0]["weights"] == ranks[1]["weights"]
    for epoch in range(2):
        seen = [node for rank in ranks for number, *nodes in rank["seeds"] if number == epoch for node in nodes]
        assert sorted(seen) == list(range(300))
    assert sorted(ranks[0]["ordered"] + ranks[1]["ordered"]) == list(range(300))
    for rank in ranks:
        changes = sum(one != other for one, other in pairwise(rank["parts"]))
        assert changes == len(set(rank["parts"])) - 1 > 0
