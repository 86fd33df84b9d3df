"""One door of ``gids bench doors``, in a process of its own: obeys one JSON line per round, answers with one."""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import gids
from gids._native import give_back_memory
from gids.bench.epoch_worker import check_rows
from gids.errors import ConfigError
from gids.report.growth import peak_resident_bytes

#: What a door yields: the input nodes and their rows.
Rows = Iterator[tuple[torch.Tensor, torch.Tensor]]
#: Takes those out of a door's batch.
AsRows = Callable[[Any], tuple[torch.Tensor, torch.Tensor]]


def as_if_training() -> None:
    """Import what every process that trains has imported, whatever its framework, and nothing that none of them asks for.

    torch imports its compiler with the first optimizer, 80 MB; torch-geometric imports it at once. Where Numba happens to be
    installed, which no extra of gids for a framework does, torch-geometric imports it too: 80 MB of libraries more.
    """
    sys.modules["numba"] = None  # type: ignore[assignment]
    torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.1)


class Door:
    """A loader behind one door, and its batches as (input nodes, rows)."""

    def __init__(self, spec: dict[str, Any]):
        torch.set_num_threads(spec["torch_threads"])
        self.dataset = gids.open(spec["data"])
        self.settings: dict[str, Any] = {
            "budget": spec["budget"],
            "pipeline": gids.PipelineOptions(prefetch=1),
        }
        make = self._maker(spec)
        #: What the framework and the user's own graph take, before there is a loader.
        self.before_bytes = present_bytes()
        self.begun = time.perf_counter()
        self.loader, self._rows = make()

    def _maker(self, spec: dict[str, Any]) -> Callable[[], tuple[Any, AsRows]]:
        """Import the framework and make what the user has already; return what makes the loader."""
        fanouts, size, settings = spec["fanouts"], spec["batch_size"], self.settings
        if spec["contender"] == "gids":
            return lambda: (
                gids.Loader(self.dataset, "train", fanouts=fanouts, batch_size=size, **settings),
                lambda batch: (batch.input_nodes, batch.x),
            )
        if spec["contender"] == "pyg":
            from gids.pyg import NeighborLoader

            return lambda: (
                NeighborLoader(self.dataset, fanouts[::-1], "train", batch_size=size, shuffle=True, **settings),
                lambda data: (data.n_id, data.x),
            )
        import dgl

        from gids.dgl import DataLoader, NeighborSampler

        common = {"batch_size": size, "shuffle": True, **settings}
        if spec["contender"] == "dgl, our sampler":
            ours = NeighborSampler(fanouts, prefetch_node_feats=["feat"], prefetch_labels=["label"])
            return lambda: (DataLoader(self.dataset, "train", ours, **common), _dgl_rows)
        if spec["contender"] == "dgl, its sampler":
            theirs = dgl.dataloading.NeighborSampler(fanouts, prefetch_node_feats=["feat"], fused=False)
            graph = _dgl_graph(self.dataset)
            return lambda: (DataLoader(graph, "train", theirs, gids=self.dataset, **common), _dgl_rows)
        raise ConfigError(f"contender must be a door (got {spec['contender']!r})")

    def batches(self) -> Rows:
        """Yield one epoch."""
        return map(self._rows, iter(self.loader))

    def first_batch(self) -> dict[str, Any]:
        """Take one batch: how long since the loader was begun."""
        nodes, rows = next(self.batches())
        seconds = time.perf_counter() - self.begun
        check_rows(self.dataset, nodes, rows)
        return {"seconds": seconds}

    def round(self, number: int, batches: int) -> dict[str, Any]:
        """Take the first batches of an epoch; what was read ahead of those that follow counts against us."""
        if hasattr(self.loader, "set_epoch"):
            self.loader.set_epoch(number)
        done, begin = 0, time.perf_counter()
        for batch in itertools.islice(self.batches(), batches):
            done += len(batch[0])
        seconds = time.perf_counter() - begin
        check_rows(self.dataset, *batch)
        return {"rows": done, "seconds": seconds}

    def prepare(self, batches: int) -> dict[str, Any]:
        """Let the loader find out what it can: by asking it to, or, of a sampler that is observed, by some batches."""
        done = self.round(0, batches)
        self.loader.prepare()
        return done


def present_bytes() -> int:
    """Memory of this process now, counted as :func:`peak_resident_bytes` counts."""
    give_back_memory()
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) * 1024


def _dgl_rows(batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
    input_nodes, _, blocks = batch
    return input_nodes, blocks[0].srcdata["feat"]


def _dgl_graph(dataset: gids.Dataset) -> Any:
    """Return the dataset's graph as DGL's, in the types that it has on disk."""
    import dgl

    from gids.sampling.load import load_table

    sources = torch.from_numpy(load_table(dataset.indices_table()))
    indptr = torch.from_numpy(dataset.indptr().copy()).to(sources.dtype)
    none = torch.empty(0, dtype=indptr.dtype)
    return dgl.graph(("csc", (indptr, sources, none)), num_nodes=dataset.num_nodes())


def alone(spec: dict[str, Any]) -> dict[str, Any]:
    """Open the topology, sample one batch and read its rows, with nothing else going on."""
    from gids.sampling import NeighborSampler, SampleKey, SeedOrder, Topology
    from gids.storage import RowReader

    dataset = gids.open(spec["data"])
    begin = time.perf_counter()
    topology = Topology.from_dataset(dataset)
    order = SeedOrder(dataset.split("train"), batch_size=spec["batch_size"])
    sample = NeighborSampler(spec["fanouts"]).sample(topology, order[0].nodes, SampleKey(0, 0, 0))
    (nodes,) = sample.input_nodes.values()
    with RowReader(dataset.feature_table()) as reader:
        reader.read(nodes)
    return {"seconds": time.perf_counter() - begin}


def main() -> None:
    """Serve rounds until the input ends."""
    spec = json.loads(sys.argv[1])
    as_if_training()
    door = None if spec["contender"] == "alone" else Door(spec)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        if door is None:
            answer = alone(spec)
        elif order["what"] == "first":
            answer = door.first_batch()
        elif order["what"] == "prepare":
            answer = door.prepare(order["batches"])
        else:
            answer = door.round(order["number"], order["batches"])
        answer["peak_rss_bytes"] = peak_resident_bytes()
        if door is not None:
            answer["before_bytes"] = door.before_bytes
            answer["memory"] = str(door.loader.stats().memory)
            answer["reasons"] = door.loader.stats().reasons
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
