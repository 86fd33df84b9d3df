"""Small graphs, and an independent sampler in plain Python that the native one must agree with bit for bit."""

import numpy as np
import pytest

M32, M64 = (1 << 32) - 1, (1 << 64) - 1


class Oracle:
    """Floyd's algorithm on Philox4x32-10, and numbering by first occurrence, written straight from their definitions."""

    NEIGHBORS, LAYER, NEGATIVES = 1, 2, 3

    @staticmethod
    def philox(key, counter):
        (k0, k1), (c0, c1, c2, c3) = key, counter
        for _ in range(10):
            p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
            c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & M32, (p0 >> 32) ^ c3 ^ k1, p0 & M32
            k0, k1 = (k0 + 0x9E3779B9) & M32, (k1 + 0xBB67AE85) & M32
        return c0, c1, c2, c3

    @classmethod
    def key(cls, seed, epoch, batch, layer, relation, stream):
        a = cls.philox((seed & M32, seed >> 32), (epoch, batch & M32, batch >> 32, stream))
        return cls.philox(a[:2], (a[2], a[3], layer, relation))[:2]

    @classmethod
    def bits(cls, key, node, i):
        w = cls.philox(key, (node & M32, node >> 32, i // 2, 0))
        return w[1] << 32 | w[0] if i % 2 == 0 else w[3] << 32 | w[2]

    @classmethod
    def below(cls, key, node, i, bound):
        return cls.bits(key, node, i) * bound >> 64

    @classmethod
    def choose(cls, key, node, degree, fanout, replace):
        if fanout < 0:
            return list(range(degree))
        if replace:
            return [cls.below(key, node, i, degree) for i in range(fanout)] if degree else []
        if degree <= fanout:
            return list(range(degree))
        chosen = []
        for i in range(fanout):
            pick = cls.below(key, node, i, degree - fanout + i + 1)
            chosen.append(degree - fanout + i if pick in chosen else pick)
        return chosen

    @classmethod
    def sample(cls, graph, seeds, fanouts, key, replace=False):
        """graph: {etype: (indptr, indices)}; returns (nodes by type, blocks outermost first)."""
        number = {ntype: {} for ntype in seeds}
        for ntype, ids in seeds.items():
            for node in ids:
                number[ntype].setdefault(int(node), len(number[ntype]))
        blocks = []
        for hop, fanout in enumerate(reversed(fanouts)):
            frontier = {ntype: list(ids) for ntype, ids in number.items()}
            block = {}
            for r, (etype, (indptr, indices)) in enumerate(graph.items()):
                layer_key = cls.key(*key, hop, r, cls.NEIGHBORS)
                f = fanout[etype] if isinstance(fanout, dict) else fanout
                offsets, sources, positions = [0], [], []
                for node in frontier[etype[2]]:
                    first, degree = int(indptr[node]), int(indptr[node + 1] - indptr[node])
                    for pick in cls.choose(layer_key, node, degree, f, replace):
                        table = number[etype[0]]
                        positions.append(first + pick)
                        sources.append(table.setdefault(int(indices[first + pick]), len(table)))
                    offsets.append(len(sources))
                block[etype] = (offsets, sources, positions)
            blocks.insert(0, block)
        return {ntype: list(ids) for ntype, ids in number.items()}, blocks


@pytest.fixture(scope="session")
def oracle():
    return Oracle


def make_graph(num_dst, num_src, degrees, seed, dtype=np.int32):
    rng = np.random.default_rng(seed)
    indptr = np.concatenate([[0], np.cumsum(rng.choice(degrees, num_dst))]).astype(np.int64)
    return indptr, rng.integers(0, num_src, int(indptr[-1])).astype(dtype)


@pytest.fixture(scope="session")
def homogeneous():
    """300 nodes, degrees from isolated to 90, with self-loops and multi-edges."""
    return make_graph(300, 300, [0, 1, 3, 10, 20, 90], seed=5)


@pytest.fixture(scope="session")
def heterogeneous():
    """Two node types and three relations, one of them without edges."""
    return {"paper": 200, "author": 120}, {
        ("author", "writes", "paper"): make_graph(200, 120, [0, 2, 9, 40], seed=6),
        ("paper", "cites", "paper"): make_graph(200, 200, [1, 5, 30], seed=7, dtype=np.int64),
        ("paper", "by", "author"): (np.zeros(121, np.int64), np.empty(0, np.int32)),
    }
