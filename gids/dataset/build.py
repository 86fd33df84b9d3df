"""The life of an unfinished dataset: a hidden directory, its tables, and the rename that makes it visible."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gids import _native
from gids.dataset import manifest as manifests
from gids.dataset.in_place import RowFile, reference
from gids.dataset.journal import JOURNAL, LOCK, Journal, sync_directory
from gids.dataset.manifest import StoredTable
from gids.dataset.table_writer import Check, Progress, TableWriter, dtype_name
from gids.errors import ConfigError, DatasetError
from gids.storage.system import read_file, retry_on_eintr

#: Directory for the intermediate files of a job; never part of the dataset.
WORK = "work"

#: Note in the journal: the dataset's directories on other drives.
STRIPE_HOMES = "stripe homes"


def safe_name(name: str) -> str:
    """Turn a type or table name into one path component; different names give different components."""
    if not name:
        raise ConfigError("name of a node type, edge type or table must not be empty (got '')")
    return quote(name, safe="").replace(".", "%2E")


@dataclass(frozen=True)
class Layout:
    """How a table's rows are spread over files."""

    stripes: int = 1
    stripe_rows: int | None = None
    row_stride: int | None = None
    on_stripe_dirs: bool = False

    def __post_init__(self) -> None:
        if self.stripes < 1 or (self.stripe_rows is not None and self.stripe_rows < 1):
            got = f"{self.stripes} and {self.stripe_rows}"
            raise ConfigError(f"stripes and stripe_rows must be at least 1 (got {got})")


