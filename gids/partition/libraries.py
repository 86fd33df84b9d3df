"""Partitions by METIS and Mt-KaHyPar, for graphs whose edges fit in memory several times: extra ``gids[partition]``."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gids import _native
from gids.dataset import Dataset
from gids.dataset.rows import as_tensor, read_rows
from gids.errors import ConfigError, GidsError
from gids.partition.lists import NodeNumbers

Ids = npt.NDArray[np.int64]


def undirected(dataset: Dataset) -> tuple[Ids, Ids]:
    """Return the graph of all node types with every edge in both directions and no loops, as offsets and neighbours."""
    numbers = NodeNumbers.of(dataset)
    ends: list[tuple[Ids, Ids]] = []
    for etype in dataset.edge_types:
        table = dataset.indices_table(etype)
        sources = as_tensor(table, read_rows(table)).numpy().astype(np.int64) + numbers.first[etype[0]]
        degrees = np.diff(np.array(dataset.indptr(etype)))
        destinations = np.repeat(np.arange(len(degrees)) + numbers.first[etype[2]], degrees)
        keep = sources != destinations
        ends.append((sources[keep], destinations[keep]))
    begin = np.concatenate([side for pair in ends for side in pair]) if ends else np.empty(0, np.int64)
    end = np.concatenate([side for pair in ends for side in reversed(pair)]) if ends else np.empty(0, np.int64)
    offsets, order = np.empty(numbers.total + 1, np.int64), np.empty(len(begin), np.int64)
    _native.group_by_key(begin, offsets, order)
    return offsets, end[order]


def metis_parts(dataset: Dataset, num_parts: int, *, imbalance: float, seed: int) -> npt.NDArray[np.int32]:
    """Return the part of every node as METIS's k-way partitioning finds it. Balanced in nodes only."""
    try:
        import pymetis
    except ImportError as error:
        raise ConfigError("method 'metis' needs pymetis: pip install 'gids[partition]'") from error
    if num_parts == 1:
        return np.zeros(dataset.num_nodes(), np.int32)
    offsets, neighbors = undirected(dataset)
    options = pymetis.Options(seed=seed % 2**31, ufactor=max(1, round(imbalance * 1000)))
    graph = pymetis.CSRAdjacency(offsets, neighbors)
    try:
        _, parts = pymetis.part_graph(num_parts, graph, options=options, recursive=False)
    except RuntimeError as error:
        raise GidsError(f"METIS could not divide {dataset.path} into {num_parts} parts ({error})") from error
    return np.asarray(parts, np.int32)


def mtkahypar_parts(
    dataset: Dataset, num_parts: int, *, imbalance: float, seed: int, threads: int
) -> npt.NDArray[np.int32]:
    """Return the part of every node as Mt-KaHyPar's default preset finds it. Balanced in nodes only."""
    try:
        import mtkahypar
    except ImportError as error:
        raise ConfigError("method 'mtkahypar' needs mtkahypar: pip install 'gids[partition]'") from error
    if num_parts == 1:
        return np.zeros(dataset.num_nodes(), np.int32)
    offsets, neighbors = undirected(dataset)
    nodes = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    once = nodes < neighbors
    # It does not take parallel edges: an edge weighs as many as there are.
    pairs, weights = np.unique(np.stack([nodes[once], neighbors[once]], 1), axis=0, return_counts=True)
    library = mtkahypar.initialize(threads)
    mtkahypar.set_seed(seed % 2**31)
    # The preset for many parts is the only one that takes thousands of them.
    preset = mtkahypar.PresetType.LARGE_K if num_parts >= 1024 else mtkahypar.PresetType.DEFAULT
    context = library.context_from_preset(preset)
    context.set_partitioning_parameters(num_parts, imbalance, mtkahypar.Objective.CUT)
    context.logging = False
    count = len(offsets) - 1
    graph = library.create_graph(context, count, len(pairs), pairs.tolist(), [1] * count, weights.tolist())
    partitioned = graph.partition(context)
    return np.fromiter((partitioned.block_id(node) for node in range(count)), np.int32, count)
