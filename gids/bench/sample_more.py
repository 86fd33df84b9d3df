"""Further parts of ``gids bench sample``: LABOR beside neighbour sampling, and requests of one and of two clients."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from gids import generate
from gids.bench.harness import Bar, Contender, Report, alternate
from gids.sampling import LaborSampler, NeighborSampler, SampleKey, Sampler, SampleServer, Topology, serve

LABOR_FANOUTS = [10, 10, 10]
REQUEST_FANOUTS = [10, 10]
#: Nodes of a request. From disk one, as in paper 000: the reads of many would keep the drive busy for a single client.
REQUEST_NODES = {"memory": 16, "disk": 1}
LABOR_BATCH = 1024

# Floors of the issue.
CEILING_INPUT_NODES = 0.8
FLOOR_LABOR_RATE = 0.7
FLOOR_CLIENTS = 1.7


def labor_section(report: Report, parent: Path | None, nodes: int, batches: int, rounds: int) -> None:
    """Alternate both samplers over the same seeds of an R-MAT graph; count the input nodes of their batches."""
    with tempfile.TemporaryDirectory(prefix="gids-rmat-", dir=parent) as directory:
        topology = Topology.from_dataset(generate.rmat(Path(directory) / "rmat", num_nodes=nodes, dim=1))
    size = min(LABOR_BATCH, nodes // 4)
    order = torch.from_numpy(np.random.default_rng(1).permutation(nodes))
    seeds = [order[i * size % (nodes - size) :][:size] for i in range(batches)]
    inputs: dict[str, int] = {}

    def run(name: str, sampler: Sampler) -> Contender:
        def work() -> float:
            samples = [sampler.sample(topology, nodes, SampleKey(batch=i)) for i, nodes in enumerate(seeds)]
            inputs[name] = sum(len(sample.input_nodes["_N"]) for sample in samples)
            return sum(sample.num_edges for sample in samples)

        return Contender(name, work)

    names = {"labor": LaborSampler(LABOR_FANOUTS), "neighbour": NeighborSampler(LABOR_FANOUTS)}
    rates = alternate([run(name, sampler) for name, sampler in names.items()], unit="edges", rounds=rounds)
    report.measurements += rates.values()
    ratio = float(np.median([a / b for a, b in zip(rates["labor"].rates, rates["neighbour"].rates, strict=True)]))
    report.bars += [
        Bar(
            "labor: input nodes over neighbour sampling's",
            inputs["labor"] / inputs["neighbour"],
            CEILING_INPUT_NODES,
            lower_is_better=True,
        ),
        Bar("labor: edges/s over neighbour sampling's", ratio, FLOOR_LABOR_RATE),
    ]
    report.extra["labor_input_nodes"] = dict(inputs)


def serve_section(report: Report, topology: Topology, where: str, requests: int, rounds: int) -> None:
    """Alternate one client and two, each of which asks again when it has its answer."""
    with serve(NeighborSampler(REQUEST_FANOUTS), topology) as server:
        names = {count: f"{count} client(s), {where}" for count in (1, 2)}
        seeds = [
            np.random.default_rng(number).integers(0, topology.num_nodes["_N"], (requests, REQUEST_NODES[where]))
            for number in range(max(names))
        ]
        contenders = [Contender(name, lambda c=count: ask(server, seeds[:c])) for count, name in names.items()]  # type: ignore[misc]
        for contender in contenders:
            contender.run()
        rates = alternate(contenders, unit="requests", rounds=2 * rounds)
        report.extra[f"serve_{where}"] = server.stats()
    report.measurements += rates.values()
    pairs = zip(rates[names[2]].rates, rates[names[1]].rates, strict=True)
    report.bars.append(
        Bar(f"serve: 2 clients over 1, {where}", float(np.median([a / b for a, b in pairs])), FLOOR_CLIENTS)
    )


def ask(server: SampleServer, seeds: Sequence[npt.NDArray[np.int64]]) -> float:
    """Let as many clients as there are arrays ask for their rows, one after the other; return how many were answered."""

    def work(number: int) -> None:
        client = server.client()
        for batch, nodes in enumerate(seeds[number]):
            client.sample(nodes, SampleKey(number, 0, batch))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(seeds))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(map(len, seeds))
