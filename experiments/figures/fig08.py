"""Paper 004, figure 8, measured and modelled: accesses in flight against bandwidth."""

from __future__ import annotations

import statistics
import time

import torch
from matplotlib.figure import Figure

from experiments.graphs import power_law
from gids.storage import RowReader, StorageOptions
from gids.table import RowTable, Stripe

TITLE = "Figure 8: overlapping accesses and bandwidth, model and measured here"
CLAIM = (
    "The model of equations 2-3 follows the measured bandwidth of 4 KiB reads; for 95 % of an Optane's peak it asks for 812 overlapping "
    "accesses, 1024 were needed."
)
DIFFERS = (
    "One group of n random 4 KiB reads by io_uring from one CPU thread, at most 512 of them in flight, instead of n GPU threads; a virtual "
    "disk instead of an Optane or a 980 Pro. The model has two constants, taken from the ends of the measured curve (one access alone; the best "
    "rate): everything between is prediction."
)
CONFIG = {
    "full": {"nodes": 1_000_000, "largest": 8192, "seconds": 0.3, "rounds": 3},
    "tiny": {"nodes": 20_000, "largest": 64, "seconds": 0.01, "rounds": 1},
}
SECONDS = 15
BLOCK_BYTES = 4096
MAX_IN_FLIGHT = 512


def run(config: dict) -> dict:
    features = power_law(config["nodes"]).feature_table()
    (stripe,) = features.stripes
    blocks = (features.total_bytes - BLOCK_BYTES) // BLOCK_BYTES
    start = -(-stripe.data_offset // BLOCK_BYTES) * BLOCK_BYTES
    table = RowTable(
        "blocks", "float32", BLOCK_BYTES // 4, blocks, BLOCK_BYTES, (Stripe(stripe.path, start, blocks),), blocks
    )
    counts = [2**power for power in range(config["largest"].bit_length())]
    options = StorageOptions(queue_depth=min(MAX_IN_FLIGHT, counts[-1]), merge_gap_bytes=0)
    rates: dict[int, list[float]] = {count: [] for count in counts}
    out = torch.empty(counts[-1], table.dim)
    generator = torch.Generator().manual_seed(0)
    with RowReader(table, options) as reader:
        for number in range(config["rounds"]):
            for count in counts if number % 2 == 0 else reversed(counts):
                done, begin = 0, time.perf_counter()
                while (elapsed := time.perf_counter() - begin) < config["seconds"] or not done:
                    reader.read(torch.randint(blocks, (count,), generator=generator), out[:count])
                    done += count
                rates[count].append(done / elapsed)
        engine = reader.engine
    measured = {count: statistics.median(values) for count, values in rates.items()}
    spread = {c: statistics.median(abs(v - measured[c]) for v in values) for c, values in rates.items()}
    peak = max(measured.values())
    overhead = 1 / measured[1] - 1 / peak
    model = {count: count / (count / peak + overhead) for count in counts}
    return {
        "engine": engine,
        "accesses": counts,
        "measured_iops": list(measured.values()),
        "mad_iops": list(spread.values()),
        "model_iops": list(model.values()),
        "peak_iops": peak,
        "overhead_us": overhead * 1e6,
        "needed_for_95_percent": {
            "model": overhead * peak * 19,
            "measured": next(count for count in counts if measured[count] >= 0.95 * peak),
        },
        "worst_error": max(abs(model[c] / measured[c] - 1) for c in counts),
    }


def here(results: dict) -> str:
    needed = results["needed_for_95_percent"]
    return (
        f"The best rate is {results['peak_iops']:,.0f} reads/s; for 95 % of it the model asks for {needed['model']:.0f} overlapping accesses, "
        f"{needed['measured']} were needed (powers of two were tried). Between the two points that it takes its constants from, the model is off by at most "
        f"{results['worst_error']:.0%}."
    )


def draw(results: dict, figure: Figure) -> None:
    axis = figure.subplots()
    gigabytes = BLOCK_BYTES / 1e9
    axis.errorbar(
        results["accesses"],
        [rate * gigabytes for rate in results["measured_iops"]],
        [rate * gigabytes for rate in results["mad_iops"]],
        fmt="o-",
        capsize=3,
        label="measured",
    )
    axis.plot(results["accesses"], [rate * gigabytes for rate in results["model_iops"]], "k--", label="model")
    axis.set_xscale("log", base=2)
    needed = results["needed_for_95_percent"]
    axis.set(
        xlabel=f"accesses of a group (95 % of the peak: model {needed['model']:.0f}, measured {needed['measured']})",
        ylabel="GB/s of 4 KiB reads",
    )
    axis.legend()
