"""An R-MAT graph: heavy-tailed in and out degrees, the usual stand-in for social and citation graphs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import numpy as np

from gids import _native
from gids.dataset import Dataset, DatasetWriter
from gids.dataset.table_writer import Progress, work_array
from gids.errors import ConfigError
from gids.generate.tables import NodeData, write_csc, write_node_data

#: Nodes whose in-degrees are drawn from one random stream; part of what a seed means.
BLOCK_NODES = 1 << 18


def rmat(
    path: str | os.PathLike[str],
    *,
    num_nodes: int,
    degree: float = 15.0,
    a: float = 0.57,
    b: float = 0.19,
    c: float = 0.19,
    scatter: bool = True,
    dim: int = 128,
    num_classes: int = 16,
    signal: float = 1.5,
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
    """Generate an R-MAT graph and write it as a dataset.

    The number of edges is exactly ``round(num_nodes * degree)``, self-loops and parallel edges included, for any
    number of nodes. Labels are random: use :func:`communities` for a graph that a model can learn from.

    Parameters
    ----------
    path : path-like
        Directory to create.
    num_nodes : int
        Nodes; need not be a power of two.
    degree : float
        Mean number of in-edges.
    a, b, c : float
        Chances of the quadrants (source half, destination half) = (0, 0), (0, 1), (1, 0); the rest is (1, 1). The
        defaults are those of Graph500.
    scatter : bool
        Give nodes random ids, as Graph500 does; otherwise hubs have low ids and neighbours are near each other.
    dim, num_classes, signal, dtype, train, val, test, seed
        As for :func:`communities`.
    overwrite, stripe_dirs, progress, threads
        As for :class:`gids.DatasetWriter`.
    """
    data = NodeData(dim, dtype, num_classes, signal, train, val, test, seed)
    d = 1.0 - a - b - c
    if min(a, b, c, d + 1e-12) < 0 or not 0 < a + c < 1:
        raise ConfigError(f"a, b, c must be chances with 0 < a + c < 1 and a + b + c <= 1 (got {a}, {b}, {c})")
    if num_nodes < 1:
        raise ConfigError(f"num_nodes must be at least 1 (got {num_nodes})")
    if degree < 0:
        raise ConfigError(f"degree must not be negative (got {degree})")
    recipe = {"generator": "rmat", "num_nodes": num_nodes, "degree": degree, "a": a, "b": b, "c": c}
    recipe |= {"scatter": scatter, **vars(data)}
    graph = _native.Rmat(num_nodes, seed, a, b, c, max(d, 0.0), scatter)
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
        in_degrees = work_array(writer.work / "in_degrees", np.uint32, num_nodes)
        for begin, counts in rmat_in_degrees(num_nodes, round(num_nodes * degree), a + c, seed):
            in_degrees[begin : begin + len(counts)] = counts

        def sources(first: int, offsets: np.ndarray, out: np.ndarray) -> None:
            graph.sources(first, offsets, out, pool)

        def labels(first: int, out: np.ndarray) -> None:
            generator = np.random.default_rng([seed, 1, 0])
            generator.bit_generator.advance(first)  # type: ignore[attr-defined]
            out[:] = (generator.random(len(out)) * num_classes).astype(np.int64)

        write_csc(writer, lambda first, out: graph.degrees(first, in_degrees, out, pool), sources)
        write_node_data(writer, data, labels)
        return writer.finish()


def rmat_in_degrees(num_nodes: int, num_edges: int, left: float, seed: int) -> Iterator[tuple[int, np.ndarray]]:
    """Split a number of edges over destinations by halving: yields (first node, in-degrees) of consecutive blocks.

    Every halving of a range of nodes sends a binomial share of its edges to the lower half, with chance ``left`` for an edge:
    exactly the distribution that drawing the edges one by one would give.
    """
    stack = [(0, num_nodes, num_edges, 1)]
    while stack:
        begin, size, count, path = stack.pop()
        if size <= BLOCK_NODES:
            yield begin, _split_block(size, count, left, np.random.default_rng([seed, 2, path]))
            continue
        half = (size + 1) // 2
        lower = int(np.random.default_rng([seed, 3, path]).binomial(count, left))
        stack.append((begin + half, size - half, count - lower, 2 * path + 1))
        stack.append((begin, half, lower, 2 * path))


def _split_block(size: int, count: int, left: float, generator: np.random.Generator) -> np.ndarray:
    sizes, counts = np.array([size]), np.array([count])
    while sizes[0] > 1:
        halves = (sizes + 1) // 2
        # A range of one node has no upper half: all of its edges stay.
        lower = generator.binomial(counts, np.where(sizes > 1, left, 1.0))
        sizes = np.column_stack([halves, sizes - halves]).reshape(-1)
        counts = np.column_stack([lower, counts - lower]).reshape(-1)
        sizes, counts = sizes[sizes > 0], counts[sizes > 0]
    return counts
