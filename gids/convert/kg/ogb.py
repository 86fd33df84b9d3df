"""OGB's wikikg2 as downloaded: ``split/time/{train,valid,test}.pt`` and the names in ``mapping/``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from gids import _native
from gids.convert.kg.write import STEP_TRIPLES, Piece, TripleSource
from gids.convert.pickles import as_ids, load_torch
from gids.convert.text import open_text
from gids.errors import DatasetError

_MAPPINGS = {"entities": ("nodeidx2entityid", "nodeidx2entity"), "relations": ("reltype2relid", "relidx2relid")}


def _split_dir(path: Path) -> Path | None:
    return next((file.parent for file in sorted(path.glob("split/*/train.pt"))), None)


def matches(path: Path) -> bool:
    """Whether a directory is an OGB dataset of triples."""
    return path.is_dir() and _split_dir(path) is not None and (path / "mapping").is_dir()


class OgbTriples(TripleSource):
    """Triples of an OGB link-property dataset with relations. Each split is loaded whole, as ``torch.save`` wrote it."""

    format = "ogb"

    def __init__(self, path: Path):
        super().__init__()
        directory = _split_dir(path)
        if directory is None:
            raise DatasetError(f"{path} must have split/<name>/train.pt (there is none)")
        self._splits = {name: directory / f"{name}.pt" for name in ("train", "valid", "test")}
        self._mapping = path / "mapping"
        self.files = [file for file in self._splits.values() if file.exists()]
        self.entities = self._names("entities")
        self.relations = self._names("relations")

    def _names(self, kind: str) -> _native.NameIndex | None:
        names = [self._mapping / f"{stem}.csv{pack}" for stem in _MAPPINGS[kind] for pack in (".gz", "")]
        file = next((file for file in names if file.exists()), None)
        if file is None:
            return None
        self.files.append(file)
        index = _native.NameIndex()
        with open_text(file) as lines:
            for number, line in enumerate(lines):
                fields = line.rstrip(b"\r\n").split(b",", 1)
                if number == 0 or not line.strip():
                    continue  # the first line names the columns
                if len(fields) != 2 or not fields[0].isdigit() or int(fields[0]) != len(index):
                    raise DatasetError(f"{file}, line {number + 1} must be '{len(index)},<name>' (got {line[:60]!r})")
                if index.add(fields[1]) != int(fields[0]):
                    raise DatasetError(f"{file}, line {number + 1} must have a new name (got {fields[1]!r} again)")
        return index

    def read(self) -> Iterator[Piece]:
        """Yield split after split."""
        for split, file in self._splits.items():
            if not file.exists():
                continue
            parts = load_torch(file)
            try:
                columns = [as_ids(parts[key], f"{key} of {file}") for key in ("head", "relation", "tail")]
            except (KeyError, TypeError) as error:
                raise DatasetError(f"{file} must have head, relation and tail (misses {error})") from error
            if len({len(column) for column in columns}) != 1:
                raise DatasetError(f"head, relation and tail of {file} must have one length")
            triples = np.column_stack(columns)
            if triples.size and not 0 <= triples.min() <= triples.max() < 2**31:
                raise DatasetError(f"ids of {file} must be in [0, 2^31) (got {triples.min()} to {triples.max()})")
            for begin in range(0, len(triples), STEP_TRIPLES):
                yield Piece(triples[begin : begin + STEP_TRIPLES].astype(np.int32), split == "train", split)
