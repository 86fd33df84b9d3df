"""Datasets between object storage and local drives: ranges side by side, every chunk checked on the way, resumable."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from gids import _native
from gids.dataset import Dataset, checksum, open_dataset
from gids.dataset import manifest as manifests
from gids.dataset.build import Build
from gids.dataset.manifest import StoredTable
from gids.dataset.part import inside
from gids.dataset.rows import pieces
from gids.dataset.table_writer import Progress, write_errors
from gids.dataset.verifier import check_table
from gids.errors import ConfigError, DatasetError
from gids.units import format_bytes, parse_bytes

#: Bytes of one request, and bytes after which what has come is forced to disk and noted.
RANGE_BYTES, CHECKPOINT_BYTES = 8 << 20, 256 << 20
#: Parts that an object may be sent in, by S3's rules, with room to spare; each but the last has at least 5 MiB there.
MOST_PARTS, LEAST_PART_BYTES = 9000, 8 << 20
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
        Most that the dataset may take on the local disk; refused before anything is moved.
    progress : callable, optional
        Called with a table's name, bytes done, and bytes in all.
    """

    threads: int = 8
    budget: int | str | None = None
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

    A killed run is continued by the same call. Nothing appears at a directory until all of it is there and checked; in
    object storage the manifest comes last.

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
        return _Fetch(os.fspath(source), Path(target).absolute(), options).run()
    _send(open_dataset(source), os.fspath(target), options)
    return None


