"""An inductive split of a knowledge graph that is a dataset already: entities that training never sees."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from gids import _native
from gids.convert.kg.write import STEP_TRIPLES, Piece, TripleSource
from gids.dataset import Dataset, Knowledge, open_dataset
from gids.dataset.manifest import MANIFEST, NamesEntry
from gids.dataset.rows import read_rows
from gids.errors import ConfigError


def matches(path: Path) -> bool:
    """Whether a path is a dataset with triples."""
    return (path / MANIFEST).exists() and open_dataset(path).manifest.knowledge is not None


class InductiveSplit(TripleSource):
    """The triples of a dataset, divided by entities: both ends on the training side, or both on the test side.

    Regions are grown from random entities until they hold ``share`` of all, so that most triples stay within a side; those
    that cross are left out (as in GraIL's benchmarks, where the two graphs share relations and no entity). Both sides are components of one
    graph; of the test side's triples ``held`` are queries of the split ``test``, of the training side's ``held`` are
    ``valid``, and the others are the graph.

    Parameters
    ----------
    path : Path
        Dataset with triples; added reverses and identities are left out and can be added again.
    share : float
        Share of the entities on the test side.
    held : float
        Share of the triples held out as queries.
    region : int
        Entities of one region at most; small regions cut more triples.
    seed : int
        For roots and held out triples.
    """

    format = "inductive"

    def __init__(self, path: Path, share: float, held: float = 0.1, region: int = 2000, seed: int = 0):
        super().__init__()
        if not 0 < share < 1:
            raise ConfigError(f"inductive must be a share in (0, 1) (got {share})")
        if not 0 < held < 1 or region < 1:
            raise ConfigError(f"held must be in (0, 1) and region at least 1 (got {held} and {region})")
        self.dataset: Dataset = open_dataset(path)
        self.known: Knowledge = self.dataset.knowledge
        if not self.known.has_reverse:
            raise ConfigError(f"{path} must have reverse relations, to grow regions both ways (convert with --reverse)")
        self.files = [path / MANIFEST]
        self._share, self._held, self._region, self._seed = share, held, region, seed
        self.num_entities, self.num_relations = self.known.num_entities, self.known.base_relations
        entry = self.dataset.manifest.knowledge
        assert entry is not None
        self.entities = _load_names(entry.entity_names)
        self.relations = _load_names(entry.relation_names)

    def read(self) -> Iterator[Piece]:
        """Grow the regions, then yield the triples of both sides."""
        indptr = self.known.indptr()
        side = self._grow(indptr)
        self.entity_splits = {"train": np.flatnonzero(~side), "test": np.flatnonzero(side)}
        generator = np.random.default_rng([self._seed, 1])
        crossing = 0
        for begin in range(0, self.known.num_entities, STEP_TRIPLES):
            offsets = np.asarray(indptr[begin : begin + STEP_TRIPLES + 1])
            heads = np.repeat(np.arange(begin, begin + len(offsets) - 1, dtype=np.int32), np.diff(offsets))
            rows = self.known.triples(int(offsets[0]), int(offsets[-1]))
            base = rows[:, 0] < self.known.base_relations
            kept = np.column_stack([heads, rows])[base]
            test_side = side[kept[:, 0]]
            within = test_side == side[kept[:, 2]]
            crossing += int((~within).sum())
            held = generator.random(len(kept)) < self._held
            yield Piece(kept[within & ~test_side & ~held], True, "train")
            yield Piece(kept[within & ~test_side & held], False, "valid")
            yield Piece(kept[within & test_side & ~held], True, None)
            yield Piece(kept[within & test_side & held], False, "test")
        self.attributes["crossing_triples_left_out"] = crossing

    def _grow(self, indptr: np.ndarray) -> np.ndarray:
        """Choose the entities of the test side."""
        wanted = max(1, round(self._share * self.known.num_entities))
        chosen = np.zeros(self.known.num_entities, bool)
        count = 0
        for root in np.random.default_rng([self._seed, 0]).permutation(self.known.num_entities):
            if count >= wanted:
                break
            if chosen[root]:
                continue
            frontier, size = np.array([root]), 0
            chosen[root] = True
            count, size = count + 1, 1
            while len(frontier) and size < self._region and count < wanted:
                tails = [self.known.triples(int(indptr[e]), int(indptr[e + 1]))[:, 1] for e in frontier]
                fresh = np.unique(np.concatenate(tails))
                fresh = fresh[~chosen[fresh]][: min(self._region - size, wanted - count)]
                chosen[fresh] = True
                count, size, frontier = count + len(fresh), size + len(fresh), fresh
        return chosen


def _load_names(names: NamesEntry | None) -> _native.NameIndex | None:
    if names is None:
        return None
    ends = read_rows(names.ends.table).reshape(-1).view(np.int64)
    text = read_rows(names.text.table).tobytes()
    index, begin = _native.NameIndex(), 0
    for end in ends.tolist():
        index.add(text[begin:end])
        begin = end
    return index
