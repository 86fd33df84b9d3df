"""Tables of a knowledge graph that is being written: offsets, triples, queries and names."""

from __future__ import annotations

import numpy as np

from gids import _native
from gids.dataset.build import Build, safe_name
from gids.dataset.manifest import KnowledgeEntry, NamesEntry
from gids.dataset.table_writer import TableWriter
from gids.errors import ConfigError

#: Triples of a block: 512 bytes, the unit in which atoms are read. The table is filled up to a whole block.
BLOCK_TRIPLES = 64


class KnowledgeWriter:
    """Writes the triples of a knowledge graph. Made by :meth:`gids.DatasetWriter.knowledge`.

    Attributes
    ----------
    indptr : TableWriter
        To be filled with ``int64`` offsets, one more than there are entities.
    triples : TableWriter
        To be filled with ``int32`` rows of (relation, tail), by head and sorted; :meth:`finish` fills up the last block.
    """

    def __init__(
        self,
        build: Build,
        ntype: str,
        num_entities: int,
        num_triples: int,
        base_relations: int,
        *,
        reverse: bool,
        identity: bool,
    ):
        self._build, self._ntype, self._num_triples = build, ntype, num_triples
        self._facts = (base_relations * (1 + reverse) + identity, base_relations, reverse, identity)
        self._num_entities = num_entities
        num_relations = self._facts[0]

        def check(values: np.ndarray, first: int) -> None:
            relation, tail = values[0::2], values[1::2]
            within = max(0, min(num_triples - first, len(relation)))
            _check_column(relation[:within], num_relations, "relation", first)
            _check_column(tail[:within], num_entities, "tail", first)

        padded = -(-num_triples // BLOCK_TRIPLES) * BLOCK_TRIPLES
        self.indptr = build.table("triples/indptr", "triples/indptr", "int64", 1, num_entities + 1)
        self.triples = build.table("triples/triples", "triples/triples", "int32", 2, padded, check=check)
        self._queries: dict[str, TableWriter] = {}
        self._names: dict[str, dict[str, TableWriter]] = {}

    def queries(self, split: str, num_queries: int) -> TableWriter:
        """Begin the queries of a split: ``int32`` rows of (head, relation, tail), relations of the source only."""
        base = self._facts[1]

        def check(values: np.ndarray, first: int) -> None:
            for column, (bound, what) in enumerate(
                ((self._num_entities, "head"), (base, "relation"), (self._num_entities, "tail"))
            ):
                _check_column(values[column::3], bound, f"{what} of split {split!r}", first)

        key = f"triples/queries/{safe_name(split)}"
        writer = self._build.table(key, f"triples/queries/{split}", "int32", 3, num_queries, check=check)
        self._queries[split] = writer
        return writer

    def names(self, kind: str, index: _native.NameIndex) -> None:
        """Add the names of all entities (``kind`` ``"entity"``) or of all base relations (``"relation"``)."""
        expected = {"entity": self._num_entities, "relation": self._facts[1]}[kind]
        if len(index) != expected:
            raise ConfigError(f"{kind} names must be {expected} (got {len(index)})")
        self._names[kind] = {}
        for part, values in (("ends", index.ends()), ("text", index.text()), ("order", index.order())):
            name = f"triples/{kind}_names/{part}"
            writer = self._build.table(name, name, values.dtype.name, 1, len(values))
            if writer.rows_done < len(values):
                writer.append(values[writer.rows_done :])
            self._names[kind][part] = writer

    def finish(self) -> KnowledgeEntry:
        """Complete every table and return what the manifest says of them."""
        missing = self._num_triples - self.triples.rows_done
        if missing > 0:
            raise ConfigError(f"triples must be {self._num_triples} (got {self.triples.rows_done})")
        filler = self.triples.table.num_rows - self.triples.rows_done
        if filler:
            self.triples.append(np.full((filler, 2), -1, np.int32))
        named = {
            kind: NamesEntry(**{part: writer.finish() for part, writer in parts.items()})
            for kind, parts in self._names.items()
        }
        return KnowledgeEntry(
            self._ntype,
            self._num_triples,
            *self._facts,
            indptr=self.indptr.finish(),
            triples=self.triples.finish(),
            queries={split: writer.finish() for split, writer in self._queries.items()},
            entity_names=named.get("entity"),
            relation_names=named.get("relation"),
        )


def _check_column(values: np.ndarray, bound: int, what: str, first: int) -> None:
    if len(values) and (int(values.min()) < 0 or int(values.max()) >= bound):
        place = int(np.flatnonzero((values < 0) | (values >= bound))[0])
        raise ConfigError(f"{what} must be in [0, {bound}) (got {int(values[place])} at row {first + place})")
