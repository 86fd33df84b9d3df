"""A sampled batch as bytes: a short header that says what is there, then the arrays, small integers in four bytes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gids.errors import DatasetError
from gids.sampling.sample import Block, Sample, SeedEdges
from gids.types import EdgeType

_ALIGN = 8
#: dtype of an array -> what it is stored as where all values fit.
_NARROW = {np.dtype(np.int64): np.dtype(np.int32)}


@dataclass(frozen=True)
class StoredSample:
    """What is stored of a batch.

    Attributes
    ----------
    sample : Sample
        What the sampler made.
    edge_rows : dict of EdgeType to Tensor[int64]
        Distinct edges over all blocks, of the types whose rows were asked for.
    edge_places : dict of EdgeType to list of Tensor[int64]
        For each block, where its edges are among ``edge_rows``.
    """

    sample: Sample
    edge_rows: dict[EdgeType, Tensor] = field(default_factory=dict)
    edge_places: dict[EdgeType, list[Tensor]] = field(default_factory=dict)


class ArrayWriter:
    """Collects arrays and numbers them; a document in JSON says by their numbers what each is."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.heads: list[list[Any]] = []
        self._offset = 0

    def add(self, tensor: Tensor) -> int:
        """Take an array; return its number."""
        array = tensor.contiguous().numpy()
        narrow = _NARROW.get(array.dtype)
        stored = array
        if narrow is not None and (not array.size or _fits(array, narrow)):
            stored = array.astype(narrow)
        data = stored.tobytes()
        self.heads.append([array.dtype.str, stored.dtype.str, list(array.shape), self._offset])
        self.parts.append(data + bytes(-len(data) % _ALIGN))
        self._offset += len(self.parts[-1])
        return len(self.heads) - 1

    def add_by(self, tensors: Mapping[Any, Tensor] | None) -> list[Any] | None:
        """Take arrays by name; return names and numbers."""
        return None if tensors is None else [[key, self.add(tensor)] for key, tensor in tensors.items()]

    def data(self, document: Mapping[str, Any]) -> bytes:
        """Return the bytes of the document and of all arrays."""
        head = json.dumps({**document, "arrays": self.heads}, separators=(",", ":")).encode()
        head += b" " * (-len(head) % _ALIGN)
        return b"".join([np.int64(len(head)).tobytes(), head, *self.parts])


class ArrayReader:
    """Reads what :class:`ArrayWriter` wrote; every tensor has memory of its own.

    Parameters
    ----------
    data : bytes-like
        All of it.
    """

    def __init__(self, data: bytes | bytearray | memoryview):
        view = memoryview(data)
        length = int(np.frombuffer(view[:8], np.int64)[0])
        self.document: dict[str, Any] = json.loads(bytes(view[8 : 8 + length]))
        self._body = view[8 + length :]

    def array(self, number: int) -> Tensor:
        """Return an array by its number."""
        dtype, stored, shape, offset = self.document["arrays"][number]
        count = int(np.prod(shape, dtype=np.int64))
        found = np.frombuffer(self._body, np.dtype(stored), count, offset).reshape(shape)
        return torch.from_numpy(found.astype(np.dtype(dtype)))  # a copy: the buffer may be read-only

    def by(self, entries: list[Any] | None, key: Callable[[Any], Any]) -> Any:
        """Return arrays by name; ``key`` makes a name of what JSON has."""
        return None if entries is None else {key(name): self.array(number) for name, number in entries}


def edge_type(name: list[str]) -> EdgeType:
    """Return the edge type that JSON has as a list."""
    source, relation, destination = name
    return (source, relation, destination)


@contextmanager
def damage_in_sample() -> Iterator[None]:
    """Say of whatever goes wrong with the body's bytes that a stored sample is damaged."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        raise DatasetError(f"a stored sample is damaged: {type(error).__name__}: {error}") from error


def _fits(array: NDArray[Any], narrow: np.dtype[Any]) -> bool:
    bounds = np.iinfo(narrow)
    return bool(bounds.min <= array.min() and array.max() <= bounds.max)


def encode(stored: StoredSample) -> bytes:
    """Return the bytes of a batch."""
    arrays, sample = ArrayWriter(), stored.sample
    document = {
        "seeds": arrays.add_by(sample.seeds),
        "input_nodes": arrays.add_by(sample.input_nodes),
        "seed_rows": arrays.add_by(sample.seed_rows),
        "trees": arrays.add_by(sample.trees),
        "edges": None if sample.edges is None else [arrays.add(part) for part in vars(sample.edges).values()],
        "blocks": [
            {
                "num_src": block.num_src,
                "num_dst": block.num_dst,
                "indptr": arrays.add_by(block.indptr),
                "src": arrays.add_by(block.src),
                "edge_ids": arrays.add_by(block.edge_ids),
                "weights": arrays.add_by(block.weights),
            }
            for block in sample.blocks
        ],
        "edge_rows": arrays.add_by(stored.edge_rows),
        "edge_places": [[key, [arrays.add(part) for part in parts]] for key, parts in stored.edge_places.items()],
    }
    return arrays.data(document)


def decode(data: bytes | bytearray | memoryview) -> StoredSample:
    """Return the batch that :func:`encode` wrote; every tensor has memory of its own."""
    with damage_in_sample():
        return _decode(ArrayReader(data))


def decode_rows(data: bytes | bytearray | memoryview) -> tuple[dict[str, Tensor], dict[EdgeType, Tensor]]:
    """Return the input nodes and the edge rows of a batch that :func:`encode` wrote; reads nothing else of it."""
    with damage_in_sample():
        arrays = ArrayReader(data)
        document = arrays.document
        return arrays.by(document["input_nodes"], str), arrays.by(document["edge_rows"], edge_type)


def _decode(arrays: ArrayReader) -> StoredSample:
    document, array, by, etype = arrays.document, arrays.array, arrays.by, edge_type
    blocks = [
        Block(
            entry["num_src"],
            entry["num_dst"],
            *(by(entry[part], etype) for part in ("indptr", "src", "edge_ids", "weights")),
        )
        for entry in document["blocks"]
    ]
    edges = document["edges"]
    sample = Sample(
        by(document["seeds"], str),
        by(document["input_nodes"], str),
        blocks,
        by(document["seed_rows"], str),
        None if edges is None else SeedEdges(*map(array, edges)),
        by(document["trees"], str),
    )
    places = {etype(name): [array(number) for number in numbers] for name, numbers in document["edge_places"]}
    return StoredSample(sample, by(document["edge_rows"], etype), places)
