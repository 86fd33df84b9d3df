"""Paper 000, figure 6, measured: how long single requests for a neighbourhood take."""

from __future__ import annotations

import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments.graphs import edges_only
from experiments.sampling_worker import open_topology
from gids.sampling import NeighborSampler, SampleKey

TITLE = "Paper 000, figure 6: latency of single sampling requests, measured here"
CLAIM = (
    "Of a stream of 1 million requests of one node each, fan-out 20,15,10, on 64 cores, half are done within 1.15 s and 90 % within 2.07 s "
    "(since the stream began: about 430 thousand requests/s)."
)
DIFFERS = (
    "The time of each request by itself, from asking to having the sample, with one and with two clients on two cores; requests of an R-MAT "
    "graph past the page cache, and from memory beside them. The stream's rate stands in the legend; 64 cores are not here."
)
CONFIG = {
    "full": {
        "nodes": 2_000_000,
        "degree": 60.0,
        "fanouts": [20, 15, 10],
        "budget": "32MiB",
        "requests": 1500,
        "clients": [1, 2],
        "rounds": 3,
    },
    "tiny": {
        "nodes": 20_000,
        "degree": 15.0,
        "fanouts": [5, 5],
        "budget": "8MiB",
        "requests": 40,
        "clients": [1, 2],
        "rounds": 1,
    },
}
SECONDS = 25


def run(config: dict) -> dict:
    dataset = edges_only(config["nodes"], config["degree"])
    seeds = dataset.split("train")[: config["requests"]]
    sampler = NeighborSampler(config["fanouts"])
    kinds = ("gids, edges on disk", "gids, edges in memory")
    topologies = {kind: open_topology(dataset, kind, budget=config["budget"]) for kind in kinds}

    def stream(kind: str, clients: int) -> tuple[float, list[tuple[float, int]]]:
        def request(number: int) -> tuple[float, int]:
            begin = time.perf_counter()
            sample = sampler.sample(topologies[kind], seeds[number : number + 1], SampleKey(batch=number))
            return time.perf_counter() - begin, sample.num_edges

        with ThreadPoolExecutor(clients) as pool:
            begin = time.perf_counter()
            answers = list(pool.map(request, range(len(seeds))))
            return time.perf_counter() - begin, answers

    turns = {
        f"{kind}, {clients} client{'s' if clients > 1 else ''}": (kind, clients)
        for kind in topologies
        for clients in config["clients"]
    }
    rounds: dict[str, list[tuple[float, list[tuple[float, int]]]]] = {name: [] for name in turns}
    for number in range(config["rounds"] + 1):
        for name in turns if number % 2 == 0 else reversed(turns):
            answer = stream(*turns[name])
            if number:  # the first touches the memory
                rounds[name].append(answer)
    for topology in topologies.values():
        topology.close()
    results: dict[str, Any] = {}
    for name, streams in rounds.items():
        rates = [len(seeds) / seconds for seconds, _ in streams]
        median = statistics.median(rates)
        latencies = np.array([latency for _, answers in streams for latency, _ in answers]) * 1e3
        results[name] = {
            "requests_per_s": median,
            "mad": statistics.median(abs(rate - median) for rate in rates),
            "edges": sum(edges for _, edges in streams[0][1]),
            "ms": {str(p): float(np.percentile(latencies, p)) for p in (*range(0, 100, 2), 99, 99.9, 100)},
        }
    assert len({r["edges"] for r in results.values()}) == 1, "requests must give the same samples from any place"
    return results


def here(results: dict) -> str:
    parts = [
        f"{name}: half of the requests done within {r['ms']['50']:.2f} ms, 90 % within {r['ms']['90']:.2f} ms, {r['requests_per_s']:,.0f} requests/s"
        for name, r in results.items()
    ]
    return "; ".join(parts) + "."


def draw(results: dict, figure: Figure) -> None:
    axis = figure.subplots()
    for name, result in results.items():
        shares, times = [float(p) for p in result["ms"]], list(result["ms"].values())
        median, tail = result["ms"]["50"], result["ms"]["90"]
        label = f"{name}: {result['requests_per_s']:,.0f}/s, half in {median:.2f} ms, 90 % in {tail:.2f} ms"
        axis.plot(times, shares, label=label)
    axis.set_xscale("log")
    axis.set(xlabel="milliseconds a request", ylabel="% of requests done")
    axis.legend(fontsize=7)
