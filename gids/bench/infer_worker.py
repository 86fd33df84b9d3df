"""One contender of ``gids bench infer``, in a process of its own: obeys one JSON line per round, answers with one."""

from __future__ import annotations

import json
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import gids
from gids.bench.epoch_worker import Mapped
from gids.dataset import Dataset
from gids.infer import Inference, InferOptions
from gids.infer.forecast import forecast
from gids.infer.inorder import InOrderSweep, TileBlock
from gids.infer.layers import evaluating
from gids.infer.run import Opened
from gids.models import GraphSAGE
from gids.report.growth import MemoryMeter, peak_resident_bytes


def make_model(spec: dict[str, Any], dim: int) -> GraphSAGE:
    """Return the model of all contenders, with the same weights."""
    torch.manual_seed(0)
    return GraphSAGE(dim, spec["hidden"], spec["classes"], 2)


class Ours:
    """gids.infer under a budget."""

    def __init__(self, spec: dict[str, Any]):
        self.dataset, self.scattered = gids.open(spec["data"]), gids.open(spec["scattered"])
        self.out = Path(spec["out"])
        self._options = InferOptions(budget=spec["budget"], overwrite=True)
        self._model = make_model(spec, self.dataset.feature_table().dim)
        self.meter = MemoryMeter(interval_s=0.05).__enter__()  # until the process ends

    def _job(self, dataset: Dataset | None = None, scan: bool = False) -> Inference:
        return Inference(self._model, dataset or self.dataset, self.out, replace(self._options, scan=scan))

    def round(self, number: int, tiles: int, rows: int | None) -> dict[str, Any]:
        """Infer for every node."""
        shutil.rmtree(self.out, ignore_errors=True)
        job = self._job()
        job.run()
        return job.facts

    def plan(self) -> dict[str, Any]:
        """Say beforehand what a round takes."""
        return forecast(self._job()).as_dict()

    def without_locality(self) -> dict[str, Any]:
        """Say what a round takes on the graph whose nodes are in no order, and do one by passing over the table."""
        planned = {"needed": forecast(self._job(self.scattered)).as_dict()}
        planned["scan"] = forecast(self._job(self.scattered, scan=True)).as_dict()
        shutil.rmtree(self.out, ignore_errors=True)
        job = self._job(self.scattered, scan=True)
        job.run()
        return {"planned": planned, "scan": job.facts}

    def compute(self, tiles: int) -> dict[str, Any]:
        """Compute some tiles of each layer with their rows in memory, and nothing else; in seconds for all tiles."""
        job, seconds = self._job(), []
        with evaluating(job.model), Opened(job) as opened:
            for plan in opened.plans:
                (of_type,) = plan.types.values()
                sweep = opened.sweep(plan, job.tables)
                assert isinstance(sweep, InOrderSweep)  # one type of edges, and not asked to scan
                division = sweep.divide(of_type.tiles)
                batches = list(division.batches())
                blocks: list[TileBlock] = []
                for batch in batches[:: max(1, len(batches) // tiles)]:
                    blocks += sweep.blocks_of(division, batch)[0][:1]
                took = 0.0
                for place, found in enumerate([blocks[0], *blocks]):
                    x = torch.randn(len(found.nodes), sweep.kind.dim)
                    with torch.inference_mode():
                        begin = time.perf_counter()
                        job.layers[plan.number](sweep.layer_block(found), x)
                        took += time.perf_counter() - begin if place else 0.0
                seconds.append(took / len(blocks) * len(of_type.tiles))
        return {"seconds": sum(seconds), "layers": seconds}


class MappedLayer(Mapped):
    """DGL's layer-wise inference: all in-edges of some destinations after the others, rows from a mapped file."""

    def __init__(self, spec: dict[str, Any]):
        import dgl

        super().__init__(spec | {"fanouts": [-1]})
        self._sampler = dgl.dataloading.MultiLayerFullNeighborSampler(1)
        torch.manual_seed(0)
        self._conv = dgl.nn.SAGEConv(self.features.shape[1], spec["hidden"], "mean")
        self._batch_size = spec["batch_size"]

    def round(self, number: int, batches: int, rows: int | None) -> dict[str, Any]:
        """Compute the first layer for some batches from evenly spaced places on."""
        nodes, done = self.graph.num_nodes(), 0
        begin = time.perf_counter()
        for index in range(batches):
            first = min(index * (nodes // batches), max(0, nodes - self._batch_size))
            seeds = torch.arange(first, min(first + self._batch_size, nodes), dtype=self.graph.idtype)
            sources, _, (block,) = self._sampler.sample(self.graph, seeds)
            x = self.features[sources.long()]
            with torch.inference_mode():
                torch.relu(self._conv(block, (x, x[: len(seeds)])))
            done += len(seeds)
        seconds = time.perf_counter() - begin
        self.rest()  # a page that is mapped stays in memory, and the next round visits the same places
        return {"nodes": done, "seconds": seconds}


def main() -> None:
    """Serve rounds until the input ends."""
    spec = json.loads(sys.argv[1])
    contender: Any = Ours(spec) if spec["contender"] == "gids" else MappedLayer(spec)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        try:
            if order["what"] == "plan":
                answer = contender.plan()
            elif order["what"] == "without locality":
                answer = contender.without_locality()
            elif order["what"] == "compute":
                answer = contender.compute(order["batches"])
            else:
                answer = contender.round(order["number"], order["batches"], order["rows"])
            answer["peak_rss_bytes"] = peak_resident_bytes()
            if isinstance(contender, Ours):
                answer["growth_bytes"] = contender.meter.growth_bytes
        except gids.GidsError as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
