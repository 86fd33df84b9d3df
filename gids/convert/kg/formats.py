"""Which layouts of triples can be converted, how they are told apart, and the one function that converts."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gids.convert.kg import inductive, ogb, text, wordnet
from gids.convert.kg.text import TextOptions, TextTriples
from gids.convert.kg.write import KgOptions, TripleSource, write_triples
from gids.dataset import Dataset
from gids.errors import ConfigError, DatasetError


@dataclass(frozen=True)
class KgFormat:
    """A layout: a line about it, and whether a path has it."""

    summary: str
    matches: Callable[[Path], bool]


#: In the order in which a path is tried.
KG_FORMATS: dict[str, KgFormat] = {
    "gids": KgFormat("dataset with triples, to make an inductive split of", inductive.matches),
    "ogb": KgFormat("OGB's wikikg2: split/time/*.pt and mapping/", ogb.matches),
    "wordnet": KgFormat("WordNet's database: data.noun, data.verb, data.adj, data.adv", wordnet.matches),
    "text": KgFormat(".tsv, .csv or .nt (N-Triples), or a directory of train/valid/test files", text.matches),
}


def detect_kg(source: str | os.PathLike[str]) -> str:
    """Name the layout of a file or directory."""
    path = Path(source)
    if not path.exists():
        raise DatasetError(f"{path} must be a file or directory (there is none)")
    for name, layout in KG_FORMATS.items():
        if layout.matches(path):
            return name
    raise DatasetError(f"{path} must have one of the layouts {', '.join(KG_FORMATS)} (it looks like none of them)")


def convert_kg(
    source: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    format: str | None = None,
    options: KgOptions | None = None,
    text: TextOptions | None = None,
    inverses: bool = False,
    inductive_share: float | None = None,
) -> Dataset:
    """Convert a knowledge graph to a dataset.

    Memory grows with the names of entities and relations, not with the triples. A killed conversion continues when it
    is started again with the same arguments.

    Parameters
    ----------
    source : path-like
        File or directory to read.
    path : path-like
        Directory to create.
    format : str, optional
        A key of :data:`KG_FORMATS`; found from the files where it is not given.
    options : KgOptions, optional
        Reverses, identities, splits.
    text : TextOptions, optional
        How lines of text are read.
    inverses : bool
        WordNet: keep relations that repeat another one in the other direction.
    inductive_share : float, optional
        Of a dataset: share of the entities that training does not see.
    """
    name = detect_kg(source) if format is None else format
    if name not in KG_FORMATS:
        raise ConfigError(f"format must be one of {', '.join(KG_FORMATS)} (got {name!r})")
    origin = Path(source).absolute()
    if not origin.exists():
        raise DatasetError(f"{origin} must be a file or directory (there is none)")
    chosen = options or KgOptions()
    if (name == "gids") != (inductive_share is not None):
        raise ConfigError("an inductive split is made of a dataset: give a dataset with triples and a share")
    facts: dict[str, object] = {}
    triples: TripleSource
    if name == "text":
        triples = TextTriples(origin, text)
        facts = triples.facts()
    elif name == "wordnet":
        triples, facts = wordnet.WordNet(origin, inverses), {"inverses": inverses}
    elif name == "ogb":
        triples = ogb.OgbTriples(origin)
    else:
        assert inductive_share is not None
        triples = inductive.InductiveSplit(origin, inductive_share, seed=chosen.seed)
        facts = {"inductive": inductive_share}
    return write_triples(triples, origin, path, chosen, **facts)
