"""Sampling alone, in a process of its own: one contender of paper 000's figures; a JSON line per round, one in answer."""

from __future__ import annotations

import json
import mmap
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import gids
from experiments.baselines import page_cache
from gids.errors import GidsError
from gids.report.growth import peak_resident_bytes
from gids.sampling import NeighborSampler, SampleKey, Topology

KINDS = {
    "gids, edges on disk": "direct reads, sorted and merged; the hottest lists in the memory that the limit leaves",
    "gids, edges mapped": "the same sampler over a mapped edge file with MADV_RANDOM: the page cache decides",
    "gids, edges in memory": "the same sampler, all edges loaded",
    "DGL, edges in memory": "DGL's sampler, all edges loaded",
}


def command(spec: dict[str, Any]) -> list[str]:
    return [sys.executable, "-m", "experiments.sampling_worker", json.dumps(spec)]


def open_topology(dataset: gids.Dataset, kind: str, mapped: Path | None = None, budget: str | None = None) -> Topology:
    """Return the graph as a contender has it; ``mapped`` is the file for the one that maps its edges, ``budget`` the memory
    of the one that leaves them on disk, by default what is free.
    """
    if kind == "gids, edges on disk":
        return Topology.from_dataset(dataset, on_disk=True, budget=budget)
    if kind == "gids, edges in memory":
        return Topology.from_dataset(dataset)
    table = dataset.indices_table()
    assert mapped is not None
    page_cache.fill(mapped)
    with mapped.open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    mapping.madvise(mmap.MADV_RANDOM)
    indices = np.frombuffer(mapping, table.dtype, table.num_rows, table.stripes[0].data_offset)
    return Topology.from_arrays(np.array(dataset.indptr()), indices, validate=False)


class Sampling:
    """Samples batches of one graph in one way."""

    def __init__(self, spec: dict[str, Any]):
        self.spec = spec
        self.dataset = gids.open(spec["data"])
        self.seeds = self.dataset.split("train")
        if spec["kind"].startswith("DGL"):
            import dgl

            table = self.dataset.indices_table()
            indices = torch.from_numpy(
                np.fromfile(table.stripes[0].path, table.dtype, table.num_rows, offset=table.stripes[0].data_offset)
            )
            indptr = torch.from_numpy(np.array(self.dataset.indptr())).to(indices.dtype)
            empty = torch.empty(0, dtype=indices.dtype)
            self.graph = dgl.graph(("csc", (indptr, indices, empty)), num_nodes=self.dataset.num_nodes())
            # The fused sampler of DGL 1.1.3 is wrong on int32 graphs, see baselines/dgl_sampling.py.
            self.sampler = dgl.dataloading.NeighborSampler(spec["fanouts"], fused=False)
        else:
            self.topology = open_topology(self.dataset, spec["kind"], Path(spec["mapped"]))
            self.sampler = NeighborSampler(spec["fanouts"])

    def round(self, number: int, batches: int) -> dict[str, Any]:
        """Sample some batches; the sum of the nodes that they need tells that all contenders sampled the same."""
        size, edges, check = self.spec["batch_size"], 0, 0
        begin = time.perf_counter()
        for index in range(batches):
            place = (number * 1000 + index) * size % (len(self.seeds) - size)
            seeds = self.seeds[place : place + size]
            if self.spec["kind"].startswith("DGL"):
                _, _, blocks = self.sampler.sample(self.graph, seeds.to(self.graph.idtype))
                edges += sum(block.num_edges() for block in blocks)
            else:
                sample = self.sampler.sample(self.topology, seeds, SampleKey(0, number, index))
                edges += sample.num_edges
                check += int(sample.input_nodes["_N"].sum())
        return {"edges": edges, "seconds": time.perf_counter() - begin, "check": check}


def main() -> None:
    try:
        sampling = Sampling(json.loads(sys.argv[1]))
        print(json.dumps({"ready": True}), flush=True)
        for line in sys.stdin:
            order = json.loads(line)
            answer = sampling.round(order["number"], order["batches"])
            answer["peak_rss_bytes"] = peak_resident_bytes()
            print(json.dumps(answer), flush=True)
    except GidsError as error:
        print(json.dumps({"error": str(error)}), flush=True)


if __name__ == "__main__":
    main()
