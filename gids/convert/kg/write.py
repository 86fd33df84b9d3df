"""Triples of any source to a dataset in bounded memory: encoded once, sorted by head in buckets, appended in order."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy as np

from gids import _native
from gids.convert.buckets import Buckets, put_rows
from gids.dataset import Dataset, DatasetWriter, KnowledgeWriter
from gids.dataset.build import safe_name
from gids.dataset.table_writer import Progress, write_errors
from gids.errors import ConfigError

#: Triples in memory at a time, and triples that a bucket may have in memory.
STEP_TRIPLES = 1 << 20
BUCKET_TRIPLES = 1 << 23
MAX_BUCKETS = 256

#: Node type of entities.
ENTITY = "entity"


class Piece(NamedTuple):
    """Consecutive triples of a source.

    Attributes
    ----------
    triples : int32[n, 3]
        Head, relation, tail.
    in_graph : bool
        Whether they are triples of the graph, in which subgraphs are extracted.
    split : str or None
        The split whose queries they are.
    """

    triples: np.ndarray
    in_graph: bool
    split: str | None


class TripleSource(ABC):
    """Triples in someone else's files, read forward once.

    Attributes
    ----------
    format : str
        Name of the layout.
    files : list of Path
        Everything it is read from: a resumed job needs all of them unchanged.
    entities, relations : NameIndex or None
        Names, complete when :meth:`read` has ended; None where the source has numbers.
    attributes : dict
        Notes for the manifest, complete when :meth:`read` has ended.
    num_entities, num_relations : int or None
        Counts where the source says them; otherwise names, or one more than the largest id.
    entity_splits : dict
        Entities by split, for inductive splits; complete when :meth:`read` has ended.
    """

    format: str
    files: list[Path]
    entities: _native.NameIndex | None = None
    relations: _native.NameIndex | None = None
    num_entities: int | None = None
    num_relations: int | None = None

    def __init__(self) -> None:
        self.attributes: dict[str, Any] = {}
        self.entity_splits: dict[str, np.ndarray] = {}

    @abstractmethod
    def read(self) -> Iterator[Piece]:
        """Yield all triples."""


@dataclass(frozen=True)
class KgOptions:
    """How a knowledge graph is written.

    Attributes
    ----------
    reverse : bool
        Add the reverse (t, r + relations, h) of every triple (h, r, t), so that subgraphs follow relations both ways.
    identity : bool
        Add (e, identity, e) for every entity.
    valid, test : float
        Shares of a single-file source's triples to hold out of the graph as queries, drawn by ``seed``.
    train : float
        Share of the graph's triples that are listed as queries of the split ``train``; they stay in the graph.
    seed : int
        For the drawing.
    overwrite, progress, threads
        As for :class:`gids.DatasetWriter`.
    """

    reverse: bool = False
    identity: bool = False
    valid: float = 0.0
    test: float = 0.0
    train: float = 1.0
    seed: int = 0
    overwrite: bool = False
    progress: Progress | None = field(default=None, compare=False)
    threads: int | None = None

    def __post_init__(self) -> None:
        for name in ("valid", "test", "train"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} must be a share in [0, 1] (got {getattr(self, name)})")
        if self.valid + self.test > 1:
            raise ConfigError(f"valid and test must add up to at most 1 (got {self.valid} and {self.test})")


def write_triples(
    source: TripleSource, origin: object, path: str | os.PathLike[str], options: KgOptions, **facts: Any
) -> Dataset:
    """Write a source as a dataset; a killed run is continued by an equal one whose files have not changed.

    Parameters
    ----------
    source : TripleSource
        The triples.
    origin : object
        Where they come from, for the manifest.
    path : path-like
        Directory to create.
    options : KgOptions
        How to write.
    **facts
        What else decides the result, e.g. the options of a parser.
    """
    choices = {name: getattr(options, name) for name in ("reverse", "identity", "valid", "test", "train", "seed")}
    job = {
        "kg": source.format,
        "source": str(origin),
        "files": [[str(file), file.stat().st_size, file.stat().st_mtime_ns] for file in source.files],
        "options": choices | facts,
    }
    notes = {"converter": f"kg {source.format}", "source": str(origin)} | choices
    with DatasetWriter(
        path,
        overwrite=options.overwrite,
        job=job,
        attributes=notes,
        progress=options.progress,
        threads=options.threads,
    ) as writer:
        encoded = _Encoded(writer, source, options)
        encoded.run()
        writer.note_attributes(encoded.attributes)
        writer.add_nodes(encoded.num_entities, ENTITY)
        for split, ids in encoded.entity_splits().items():
            writer.add_split(split, ids, ENTITY)
        knowledge = _write_graph(writer, encoded, options)
        for split, count in encoded.queries.items():
            table = knowledge.queries(split, count)
            for piece in encoded.blocks(encoded.query_file(split), table.rows_done):
                table.append(piece)
        for kind in ("entity", "relation"):
            index = encoded.names(kind)
            if index is not None:
                knowledge.names(kind, index)
        return writer.finish()


class _Encoded:
    """The source as numbers, in files of the job's work directory: read once, whatever is made of it afterwards."""

    def __init__(self, writer: DatasetWriter, source: TripleSource, options: KgOptions):
        self.writer, self.source, self.options = writer, source, options
        self.directory = writer.work
        self.graph_file = self.directory / "graph.triples"
        self.num_triples = self.num_entities = self.num_relations = 0
        self.queries: dict[str, int] = {}
        self.attributes: dict[str, Any] = {}

    def query_file(self, split: str) -> Path:
        return self.directory / f"{safe_name(split)}.queries"

    def run(self) -> None:
        note = self.writer.journal.get("encoded")
        if note is None:
            note = self.encode()
            self.writer.journal.note("encoded", note)
        self.num_triples, self.num_entities, self.num_relations = note["counts"]
        self.queries, self.attributes = note["queries"], note["attributes"]

    def encode(self) -> dict[str, Any]:
        largest = np.array([-1, -1])
        with ExitStack() as stack, write_errors(self.directory, "triples"):
            graph = stack.enter_context(self.graph_file.open("wb"))
            splits: dict[str, Any] = {}
            done = graph_count = 0
            for piece in self.source.read():
                triples = np.ascontiguousarray(piece.triples, np.int32).reshape(-1, 3)
                if len(triples):
                    ids = np.array([int(triples[:, ::2].max()), int(triples[:, 1].max())])
                    largest = np.maximum(largest, ids)
                for part, in_graph, split in self.hold_out(Piece(triples, piece.in_graph, piece.split), done):
                    if in_graph:
                        part.tofile(graph)
                        graph_count += len(part)
                    if split is not None:
                        if split not in splits:
                            splits[split] = stack.enter_context(self.query_file(split).open("wb"))
                            self.queries[split] = 0
                        part = self.chosen(part, split, self.queries[split]) if in_graph else part
                        part.tofile(splits[split])
                        self.queries[split] += len(part)
                done += len(triples)
                self.writer.report("reading triples", done * 12, done * 12)
        self.keep_names()
        counts = [graph_count, self.count(self.source.num_entities, self.source.entities, int(largest[0]), "entity")]
        counts.append(self.count(self.source.num_relations, self.source.relations, int(largest[1]), "relation"))
        return {"counts": counts, "queries": self.queries, "attributes": self.source.attributes}

    def hold_out(self, piece: Piece, first: int) -> Iterator[Piece]:
        """Divide a piece by lot where shares are held out; a triple's lot depends on its place in the source."""
        valid, test = self.options.valid, self.options.test
        if valid + test == 0 or piece.split != "train":
            yield piece
            return
        lots = _lots(first, len(piece.triples), self.options.seed)
        yield Piece(piece.triples[lots >= valid + test], piece.in_graph, "train")
        yield Piece(piece.triples[lots < valid], False, "valid")
        yield Piece(piece.triples[(lots >= valid) & (lots < valid + test)], False, "test")

    def chosen(self, triples: np.ndarray, split: str, first: int) -> np.ndarray:
        share = self.options.train if split == "train" else 1.0
        return triples if share == 1 else triples[_lots(first, len(triples), self.options.seed + 1) < share]

    def count(self, stated: int | None, names: _native.NameIndex | None, largest: int, kind: str) -> int:
        found = stated if stated is not None else largest + 1 if names is None else len(names)
        if largest >= found:
            raise ConfigError(f"{kind} ids must be in [0, {found}) (got {largest})")
        return found

    def keep_names(self) -> None:
        for kind, index in (("entity", self.source.entities), ("relation", self.source.relations)):
            if index is not None:
                np.save(self.directory / f"{kind}_ends.npy", index.ends())
                np.save(self.directory / f"{kind}_text.npy", index.text())
        for split, ids in self.source.entity_splits.items():
            np.save(self.directory / f"{safe_name(split)}.entities.npy", ids)

    def entity_splits(self) -> dict[str, np.ndarray]:
        files = sorted(self.directory.glob("*.entities.npy"))
        return {unquote(file.name.removesuffix(".entities.npy")): np.load(file) for file in files}

    def names(self, kind: str) -> _native.NameIndex | None:
        held = self.source.entities if kind == "entity" else self.source.relations
        if held is None or len(held):
            return held
        ends = np.load(self.directory / f"{kind}_ends.npy")  # of the run that this one continues
        text = np.load(self.directory / f"{kind}_text.npy").tobytes()
        index, begin = _native.NameIndex(), 0
        for end in ends.tolist():
            index.add(text[begin:end])
            begin = end
        return index

    def blocks(self, path: Path, first: int = 0) -> Iterator[np.ndarray]:
        with path.open("rb") as file:
            file.seek(first * 12)
            while data := file.read(STEP_TRIPLES * 12):
                yield np.frombuffer(data, np.int32).reshape(-1, 3)


