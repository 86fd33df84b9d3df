"""Datasets between object storage and local drives: ranges side by side, every chunk checked on the way, resumable."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from gids import _native
from gids.cluster.objects import Objects
from gids.dataset import Dataset, checksum, open_dataset
from gids.dataset import manifest as manifests
from gids.dataset.build import Build
from gids.dataset.manifest import StoredTable
from gids.dataset.part import inside, part_of
from gids.dataset.rows import pieces
from gids.dataset.table_writer import Progress, write_errors
from gids.dataset.verifier import check_table
from gids.errors import ConfigError, DatasetError
from gids.storage.system import read_into
from gids.units import format_bytes, parse_bytes

#: Bytes of one request, and bytes after which what has come is forced to disk and noted.
RANGE_BYTES, CHECKPOINT_BYTES = 8 << 20, 256 << 20
#: How often a range is asked for again that does not have its checksum.
TRIES = 2
#: Object that says which dataset is being sent, until all of it is there.
SENDING = "sending.json"


@dataclass(frozen=True)
class StageOptions:
    """How a dataset is staged.

    Attributes
    ----------
    threads : int
        Requests at a time.
    budget : int or str, optional
        Most that what is fetched may take on the local disk; refused before anything is moved.
    part : (int, int), optional
        Fetch what node ``part[0]`` of ``part[1]`` holds, as ``gids shard`` writes it, instead of everything.
    progress : callable, optional
        Called with a table's name, bytes done, and bytes in all.
    """

    threads: int = 8
    budget: int | str | None = None
    part: tuple[int, int] | None = None
    progress: Progress | None = None

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise ConfigError(f"threads must be at least 1 (got {self.threads})")


def is_url(place: str | os.PathLike[str]) -> bool:
    """Whether a place is in object storage."""
    return "://" in os.fspath(place)


def stage(
    source: str | os.PathLike[str], target: str | os.PathLike[str], options: StageOptions | None = None
) -> Dataset | None:
    """Copy a dataset from object storage to a directory, or from a directory to object storage.

    A killed run is continued by the same call: a fetch goes on with the ranges that it has not noted, a sending with the
    objects that are not there. Nothing appears at a directory until all of it is there and checked; in object storage the
    manifest comes last.

    Parameters
    ----------
    source, target : str or path-like
        A URL (``s3://bucket/prefix``, ``gs://``, ``az://``) and a directory, either way round. Credentials and endpoints
        come from the environment, e.g. ``AWS_ENDPOINT_URL``.
    options : StageOptions, optional
        How.

    Returns
    -------
    Dataset or None
        The local dataset, where it was fetched.
    """
    options = StageOptions() if options is None else options
    if is_url(source) == is_url(target):
        raise ConfigError(
            f"one of source and target must be a URL such as s3://bucket/name (got {source} and {target})"
        )
    if is_url(source):
        with Objects(os.fspath(source)) as objects:
            return _Fetch(objects, Path(target).absolute(), options).run()
    for name in ("budget", "part"):
        if getattr(options, name) is not None:
            raise ConfigError(f"{name} is an option of fetching (got {getattr(options, name)} and target {target})")
    with Objects(os.fspath(target)) as objects:
        _send(open_dataset(source), objects, options)
    return None


class _Fetch:
    """A dataset on its way to a directory."""

    def __init__(self, objects: Objects, path: Path, options: StageOptions):
        self._objects, self._path, self._options = objects, path, options
        try:
            document = objects.get(manifests.MANIFEST).decode("utf-8", "replace")
        except FileNotFoundError:
            raise DatasetError(
                f"{objects.url} must hold a dataset (it has no {manifests.MANIFEST}; a dataset that is being sent has "
                "none until all of it is there)"
            ) from None
        partial = path.parent / f".{path.name}.partial"
        self._manifest = manifests.parse(document, partial)
        for table in (stored.table for stored in self._manifest.tables()):
            if not all(stripe.path.is_relative_to(partial) for stripe in table.stripes):
                raise DatasetError(f"{table.name} of {objects.url} has files elsewhere: send it with gids stage")
        if options.part is not None:
            self._manifest = part_of(self._manifest, *options.part)
            document = manifests.dump(self._manifest, partial)
        self._document = document

    def run(self) -> Dataset:
        """Fetch what no former run has."""
        total = sum(_bytes_here(stored) for stored in self._manifest.tables())
        budget = None if self._options.budget is None else parse_bytes(self._options.budget, "budget")
        if budget is not None and total > budget:
            raise ConfigError(
                f"budget must hold what is fetched, which takes {format_bytes(total)} (got {format_bytes(budget)})"
            )
        job = {"stage": self._objects.url, "id": self._manifest.id, "part": list(self._options.part or ())}
        build = Build(self._path, job, False, (), self._options.progress, None)
        try:
            held = sum(path.stat().st_blocks * 512 for path in build.partial.rglob("*") if path.is_file())
            free = shutil.disk_usage(build.partial).free
            if total - held > free:
                raise DatasetError(
                    f"{self._path} needs {format_bytes(total - held)} more on a disk with {format_bytes(free)} free: free "
                    "some space and run the command again"
                )
            with ThreadPoolExecutor(self._options.threads, "gids-stage") as threads:
                for stored in self._manifest.tables():
                    _FetchTable(self._objects, build, stored, self._options, threads).run()
            build.publish(self._document)
        finally:
            build.abandon()
        return open_dataset(self._path)


def _whole_chunks(stored: StoredTable) -> tuple[int, int]:
    """Return the rows to fetch: those that are held, to the ends of their chunks, so that all of them can be checked."""
    rows, size = stored.table.num_rows, stored.checksums.chunk_rows
    begin, end = (0, rows) if stored.table.held is None else stored.table.held
    return (begin // size * size, min(-(-end // size) * size, rows)) if end > begin else (begin, begin)


def _bytes_here(stored: StoredTable) -> int:
    """Return the bytes that a table takes on the local disk."""
    begin, end = _whole_chunks(stored)
    sums = -(-stored.table.num_rows // stored.checksums.chunk_rows) * checksum.RECORD.itemsize
    return sums + (end - begin) * stored.table.row_stride + sum(stripe.data_offset for stripe in stored.table.stripes)


class _FetchTable:
    """One table on its way: ranges of whole chunks, each written when its checksums are right."""

    def __init__(
        self, objects: Objects, build: Build, stored: StoredTable, options: StageOptions, threads: ThreadPoolExecutor
    ):
        self._objects, self._build, self._stored = objects, build, stored
        self._options, self._threads = options, threads
        self._table, self._chunk_rows = stored.table, stored.checksums.chunk_rows
        self._pool = _native.ThreadPool(1, "gids-stage")
        step = max(1, RANGE_BYTES // (self._chunk_rows * self._table.row_stride)) * self._chunk_rows
        begin, end = _whole_chunks(stored)
        self._ranges = list(pairwise([*range(begin, end, step), end]))

    def run(self) -> None:
        """Fetch the checksums, then the rows."""
        key = f"staged {self._table.name}"
        note = self._build.journal.get(key)
        done: set[int] = set(note or ())
        sums = self._checksums()
        with ExitStack() as stack:
            files = self._files(stack, fresh=note is None)
            waiting: dict[Future[int], int] = {}
            left = iter([number for number in range(len(self._ranges)) if number not in done])
            since = 0
            total = max(sum(high - low for low, high in self._ranges) * self._table.row_bytes, 1)
            try:
                while True:
                    while len(waiting) < 2 * self._options.threads and (number := next(left, None)) is not None:
                        waiting[self._threads.submit(self._fetch, number, sums, files)] = number
                    if not waiting:
                        break
                    for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                        number = waiting.pop(future)
                        since += future.result()
                        done.add(number)
                    if since >= CHECKPOINT_BYTES:
                        self._note(key, files, done)
                        since = 0
                    moved = sum(self._ranges[n][1] - self._ranges[n][0] for n in done) * self._table.row_bytes
                    if self._options.progress is not None:
                        self._options.progress(self._table.name, moved, total)
            except BaseException:
                for future in waiting:
                    future.cancel()
                self._objects.close()  # ends what is under way: nobody waits for a server that does not answer
                raise
            finally:
                wait(waiting)  # they write to files that close now
                self._note(key, files, done)

    def _note(self, key: str, files: Sequence[int], done: set[int]) -> None:
        for descriptor, stripe in zip(files, self._table.stripes, strict=True):
            with write_errors(stripe.path, self._table.name):
                os.fdatasync(descriptor)
        self._build.journal.note(key, sorted(done))

    def _name(self, path: Path) -> str:
        return path.relative_to(self._build.partial).as_posix()

    def _checksums(self) -> np.ndarray:
        """Fetch the file of checksums, unless it is here, and check it against the manifest's digest."""
        name = self._stored.checksums.path
        path = self._build.partial / name
        for _ in range(TRIES):
            if path.exists() and checksum.file_digest(path) == self._stored.checksums.digest:
                return np.fromfile(path, checksum.RECORD)
            path.parent.mkdir(parents=True, exist_ok=True)
            with write_errors(path, self._table.name), path.open("wb") as file:
                file.write(self._objects.required(name))
                os.fsync(file.fileno())
        if checksum.file_digest(path) != self._stored.checksums.digest:
            raise DatasetError(f"{self._objects.url}/{name} is damaged: it is not what the manifest names")
        return np.fromfile(path, checksum.RECORD)

    def _files(self, stack: ExitStack, fresh: bool) -> list[int]:
        files = []
        for stripe, size in zip(self._table.stripes, self._stored.file_bytes, strict=True):
            stripe.path.parent.mkdir(parents=True, exist_ok=True)
            with write_errors(stripe.path, self._table.name):
                descriptor = os.open(stripe.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
                stack.callback(os.close, descriptor)
                os.ftruncate(descriptor, size)
            if fresh and stripe.data_offset:  # what another format has before its rows
                head = self._objects.required(self._name(stripe.path), 0, stripe.data_offset)
                self._write(descriptor, stripe.path, head, 0)
            files.append(descriptor)
        return files

    def _fetch(self, number: int, sums: np.ndarray, files: Sequence[int]) -> int:
        """Fetch a range of rows; returns the bytes that were written."""
        begin, end = self._ranges[number]
        for _ in range(TRIES):
            rows, came = self._ask(begin, end)
            actual = checksum.chunk_records(rows, self._chunk_rows, self._pool)["hash"]
            first = begin // self._chunk_rows
            wrong = np.flatnonzero(actual != sums["hash"][first : first + len(actual)])
            if not len(wrong):
                break
        else:
            low = (first + int(wrong[0])) * self._chunk_rows
            high = min(low + self._chunk_rows, self._table.num_rows) - 1
            raise DatasetError(f"{self._table.name} of {self._objects.url} is damaged in rows {low} to {high}")
        for stripe, offset, data in came:
            self._write(files[stripe], self._table.stripes[stripe].path, data, offset)
        return sum(len(data) for _, _, data in came)

    def _ask(self, begin: int, end: int) -> tuple[np.ndarray, list[tuple[int, int, bytes]]]:
        """Return rows, and the bytes of each file that they are in: (stripe, offset, bytes)."""
        table, stride = self._table, self._table.row_stride
        rows = np.empty((end - begin, table.row_bytes), np.uint8)
        found: dict[int, list[tuple[int, int, int]]] = {}
        for stripe, offset, row, count in pieces(table, begin, end):
            found.setdefault(stripe, []).append((offset, row - begin, count))
        came = []
        for stripe, runs in found.items():  # which follow each other in their file
            low, high = runs[0][0], min(runs[-1][0] + runs[-1][2] * stride, self._stored.file_bytes[stripe])
            data = self._objects.required(self._name(table.stripes[stripe].path), low, high)
            came.append((stripe, low, data))
            for offset, row, count in runs:
                rows[row : row + count] = np.lib.stride_tricks.as_strided(
                    np.frombuffer(data, np.uint8, offset=offset - low),
                    (count, table.row_bytes),
                    (stride, 1),
                    writeable=False,
                )
        return rows, came

    def _write(self, descriptor: int, path: Path, data: bytes, offset: int) -> None:
        with write_errors(path, self._table.name):
            done = 0
            while done < len(data):
                done += os.pwrite(descriptor, memoryview(data)[done:], offset + done)


def _send(dataset: Dataset, objects: Objects, options: StageOptions) -> None:
    """Send every file whose table is as its checksums say, then the manifest."""
    if any(stored.table.held is not None for stored in dataset.manifest.tables()):
        raise DatasetError(f"{dataset.path} must be a whole dataset (it is the part of one node)")
    found, files = inside(dataset.manifest, dataset.path)
    document = manifests.dump(found, dataset.path).encode()
    if objects.size(manifests.MANIFEST) is not None:
        if objects.get(manifests.MANIFEST) == document:
            return  # all of it is there
        raise DatasetError(f"{objects.url} exists; choose another place, or delete it")
    ours = json.dumps({"id": dataset.id}).encode()
    # Objects appear whole: one of the right size is of the run that was killed.
    known = objects.size(SENDING) is not None and objects.get(SENDING) == ours
    if not known:
        objects.put(SENDING, len(ours), lambda begin, end: ours[begin:end])
    pool = _native.ThreadPool(len(os.sched_getaffinity(0)), "gids-stage")
    for stored in dataset.manifest.tables():
        sums = dataset.path / stored.checksums.path
        sent = [(stored.checksums.path, sums, sums.stat().st_size)]
        stripes = zip(stored.table.stripes, stored.file_bytes, strict=True)
        sent += [(files[stripe.path].as_posix(), stripe.path, size) for stripe, size in stripes]
        left = [(name, path, size) for name, path, size in sent if not (known and objects.size(name) == size)]
        if left:
            for problem in check_table(stored, dataset.path, options.progress, pool):
                raise DatasetError(problem.message)
        for name, path, size in left:
            _send_file(objects, name, path, size, options)
    objects.put(manifests.MANIFEST, len(document), lambda begin, end: document[begin:end])
    objects.delete(SENDING)


def _send_file(objects: Objects, name: str, path: Path, size: int, options: StageOptions) -> None:
    def read(begin: int, end: int) -> bytes:
        data = np.empty(end - begin, np.uint8)
        read_into(path, begin, data)
        return data.tobytes()

    def sent(done: int) -> None:
        if options.progress is not None:
            options.progress(f"sending {name}", done, max(size, 1))

    if path.stat().st_size != size:
        raise DatasetError(f"{path} must have {size} bytes (got {path.stat().st_size})")
    objects.put(name, size, read, options.threads, sent)
