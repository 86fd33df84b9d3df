"""Small datasets with a structure that partitions can find."""

import numpy as np

import gids
from gids import DatasetWriter, generate


def cliques(path, count=6, size=10):
    """Cliques in a ring, ids dealt out in turn: node ``v`` is in clique ``v % count``. A third of each trains."""
    nodes = np.arange(count * size)
    lists = []
    for node in nodes:
        members = [other for other in nodes[node % count :: count] if other != node]
        lists.append([*members, (node - 1) % count] if node < count else members)
    indptr = np.cumsum([0, *map(len, lists)])
    with DatasetWriter(path) as writer:
        writer.add_nodes(len(nodes))
        writer.add_features(np.repeat(nodes[:, None], 3, 1).astype(np.float32))
        writer.add_csc(indptr, np.concatenate(lists))
        writer.add_labels(nodes % 4)
        writer.add_split("train", nodes[nodes // count % 3 == 0][::-1].copy())
        writer.add_split("test", nodes[nodes // count % 3 == 1])
    return gids.open(path)


def blocks(path, **options):
    """A graph of 50 blocks and 5000 nodes."""
    asked = {"num_nodes": 5000, "degree": 12, "dim": 5, "blocks": 50, "inside": 0.8, "seed": 4, "train": 0.2}
    return generate.communities(path, **(asked | options))


def bipartite(path, groups=8, authors=30, papers=20):
    """Authors write papers of their own group and cite none; papers have in-edges from authors and from papers."""
    rng = np.random.default_rng(5)
    num_authors, num_papers = groups * authors, groups * papers
    with DatasetWriter(path) as writer:
        writer.add_nodes(num_authors, "author")
        writer.add_nodes(num_papers, "paper")
        writer.add_features(rng.normal(size=(num_authors, 7)).astype(np.float32), "author")
        writer.add_features(rng.normal(size=(num_papers, 2)).astype(np.float16), "paper")
        offsets = np.arange(num_papers + 1)
        group = np.arange(num_papers) % groups
        writes = group.repeat(6) + groups * rng.integers(0, authors, 6 * num_papers)
        cites = group.repeat(3) + groups * rng.integers(0, papers, 3 * num_papers)
        writer.add_csc(offsets * 6, writes, ("author", "writes", "paper"), edge_ids=rng.permutation(6 * num_papers))
        writer.add_csc(
            offsets * 3, cites.astype(np.int32), ("paper", "cites", "paper"),
            weights=rng.random(3 * num_papers).astype(np.float32),
        )  # fmt: skip
        writer.add_edge_features(
            rng.normal(size=(3 * num_papers, 2)).astype(np.float32), ("paper", "cites", "paper"), "kind"
        )
        writer.add_labels(np.arange(num_papers) % 3, "paper")
        writer.add_split("train", np.arange(0, num_papers, 3), "paper")
    return gids.open(path)
