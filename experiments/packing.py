"""What paper 002's tables and figures count: batches of two graphs, and the bytes that each layout of their rows takes.

Nothing is timed: every number follows from the sampled batches and from :mod:`gids.pack.layout`, whose layouts are
those of ``gids pack``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.graphs import edges_by_community, edges_only
from gids._native import ThreadPool
from gids.pack import layout
from gids.pack.recipe import Recipe
from gids.sampling import SampleKey

#: A row: 128 float32, as MAG240M and IGB have rows of 512 bytes at half precision and more.
ROW_BYTES = 512
GRAPHS = {"R-MAT": edges_only, "communities": edges_by_community}
Ids = NDArray[Any]


@cache
def batches(graph: str, nodes: int, fanouts: tuple[int, ...], batch_size: int, seeds: int) -> tuple[Ids, ...]:
    """Return the rows, ascending, that each batch of an epoch wants; seeds are spread over the whole graph."""
    dataset = GRAPHS[graph](nodes, 15)
    every = dataset.split("train")
    chosen = every[:: max(1, len(every) // seeds)][:seeds]
    recipe = Recipe(dataset, chosen, fanouts=list(fanouts), batch_size=batch_size)
    topology, pool = recipe.open_topology(), ThreadPool(2, "gids-count")
    found = []
    for piece in recipe.order(0):
        sample = recipe.sampler.sample(topology, piece.seeds, SampleKey(0, 0, piece.global_index), pool)
        (nodes_of,) = sample.input_nodes.values()
        found.append(np.sort(nodes_of.numpy().astype(np.uint32)))
    return tuple(found)


def batches_of(config: dict, graph: str, **changed: Any) -> tuple[Ids, ...]:
    """Return the batches that a config asks for."""
    asked = {name: config[name] for name in ("nodes", "fanouts", "batch_size", "seeds")} | changed
    return batches(graph, **(asked | {"fanouts": tuple(asked["fanouts"])}))


def access_counts(all_batches: Sequence[Ids], nodes: int) -> NDArray[np.uint32]:
    """Count the batches that want each row."""
    counts = np.zeros(nodes, np.uint32)
    for ids in all_batches:
        counts[ids] += np.uint32(1)
    return counts


def without(all_batches: Sequence[Ids], hot: Ids, nodes: int) -> list[Ids]:
    """Return the batches without the rows that memory holds."""
    kept = np.ones(nodes, bool)
    kept[hot] = False
    return [ids[kept[ids]] for ids in all_batches]


def hot_rows(all_batches: Sequence[Ids], nodes: int, share: float) -> Ids:
    """Return the most wanted rows, at most this share of the table."""
    return layout.choose_hot(access_counts(all_batches, nodes), int(share * nodes))


def disk_rows(all_batches: Sequence[Ids], hot: Ids, nodes: int, segment: int = 1) -> int:
    """Count the rows on disk: hot ones, and in each segment every other row once."""
    return len(hot) + layout.distinct_rows(all_batches, segment, hot, nodes)


def page_bytes_of(cold: Sequence[Ids], nodes: int, segment: int) -> list[int]:
    """Return the bytes of pages that each batch reads under a layout with segments of so many batches."""
    found = []
    for begin in range(0, len(cold), segment):
        part = cold[begin : begin + segment]
        laid_out = layout.Segment(part, nodes, seed=begin)
        found += [layout.pages_bytes(laid_out.add(ids)[0], ROW_BYTES) for ids in part]
    return found