class Build:
    """Files of a dataset that is being made, in ``.<name>.partial`` beside its final place.

    Stripe files on other drives lie in ``<name>.<token>.stripes``; the token keeps datasets of one name apart.
    """

    def __init__(
        self,
        path: Path,
        job: Mapping[str, Any] | None,
        overwrite: bool,
        stripe_dirs: Sequence[Path],
        progress: Progress | None,
        threads: int | None,
    ):
        if path.exists() and not overwrite:
            raise DatasetError(f"{path} exists; choose another path, or overwrite it (overwrite=True, --overwrite)")
        if path.exists() and not (path / manifests.MANIFEST).exists():
            raise DatasetError(f"{path} exists and is no gids dataset: it will not be overwritten")
        if not path.parent.is_dir():
            raise DatasetError(
                f"{path.parent} must be a directory, to hold the new dataset {path.name} (there is none)"
            )
        self.path = path
        self.partial = path.parent / f".{path.name}.partial"
        self.pool = _native.ThreadPool(threads or len(os.sched_getaffinity(0)), "gids-write")
        self.tables: dict[str, TableWriter] = {}
        self.journal = Journal(self.partial, job)
        for home in self.journal.former.get(STRIPE_HOMES, ()):  # of another job that was killed here
            shutil.rmtree(home, ignore_errors=True)
        self._keep = job is not None
        self._stripe_dirs = list(stripe_dirs)
        self._progress = progress
        self._open = True

    @property
    def closed(self) -> bool:
        """Whether the dataset was published or abandoned."""
        return not self._open

    @property
    def work(self) -> Path:
        """A directory for intermediate files."""
        directory = self.partial / WORK
        directory.mkdir(exist_ok=True)
        return directory

    def table(
        self,
        key: str,
        name: str,
        dtype: str,
        dim: int,
        num_rows: int,
        layout: Layout | None = None,
        check: Check | None = None,
    ) -> TableWriter:
        """Begin a table; ``key`` is its path below the dataset's directory."""
        if key in self.tables:
            raise ConfigError(f"{name} was added before")
        layout = layout or Layout()
        writer = TableWriter(
            self.journal,
            key,
            name,
            dtype_name(dtype),
            dim,
            num_rows,
            self._files(key, layout),
            stripe_rows=layout.stripe_rows,
            row_stride=layout.row_stride,
            check=check,
            progress=self._progress,
            pool=self.pool,
        )
        self.tables[key] = writer
        return writer

    def reference(self, file: RowFile, key: str, name: str) -> StoredTable:
        """Make a file elsewhere a table of this dataset."""
        return reference(file, key, name, self.partial, self._progress, self.pool)

    def _files(self, key: str, layout: Layout) -> list[Path]:
        if layout.on_stripe_dirs and self._stripe_dirs:
            if not self._stripe_homes():
                token = os.urandom(4).hex()
                homes = [str(directory / f"{self.path.name}.{token}.stripes") for directory in self._stripe_dirs]
                self.journal.note(STRIPE_HOMES, homes)
            return [home / f"{key}.{i}.bin" for i, home in enumerate(self._stripe_homes())]
        if layout.stripes > 1:
            return [self.partial / f"{key}.{i}.bin" for i in range(layout.stripes)]
        return [self.partial / f"{key}.bin"]

    def _stripe_homes(self) -> list[Path]:
        """Directories of this dataset on other drives; the same for a run that continues another."""
        return [Path(home) for home in self.journal.get(STRIPE_HOMES) or ()]

    def publish(self, document: str) -> None:
        """Write the manifest, force everything to disk and rename the directory; after this the dataset exists."""
        shutil.rmtree(self.partial / WORK, ignore_errors=True)
        temporary = self.partial / f"{manifests.MANIFEST}.tmp"
        try:
            with temporary.open("w") as file:
                file.write(document)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise DatasetError(f"writing {temporary} failed: {error.strerror}") from error
        temporary.rename(self.partial / manifests.MANIFEST)
        for root in (self.partial, *self._stripe_homes()):
            for directory, _, _ in os.walk(root):
                sync_directory(Path(directory))
        replaced = self.path.exists()
        if replaced:
            _exchange(self.partial, self.path)
        else:
            self.partial.rename(self.path)
        sync_directory(self.path.parent)
        self._open = False
        self.journal.close()
        # Last, so that a kill before the rename still finds a journal to go on from.
        for name in (JOURNAL, LOCK):
            (self.path / name).unlink(missing_ok=True)
        if replaced:
            _remove_dataset(self.partial, self.path.name)

    def abandon(self, discard: bool = False) -> None:
        """Stop. A job that can be resumed keeps what it has made unless it is discarded; others leave nothing."""
        if not self._open:
            return
        self._open = False
        for writer in self.tables.values():
            writer.close()
        self.journal.close()
        if discard or not self._keep:
            for directory in (self.partial, *self._stripe_homes()):
                shutil.rmtree(directory, ignore_errors=True)


def _exchange(new: Path, old: Path) -> None:
    """Swap two directories in one step, so that a dataset exists under the name at every moment."""
    at_current_directory, exchange = -100, 2
    libc = ctypes.CDLL(None, use_errno=True)

    def swap() -> None:
        if libc.renameat2(at_current_directory, bytes(new), at_current_directory, bytes(old), exchange) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    try:
        return retry_on_eintr(swap)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS):
            raise DatasetError(f"replacing {old} failed: {error.strerror}") from error
    # A file system without exchange: the old dataset has another name for an instant, and is never lost.
    aside = old.with_name(f".{old.name}.replaced")
    old.rename(aside)
    new.rename(old)
    aside.rename(new)


def _remove_dataset(path: Path, name: str) -> None:
    """Delete a replaced dataset and the stripe files that belong to it; files used in place are not its own."""
    own = re.compile(rf"{re.escape(name)}\.[0-9a-f]{{8}}\.stripes")
    manifest = manifests.parse(read_file(path / manifests.MANIFEST), path)
    for stored in manifest.tables():
        for stripe in stored.table.stripes:
            home = next((parent for parent in stripe.path.parents if own.fullmatch(parent.name)), None)
            if home is not None:
                shutil.rmtree(home, ignore_errors=True)
    shutil.rmtree(path)
