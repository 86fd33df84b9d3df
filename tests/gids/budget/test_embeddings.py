"""Memory between cached rows and embeddings, by hand."""

import numpy as np

from gids.budget.embeddings import EmbeddingSplit, split_embeddings

#: Node 0 is used by five batches, node 1 by two, node 2 by one; the embedding of node 2 would be pulled four times.
USES, PULLS = np.array([5, 2, 1]), np.array([0, 1, 4])


def split(memory_bytes, embedding_bytes=100, rows_per_pull=2.0):
    return split_embeddings(
        USES, np.full(3, 100), PULLS, embedding_bytes,
        rows_per_pull=rows_per_pull, batches=4, memory_bytes=memory_bytes, row_s=0.5,
    )  # fmt: skip


def test_what_saves_more_per_byte_comes_first():
    # Savings: embedding of node 2 eight rows, row 0 four, embedding of node 1 two, row 1 one; row 2 none.
    assert split(99) == EmbeddingSplit(0, 0, 0.0)
    assert split(100) == EmbeddingSplit(1, 0, 1.0)
    assert split(200) == EmbeddingSplit(1, 1, 1.0)
    assert split(300) == EmbeddingSplit(2, 1, 1.25)
    assert split(10_000) == EmbeddingSplit(2, 2, 1.25)


def test_wide_embeddings_and_small_subtrees_give_way():
    assert split(200, embedding_bytes=400) == EmbeddingSplit(0, 1, 0.0)  # the embedding that is next does not fit
    assert split(200, rows_per_pull=0.1) == EmbeddingSplit(0, 2, 0.0)
    assert split(10_000, rows_per_pull=0.0) == EmbeddingSplit(0, 2, 0.0)
