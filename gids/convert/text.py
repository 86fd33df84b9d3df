"""Numbers in text files, compressed or not: OGB's ``.csv.gz``, GraphBolt's ``.csv``, edge lists with comments."""

from __future__ import annotations

import gzip
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from io import BufferedIOBase
from pathlib import Path

import numpy as np

from gids.convert.sources import RowSource
from gids.dataset.table_writer import Rows
from gids.errors import DatasetError

#: Text parsed at a time.
BLOCK_BYTES = 8 << 20

_SEPARATORS = bytes.maketrans(b",;\t", b"   ")
_COMMENT = re.compile(rb"^[#%][^\n]*\n", re.MULTILINE)


def open_text(path: Path) -> BufferedIOBase:
    """Open a text file, decompressing ``.gz``."""
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")


@dataclass(frozen=True)
class _Mark:
    """A place in a text file: the row of numbers, the byte and the line, from 1, that begin there."""

    row: int
    offset: int
    line: int


def _lines(text: bytes) -> int:
    """Count the lines that are not empty."""
    if b"\n\n" in text or b"\r" in text or text.startswith(b"\n"):
        return sum(1 for part in text.split(b"\n") if part.strip())
    return text.count(b"\n") + (not text.endswith(b"\n"))


class TextRows(RowSource):
    """Lines of numbers, separated by commas, semicolons, tabs or spaces; ``#`` and ``%`` begin comment lines.

    Parameters
    ----------
    path : Path
        ``.csv``, ``.tsv``, ``.txt`` or the like, or any of these with ``.gz``.
    dtype : str, optional
        Of the values; found from the first line where it is not given (``int64`` or ``float32``).
    num_rows : int, optional
        Lines; counted where it is not given, which reads the file once more.
    """

    def __init__(self, path: Path, dtype: str | None = None, num_rows: int | None = None):
        self.path, self.name = path, str(path)
        self.header: list[str] = []
        first = self._first_line()
        self.dim = len(first)
        whole = all(re.fullmatch(r"[+-]?\d+", field) for field in first)
        self.dtype = dtype or ("int64" if whole else "float32")
        self._marks: list[_Mark] = []
        self.num_rows = self._count() if num_rows is None else num_rows
        self.divisible = num_rows is None and path.suffix != ".gz"

    def _first_line(self) -> list[str]:
        """Find the first line of numbers; a line of words before it is a header."""
        with open_text(self.path) as file:
            try:
                for line in file:
                    text = line.decode("utf-8", "replace").strip()
                    if not text or text[0] in "#%":
                        continue
                    fields = re.split(r"[,;\t ]+", text)
                    if _is_number(fields[0]):
                        return fields
                    if self.header:
                        break
                    self.header = fields
            except (OSError, EOFError) as error:
                raise DatasetError(f"{self.path} cannot be read: {error}") from error
        if self.header:
            return [] if _only_header(self.path) else _no_numbers(self.path)
        return []

    def read(self, begin: int, step: int) -> Iterator[Rows]:
        """Parse up to ``begin``, then yield rows."""
        mark = max(
            (mark for mark in self._marks if mark.row <= begin), key=lambda mark: mark.row, default=_Mark(0, 0, 1)
        )
        position, pending = mark.row, np.empty((0, self.dim), self.dtype)
        for block in self._parse(self.dtype, mark):
            if position + len(block) <= begin:
                position += len(block)
                continue
            pending = np.concatenate([pending, block[max(0, begin - position) :]])
            position += len(block)
            while len(pending) >= step:
                yield pending[:step]
                pending = pending[step:]
        if len(pending):
            yield pending
        if position != self.num_rows:
            raise DatasetError(f"{self.path} must have {self.num_rows} lines of numbers (got {position})")

    def _count(self) -> int:
        """Count the rows, and mark where they begin in the file, for readers that want the later ones."""
        rows = 0
        for text, mark in self._texts(_Mark(0, 0, 1)):
            self._marks.append(replace(mark, row=rows))
            rows += _lines(text)
        return rows

    def _parse(self, dtype: str, mark: _Mark) -> Iterator[np.ndarray]:
        for text, place in self._texts(mark):
            yield self._numbers(text, dtype, place.line)

    def _texts(self, mark: _Mark) -> Iterator[tuple[bytes, _Mark]]:
        """Yield pieces of whole lines of numbers, with where they are in the file."""
        rest, line, offset, skip_header = b"", mark.line, mark.offset, bool(self.header) and mark.offset == 0
        with open_text(self.path) as file:
            file.seek(mark.offset)
            while True:
                try:
                    data = file.read(BLOCK_BYTES)
                except (OSError, EOFError) as error:
                    raise DatasetError(f"{self.path} cannot be read after line {line}: {error}") from error
                text = rest + data
                end = text.rfind(b"\n") + 1 if data else len(text)
                rest, text = text[end:], text[:end]
                lines, size = text.count(b"\n"), len(text)
                if b"#" in text or b"%" in text:
                    text = _COMMENT.sub(b"", text)
                if skip_header and text:
                    text, skip_header = text.lstrip(b"\r\n").partition(b"\n")[2], False
                if text.strip():
                    yield text, _Mark(0, offset, line)
                line, offset = line + lines, offset + size
                if not data:
                    return

    def _numbers(self, text: bytes, dtype: str, line: int) -> np.ndarray:
        rows = _lines(text)
        with warnings.catch_warnings():
            warnings.simplefilter("error", DeprecationWarning)
            try:
                kind = np.int64 if "int" in dtype else np.float64
                flat = np.fromstring(text.translate(_SEPARATORS).decode("latin-1"), kind, sep=" ")
            except (DeprecationWarning, ValueError, OverflowError) as error:
                what = "whole numbers" if "int" in dtype else "numbers"
                raise DatasetError(f"{self.path} must hold {what} (text near line {line} cannot be read)") from error
        if len(flat) != rows * self.dim:
            raise DatasetError(
                f"{self.path} must have {self.dim} numbers in every line (got {len(flat)} in {rows} lines from {line} on)"
            )
        return flat.reshape(rows, self.dim).astype(dtype)


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def _only_header(path: Path) -> bool:
    with open_text(path) as file:
        return sum(1 for line in file if line.strip() and line.lstrip()[:1] not in b"#%") == 1


def _no_numbers(path: Path) -> list[str]:
    raise DatasetError(f"{path} must hold lines of numbers, after at most one line of names")


def text_table(path: Path) -> dict[str, str]:
    """Read a file of one header line and one line of values, as OGB keeps its dictionaries."""
    with open_text(path) as file:
        lines = [line.strip() for line in file.read().decode().splitlines() if line.strip()]
    if len(lines) != 2 or len(lines[0].split(",")) != len(lines[1].split(",")):
        raise DatasetError(f"{path} must have a line of names and a line of as many values")
    return dict(zip(lines[0].split(","), lines[1].split(","), strict=True))
