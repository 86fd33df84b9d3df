"""A graph with planted communities: features too noisy to tell the class, neighbours that give it away."""

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
        Communities; a node's label is its community.
    homophily : float
        Share of in-edges whose source is drawn from the node's own community; the others come from anywhere.
    signal : float
        Distance of a class centroid from the origin, against noise of variance 1 in every dimension.
    skew : int
        How much edges prefer popular sources: the most popular share ``x`` of a community sends ``x^(1/skew)`` of its
        edges. 1 is no preference.
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
    graph = _native.Communities(num_nodes, num_classes, seed, degree, homophily, skew)
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
