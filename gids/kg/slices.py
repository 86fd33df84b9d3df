"""Slices of subgraphs on disk: made once, found by entity, kept over epochs and runs, continued after a kill."""

from __future__ import annotations

import json
import os
import threading
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from gids import _native
from gids.dataset import strict
from gids.dataset.journal import sync_directory
from gids.dataset.table_writer import write_errors
from gids.errors import ConfigError, DatasetError
from gids.kg.graph import Graph
from gids.kg.slice_log import SliceLog, SliceRecord
from gids.storage.system import read_file
from gids.table import RowTable, Stripe

FORMAT, VERSION = "gids-slices", 1
MANIFEST, ROWS, LOG = "slices.json", "slices.bin", "slices.log"

#: Queries whose atoms are read together while slicing, and bytes of new slices that are written together.
CHUNK_QUERIES = 16
CHUNK_BYTES = 8 << 20
#: Slices that there is room for at first; the room doubles when it is used up.
LEAST_ROWS = 1024


@dataclass(frozen=True)
class SlicingFigures:
    """How good a slicing is; see paper 003 §V-B.

    Attributes
    ----------
    subgraphs, triples : int
        Sliced subgraphs, and their triples, each counted in every subgraph.
    slices, used : int
        Distinct slices, and slices over all subgraphs.
    matched : int
        Of ``used``: slices that were there before the subgraph, in this run.
    redundancy : float
        δ_R: slices used over the fewest that could hold the triples. At least 1.
    utilization : float
        δ_U: distinct slices over slices used; lower is more reuse.
    score : float
        δ_R times δ_U.
    redundancy_bound, utilization_bound, score_bound : float
        What no slicing can be below, given the other two: of δ_R 1 or that of Theorem 2, and so on.
    slice_bytes : int
        Bytes of one slice on disk.
    """

    subgraphs: int
    triples: int
    slices: int
    used: int
    matched: int
    redundancy: float
    utilization: float
    score: float
    redundancy_bound: float
    utilization_bound: float
    score_bound: float
    slice_bytes: int

    @property
    def disk_bytes(self) -> int:
        """Bytes of all slices."""
        return self.slices * self.slice_bytes

    @property
    def plain_bytes(self) -> int:
        """Bytes of the triples (head, relation, tail) if they were stored for every subgraph."""
        return self.triples * 12


