"""The knowledge graph of a dataset: where its triples are, its queries, and the names of entities and relations."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gids.dataset.manifest import KnowledgeEntry, NamesEntry
from gids.dataset.rows import load_offsets, read_rows
from gids.errors import ConfigError, DatasetError
from gids.table import RowTable


class Knowledge:
    """Triples of a dataset; :attr:`gids.Dataset.knowledge`. Reads nothing but what it is asked for.

    Attributes
    ----------
    num_entities, num_relations, num_triples : int
        Counts, with the relations and triples that were added.
    base_relations : int
        Relations of the source: the reverse of ``r`` is ``r + base_relations``, the identity is the last relation.
    has_reverse, has_identity : bool
        What was added.
    """

    def __init__(self, entry: KnowledgeEntry, num_entities: int):
        self._entry = entry
        self.num_entities = num_entities
        self.num_relations, self.base_relations = entry.num_relations, entry.base_relations
        self.num_triples = entry.num_triples
        self.has_reverse, self.has_identity = entry.reverse, entry.identity

    @property
    def entity_type(self) -> str:
        """Node type of the entities."""
        return self._entry.entity_type

    @property
    def triples_table(self) -> RowTable:
        """Rows of (relation, tail), by head."""
        return self._entry.triples.table

    def indptr(self) -> NDArray[np.int64]:
        """Read the offsets: the triples of entity ``e`` are rows ``indptr[e]..indptr[e + 1]``."""
        return load_offsets(self._entry.indptr.table)

    def triples(self, begin: int = 0, end: int | None = None) -> NDArray[np.int32]:
        """Read consecutive triples, ``int32[end - begin, 2]`` of (relation, tail), by head; all of them by default.

        Parameters
        ----------
        begin, end : int
            Which.
        """
        return _values(self._entry.triples.table, begin, self.num_triples if end is None else end).reshape(-1, 2)

    @property
    def splits(self) -> list[str]:
        """Splits that have queries."""
        return list(self._entry.queries)

    def queries(self, split: str) -> NDArray[np.int32]:
        """Read the queries of a split, ``int32[n, 3]`` of (head, relation, tail)."""
        if split not in self._entry.queries:
            raise ConfigError(f"split must be one of {', '.join(self.splits) or '(none stored)'} (got {split!r})")
        return _values(self._entry.queries[split].table).reshape(-1, 3)

    def check_relations(self, relations: NDArray[np.int32]) -> None:
        """Refuse relations that nobody asks for: queries have relations of the source, or their reverses."""
        bound = self.base_relations * (1 + self.has_reverse)
        bad = relations[(relations < 0) | (relations >= bound)]
        if len(bad):
            raise ConfigError(f"relation must be in [0, {bound}) (got {int(bad[0])})")

    def reverse_of(self, relation: int) -> int:
        """Return the relation that leads back."""
        if not self.has_reverse:
            raise ConfigError("reverse relations must be stored (convert with --reverse; this graph has none)")
        if not 0 <= relation < 2 * self.base_relations:
            raise ConfigError(f"relation must be in [0, {2 * self.base_relations}) to have a reverse (got {relation})")
        return (relation + self.base_relations) % (2 * self.base_relations)

    def entity_name(self, entity: int) -> str:
        """Return the name of an entity."""
        return _name(self._entry.entity_names, entity, self.num_entities, "entity")

    def relation_name(self, relation: int) -> str:
        """Return the name of a relation; of an added one ``<name>^-1`` or ``identity``."""
        if not 0 <= relation < self.num_relations:
            raise ConfigError(f"relation must be in [0, {self.num_relations}) (got {relation})")
        if self.has_identity and relation == self.num_relations - 1:
            return "identity"
        suffix = "^-1" if relation >= self.base_relations else ""
        base = relation % self.base_relations
        return _name(self._entry.relation_names, base, self.base_relations, "relation") + suffix

    def entity_id(self, name: str) -> int:
        """Return the id of a named entity."""
        return _find(self._entry.entity_names, name, "entity")

    def relation_id(self, name: str) -> int:
        """Return the id of a named relation of the source."""
        return _find(self._entry.relation_names, name, "relation")


def _values(table: RowTable, begin: int = 0, end: int | None = None) -> np.ndarray:
    """Read rows as values: an error below them is an exception, which it would not be in a mapped file."""
    return read_rows(table, begin, end).reshape(-1).view(table.dtype)


def _stored(names: NamesEntry | None, kind: str) -> NamesEntry:
    if names is None:
        raise DatasetError(f"{kind} names must be stored to be looked up (this dataset was made from numbers)")
    return names


def _name(names: NamesEntry | None, number: int, count: int, kind: str) -> str:
    if not 0 <= number < count:
        raise ConfigError(f"{kind} must be in [0, {count}) (got {number})")
    return _text(_stored(names, kind), number).decode("utf-8", "surrogateescape")


def _text(names: NamesEntry, number: int) -> bytes:
    ends = _values(names.ends.table, max(number - 1, 0), number + 1)
    begin = int(ends[0]) if number else 0
    return _values(names.text.table, begin, int(ends[-1])).tobytes()


def _find(names: NamesEntry | None, name: str, kind: str) -> int:
    entry = _stored(names, kind)
    ordered = entry.order.table

    def at(place: int) -> int:
        return int(_values(ordered, place, place + 1)[0])

    wanted = name.encode("utf-8", "surrogateescape")
    low, high = 0, ordered.num_rows
    while low < high:
        middle = (low + high) // 2
        if _text(entry, at(middle)) < wanted:
            low = middle + 1
        else:
            high = middle
    if low < ordered.num_rows and _text(entry, at(low)) == wanted:
        return at(low)
    raise ConfigError(f"{kind} must be a name of this graph (got {name!r}, which it does not have)")
