"""What a half-made dataset remembers: which rows and steps are safely on disk, so that a killed job can go on."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gids.errors import DatasetError

JOURNAL = "journal.jsonl"
LOCK = "lock"


def sync_directory(path: Path) -> None:
    """Make renames and new names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Journal:
    """Append-only notes in the directory of an unfinished dataset; one process at a time.

    A note is written after what it speaks of has reached the disk, so after a kill it may say too little, never too
    much. A job other than the one that left the directory behind gets an empty directory.
    """

    def __init__(self, directory: Path, job: Mapping[str, Any] | None):
        self.directory = directory
        self.resumed = False
        self._notes: dict[str, Any] = {}
        self.former: dict[str, Any] = {}  # notes of another job, whose directory this one takes over
        directory.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise DatasetError(f"{directory} is being written by another process; wait for it to end") from error
        # Through JSON and back, so that it compares equal with what a former run has stored.
        header = json.loads(json.dumps({"job": job}, default=str))
        former, notes = self._load()
        if job is not None and former == header:
            self.resumed, self._notes = True, notes
        else:
            self.former = notes
            self._clear()
        self._file = (directory / JOURNAL).open("ab")
        if not self.resumed:
            self._append(header)
            sync_directory(directory)

    def _load(self) -> tuple[dict[str, Any] | None, dict[str, Any]]:
        """Read the header and the last note for every key of what a former run left here."""
        try:
            data = (self.directory / JOURNAL).read_bytes()
        except FileNotFoundError:
            return None, {}
        whole = data[: data.rfind(b"\n") + 1]  # a kill may have cut the last note
        os.truncate(self.directory / JOURNAL, len(whole))
        lines = [json.loads(line) for line in whole.splitlines()]
        return (lines[0] if lines else None), {line["key"]: line["value"] for line in lines[1:]}

    def _clear(self) -> None:
        for entry in self.directory.iterdir():
            if entry.name == LOCK:
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()

    def _append(self, line: dict[str, Any]) -> None:
        try:
            self._file.write(json.dumps(line).encode() + b"\n")
            self._file.flush()
            os.fdatasync(self._file.fileno())
        except OSError as error:
            raise DatasetError(f"writing {self.directory / JOURNAL} failed: {error.strerror}") from error

    def get(self, key: str) -> Any:
        """Return the last value noted for a key, or None."""
        return self._notes.get(key)

    def note(self, key: str, value: Any) -> None:
        """Note something down, durably."""
        self._notes[key] = value
        self._append({"key": key, "value": value})

    def close(self) -> None:
        """Release the lock; the directory stays."""
        self._file.close()
        os.close(self._lock)
