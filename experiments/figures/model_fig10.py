"""Paper 004, figure 10, predicted: effective bandwidth with a constant host buffer."""

from __future__ import annotations

from dataclasses import replace

from matplotlib.figure import Figure

from experiments.model import A100, GEN5, SAMSUNG, Load, effective_bandwidth

TITLE = "Figure 10 as a MODEL (not measured): host buffer of 10 / 20 %"
CLAIM = (
    "IGB-Full, one Optane, 8 GB cache: 6.6 GB/s without a host buffer; with 20 % by reverse PageRank 23.4 GB/s (3.53x), "
    "with 20 % at random 10.4 GB/s."
)
DIFFERS = (
    "A prediction. The shares of rows that a buffer serves are inputs: random x % serves x %; reverse PageRank 20 % serves "
    "2-3.5 times that in our own traces (`gids bench cache`); IGB is not here. The cache's share (12 %) follows from 6.6 of 5.8 GB/s."
)
CACHE_SHARE = 1 - 5.8 / 6.6
#: share of all rows served by the buffer: (low, middle, high)
SERVED = {
    "none": (0.0, 0.0, 0.0),
    "10 % random": (0.10, 0.10, 0.10),
    "20 % random": (0.20, 0.20, 0.20),
    "10 % reverse PageRank": (0.25, 0.35, 0.45),
    "20 % reverse PageRank": (0.40, 0.55, 0.70),
}
PAPER = {"none": 6.6, "20 % random": 10.4, "20 % reverse PageRank": 23.4}
CONFIG = {"full": {"rows": 2**20}, "tiny": {"rows": 2**20}}
SECONDS = 1


def run(config: dict) -> dict:
    machines = {
        "A100 + 1 Optane": A100,
        "A100 + 1 Samsung 980 Pro": replace(A100, drive=SAMSUNG),
        "PCIe 5 GPU + 4 Gen5 drives": replace(A100, drive=GEN5, drives=4, pcie=50e9, hbm=3350e9),
    }
    predicted = {}
    for name, machine in machines.items():
        predicted[name] = {
            buffer: [
                effective_bandwidth(machine, Load(config["rows"], 4096, CACHE_SHARE, share * (1 - CACHE_SHARE))) / 1e9
                for share in shares
            ]
            for buffer, shares in SERVED.items()
        }
    return {"predicted_gb_s": predicted, "paper_optane": PAPER}


def draw(results: dict, figure: Figure) -> None:
    axes = figure.subplots(1, len(results["predicted_gb_s"]))
    for axis, (machine, buffers) in zip(axes, results["predicted_gb_s"].items(), strict=True):
        for i, (low, middle, high) in enumerate(buffers.values()):
            axis.bar(i, middle, 0.7, yerr=[[middle - low], [high - middle]], capsize=3, color="tab:blue")
        if "Optane" in machine:
            for i, buffer in enumerate(buffers):
                if buffer in results["paper_optane"]:
                    axis.plot(i, results["paper_optane"][buffer], "k_", markersize=16)
        axis.set_xticks(range(len(buffers)), list(buffers), rotation=60, ha="right", fontsize=7)
        axis.set_title(machine, fontsize=8)
    axes[0].set_ylabel("effective GB/s (black: the paper)")
