"""A knowledge graph with skewed degrees and relations: communities of entities, popular tails, few frequent relations."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np

from gids import _native
from gids.convert.kg.write import KgOptions, Piece, TripleSource, write_triples
from gids.dataset import Dataset
from gids.errors import ConfigError

#: Heads drawn at a time; part of what a seed means.
STEP_ENTITIES = 1 << 17


class GeneratedTriples(TripleSource):
    """Triples as a pure function of (seed, head): heads in order, tails drawn as sources of a graph of communities."""

    format = "generated"

    def __init__(
        self,
        num_entities: int,
        num_relations: int,
        degree: float,
        communities: int,
        locality: float,
        skew: int,
        relation_skew: float,
        seed: int,
        threads: int | None,
    ):
        super().__init__()
        self.files = []
        self.num_entities, self.num_relations = num_entities, num_relations
        self._graph = _native.Communities(num_entities, communities, seed, degree, locality, skew)
        self._pool = _native.ThreadPool(threads or len(os.sched_getaffinity(0)), "gids-generate")
        self._relation_skew, self._seed = relation_skew, seed

    def read(self) -> Iterator[Piece]:
        """Yield the triples of ranges of heads."""
        assert self.num_entities is not None
        assert self.num_relations is not None
        for begin in range(0, self.num_entities, STEP_ENTITIES):
            heads = np.arange(begin, min(begin + STEP_ENTITIES, self.num_entities), dtype=np.int32)
            offsets = np.zeros(len(heads) + 1, np.int64)
            self._graph.degrees(begin, offsets[1:], self._pool)
            degrees = offsets[1:].copy()
            np.cumsum(offsets, out=offsets)
            tails = np.empty(int(offsets[-1]), np.int64)
            self._graph.sources(begin, offsets, tails, self._pool)
            lots = np.random.default_rng([self._seed, 5, begin]).random(len(tails))
            relations = (self.num_relations * lots**self._relation_skew).astype(np.int32)
            triples = np.column_stack([np.repeat(heads, degrees), relations, tails.astype(np.int32)])
            yield Piece(triples, True, "train")


def knowledge(
    path: str | os.PathLike[str],
    *,
    num_entities: int,
    num_relations: int = 64,
    degree: float = 8.0,
    communities: int | None = None,
    locality: float = 0.8,
    skew: int = 2,
    relation_skew: float = 3.0,
    options: KgOptions | None = None,
) -> Dataset:
    """Generate a knowledge graph and write it as a dataset.

    About ``num_entities * degree`` triples, less those drawn twice. Memory does not grow with the triples. A killed run
    continues when it is started again with the same arguments.

    Parameters
    ----------
    path : path-like
        Directory to create.
    num_entities, num_relations : int
        Entities, and relations before reverses and identity are added.
    degree : float
        Mean triples of a head; degrees follow a power law.
    communities : int, optional
        Groups of entities; by default one for every 100.
    locality : float
        Share of the tails that are drawn from the head's own community.
    skew : int
        How much tails prefer popular entities: the most popular share ``x`` gets ``x^(1/skew)``. 1 is no preference.
    relation_skew : float
        The same for relations.
    options : KgOptions, optional
        Reverses, identity, queries, seed.
    """
    if not 1 <= num_entities <= 2**31 - 1:
        raise ConfigError(f"num_entities must be in [1, 2^31) (got {num_entities})")
    if num_relations < 1:
        raise ConfigError(f"num_relations must be at least 1 (got {num_relations})")
    if not 0 <= degree <= num_entities:
        raise ConfigError(f"degree must be in [0, num_entities] (got {degree})")
    if not 0 <= locality <= 1:
        raise ConfigError(f"locality must be in [0, 1] (got {locality})")
    if not 1 <= skew <= 8 or relation_skew < 1:
        raise ConfigError(f"skew must be in [1, 8] and relation_skew at least 1 (got {skew} and {relation_skew})")
    groups = max(1, num_entities // 100) if communities is None else communities
    if not 1 <= groups <= num_entities:
        raise ConfigError(f"communities must be in [1, num_entities] (got {groups})")
    chosen = options or KgOptions(reverse=True, identity=True, train=0.1)
    recipe = {"num_entities": num_entities, "num_relations": num_relations, "degree": degree, "communities": groups}
    recipe |= {"locality": locality, "skew": skew, "relation_skew": relation_skew}
    source = GeneratedTriples(
        num_entities, num_relations, degree, groups, locality, skew, relation_skew, chosen.seed, chosen.threads
    )
    source.attributes = {"generator": "knowledge"} | recipe
    return write_triples(source, "generated", path, chosen, **recipe)