class _Store:
    """Objects below a URL; every failure names the object."""

    def __init__(self, url: str):
        try:
            import obstore
            import obstore.store
        except ImportError as error:
            raise ConfigError(f"object storage needs obstore: pip install 'gids[stage]' ({error})") from error
        self.url, self._obstore = url.rstrip("/"), obstore
        made: Any = obstore.store.from_url
        try:
            plain = {"client_options": {"allow_http": True}} if url.startswith("s3") and _plain_endpoint() else {}
            self._store = made(self.url, **plain)
        except (obstore.exceptions.BaseError, ValueError) as error:
            raise ConfigError(
                f"url must name object storage, as s3://bucket/name does (got {url!r}: {error})"
            ) from error

    def get(self, name: str, begin: int = 0, end: int | None = None) -> bytes:
        """Return bytes of an object; all of it by default."""
        with self._named(name):
            if end is None:
                return bytes(self._obstore.get(self._store, name).bytes())
            return bytes(self._obstore.get_range(self._store, name, start=begin, end=end)) if end > begin else b""

    def size(self, name: str) -> int | None:
        """Return the size of an object; None where there is none."""
        try:
            with self._named(name):
                return int(self._obstore.head(self._store, name)["size"])
        except FileNotFoundError:
            return None

    def put(self, name: str, data: Path | bytes, size_bytes: int, threads: int) -> None:
        """Send an object, large ones in parts side by side."""
        part = max(LEAST_PART_BYTES, -(-size_bytes // MOST_PARTS))
        try:
            with self._named(name):
                self._obstore.put(self._store, name, data, chunk_size=part, max_concurrency=threads)
        except FileNotFoundError as error:
            raise DatasetError(f"{self.url} must be a place that objects can be put in (there is none)") from error

    def delete(self, name: str) -> None:
        """Remove an object."""
        with self._named(name):
            self._obstore.delete(self._store, name)

    @contextmanager
    def _named(self, name: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except (self._obstore.exceptions.BaseError, OSError) as error:
            raise DatasetError(f"{self.url}/{name} cannot be reached or is damaged: {error}") from error


def _plain_endpoint() -> bool:
    given = (os.environ.get(name, "") for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"))
    return any(value.startswith("http://") for value in given)


class _Fetch:
    """A dataset on its way to a directory."""

    def __init__(self, url: str, path: Path, options: StageOptions):
        self._store, self._path, self._options = _Store(url), path, options
        try:
            document = self._store.get(manifests.MANIFEST)
        except FileNotFoundError:
            raise DatasetError(
                f"{self._store.url} must hold a dataset (it has no {manifests.MANIFEST}; a dataset that is being sent has "
                "none until all of it is there)"
            ) from None
        self._document = document.decode("utf-8", "replace")
        partial = path.parent / f".{path.name}.partial"
        self._manifest = manifests.parse(self._document, partial)
        for table in (stored.table for stored in self._manifest.tables()):
            if not all(stripe.path.is_relative_to(partial) for stripe in table.stripes):
                raise DatasetError(f"{table.name} of {self._store.url} has files elsewhere: send it with gids stage")

    def run(self) -> Dataset:
        """Fetch what no former run has."""
        total = sum(sum(stored.file_bytes) for stored in self._manifest.tables())
        budget = None if self._options.budget is None else parse_bytes(self._options.budget, "budget")
        if budget is not None and total > budget:
            raise ConfigError(
                f"budget must hold the dataset, which takes {format_bytes(total)} (got {format_bytes(budget)})"
            )
        job = {"stage": self._store.url, "id": self._manifest.id}
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
                    _FetchTable(self._store, build, stored, self._options, threads).run()
            build.publish(self._document)
        finally:
            build.abandon()
        return open_dataset(self._path)


class _FetchTable:
    """One table on its way: ranges of whole chunks, each written when its checksums are right."""

    def __init__(
        self, store: _Store, build: Build, stored: StoredTable, options: StageOptions, threads: ThreadPoolExecutor
    ):
        self._store, self._build, self._stored = store, build, stored
        self._options, self._threads = options, threads
        self._table, self._chunk_rows = stored.table, stored.checksums.chunk_rows
        self._pool = _native.ThreadPool(1, "gids-stage")
        step = max(1, RANGE_BYTES // (self._chunk_rows * self._table.row_stride)) * self._chunk_rows
        begin, end = (0, self._table.num_rows) if self._table.held is None else self._table.held
        first = begin // self._chunk_rows * self._chunk_rows
        bounds = [begin, *range(first + step, end, step), end]
        self._ranges = [(low, high) for low, high in pairwise(bounds) if high > low]

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
            since = moved = 0
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
                file.write(_required(self._store, name))
                os.fsync(file.fileno())
        if checksum.file_digest(path) != self._stored.checksums.digest:
            raise DatasetError(f"{self._store.url}/{name} is damaged: it is not what the manifest names")
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
                    os.pwrite(descriptor, _required(self._store, self._name(stripe.path), stripe.data_offset), 0)
            files.append(descriptor)
        return files

    def _fetch(self, number: int, sums: np.ndarray, files: Sequence[int]) -> int:
        """Fetch a range of rows; returns the bytes that were written."""
        begin, end = self._ranges[number]
        table, stride = self._table, self._table.row_stride
        for attempt in range(TRIES):
            rows = np.empty((end - begin, table.row_bytes), np.uint8)
            came: list[tuple[int, int, bytes]] = []
            for stripe, offset, row, count in pieces(table, begin, end):
                stop = min(offset + count * stride, self._stored.file_bytes[stripe])
                data = _required(self._store, self._name(table.stripes[stripe].path), stop, offset)
                came.append((stripe, offset, data))
                view = np.lib.stride_tricks.as_strided(
                    np.frombuffer(data, np.uint8), (count, table.row_bytes), (stride, 1), writeable=False
                )
                rows[row - begin : row - begin + count] = view
            wrong = self._damage(rows, begin, sums)
            if wrong is None:
                break
            if attempt + 1 == TRIES:
                raise DatasetError(f"{table.name} of {self._store.url} is damaged in rows {wrong[0]} to {wrong[1]}")
        for stripe, offset, data in came:
            with write_errors(table.stripes[stripe].path, table.name):
                done = 0
                while done < len(data):
                    done += os.pwrite(files[stripe], memoryview(data)[done:], offset + done)
        return sum(len(data) for _, _, data in came)

    def _damage(self, rows: np.ndarray, begin: int, sums: np.ndarray) -> tuple[int, int] | None:
        """Return the rows of a chunk that does not have its checksum; a part's first and last chunk may not be whole."""
        size = self._chunk_rows
        skip = -begin % size
        stop = len(rows) if begin + len(rows) == self._table.num_rows else len(rows) - (begin + len(rows)) % size
        if stop <= skip:
            return None
        actual = checksum.chunk_records(np.ascontiguousarray(rows[skip:stop]), size, self._pool)
        first = (begin + skip) // size
        wrong = np.flatnonzero(actual["hash"] != sums["hash"][first : first + len(actual)])
        if not len(wrong):
            return None
        low = (first + int(wrong[0])) * size
        return low, min(low + size, self._table.num_rows) - 1


def _required(store: _Store, name: str, end: int | None = None, begin: int = 0) -> bytes:
    try:
        data = store.get(name, begin, end)
    except FileNotFoundError:
        raise DatasetError(f"{store.url}/{name} must be there (there is no such object)") from None
    if end is not None and len(data) != end - begin:
        raise DatasetError(f"{store.url}/{name} must have {end} bytes (it ends at {begin + len(data)})")
    return data


def _send(dataset: Dataset, url: str, options: StageOptions) -> None:
    """Send every file whose table is as its checksums say, then the manifest."""
    store, threads = _Store(url), options.threads
    found, files = inside(dataset.manifest, dataset.path)
    document = manifests.dump(found, dataset.path).encode()
    if store.size(manifests.MANIFEST) is not None:
        if store.get(manifests.MANIFEST) == document:
            return  # all of it is there
        raise DatasetError(f"{store.url} exists; choose another place, or delete it")
    ours = json.dumps({"id": dataset.id}).encode()
    if store.size(SENDING) is None or store.get(SENDING) != ours:
        store.put(SENDING, ours, len(ours), 1)
        known = False
    else:
        known = True  # objects appear whole: one of the right size is of the run that was killed
    pool = _native.ThreadPool(len(os.sched_getaffinity(0)), "gids-stage")
    for stored in dataset.manifest.tables():
        sums = dataset.path / stored.checksums.path
        sent = [(stored.checksums.path, sums, sums.stat().st_size)]
        stripes = zip(stored.table.stripes, stored.file_bytes, strict=True)
        sent += [(files[stripe.path].as_posix(), stripe.path, size) for stripe, size in stripes]
        if known and all(store.size(name) == size for name, _, size in sent):
            continue
        for problem in check_table(stored, dataset.path, options.progress, pool):
            raise DatasetError(problem.message)
        for name, path, size in sent:
            _send_file(store, name, path, size, threads)
    store.put(manifests.MANIFEST, document, len(document), 1)
    store.delete(SENDING)


def _send_file(store: _Store, name: str, path: Path, size: int, threads: int) -> None:
    if path.stat().st_size != size:
        raise DatasetError(f"{path} must have {size} bytes (got {path.stat().st_size})")
    store.put(name, path, size, threads)