def _lots(first: int, count: int, seed: int) -> np.ndarray:
    """Draw uniform numbers in [0, 1) for consecutive places; a function of (seed, place)."""
    generator = np.random.Generator(np.random.Philox(key=seed))
    generator.bit_generator.advance(first // 4)  # type: ignore[attr-defined]  # four numbers a block
    return generator.random(first % 4 + count)[first % 4 :]


def _write_graph(writer: DatasetWriter, encoded: _Encoded, options: KgOptions) -> KnowledgeWriter:
    entities, relations = encoded.num_entities, encoded.num_relations
    total = encoded.num_triples * (1 + options.reverse) + entities * options.identity
    count = max(1, min(MAX_BUCKETS, -(-total // (BUCKET_TRIPLES // 2)), max(entities, 1)))
    directory = writer.work / "by_head"
    buckets = Buckets(directory, "triples", entities, count, 3, np.dtype(np.int32), STEP_TRIPLES, BUCKET_TRIPLES)
    if relations * (1 + options.reverse) + options.identity > 2**31 - 1:
        raise ConfigError(f"relations must be fewer than 2^30 where reverses are added (got {relations})")

    def records() -> Iterator[np.ndarray]:
        for triples in encoded.blocks(encoded.graph_file):
            yield triples
            if options.reverse:
                yield triples[:, ::-1] + np.array([0, relations, 0], np.int32)
        identity = relations * (1 + options.reverse)
        for begin in range(0, entities if options.identity else 0, STEP_TRIPLES):
            ids = np.arange(begin, min(begin + STEP_TRIPLES, entities), dtype=np.int32)
            yield np.column_stack([ids, np.full(len(ids), identity, np.int32), ids])

    note = writer.journal.get("sorted triples")
    if note is None:
        buckets.begin()
        buckets.fill(records(), lambda done: writer.report("triples sorting", done * 12, total * 12))
        note = [_sort_bucket(buckets, bucket) for bucket in range(count)]
        writer.journal.note("sorted triples", note)
    knowledge = writer.knowledge(sum(note), relations, reverse=options.reverse, identity=options.identity, ntype=ENTITY)
    put_rows(knowledge.indptr, 0, np.zeros(1, np.int64))
    first = 0
    for bucket in range(count):
        low, high = buckets.keys(bucket)
        if low < high and (knowledge.indptr.rows_done <= high or knowledge.triples.rows_done < first + note[bucket]):
            degrees = np.zeros(high - low, np.int64)
            position = first
            for sorted_records in buckets.blocks(bucket):
                degrees += np.bincount(sorted_records[:, 0] - low, minlength=high - low)
                put_rows(knowledge.triples, position, sorted_records[:, 1:])
                position += len(sorted_records)
            put_rows(knowledge.indptr, low + 1, first + np.cumsum(degrees))
        first += note[bucket]
    return knowledge


def _sort_bucket(buckets: Buckets, bucket: int) -> int:
    """Sort a bucket on disk and drop repeated triples; returns how many are left."""
    path = buckets.path(bucket)
    temporary = path.with_suffix(".sorted")
    left = 0
    with temporary.open("wb") as file, write_errors(temporary, "triples"):
        for begin, end in buckets.parts(bucket):
            records = np.ascontiguousarray(buckets.select(bucket, begin, end))
            if not records.flags.writeable:
                records = records.copy()
            kept = _native.sort_triples(records.reshape(-1))
            records[:kept].tofile(file)
            left += kept
    temporary.rename(path)
    return left
