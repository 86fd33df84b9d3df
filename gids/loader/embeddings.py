"""How many embeddings a history keeps where the user does not say: a profile of batches, and the budget's rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gids.budget import Division
from gids.budget.embeddings import EmbeddingSplit, split_embeddings
from gids.budget.parts import cache_bytes
from gids.dataset import Dataset
from gids.loader.graph import open_topology
from gids.runtime.options import HistoryOptions, RuntimeOptions
from gids.sampling import HistorySampler, SampleKey, SeedOrder
from gids.sampling.history import Candidates, seeds_of_orders
from gids.storage import load_curve

#: Windows of batches that are looked at.
WINDOWS = 3
#: Most batches that are looked at, however long the windows are.
MOST_BATCHES = 48


def automatic_nodes(
    dataset: Dataset,
    seeds: Mapping[str, Tensor],
    fanouts: Sequence[Any],
    order: SeedOrder,
    history: HistoryOptions,
    options: RuntimeOptions,
    division: Division,
) -> HistoryOptions:
    """Return the options with a share of nodes that is worth its memory beside cached rows, and the reason.

    Parameters
    ----------
    dataset : Dataset
        The graph.
    seeds : mapping of str to Tensor[int64]
        Where sampling starts.
    fanouts : sequence
        Outermost layer first.
    order : SeedOrder
        Batches to look at.
    history : HistoryOptions
        Age, width and type of the embeddings.
    options : RuntimeOptions
        Seed, and where the graph is.
    division : Division
        Of the budget without embeddings: what it gives to cache and host buffer is shared out anew.
    """
    tables = {t: [dataset.feature_table(t, n) for n in dataset.feature_names(t)] for t in dataset.node_types}
    memory_bytes = division.allotment.cache + division.allotment.host_buffer
    whole = sum(cache_bytes(table.num_rows, table.row_bytes) for found in tables.values() for table in found)
    if memory_bytes >= whole:
        return replace(history, nodes=0.0, reason="no embeddings are stored: every table fits in the cache")
    counts = {ntype: dataset.num_nodes(ntype) for ntype in dataset.node_types}
    every = Candidates({ntype: torch.arange(count) for ntype, count in counts.items()}, counts)
    batches = min(len(order), WINDOWS * (history.max_age + 1), MOST_BATCHES)
    uses, pulls = ({ntype: np.zeros(count, np.int64) for ntype, count in counts.items()} for _ in range(2))
    rows = {0: 0, history.max_age: 0}  # asked for with nothing left out, and with all that may be
    topology = open_topology(dataset, options)
    try:
        for max_age in rows:
            sampler = HistorySampler(fanouts, every, counts, max_age=max_age).following(
                seeds_of_orders(order.for_epoch)
            )
            for number in range(batches):
                batch = order[number]
                sample = sampler.sample(topology, batch.nodes, SampleKey(options.seed, 0, batch.global_index))
                rows[max_age] += sum(map(len, sample.input_nodes.values()))
                assert sample.history is not None
                for ntype, nodes in sample.last_inputs.items():
                    pulls[ntype][nodes[sample.history.pulled[ntype]].numpy()] += 1
                if max_age == 0:
                    for ntype, nodes in sample.input_nodes.items():
                        uses[ntype][nodes.numpy()] += 1
    finally:
        topology.close()
    pulled = sum(int(found.sum()) for found in pulls.values())
    if history.max_age == 0 or not pulled:
        return replace(history, nodes=0.0, reason="no embeddings are stored: batches of a window share no inputs")
    row_bytes = {t: sum(table.row_bytes + 20 for table in found) for t, found in tables.items()}
    first = next((table for found in tables.values() for table in found), None)
    cost = None if first is None else load_curve(first.stripes[0].path).cost
    row_s = 0.0 if cost is None or first is None else cost.per_read_s + first.row_bytes * cost.per_byte_s
    found: EmbeddingSplit = split_embeddings(
        np.concatenate([uses[ntype] for ntype in counts]),
        np.concatenate([np.full(count, max(1, row_bytes[ntype]), np.int64) for ntype, count in counts.items()]),
        np.concatenate([pulls[ntype] for ntype in counts]),
        history.dim * history.dtype.itemsize + 8,
        rows_per_pull=max(0, rows[0] - rows[history.max_age]) / pulled,
        batches=batches,
        memory_bytes=max(0, memory_bytes - every.nbytes),
        row_s=row_s,
    )
    share = found.embeddings / max(1, sum(counts.values()))
    reason = (
        f"embeddings of {found.embeddings} nodes ({share:.1%}) save {1e3 * found.saved_s:.2f} ms of disk time a batch "
        f"beside {found.rows} cached rows, by a profile of {batches} batches"
    )
    return replace(history, nodes=share, reason=reason)
