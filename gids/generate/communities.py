"""A graph with planted communities: features too noisy to tell the class, neighbours that give it away.

Without blocks the classes are the communities: few and large. With blocks the communities are many and small, as in
real graphs, and a node's class is independent of its block.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from gids import _native
from gids.dataset import Dataset, DatasetWriter
from gids.dataset.table_writer import Progress
from gids.errors import ConfigError
from gids.generate.tables import NodeData, write_csc, write_node_data


def communities(
    path: str | os.PathLike[str],
    *,
    num_nodes: int,
    degree: float = 15.0,
    dim: int = 128,
    num_classes: int = 16,
    homophily: float = 0.6,
    signal: float = 1.5,
    skew: int = 3,
    blocks: int | None = None,
    inside: float = 0.7,
    block_ratio: float = 4.0,
    dtype: str = "float32",
    train: float = 0.1,
    val: float = 0.05,
    test: float = 0.05,
    seed: int = 0,
    overwrite: bool = False,
    stripe_dirs: Sequence[str | os.PathLike[str]] = (),
    progress: Progress | None = None,
    threads: int | None = None,
) -> Dataset:
    """Generate a graph of communities and write it as a dataset.

    Memory does not grow with the number of edges or features. A killed run continues when it is started again with
    the same arguments. Same arguments, same bytes, whatever the number of threads.

    Parameters
    ----------
    path : path-like
        Directory to create.
    num_nodes : int
        Nodes.
    degree : float
        Mean number of in-edges of a node; the degrees follow a power law.
    dim, dtype : int, str
        Of the features.
    num_classes : int
        Classes; without blocks a node's class is its community.
    homophily : float
        Share of in-edges whose source is drawn from the node's own class; the others come from any class.
    signal : float
        Distance of a class centroid from the origin, against noise of variance 1 in every dimension.
    skew : int
        How much edges prefer popular sources: the most popular share ``x`` of a community sends ``x^(1/skew)`` of its
        edges. 1 is no preference.
    blocks : int, optional
        Make this many small communities whose members are of all classes. Offsets of blocks are held in memory.
    inside : float
        With blocks: share of in-edges whose source is drawn from the node's own block; the others come from anywhere.
    block_ratio : float
        With blocks: nodes of the largest block over those of the smallest; sizes grow evenly from one to the other.
    train, val, test : float
        Shares of the nodes in the splits.
    seed : int
        Seed.
    overwrite, stripe_dirs, progress, threads
        As for :class:`gids.DatasetWriter`.
    """
    data = NodeData(dim, dtype, num_classes, signal, train, val, test, seed)
    if num_nodes < num_classes:
        raise ConfigError(f"num_nodes must be at least num_classes = {num_classes} (got {num_nodes})")
    if not 0 <= degree <= num_nodes:
        raise ConfigError(f"degree must be in [0, num_nodes] (got {degree})")
    if not 0 <= homophily <= 1:
        raise ConfigError(f"homophily must be in [0, 1] (got {homophily})")
    if not 1 <= skew <= 8:
        raise ConfigError(f"skew must be in [1, 8] (got {skew})")
    recipe = {"generator": "communities", "num_nodes": num_nodes, "degree": degree, "homophily": homophily}
    recipe |= {"skew": skew, **vars(data)}
    graph: _native.Communities | _native.Blocks
    if blocks is None:
        graph = _native.Communities(num_nodes, num_classes, seed, degree, homophily, skew)
    else:
        if not 0 <= inside <= 1:
            raise ConfigError(f"inside must be in [0, 1] (got {inside})")
        recipe |= {"blocks": blocks, "inside": inside, "block_ratio": block_ratio}
        first = block_offsets(num_nodes, blocks, block_ratio)
        graph = _native.Blocks(first, num_classes, seed, degree, inside, homophily, skew)
    with DatasetWriter(
        path,
        overwrite=overwrite,
        job=recipe | {"stripe_dirs": [str(directory) for directory in stripe_dirs]},
        stripe_dirs=stripe_dirs,
        attributes=recipe,
        progress=progress,
        threads=threads,
    ) as writer:
        pool = writer.pool
        writer.add_nodes(num_nodes)

        def sources(first: int, offsets: np.ndarray, out: np.ndarray) -> None:
            graph.sources(first, offsets, out, pool)

        write_csc(writer, lambda first, out: graph.degrees(first, out, pool), sources)
        write_node_data(writer, data, lambda first, out: graph.labels(first, out, pool))
        return writer.finish()


def block_offsets(num_nodes: int, blocks: int, ratio: float) -> np.ndarray:
    """Return where blocks begin whose sizes grow evenly, and the end of the last: ``int64[blocks + 1]``.

    Only sums, products and quotients: the same on every machine.
    """
    if not 1 <= blocks <= num_nodes:
        raise ConfigError(f"blocks must be in [1, num_nodes = {num_nodes}] (got {blocks})")
    if not ratio >= 1:
        raise ConfigError(f"block_ratio must be at least 1 (got {ratio})")
    number = np.arange(blocks + 1, dtype=np.float64)
    # Block b weighs 1 + growth * b, the last one `ratio`; this is the sum over all blocks before each.
    growth = (ratio - 1) / max(blocks - 1, 1)
    before = number + growth * (number * (number - 1) / 2)
    first: np.ndarray = np.floor(before / before[-1] * num_nodes).astype(np.int64)
    first[-1] = num_nodes
    if int(np.diff(first).min()) < 1:
        raise ConfigError(
            f"blocks must leave every block a node (got {blocks} blocks of ratio {ratio} for {num_nodes} nodes)"
        )
    return first
