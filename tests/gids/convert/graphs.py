"""A small random graph, and what a converted dataset must hold: in-edges of every node as a multiset."""

import numpy as np

from gids.dataset.rows import as_tensor, read_rows


def values(table):
    """Read a whole table."""
    return as_tensor(table, read_rows(table))


def random_edges(num_src, num_dst, num_edges, seed=0):
    """Draw edges, some of them parallel."""
    generator = np.random.default_rng(seed)
    return np.stack([generator.integers(0, num_src, num_edges), generator.integers(0, num_dst, num_edges)])


def stored_edges(dataset, etype=None):
    """Edges of a dataset in stored order: ``[2, n]``."""
    indptr = np.asarray(dataset.indptr(etype))
    return np.stack(
        [values(dataset.indices_table(etype)).numpy(), np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))]
    )


def by_destination(edge_index):
    """Sort edges by destination, keeping the order within one."""
    return edge_index[:, np.argsort(edge_index[1], kind="stable")]
