"""Partitions of a graph that stays on disk: one pass over its edges, then rounds over a sketch of it in memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from gids import _native
from gids.dataset import Dataset
from gids.partition.lists import NodeNumbers, list_pieces

#: Neighbours of a node that the sketch keeps, 4 bytes each. With 8, 10 and 12 the cut of a graph of 2000 blocks was
#: 1.23, 1.12 and 1.065 times METIS's with three rounds of clustering; two make 1.08 of the last and save a fifth of the
#: time, one of merging instead of two makes 1.10, one of refining 1.15. Small graphs have the time for the third.
WIDTH = 12
CLUSTER_ROUNDS, MERGE_ROUNDS, REFINE_ROUNDS = 2, 2, 2
SMALL_NODES = 1 << 19

Report = Callable[[int], None]  # bytes of neighbour lists that were walked


def work_bytes(dataset: Dataset, passes: int) -> int:
    """Return the bytes of neighbour lists that :func:`stream_parts` walks."""
    lists = sum(dataset.indices_table(etype).total_bytes for etype in dataset.edge_types)
    rounds = _cluster_rounds(dataset.num_nodes()) + MERGE_ROUNDS + REFINE_ROUNDS
    return lists * passes + rounds * _sketch_bytes(dataset)


def _cluster_rounds(num_nodes: int) -> int:
    return CLUSTER_ROUNDS + (num_nodes < SMALL_NODES)


def _sketch_bytes(dataset: Dataset) -> int:
    return dataset.num_nodes() * (WIDTH * 4 + 2)


def stream_parts(
    dataset: Dataset,
    num_parts: int,
    train: npt.NDArray[np.uint8] | None,
    *,
    nodes_of_part: int,
    train_of_part: int,
    passes: int,
    seed: int,
    pool: _native.ThreadPool,
    report: Report,
) -> npt.NDArray[np.int32]:
    """Return the part of every node, numbered over all types: ``int32[nodes]``.

    Parameters
    ----------
    train : array[uint8], optional
        1 for every training node.
    nodes_of_part, train_of_part : int
        Most nodes and training nodes of a part.
    passes : int
        Passes over the edges on disk; each after the first moves nodes to better parts.
    """
    numbers = NodeNumbers.of(dataset)
    partitioner = _native.Partitioner(
        numbers.total, num_parts, train, nodes_of_part, train_of_part, WIDTH, seed & (2**64 - 1)
    )
    for piece, piece_bytes in list_pieces(dataset):
        partitioner.add(piece, pool)
        report(piece_bytes)
    partitioner.finish_sketch()
    round_bytes = _sketch_bytes(dataset)
    for _ in range(_cluster_rounds(numbers.total)):
        partitioner.cluster_nodes(pool)
        report(round_bytes)
    for _ in range(MERGE_ROUNDS):
        partitioner.merge_clusters(pool)
        report(round_bytes)
    partitioner.pack()
    for _ in range(REFINE_ROUNDS):
        partitioner.refine(pool)
        report(round_bytes)
    partitioner.drop_sketch()
    for _ in range(passes - 1):
        for piece, piece_bytes in list_pieces(dataset):
            partitioner.refine_piece(piece, pool)
            report(piece_bytes)
    parts = np.empty(numbers.total, np.int32)
    partitioner.groups(parts)
    return parts
