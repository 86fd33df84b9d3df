"""A real heterogeneous graph that every Debian machine carries: packages, what they depend on, and their sections.

Nodes are packages; relations are Depends (with Pre-Depends), Recommends and Suggests, each in both directions;
the label is the section; features are hashed words of the one-line description, never of the name (a name such as
``python3-foo`` gives the section away, and the graph would have nothing left to add).
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from gids.dataset import Dataset, DatasetWriter

RELATIONS = {"depends": ("Depends", "Pre-Depends"), "recommends": ("Recommends",), "suggests": ("Suggests",)}


@dataclass(frozen=True)
class Package:
    """What one stanza of a package index says."""

    name: str
    section: str
    description: str
    relations: dict[str, tuple[str, ...]]
    provides: tuple[str, ...]


@cache
def read_index() -> str:
    """All packages that apt knows; where its lists are empty, those that dpkg has installed."""
    listed = subprocess.run(["apt-cache", "dumpavail"], capture_output=True, text=True, check=False).stdout
    return listed if listed.strip() else Path("/var/lib/dpkg/status").read_text(encoding="utf-8", errors="replace")


def parse_index(text: str, count: int | None = None) -> list[Package]:
    """Parse a package index, or its first ``count`` packages; the first stanza of a name counts, one without a section does not."""
    packages: dict[str, Package] = {}
    for stanza in _stanzas(text):
        if len(packages) == count:
            break
        fields = dict(_fields(stanza))
        if "Package" not in fields or "Section" not in fields or fields["Package"] in packages:
            continue
        relations = {
            name: tuple(dict.fromkeys(target for key in keys for target in _names(fields.get(key, ""))))
            for name, keys in RELATIONS.items()
        }
        packages[fields["Package"]] = Package(
            name=fields["Package"],
            section=fields["Section"].rsplit("/", 1)[-1],
            description=fields.get("Description", fields.get("Description-en", "")),
            relations=relations,
            provides=_names(fields.get("Provides", "")),
        )
    return list(packages.values())


def _stanzas(text: str) -> Iterator[str]:
    begin = 0
    for gap in re.finditer(r"\n\s*\n", text):
        yield text[begin : gap.start()]
        begin = gap.end()
    yield text[begin:]


def _fields(stanza: str) -> Iterator[tuple[str, str]]:
    for line in re.sub(r"\n[ \t]+", " ", stanza).splitlines():
        key, separator, value = line.partition(": ")
        if separator:
            yield key, value.strip()


def _names(value: str) -> tuple[str, ...]:
    """Package names of a relation field: alternatives all count, versions and architectures do not."""
    return tuple(
        match
        for match in (re.split(r"[\s(:\[<]", part.strip(), maxsplit=1)[0] for part in re.split(r"[,|]", value))
        if match
    )


def edges(packages: list[Package]) -> dict[str, np.ndarray]:
    """Edges by relation as ``[2, n]`` (package, what it names); a virtual package stands for all that provide it."""
    index = {package.name: number for number, package in enumerate(packages)}
    providers: dict[str, list[int]] = {}
    for number, package in enumerate(packages):
        for virtual in package.provides:
            providers.setdefault(virtual, []).append(number)
    result = {}
    for relation in RELATIONS:
        pairs = {
            (number, target)
            for number, package in enumerate(packages)
            for name in package.relations[relation]
            for target in ([index[name]] if name in index else providers.get(name, []))
            if target != number
        }
        result[relation] = np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2).T
    return result


def labels(packages: list[Package]) -> tuple[np.ndarray, list[str]]:
    """Section numbers, most frequent first, and their names."""
    counts = Counter(package.section for package in packages)
    sections = [section for section, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]
    number = {section: i for i, section in enumerate(sections)}
    return np.array([number[package.section] for package in packages], dtype=np.int64), sections


def features(packages: list[Package], dim: int = 256) -> np.ndarray:
    """Hashed words of the description, weighted by rarity, each row of unit length, float16."""
    words = [set(re.findall(r"[a-z][a-z+#]{2,}", package.description.lower())) for package in packages]
    frequency = Counter(word for row in words for word in row)
    table = np.zeros((len(packages), dim), dtype=np.float32)
    for row, found in zip(table, words, strict=True):
        for word in sorted(found):  # a set's order changes from process to process, and with it the rounding of a sum
            digest = int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")
            row[digest % dim] += (1 if digest >> 63 else -1) * np.log(len(packages) / frequency[word])
    table /= np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-6)
    return table.astype(np.float16)


def splits(packages: list[Package]) -> dict[str, np.ndarray]:
    """60/20/20 by a hash of the name, so that a package stays in its split when others come and go."""
    share = np.array([hashlib.blake2b(p.name.encode(), digest_size=1).digest()[0] / 256 for p in packages])
    return {
        "train": np.flatnonzero(share < 0.6),
        "valid": np.flatnonzero((share >= 0.6) & (share < 0.8)),
        "test": np.flatnonzero(share >= 0.8),
    }


def write_dataset(packages: list[Package], path: Path, one_relation: bool = False) -> Dataset:
    """Write the graph as a gids dataset: node type ``package``, six edge types, or all of them as one, each edge once."""
    classes, sections = labels(packages)
    with DatasetWriter(path) as writer:
        writer.add_nodes(len(packages), "package")
        writer.add_features(features(packages), "package")
        writer.add_labels(classes, "package", num_classes=len(sections))
        for name, ids in splits(packages).items():
            writer.add_split(name, ids, "package")
        found = edges(packages)
        if one_relation:
            every = np.concatenate([*found.values(), *(pairs[::-1] for pairs in found.values())], axis=1)
            users, targets = np.unique(every, axis=1)
            directed = [("related", targets, users)]
        else:
            directed = []
            for relation, (users, targets) in found.items():
                directed += [(relation, targets, users), (f"{relation}_of", users, targets)]
        for name, sources, destinations in directed:
            order = np.lexsort((sources, destinations))
            indptr = np.zeros(len(packages) + 1, dtype=np.int64)
            np.cumsum(np.bincount(destinations, minlength=len(packages)), out=indptr[1:])
            writer.add_csc(indptr, sources[order], etype=("package", name, "package"))
        return writer.finish()


def main() -> None:
    """Write the graph of this machine, for ``gids bench partition --dataset``."""
    parser = argparse.ArgumentParser(prog="python -m experiments.debian_packages", description=main.__doc__)
    parser.add_argument("path", type=Path, help="directory to create")
    parser.add_argument("--one-relation", action="store_true", help="all relations as one, both ways")
    args = parser.parse_args()
    print(write_dataset(parse_index(read_index()), args.path, args.one_relation))


if __name__ == "__main__":
    main()