class Growing:
    """Numbers that are added at the end; with room to spare, so that adding does not copy all of them each time.

    Parameters
    ----------
    dtype : numpy type
        Of the numbers.
    """

    def __init__(self, dtype: type[np.integer[Any]]):
        self._room: NDArray[Any] = np.empty(0, dtype)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def values(self) -> NDArray[Any]:
        """The numbers."""
        return self._room[: self._count]

    @property
    def nbytes(self) -> int:
        """Bytes of memory, with the room that is not used yet."""
        return self._room.nbytes

    def add(self, more: NDArray[Any]) -> None:
        """Add numbers."""
        count = self._count + len(more)
        if count > len(self._room):
            room = np.empty(count + count // 4, self._room.dtype)
            room[: self._count] = self.values
            self._room = room
        self._room[self._count : count] = more
        self._count = count


class Slices:
    """Slices of the subgraphs of entities, in a directory of their own. One process writes a directory at a time.

    Parameters
    ----------
    graph : Graph
        Where atoms come from.
    path : path-like, optional
        The directory; by default one in the dataset's scratch directory, named by hops and sizes.
    hops : int
        Hops of the subgraphs.
    slice_bytes : int
        Bytes of a slice, a multiple of 512: it holds ``slice_bytes / 8 - 2`` triples at most.
    alpha : float
        Share of a slice that must be filled for it to be used again.
    near_hops : int
        Entities this near are roots of the search, and their slices are matched first.
    reuse : bool
        Match slices of other subgraphs; False makes new ones for each, for comparison.
    part : str
        Added to the default directory's name, where several processes slice parts of the queries.
    """

    def __init__(
        self,
        graph: Graph,
        path: str | os.PathLike[str] | None = None,
        *,
        hops: int,
        slice_bytes: int = 4096,
        alpha: float = 0.75,
        near_hops: int = 1,
        reuse: bool = True,
        part: str = "",
    ):
        if hops < 1:
            raise ConfigError(f"hops must be at least 1 (got {hops})")
        if slice_bytes < 512 or slice_bytes % 512:
            raise ConfigError(f"slice_bytes must be a multiple of 512 (got {slice_bytes})")
        if near_hops < 1:
            raise ConfigError(f"near_hops must be at least 1 (got {near_hops})")
        self.graph, self.hops, self.slice_bytes = graph, hops, slice_bytes
        self.slice_words = slice_bytes // 4
        facts: dict[str, object] = {"hops": hops, "slice_bytes": slice_bytes, "alpha": alpha}
        facts |= {"near_hops": near_hops, "reuse": reuse}
        if path is None:
            path = graph.dataset.scratch_dir / f"slices-{hops}-{slice_bytes}{'-' if part else ''}{part}"
        self.path = Path(path).absolute()
        self._new_slicer = partial(_native.Slicer, graph.indptr, self.slice_words, alpha, near_hops, reuse)
        self._capacity = 0
        self._failed = False  # the last time that slices were added
        self._lock = threading.Lock()  # of the lists: a loader slices ahead while batches are extracted
        self._open(facts)

    def _open(self, facts: dict[str, object]) -> None:
        document = {"format": FORMAT, "version": VERSION, "dataset": self.graph.dataset.id, **facts}
        with write_errors(self.path, "slices"):
            self.path.mkdir(parents=True, exist_ok=True)
        manifest = self.path / MANIFEST
        if manifest.exists():
            check_manifest(self.path, document)
        elif (self.path / LOG).exists() and (self.path / LOG).stat().st_size:
            raise DatasetError(f"{self.path} has slices and no {MANIFEST}: delete the directory")
        with ExitStack() as opened:
            with write_errors(self.path / LOG, "slices"):
                self._log = SliceLog(self.path / LOG)  # first: who has it is the only writer
            opened.callback(self._log.close)
            with write_errors(self.path / ROWS, "slices"):
                self._file = os.open(self.path / ROWS, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            opened.callback(os.close, self._file)
            if not manifest.exists():
                temporary = manifest.with_suffix(".tmp")
                with write_errors(temporary, "slices"), temporary.open("w") as file:
                    file.write(json.dumps(document, indent=1) + "\n")
                    file.flush()
                    os.fsync(file.fileno())
                temporary.rename(manifest)
                sync_directory(self.path)
            self._replay()
            self._reserve(len(self._slicer))
            opened.pop_all()

    def _replay(self) -> None:
        """Know what the log says and nothing else."""
        self._slicer = self._new_slicer()
        self._row_of = np.full(self.graph.num_entities, -1, np.int32)  # entity -> its list of slices
        self._ends, self._ids, self._triples = Growing(np.int64), Growing(np.int32), Growing(np.int64)
        for record in self._log.replay():
            with strict.damage_in(self._log.path):
                self._check(record.entities)
            self._slicer.restore(record.atom_ptr, record.atoms, record.parts)
            self._slicer.restore_uses(record.slice_ptr, record.slices, record.triples)
            self._note(record)

    @property
    def num_slices(self) -> int:
        """Slices on disk."""
        return len(self._slicer)

    @property
    def num_entities(self) -> int:
        """Entities whose subgraphs are sliced."""
        return len(self._triples)

    @property
    def table(self) -> RowTable:
        """The slices as rows; its length is what there is room for, and grows."""
        stripe = Stripe(self.path / ROWS, 0, self._capacity)
        return RowTable(
            "slices", "int32", self.slice_words, self._capacity, self.slice_bytes, (stripe,), self._capacity
        )

    def missing(self, entities: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the entities that are not sliced yet, each once, in order of first occurrence."""
        self._check(entities)
        with self._lock:
            fresh = entities[self._row_of[entities] < 0]
        _, first = np.unique(fresh, return_index=True)
        return fresh[np.sort(first)]

    def ensure(self, entities: NDArray[np.int32]) -> int:
        """Slice the subgraphs of entities that are not sliced yet, and write the new slices; returns how many entities."""
        missing = self.missing(entities)
        for begin in range(0, len(missing), CHUNK_QUERIES):
            if self._failed:
                self._replay()
            self._failed = True  # until it is done: what the slicer knows and what is on disk may differ
            self._slice(missing[begin : begin + CHUNK_QUERIES])
            self._failed = False
        return len(missing)

    def _slice(self, entities: NDArray[np.int32]) -> None:
        first = len(self._slicer)
        # Atoms within hops - 2 say which entities are within hops - 1; the others are read only for new slices.
        queries = _native.KgQueries(np.ascontiguousarray(entities), 1, self.hops - 1, None, 0)
        with self.graph.gathered(entities, self.hops - 1) as gather:
            ptr, slices, triples = self._slicer.slice(self.graph.extractor, queries, gather, self.graph.pool)
            digests = self._write(first, gather)
        atom_ptr, atoms, parts = self._slicer.atoms(first, len(self._slicer))
        record = SliceRecord(atom_ptr, atoms, parts, digests, np.asarray(entities), ptr, slices, triples)
        self._log.append(record)
        self._note(record)

    def _write(self, first: int, gather: _native.AtomGather) -> NDArray[np.uint64]:
        """Write the slices from ``first`` on; returns a checksum for each."""
        last = len(self._slicer)
        self._reserve(last)
        digests = np.empty(last - first, np.uint64)
        step = max(1, CHUNK_BYTES // self.slice_bytes)
        for begin in range(first, last, step):
            end = min(begin + step, last)
            _, atoms, _ = self._slicer.atoms(begin, end)
            self.graph.read_instead(gather, atoms)
            rows = np.empty((end - begin, self.slice_words), np.int32)
            self._slicer.render(begin, end, self.slice_words, gather, rows.reshape(-1))
            digests[begin - first : end - first] = [xxhash.xxh3_64_intdigest(row.data) for row in rows]
            view, done = rows.reshape(-1).view(np.uint8).data, 0
            with write_errors(self.path / ROWS, "slices"):
                while done < len(view):
                    done += os.pwrite(self._file, view[done:], begin * self.slice_bytes + done)
        with write_errors(self.path / ROWS, "slices"):
            os.fdatasync(self._file)
        return digests

    def _reserve(self, rows: int) -> None:
        if rows > self._capacity or self._capacity == 0:
            self._capacity = max(LEAST_ROWS, 2 * rows)
            with write_errors(self.path / ROWS, "slices"):
                os.ftruncate(self._file, self._capacity * self.slice_bytes)

    def _note(self, record: SliceRecord) -> None:
        with self._lock:
            begin = len(self._triples)
            self._row_of[record.entities] = np.arange(begin, begin + len(record.entities), dtype=np.int32)
            self._ends.add(len(self._ids) + record.slice_ptr[1:])
            self._ids.add(record.slices)
            self._triples.add(record.triples)

    def _check(self, entities: NDArray[np.int32]) -> None:
        if len(entities) and not 0 <= int(entities.min()) <= int(entities.max()) < self.graph.num_entities:
            bad = entities[(entities < 0) | (entities >= self.graph.num_entities)]
            raise ConfigError(f"entity must be in [0, {self.graph.num_entities}) (got {int(bad[0])})")

    def of(self, entities: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]:
        """Return (ptr, slices, triples) of sliced entities: slices of the ``i``-th are ``slices[ptr[i]:ptr[i + 1]]``."""
        self._check(entities)
        with self._lock:
            rows = self._row_of[entities].astype(np.int64)
            if len(rows) and int(rows.min()) < 0:
                missing = int(entities[int(np.argmin(rows))])
                raise ConfigError(f"entity must be sliced before it is looked up (got {missing}, which is not)")
            ends = self._ends.values[rows]
            begins = np.where(rows > 0, self._ends.values[rows - 1], 0)
            ptr = np.concatenate([[0], np.cumsum(ends - begins)]).astype(np.int64)
            within = np.arange(int(ptr[-1])) - np.repeat(ptr[:-1], ends - begins)
            return ptr, self._ids.values[np.repeat(begins, ends - begins) + within], self._triples.values[rows]

    def figures(self) -> SlicingFigures:
        """Return redundancy, utilization and score beside their lower bounds."""
        facts = self._slicer.figures()
        used, needed, slices = facts["used"], max(facts["needed"], 1), facts["slices"]
        fewest = -(-facts["atom_triples"] // (self.slice_words // 2 - 2))
        utilization = slices / max(used, 1)
        return SlicingFigures(
            subgraphs=facts["subgraphs"],
            triples=facts["triples"],
            slices=slices,
            used=used,
            matched=facts["matched"],
            redundancy=used / needed,
            utilization=utilization,
            score=slices / needed,
            redundancy_bound=max(1.0, fewest / (utilization * needed)) if slices else 1.0,
            utilization_bound=fewest / max(used, 1),
            score_bound=fewest / needed,
            slice_bytes=self.slice_bytes,
        )

    @property
    def memory_bytes(self) -> int:
        """Bytes of the lists and of what slicing knows."""
        lists = self._row_of.nbytes + self._ends.nbytes + self._ids.nbytes + self._triples.nbytes
        return lists + int(self._slicer.memory_bytes)

    def close(self) -> None:
        """Close the files; rows that are only room are given back."""
        if self._file >= 0:
            os.ftruncate(self._file, len(self._slicer) * self.slice_bytes)
            os.close(self._file)
            self._file = -1
            self._log.close()

    def __enter__(self) -> Slices:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def check_manifest(path: Path, expected: dict[str, object]) -> None:
    """Refuse a directory whose slices are of another dataset, or were made in another way."""
    try:
        found = json.loads(read_file(path / MANIFEST))
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{path / MANIFEST} must be JSON ({error})") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise DatasetError(f"{path / MANIFEST} must have format {FORMAT!r}: {path} holds no slices")
    if found.get("dataset") != expected["dataset"]:
        raise DatasetError(
            f"slices in {path} are of another dataset: {found.get('dataset')} (this one is {expected['dataset']}); "
            "choose another directory, or delete it"
        )
    for name, value in expected.items():
        if found.get(name) != value:
            raise DatasetError(
                f"slices in {path} were made with {name} {found.get(name)} (asked for {value}): choose another directory"
            )


def verify_slices(path: str | os.PathLike[str]) -> list[str]:
    """Check every slice of a directory against its checksum; returns what is wrong, for people."""
    directory = Path(path)
    with strict.damage_in(directory / MANIFEST):
        size = strict.count(json.loads(read_file(directory / MANIFEST)), "slice_bytes", 1)
    problems, first = [], 0
    log = SliceLog(directory / LOG, read_only=True)
    with (directory / ROWS).open("rb") as file:
        for record in log.replay():
            for i, digest in enumerate(record.digests.tolist()):
                file.seek((first + i) * size)
                row = file.read(size)
                if len(row) != size or xxhash.xxh3_64_intdigest(row) != digest:
                    problems.append(f"slice {first + i} is damaged ({directory / ROWS}, offset {(first + i) * size})")
            first += len(record.digests)
    if log.cut_bytes:
        problems.append(f"{directory / LOG} has {log.cut_bytes} bytes after its last whole record")
    return problems


def describe(figures: SlicingFigures) -> dict[str, object]:
    """Return the figures in values that JSON knows, with sizes on disk."""
    return asdict(figures) | {"disk_bytes": figures.disk_bytes, "plain_bytes": figures.plain_bytes}
