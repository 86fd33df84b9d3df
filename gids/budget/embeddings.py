"""Memory between cached feature rows and stored embeddings: whichever saves more disk time per byte (OUTRE, section IV)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class EmbeddingSplit:
    """How memory for rows is shared.

    Attributes
    ----------
    embeddings, rows : int
        How many of each are worth their memory.
    saved_s : float
        Seconds of disk time that the embeddings save in a batch.
    """

    embeddings: int
    rows: int
    saved_s: float


def split_embeddings(
    row_uses: npt.NDArray[np.int64],
    row_bytes: npt.NDArray[np.int64],
    pulls: npt.NDArray[np.int64],
    embedding_bytes: int,
    *,
    rows_per_pull: float,
    batches: int,
    memory_bytes: int,
    row_s: float,
) -> EmbeddingSplit:
    """Share memory out by benefit per byte.

    A row that ``a`` of the profile's batches use saves ``a - 1`` reads where it is cached; an embedding that ``b`` of them
    pull saves ``rows_per_pull * b`` reads, those of the subtree that is not expanded. Both are disk time, ``row_s`` for
    each read, so what is taken first is what saves more of it per byte, until the memory is used up.

    Parameters
    ----------
    row_uses, row_bytes : int64[nodes]
        Batches that use each node's rows, and what they take in the cache.
    pulls : int64[nodes]
        Batches that would pull each node's embedding.
    embedding_bytes : int
        Memory of one embedding.
    rows_per_pull : float
        Rows that a batch does not ask for because of one pull.
    batches : int
        Of the profile.
    memory_bytes : int
        To share out.
    row_s : float
        Disk time of one row.
    """
    saved = np.concatenate([np.maximum(row_uses - 1, 0).astype(np.float64), pulls * rows_per_pull])
    sizes = np.concatenate([row_bytes, np.full(len(pulls), embedding_bytes, np.int64)])
    worth = np.flatnonzero(saved > 0)
    order = worth[np.argsort(-(saved[worth] / sizes[worth]), kind="stable")]
    taken = order[np.cumsum(sizes[order]) <= memory_bytes]
    embeddings = taken[taken >= len(row_uses)]
    saved_s = float(saved[embeddings].sum()) * row_s / max(batches, 1)
    return EmbeddingSplit(len(embeddings), len(taken) - len(embeddings), saved_s)
