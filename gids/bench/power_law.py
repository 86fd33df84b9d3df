"""A power-law graph for benchmarks: in-degrees and popularity of sources both follow rank ** (-2/3)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def power_law_graph(
    num_nodes: int, num_edges: int, seed: int = 0
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Make ``(indptr, indices)`` with about ``num_edges`` edges; hubs have random ids, so ids tell nothing.

    The density of degrees falls as ``degree ** -2.5``, which is usual for citation and web graphs.
    """
    rng = np.random.default_rng(seed)
    label = rng.permutation(num_nodes).astype(np.int32)
    share = (np.arange(1, num_nodes + 1) / num_nodes) ** (-2 / 3)
    degree = np.empty(num_nodes, np.int64)
    degree[label] = np.floor(share * (num_edges / share.sum()) + rng.random(num_nodes))
    indptr = np.zeros(num_nodes + 1, np.int64)
    np.cumsum(degree, out=indptr[1:])
    return indptr, popular_nodes(rng, label, int(indptr[-1]))


def popular_nodes(rng: np.random.Generator, label: npt.NDArray[np.int32], draws: int) -> npt.NDArray[np.int32]:
    """Draw from ``label``, whose first share ``x`` is drawn with probability ``x ** (1 / 3)``."""
    out = np.empty(draws, np.int32)
    piece = 1 << 22
    for begin in range(0, draws, piece):
        u = rng.random(min(piece, draws - begin))
        out[begin : begin + len(u)] = label[(u * u * u * len(label)).astype(np.int64)]
    return out
