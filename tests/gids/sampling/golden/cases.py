"""Batches that must never change: graphs by formula, samplers, keys. `python cases.py` writes the files anew."""

import json
import sys
from pathlib import Path

import numpy as np
import torch

from gids.sampling import (
    EdgeSeeds,
    Exclude,
    LadiesSampler,
    NeighborSampler,
    Relation,
    SampleKey,
    ShadowSampler,
    Topology,
)

DIRECTORY = Path(__file__).parent
KEY = SampleKey(seed=0x123456789ABCDEF0, epoch=7, batch=2**33 + 5)


def relation(num_dst, num_src, modulus, dtype=np.int32):
    degrees = np.arange(num_dst) * 7919 % modulus
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    edges = np.arange(indptr[-1])
    weights = ((edges * 40503 + 7) % 17).astype(np.float32)
    return Relation(indptr, (edges * 2654435761 % 2**32 % num_src).astype(dtype), edges[::-1].copy(), weights)


def homogeneous():
    return Topology({"_N": 500}, {("_N", "_E", "_N"): relation(500, 500, 61)})


def heterogeneous():
    return Topology(
        {"paper": 300, "author": 200},
        {
            ("author", "writes", "paper"): relation(300, 200, 23),
            ("paper", "cites", "paper"): relation(300, 300, 41, np.int64),
            ("paper", "by", "author"): relation(200, 300, 13),
        },
    )


NODES = torch.tensor([3, 499, 42, 7, 42, 0])
PAIRS = EdgeSeeds(torch.tensor([3, 42]), torch.tensor([7, 499]), negatives=2, exclude=Exclude.SEEDS_AND_REVERSE)
TYPED = {"paper": torch.tensor([8, 299]), "author": torch.tensor([11])}

#: name -> (topology, sampler, seeds)
CASES = {
    "neighbor": (homogeneous, NeighborSampler([3, 40, 2], edge_ids=True), NODES),
    "all": (homogeneous, NeighborSampler([2, -1], edge_ids=True), NODES),
    "replace": (homogeneous, NeighborSampler([3, 5], replace=True, edge_ids=True), NODES),
    "heterogeneous": (heterogeneous, NeighborSampler([2, 4], edge_ids=True), TYPED),
    "weighted": (homogeneous, NeighborSampler([3, 5], weights=True, edge_ids=True), NODES),
    "weighted-replace": (homogeneous, NeighborSampler([3, 5], weights=True, replace=True, edge_ids=True), NODES),
    "edges": (homogeneous, NeighborSampler([3, 5], edge_ids=True), PAIRS),
    "ladies": (homogeneous, LadiesSampler([12, 9], edge_ids=True, weights=True), NODES),
    "shadow": (heterogeneous, ShadowSampler([2, 3], edge_ids=True), TYPED),
}


def as_json(sample):
    """Every array of a sample, weights as the bits of their float32."""

    def arrays(tensors):
        return None if tensors is None else {"/".join(etype): tensor.tolist() for etype, tensor in tensors.items()}

    def bits(tensors):
        return None if tensors is None else arrays({etype: t.view(torch.int32) for etype, t in tensors.items()})

    return {
        "input_nodes": {ntype: nodes.tolist() for ntype, nodes in sample.input_nodes.items()},
        "seed_rows": {ntype: rows.tolist() for ntype, rows in sample.seed_rows.items()},
        "edges": None if sample.edges is None else [sample.edges.src.tolist(), sample.edges.dst.tolist()],
        "blocks": [
            {
                "num_src": block.num_src,
                "num_dst": block.num_dst,
                "indptr": arrays(block.indptr),
                "src": arrays(block.src),
                "edge_ids": arrays(block.edge_ids),
                "weights": bits(block.weights),
            }
            for block in sample.blocks
        ],
    }


def load(name):
    return json.loads((DIRECTORY / f"{name}.json").read_text())


if __name__ == "__main__":
    for name, (topology, sampler, seeds) in CASES.items():
        text = json.dumps(as_json(sampler.sample(topology(), seeds, KEY)), separators=(",", ":"))
        (DIRECTORY / f"{name}.json").write_text(text + "\n")
        print(name, len(text), file=sys.stderr)
