"""GraphBolt's side of the comparison: a program for an interpreter that has dgl 2.1.0 and no gids.

Serves the protocol of ``worker.py``: one JSON line per round, one in answer.
"""

from __future__ import annotations

import json
import mmap
import sys
import time
from pathlib import Path

import dgl.graphbolt as gb
import numpy as np
import page_cache
import torch
from hashing import batch_hash, combine


def mapped(path: str, dtype: str, count: int, offset: int) -> np.ndarray:
    with Path(path).open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE)
    mapping.madvise(mmap.MADV_RANDOM)
    return np.frombuffer(mapping, dtype, count, offset)


class Process:
    def __init__(self, spec: dict):
        self.spec = spec
        path, dtype, count, offset = spec["indices"]
        indices = torch.from_numpy(np.fromfile(path, dtype, count, offset=offset))
        indptr = torch.from_numpy(np.load(spec["indptr"])).to(indices.dtype)
        self.graph = gb.fused_csc_sampling_graph(indptr, indices)
        path, dtype, count, offset = spec["features"]
        rows = mapped(path, dtype, count * spec["dim"], offset).reshape(count, spec["dim"])
        feature = gb.TorchBasedFeature(torch.from_numpy(rows))
        self.store = gb.BasicFeatureStore({("node", None, "feat"): feature})
        self.orders = np.load(spec["orders"])
        self.hashes = np.load(spec["hashes"], mmap_mode="r")
        self.dtype = indices.dtype

    def batches(self, epoch: int, count: int):
        torch.manual_seed(self.spec["seed"] + epoch)
        size = self.spec["batch_size"]
        seeds = torch.from_numpy(self.orders[epoch][: count * size]).to(self.dtype)
        items = gb.ItemSet(seeds, names="seed_nodes")
        pipe = gb.ItemSampler(items, batch_size=size, shuffle=False)
        pipe = pipe.sample_neighbor(self.graph, [torch.tensor([fanout]) for fanout in self.spec["fanouts"]])
        pipe = pipe.fetch_feature(self.store, node_feature_keys=["feat"])
        yield from gb.DataLoader(pipe, num_workers=0)

    def verify(self, batch) -> int:
        digest = batch_hash(batch.node_features["feat"].numpy())
        if digest != combine(self.hashes[batch.input_nodes.numpy()]):
            raise SystemExit("a batch of GraphBolt has other bytes than the file")
        return digest

    def serve(self, order: dict) -> dict:
        if order["what"] == "facts":
            return {}
        if order["rows"] is not None or order["what"] == "train":
            raise SystemExit(f"GraphBolt prepares whole batches and trains nothing here (got {order})")
        if order["what"] == "warm up":
            page_cache.fill(self.spec["features"][0])
            digests = [self.verify(batch) for batch in self.batches(order["number"], order["batches"])]
            return {"digest": f"{combine(np.array(digests, np.uint64)):016x}"}
        rows = 0
        begin = time.perf_counter()
        for batch in self.batches(order["number"], order["batches"]):
            rows += len(batch.node_features["feat"])
        seconds = time.perf_counter() - begin
        self.verify(batch)
        return {"rows": rows, "batches": order["batches"], "seconds": seconds, "stages": {}}


def peak_resident_bytes() -> int:
    """As ``gids.report.growth`` has it, which is not installed here."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmHWM"].split()[0]) * 1024


def main() -> None:
    process = Process(json.loads(sys.argv[1]))
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        answer = process.serve(json.loads(line))
        answer["peak_rss_bytes"] = peak_resident_bytes()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
