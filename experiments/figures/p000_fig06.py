"""Paper 000, figure 6, measured: how long single requests for a neighbourhood take."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments.graphs import edges_only
from experiments.sampling_worker import open_topology
from experiments.words import sentence
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
    "full": {"nodes": 2_000_000, "degree": 60.0, "fanouts": [20, 15, 10], "requests": 1500, "clients": [1, 2]},
    "tiny": {"nodes": 20_000, "degree": 15.0, "fanouts": [5, 5], "requests": 40, "clients": [1, 2]},
}
SECONDS = 40


def run(config: dict) -> dict:
    dataset = edges_only(config["nodes"], config["degree"])
    seeds = dataset.split("train")[: config["requests"]]
    sampler = NeighborSampler(config["fanouts"])
    results: dict[str, Any] = {}
    for kind in ("gids, edges on disk", "gids, edges in memory"):
        topology = open_topology(dataset, kind)

        def request(number: int, topology: Any = topology) -> tuple[float, int]:
            begin = time.perf_counter()
            sample = sampler.sample(topology, seeds[number : number + 1], SampleKey(batch=number))
            return time.perf_counter() - begin, sample.num_edges

        for clients in config["clients"]:
            with ThreadPoolExecutor(clients) as pool:
                begin = time.perf_counter()
                answers = list(pool.map(request, range(len(seeds))))
                seconds = time.perf_counter() - begin
            latencies = np.array([latency for latency, _ in answers]) * 1e3
            results[f"{kind}, {clients} client{'s' if clients > 1 else ''}"] = {
                "requests_per_s": len(seeds) / seconds,
                "edges": sum(edges for _, edges in answers),
                "ms": {str(p): float(np.percentile(latencies, p)) for p in (*range(0, 100, 2), 99, 99.9, 100)},
            }
        topology.close()
    assert len({r["edges"] for r in results.values()}) == 1, "requests must give the same samples from any place"
    return results


def here(results: dict) -> str:
    parts = [
        f"{name}: half of the requests done within {r['ms']['50']:.2f} ms, 90 % within {r['ms']['90']:.2f} ms, {r['requests_per_s']:,.0f} requests/s"
        for name, r in results.items()
    ]
    return sentence(*parts)


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
