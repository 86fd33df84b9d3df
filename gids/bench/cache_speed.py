"""Speed of planning plus gathering against ``torch.index_select``, and of ranking against SciPy."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gids.bench.harness import Bar, Contender, Report, alternate
from gids.dataset import Dataset
from gids.sampling import Topology
from gids.table import RowTable, Stripe
from gids.tiers import TableStore, reverse_pagerank
from gids.tiers.contract import fetch_now

DIM = 256  # float32: rows of 1 KiB
WINDOW = 16


class _Arrived:
    def wait(self) -> None:
        pass

    def cancel(self) -> None:
        pass


class _Memory:
    """A disk that is a tensor: what is measured is everything but the disk."""

    def __init__(self, values: Tensor):
        self._values = values

    def submit(
        self,
        rows: Tensor,
        out: Tensor,
        places: NDArray[np.int32] | None = None,
    ) -> _Arrived:
        assert places is None
        torch.index_select(self._values, 0, rows, out=out)
        return _Arrived()

    def stats(self) -> dict[str, int]:
        return {"reads": 0, "bytes_read": 0}

    def close(self) -> None:
        pass


def gather_rates(num_rows: int, batch_rows: int, rounds: int, ceiling: float, report: Report) -> None:
    """Plan (window of 16) and gather batches that are all in the cache; check every byte once."""
    values = torch.arange(num_rows * DIM, dtype=torch.float32).view(num_rows, DIM)
    stripes = (Stripe(Path("memory"), 0, num_rows),)
    table = RowTable("memory", "float32", DIM, num_rows, DIM * 4, stripes, num_rows)
    generator = torch.Generator().manual_seed(0)
    per_round = 5
    total = per_round * (rounds + 1) + WINDOW
    batches = [torch.randperm(num_rows, generator=generator)[:batch_rows] for _ in range(total)]
    store = TableStore(table, _Memory(values), cache_rows=num_rows, policy="window", window=WINDOW)
    gathered, out = torch.empty(0), torch.empty(batch_rows, DIM)
    fetch_now(store, torch.arange(num_rows))
    at = 0

    def planned() -> float:
        nonlocal at, gathered
        for _ in range(per_round):
            ticket = store.plan(batches[at : at + 1], batches[at + 1 : at + 1 + WINDOW])
            ticket.begin()
            gathered = store.gather(ticket, 0)
            at += 1
        return per_round * batch_rows

    def selected() -> float:
        for batch in batches[:per_round]:
            torch.index_select(values, 0, batch, out=out)
        return per_round * batch_rows

    planned()
    if not torch.equal(gathered, values[batches[at - 1]]) or store.counts()["disk"] != num_rows:
        raise AssertionError("gathered rows differ from the table, or were read twice")
    contenders = [Contender("plan + gather, all cached", planned), Contender("torch.index_select", selected)]
    rates = alternate(contenders, unit="rows", rounds=rounds)
    report.measurements += rates.values()
    ratio = rates["torch.index_select"].median / rates["plan + gather, all cached"].median
    report.bars.append(Bar("plan + gather / torch.index_select, time", ratio, ceiling, lower_is_better=True))


def rank_rates(dataset: Dataset, topology: Topology, rounds: int, report: Report) -> None:
    """One round of reverse PageRank, neighbour lists streamed from disk, against SciPy's product in memory."""
    train = {dataset.node_types[0]: dataset.split("train")}
    etype = dataset.edge_types[0]
    edges = float(dataset.num_edges())
    nodes = dataset.num_nodes()

    def ours() -> float:
        reverse_pagerank(dataset, train, rounds=1)
        return edges

    contenders = [Contender("reverse PageRank, streamed", ours)]
    if importlib.util.find_spec("scipy") is not None:
        from scipy import sparse

        relation: Any = topology.relations[etype]
        ones = np.ones(len(relation.indices))
        matrix = sparse.csc_matrix((ones, relation.indices, relation.indptr), shape=(nodes, nodes))
        degrees = np.maximum(np.diff(relation.indptr), 1)
        value = np.random.default_rng(0).random(nodes)

        def scipy() -> float:
            matrix @ (value / degrees)
            return edges

        contenders.append(Contender("scipy.sparse product, in memory", scipy))
    report.measurements += alternate(contenders, unit="edges", rounds=rounds).values()
