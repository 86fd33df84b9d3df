"""The table of contenders: every baseline and every paper's policies on one job under one memory limit."""

from __future__ import annotations

from matplotlib.figure import Figure

from experiments.baselines import CONTENDERS, Job
from experiments.baselines.race import Turn, race
from experiments.graphs import power_law
from experiments.plots import rate_bars
from experiments.words import faster
from gids.bench.epoch import readahead_kib
from gids.units import parse_bytes

TITLE = "Contenders: feature rows per second under one memory limit"
CLAIM = (
    "Paper 004: GIDS is up to 582x (980 Pro) and 17x (Optane) faster than DGL over a mapped file, up to 3.2x faster than BaM and "
    "10.6x-37x than Ginex. Paper 001: GNNDrive is 16.9x faster than PyG over a mapped file and 2.6x than Ginex."
)
DIFFERS = (
    "Two cores and one virtual disk, no GPU; data preparation only, no training step. BaM, GNNDrive, Ginex and GIDS are gids with their policies "
    "on our fast reads (io_uring, deep queues): they show what a policy is worth, not what those systems' code would do here. "
    "Mapped files are measured with MADV_RANDOM, which is kinder than the papers' plain mapping; plain mapping stands beside it with its readahead."
)
CONFIG = {
    "full": {
        "nodes": 1_000_000,
        "fanouts": [10, 10],
        "batch_size": 1024,
        "batches": 48,
        "slow_batches": 2,
        "slow_warm": 6,
        "plain_rows": 1500,
        "rounds": 5,
        "limit": "768MiB",
    },
    "tiny": {
        "nodes": 20_000,
        "fanouts": [5, 5],
        "batch_size": 64,
        "batches": 3,
        "slow_batches": 1,
        "slow_warm": 1,
        "plain_rows": 50,
        "rounds": 1,
        "limit": None,
    },
}
SECONDS = 140


def run(config: dict) -> dict:
    dataset = power_law(config["nodes"])
    limit = parse_bytes(config["limit"]) if config["limit"] else None
    job = Job(
        str(dataset.path),
        config["batch_size"],
        config["batches"],
        config["fanouts"],
        budget=None if limit else 64 << 20,
    )
    turns = []
    for name, kind in CONTENDERS.items():
        if name == "DGL mmap, plain":
            turns.append(Turn(name, job, 1, config["plain_rows"]))
        elif kind.PAGE_CACHE:
            turns.append(Turn(name, job, config["slow_batches"], warm_batches=config["slow_warm"]))
        else:
            turns.append(Turn(name, job, config["batches"]))
    results = race(turns, rounds=config["rounds"], limit_bytes=limit, isolated=limit is not None)
    same = {r["digest"] for name, r in results.items() if CONTENDERS[name].DIRECT and "digest" in r}
    assert len(same) <= 1, f"gids gives other batches under another configuration: {same}"
    table = dataset.feature_table()
    return {
        "contenders": results,
        "table_bytes": table.total_bytes,
        "row_bytes": table.row_bytes,
        "limit_bytes": limit,
        "readahead_kib": readahead_kib(table.stripes[0].path),
    }


def here(results: dict) -> str:
    ran = results["contenders"]
    baseline = "DGL mmap, MADV_RANDOM"
    return (
        f"gids prepares rows {faster(ran, 'gids', baseline)} as fast as DGL over a mapped file with MADV_RANDOM, "
        f"{faster(ran, 'gids', 'PyG memmap')} as PyG, {faster(ran, 'gids', 'GraphBolt')} as GraphBolt and {faster(ran, 'gids', 'pread, one thread')} as one "
        f"thread with pread; {faster(ran, 'gids', 'DGL in memory')} as DGL with everything in memory and no limit. On our reads, GIDS's policy is "
        f"{faster(ran, 'GIDS', baseline)} as fast as DGL over the mapped file, {faster(ran, 'GIDS', 'BaM')} as BaM's and {faster(ran, 'GIDS', 'Ginex')} as Ginex's; GNNDrive's is "
        f"{faster(ran, 'GNNDrive', 'PyG memmap')} as fast as PyG over a mapped file and {faster(ran, 'GNNDrive', 'Ginex')} as Ginex's."
    )


def draw(results: dict, figure: Figure) -> None:
    axis = figure.subplots()
    rate_bars(axis, results["contenders"])
    limit = f"{results['limit_bytes'] / 2**20:.0f} MiB" if results["limit_bytes"] else "none"
    axis.set_title(
        f"table {results['table_bytes'] / 2**20:.0f} MiB, memory limit of each process {limit}, "
        f"readahead {results['readahead_kib']} KiB",
        fontsize=8,
    )
