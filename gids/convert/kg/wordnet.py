"""WordNet's database files (``data.noun`` and the like, as Debian's wordnet-base installs them): synsets and pointers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from gids import _native
from gids.convert.kg.write import Piece, TripleSource
from gids.errors import DatasetError

_PARTS = ("noun", "verb", "adj", "adv")
_KINDS = {"n": "noun", "v": "verb", "a": "adj", "s": "adj", "r": "adv"}

#: Pointer symbol -> relation (wninput(5WN)). A backslash depends on the part of speech.
RELATIONS = {
    "!": "antonym",
    "@": "hypernym",
    "@i": "instance_hypernym",
    "#m": "member_holonym",
    "#s": "substance_holonym",
    "#p": "part_holonym",
    "=": "attribute",
    "+": "derivationally_related_form",
    ";c": "domain_topic",
    ";r": "domain_region",
    ";u": "domain_usage",
    "*": "entailment",
    ">": "cause",
    "^": "also_see",
    "$": "verb_group",
    "&": "similar_to",
    "<": "participle_of",
}

#: Symbols that say again what another one says in the other direction: left out unless asked for, because they give
#: held out triples away (this is what set WN18RR apart from WN18).
INVERSES = {
    "~": "hyponym",
    "~i": "instance_hyponym",
    "%m": "member_meronym",
    "%s": "substance_meronym",
    "%p": "part_meronym",
    "-c": "member_of_topic",
    "-r": "member_of_region",
    "-u": "member_of_usage",
}


def matches(path: Path) -> bool:
    """Whether a directory holds WordNet's database."""
    return path.is_dir() and all((path / f"data.{part}").exists() for part in _PARTS)


class WordNet(TripleSource):
    """Synsets as entities, named ``<first word>.<part>.<offset>``; pointers as triples.

    Parameters
    ----------
    path : Path
        Directory of the ``data.*`` files.
    inverses : bool
        Keep relations that repeat another one in the other direction.
    """

    format = "wordnet"

    def __init__(self, path: Path, inverses: bool = False):
        super().__init__()
        self.files = [path / f"data.{part}" for part in _PARTS]
        self.entities, self.relations = _native.NameIndex(), _native.NameIndex()
        self._symbols = RELATIONS | (INVERSES if inverses else {})
        self._left_out = {} if inverses else INVERSES

    def read(self) -> Iterator[Piece]:
        """Yield the pointers of each part of speech, once every synset has its number."""
        assert self.entities is not None
        ids: dict[tuple[str, str], int] = {}
        for part, path in zip(_PARTS, self.files, strict=True):
            for number, line in _lines(path):
                fields = line.split(" ", 5)
                if len(fields) < 6 or not fields[0].isdigit():
                    raise DatasetError(f"{path}, line {number} must begin with a synset's offset (got {line[:40]!r})")
                ids[part, fields[0]] = self.entities.add(f"{fields[4]}.{part}.{fields[0]}".encode())
        for part, path in zip(_PARTS, self.files, strict=True):
            triples = [
                triple for number, line in _lines(path) for triple in self._pointers(part, path, number, line, ids)
            ]
            yield Piece(np.array(triples, np.int32).reshape(-1, 3), True, "train")

    def _pointers(
        self, part: str, path: Path, number: int, line: str, ids: dict[tuple[str, str], int]
    ) -> Iterator[tuple[int, int, int]]:
        assert self.relations is not None
        fields = line.split(" | ")[0].split()
        try:
            words = int(fields[3], 16)
            at = 4 + 2 * words
            count = int(fields[at])
            pointers = [fields[at + 1 + 4 * i : at + 4 + 4 * i] for i in range(count)]
            for symbol, offset, kind in pointers:
                if symbol in self._left_out:
                    continue
                slash = {"adj": "pertainym", "adv": "derived_from_adjective"}.get(part, "pertainym")
                name = slash if symbol == "\\" else self._symbols[symbol]
                tail = ids[_KINDS[kind], offset]
                yield ids[part, fields[0]], self.relations.add(name.encode()), tail
        except (KeyError, ValueError, IndexError) as error:
            raise DatasetError(
                f"{path}, line {number} must be a synset with its pointers ({type(error).__name__}: {error})"
            ) from error


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    with path.open(encoding="latin-1") as file:
        for number, line in enumerate(file, 1):
            if not line.startswith("  ") and line.strip():  # the licence is indented
                yield number, line
