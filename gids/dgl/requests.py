"""Which rows of which tables a sampled DGL batch asks for, and putting them where it asked for them.

DGL's samplers mark what is to be fetched with ``dgl.frame.LazyFeature`` columns. A batch may ask for one table in
several places (edge features of every block); each row is then fetched once and handed out to all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import dgl
import torch
from dgl.frame import LazyFeature
from torch import Tensor

from gids.external import TableKey


@dataclass
class _Place:
    """A column of one frame that waits for rows; ``positions`` are into the unique rows of the table, None: all."""

    frame: Any
    column: str
    ids: Tensor
    distinct: bool
    positions: Tensor | None = None


@dataclass
class Requests:
    """Everything that one sampled batch asks of the tables for which ``wanted`` is true."""

    places: dict[TableKey, list[_Place]] = field(default_factory=dict)
    rows: dict[TableKey, Tensor] = field(default_factory=dict)

    def deliver(self, rows: Mapping[Any, Tensor]) -> None:
        """Replace every lazy column by its rows; ``rows[key][i]`` is row ``self.rows[key][i]``."""
        for key, places in self.places.items():
            for place in places:
                fetched = rows[key]
                place.frame[place.column] = fetched if place.positions is None else fetched[place.positions]


def graphs_in(batch: Any) -> Iterator[Any]:
    """Walk over every graph of a batch, however it is nested in tuples, lists and mappings."""
    if isinstance(batch, dgl.DGLGraph):
        yield batch
    elif isinstance(batch, Mapping):
        for item in batch.values():
            yield from graphs_in(item)
    elif isinstance(batch, list | tuple):
        for item in batch:
            yield from graphs_in(item)


def collect(batch: Any, wanted: Callable[[TableKey], bool]) -> Requests:
    """Find the lazy columns of a batch whose tables are wanted.

    Parameters
    ----------
    batch : object
        What a DGL sampler returned.
    wanted : callable
        Says of a table key whether its rows are fetched here; other columns stay lazy.
    """
    requests = Requests()
    for graph in graphs_in(batch):
        node_types = [("node", ntype) for ntype in graph.ntypes]
        edge_types = [("edge", etype) for etype in graph.canonical_etypes]
        frames = [*graph._node_frames, *graph._edge_frames]
        for (kind, type_), frame in zip([*node_types, *edge_types], frames, strict=True):
            for column in list(frame.keys()):
                lazy = frame._columns[column]
                key = (kind, type_, getattr(lazy, "name", None) or column)
                if not isinstance(lazy, LazyFeature) or not wanted(key):
                    continue
                ids = lazy.id_ if lazy.id_ is not None else frame.get(dgl.NID if kind == "node" else dgl.EID)
                if ids is None:
                    raise dgl.DGLError(
                        f"lazy column {column!r} of {type_!r} must have ids (the graph has no id column)"
                    )
                # DGL numbers the nodes of a block without repetition; edges of a pair graph may repeat.
                distinct = kind == "node" and lazy.id_ is None and graph.is_block
                requests.places.setdefault(key, []).append(_Place(frame, column, ids, distinct))
    for key, places in requests.places.items():
        if len(places) == 1 and places[0].distinct:
            requests.rows[key] = places[0].ids.to(torch.int64)
            continue
        ids = torch.cat([place.ids for place in places]).to(torch.int64)
        requests.rows[key], positions = torch.unique(ids, return_inverse=True)
        for place, part in zip(places, positions.split([len(place.ids) for place in places]), strict=True):
            place.positions = part
    return requests
