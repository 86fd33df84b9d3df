"""Make a partition of a dataset: choose the method, balance it, count its cut."""

from __future__ import annotations

import enum
import math
import os
import time

import numpy as np
import numpy.typing as npt

from gids import _native
from gids.dataset import Dataset
from gids.dataset.table_writer import Progress
from gids.errors import ConfigError
from gids.partition.libraries import metis_parts, mtkahypar_parts
from gids.partition.lists import NodeNumbers, list_pieces
from gids.partition.stored import Partition, save, stored_names
from gids.partition.streaming import stream_parts, work_bytes


class Method(enum.Enum):
    """Who partitions."""

    STREAM = "stream"
    METIS = "metis"
    MTKAHYPAR = "mtkahypar"


def make(
    dataset: Dataset,
    parts: int,
    *,
    method: Method | str = Method.STREAM,
    passes: int = 1,
    imbalance: float = 0.05,
    train_imbalance: float = 0.25,
    split: str | None = "train",
    seed: int = 0,
    name: str | None = None,
    store: bool = True,
    overwrite: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Partition:
    """Divide the nodes of a dataset into parts of about equal size with few edges between them, and store that.

    Same arguments, same parts, whatever the number of threads (``mtkahypar`` promises that for one thread only).

    Parameters
    ----------
    dataset : Dataset
        Homogeneous or with several node types; all its edge types count alike.
    parts : int
        Parts, e.g. 10000.
    method : Method or str
        ``"stream"`` reads the edges in order and keeps about 75 bytes for each node in memory. ``"metis"`` and
        ``"mtkahypar"`` hold the whole graph several times and cut a little less; they need the extra
        ``gids[partition]`` and balance nodes only.
    passes : int
        ``"stream"``: passes over the edges. One is enough for most uses; each further one moves nodes to better parts.
    imbalance : float
        How much larger than the mean a part may be, in nodes.
    train_imbalance : float
        The same in training nodes; ``"stream"`` keeps it where it can keep both.
    split : str, optional
        Split that is balanced, of every node type that has it; None for no such balance.
    seed : int
        Decides ties.
    name : str, optional
        Name to store it under; by default the number of parts.
    store, overwrite : bool
        Whether to store it beside the dataset, and whether to replace one of that name.
    threads : int, optional
        All cores by default.
    progress : callable, optional
        As for :class:`gids.DatasetWriter`.
    """
    method = Method(method)
    numbers = NodeNumbers.of(dataset)
    name = str(parts) if name is None else name
    _check(numbers.total, parts, passes, imbalance, train_imbalance, method)
    if store and not overwrite and name in stored_names(dataset):
        raise ConfigError(
            f"partition {name!r} of {dataset.path} exists; choose another name, or overwrite it (overwrite=True, --overwrite)"
        )
    threads = threads or len(os.sched_getaffinity(0))
    pool = _native.ThreadPool(threads, "gids-partition")
    started = time.monotonic()
    train = training_mask(dataset, split)
    num_train = 0 if train is None else int(train.sum())
    counted = sum(dataset.indices_table(etype).total_bytes for etype in dataset.edge_types)
    total, done = (work_bytes(dataset, passes) if method is Method.STREAM else 0) + counted, 0

    def report(walked_bytes: int) -> None:
        nonlocal done
        done += walked_bytes
        if progress is not None:
            progress("partition", min(done, total), total)

    report(0)
    if method is Method.STREAM:
        found = stream_parts(
            dataset,
            parts,
            train,
            nodes_of_part=_limit(numbers.total, parts, imbalance),
            train_of_part=_limit(num_train, parts, train_imbalance),
            passes=passes,
            seed=seed,
            pool=pool,
            report=report,
        )
    elif method is Method.METIS:
        found = metis_parts(dataset, parts, imbalance=imbalance, seed=seed)
    else:
        found = mtkahypar_parts(dataset, parts, imbalance=imbalance, seed=seed, threads=threads)
    seconds = time.monotonic() - started
    cut = 0
    for piece, piece_bytes in list_pieces(dataset):
        cut += _native.count_cut(found, piece, pool)
        report(piece_bytes)
    provenance = {
        "method": method.value,
        "passes": passes if method is Method.STREAM else None,
        "imbalance": imbalance,
        "train_imbalance": train_imbalance if method is Method.STREAM else None,
        "split": split,
        "seed": seed,
        "threads": threads,
        "seconds": round(seconds, 3),
    }
    partition = Partition(numbers.split(found), parts, dataset.id, cut, dataset.num_edges(), provenance)
    if store:
        save(dataset, partition, name, overwrite=overwrite)
    return partition


def training_mask(dataset: Dataset, split: str | None) -> npt.NDArray[np.uint8] | None:
    """Return 1 for every node of a split, over all node types; None where no type has it."""
    nodes = split_nodes(dataset, split)
    if not nodes:
        return None
    numbers = NodeNumbers.of(dataset)
    mask = np.zeros(numbers.total, np.uint8)
    for ntype, ids in nodes.items():
        mask[ids + numbers.first[ntype]] = 1
    return mask


def split_nodes(dataset: Dataset, split: str | None) -> dict[str, npt.NDArray[np.int64]]:
    """Return the ids of a split by node type; nothing where no type has it."""
    if split is None:
        return {}
    types = [ntype for ntype in dataset.node_types if split in dataset.manifest.nodes[ntype].splits]
    return {ntype: dataset.split(split, ntype).numpy() for ntype in types}


def _limit(count: int, parts: int, imbalance: float) -> int:
    # Not below the next whole number: a mean of 0.4 nodes still needs parts that may have one.
    return max(math.ceil(count / parts), math.floor(count / parts * (1 + imbalance)))


def _check(num_nodes: int, parts: int, passes: int, imbalance: float, train_imbalance: float, method: Method) -> None:
    if not 1 <= parts <= num_nodes:
        raise ConfigError(f"parts must be in [1, nodes = {num_nodes}] (got {parts})")
    if passes < 1:
        raise ConfigError(f"passes must be at least 1 (got {passes})")
    if passes > 1 and method is not Method.STREAM:
        raise ConfigError(f"passes is an option of method 'stream' (got {passes} with {method.value!r})")
    for name, value in (("imbalance", imbalance), ("train_imbalance", train_imbalance)):
        if not 0 <= value < 100:
            raise ConfigError(f"{name} must be in [0, 100) (got {value})")
