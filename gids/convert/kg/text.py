"""Triples in text files: TSV, CSV and N-Triples, compressed or not, one file or a directory with one for every split."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from gids import _native
from gids.convert.kg.write import Piece, TripleSource
from gids.convert.text import open_text
from gids.errors import DatasetError

#: Text parsed at a time.
BLOCK_BYTES = 8 << 20

_ENDINGS = {".tsv": "\t", ".txt": "\t", ".csv": ",", ".nt": None}


@dataclass(frozen=True)
class TextOptions:
    """How lines are read.

    Attributes
    ----------
    separator : str, optional
        One character; by default a comma for ``.csv`` and a tab for everything else.
    columns : str
        Order of head, relation and tail in a line.
    header : bool
        The first line names the columns.
    numeric : bool
        Fields are ids from 0 on; nothing is named.
    literals : bool
        N-Triples: keep triples whose object is a literal, as an entity.
    """

    separator: str | None = None
    columns: str = "hrt"
    header: bool = False
    numeric: bool = False
    literals: bool = False


def ending(path: Path) -> str:
    """Return the suffix that says what a file holds, without ``.gz``."""
    return Path(path.name.removesuffix(".gz")).suffix


def split_files(path: Path) -> dict[str, Path]:
    """Find ``train``, ``valid`` and ``test`` files of a directory, and those of unseen entities (``train_ind``, ...)."""
    found = {}
    for split in ("train", "valid", "test", "train_ind", "valid_ind", "test_ind"):
        for name in (f"{split}{suffix}{pack}" for suffix in _ENDINGS for pack in ("", ".gz")):
            if (path / name).exists():
                found[split] = path / name
                break
    return found


def matches(path: Path) -> bool:
    """Whether a path is a file of triples or a directory with a ``train`` file."""
    return ending(path) in _ENDINGS if path.is_file() else "train" in split_files(path)


class TextTriples(TripleSource):
    """Triples of one file, or of a directory with ``train``, ``valid`` and ``test`` files.

    ``train_ind`` and ``test_ind`` are an inductive split as GraIL publishes it: another graph over other entities, and its queries;
    they become triples of the same dataset, in components of their own, and entity splits tell the two sides apart.
    """

    format = "text"

    def __init__(self, path: Path, options: TextOptions | None = None):
        super().__init__()
        self.options = options or TextOptions()
        self._splits = {"train": path} if path.is_file() else split_files(path)
        if "test_ind" in self._splits:
            self._splits.pop("test", None)  # GraIL's test of seen entities is not part of the inductive task
        self.files = list(self._splits.values())
        if not self.options.numeric:
            self.entities, self.relations = _native.NameIndex(), _native.NameIndex()

    def facts(self) -> dict[str, object]:
        """Return the options, as part of what decides the result."""
        return asdict(self.options)

    def read(self) -> Iterator[Piece]:
        """Parse file after file."""
        seen = 0
        skipped = 0
        inductive = "train_ind" in self._splits
        for split, path in self._splits.items():
            other = split.endswith("_ind")
            if other and split == "train_ind":
                seen = 0 if self.entities is None else len(self.entities)
            name = None if split == "train_ind" else {"valid_ind": "valid_ind", "test_ind": "test"}.get(split, split)
            parser = self._parser(path)
            for triples in _parse(parser, path):
                yield Piece(triples, split in ("train", "train_ind"), name)
            skipped += parser.skipped_literals
        if skipped:
            self.attributes["skipped_literals"] = skipped
        if inductive and self.entities is not None:
            self.entity_splits = {"train": np.arange(seen), "test": np.arange(seen, len(self.entities))}

    def _parser(self, path: Path) -> _native.TripleParser:
        chosen = self.options
        default = _ENDINGS.get(ending(path), "\t")
        return _native.TripleParser(
            str(path),
            _native.NameIndex() if self.entities is None else self.entities,
            _native.NameIndex() if self.relations is None else self.relations,
            default is None,
            chosen.separator or default or "\t",
            chosen.numeric,
            chosen.header,
            chosen.literals,
            chosen.columns,
        )


def _parse(parser: _native.TripleParser, path: Path) -> Iterator[np.ndarray]:
    with open_text(path) as file:
        while True:
            try:
                data = file.read(BLOCK_BYTES)
            except (OSError, EOFError) as error:
                raise DatasetError(f"{path} cannot be read: {error}") from error
            if not data:
                break
            yield parser.feed(data).reshape(-1, 3)
    yield parser.finish().reshape(-1, 3)
