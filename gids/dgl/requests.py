"""Which rows of which tables a sampled DGL batch asks for, and putting them where it asked for them.

DGL's samplers mark what is to be fetched with ``dgl.frame.LazyFeature`` columns. A batch may ask for one table in
several places (edge features of every block); each row is then fetched once and handed out to all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import dgl
import torch
from dgl.frame import LazyFeature
from torch import Tensor

from gids.types import TableKey


class LazyColumn(NamedTuple):
    """A column of a graph that waits for rows.

    Attributes
    ----------
    frame : int
        Which of the graph's frames: node types first, then edge types.
    name : str
        Of the column.
    key : TableKey
        Whose rows it waits for.
    ids : Tensor or None
        Which ones; None for those of the frame's nodes or edges.
    """

    frame: int
    name: str
    key: TableKey
    ids: Tensor | None


def frames_of(graph: Any) -> list[Any]:
    """Return the frames of a graph: of its node types, then of its edge types."""
    return [*graph._node_frames, *graph._edge_frames]


def lazy_columns(graph: Any) -> Iterator[LazyColumn]:
    """Yield the columns of a graph that wait for rows."""
    types = [*graph.ntypes, *graph.canonical_etypes]
    for number, (type_, frame) in enumerate(zip(types, frames_of(graph), strict=True)):
        for column in list(frame.keys()):
            lazy = frame._columns[column]
            if isinstance(lazy, LazyFeature):
                yield LazyColumn(number, column, TableKey(type_, lazy.name or column), lazy.id_)


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


@dataclass
class _Place:
    """A column of one frame of one graph; ``positions`` are into the unique rows of the table, None: all of them."""

    graph: int
    frame: int
    column: str
    ids: Tensor
    distinct: bool
    positions: Tensor | None = None


@dataclass
class Requests:
    """Everything that one sampled batch asks of the tables for which ``wanted`` is true."""

    places: dict[TableKey, list[_Place]] = field(default_factory=dict)
    rows: dict[TableKey, Tensor] = field(default_factory=dict)

    def deliver(self, batch: Any, rows: Mapping[TableKey, Tensor]) -> None:
        """Put rows into the graphs of the batch, which may have moved to another device since they were asked for.

        Parameters
        ----------
        batch : object
            The batch, or a copy of it.
        rows : mapping of TableKey to Tensor
            ``rows[key][i]`` is row ``self.rows[key][i]``.
        """
        graphs = list(graphs_in(batch))
        for key, places in self.places.items():
            fetched = rows[key]
            for place in places:
                whole = place.positions is None
                part = fetched if whole else fetched[place.positions.to(fetched.device)]  # type: ignore[union-attr]
                frames_of(graphs[place.graph])[place.frame][place.column] = part


def collect(batch: Any, wanted: Callable[[TableKey], bool]) -> Requests:
    """Take the lazy columns whose tables are wanted out of a batch.

    Parameters
    ----------
    batch : object
        What a DGL sampler returned.
    wanted : callable
        Says of a table key whether its rows are fetched here; other columns stay lazy.
    """
    requests = Requests()
    for number, graph in enumerate(graphs_in(batch)):
        frames = frames_of(graph)
        for found in [column for column in lazy_columns(graph) if wanted(column.key)]:
            frame, is_edge = frames[found.frame], found.key.is_edge
            ids = found.ids if found.ids is not None else frame.get(dgl.EID if is_edge else dgl.NID)
            if ids is None:
                raise dgl.DGLError(
                    f"lazy column {found.name!r} of {found.key.type!r} must have ids (the graph has no id column)"
                )
            # DGL numbers the nodes of a block without repetition; edges of a pair graph may repeat.
            distinct = not is_edge and found.ids is None and graph.is_block
            place = _Place(number, found.frame, found.name, ids, distinct)
            requests.places.setdefault(found.key, []).append(place)
            del frame[found.name]  # rows are put there when they, and the graph, are where they are wanted
    for key, places in requests.places.items():
        if len(places) == 1 and places[0].distinct:
            requests.rows[key] = places[0].ids.to(torch.int64)
            continue
        ids = torch.cat([place.ids for place in places]).to(torch.int64)
        requests.rows[key], positions = torch.unique(ids, return_inverse=True)
        for place, part in zip(places, positions.split([len(place.ids) for place in places]), strict=True):
            place.positions = part
    return requests


def batch_bytes(batch: Any) -> int:
    """Estimate the memory of a sampled batch: ends and ids of its edges, ids of its nodes."""
    total = 0
    for graph in graphs_in(batch):
        item_bytes = 4 if graph.idtype == torch.int32 else 8
        total += item_bytes * sum(graph.num_nodes(ntype) for ntype in graph.ntypes)
        total += 3 * item_bytes * sum(graph.num_edges(etype) for etype in graph.canonical_etypes)
    return total


def num_seeds(batch: Any) -> int:
    """Count the seeds of a batch of DGL's samplers: nodes, or edges of the pair graph; 0 where it has another form."""
    if not isinstance(batch, list | tuple) or len(batch) < 2:
        return 0
    seeds = batch[1]
    return int(seeds.num_edges()) if isinstance(seeds, dgl.DGLGraph) else _count(seeds)


def num_inputs(batch: Any) -> int:
    """Count the input nodes of a batch of DGL's samplers; 0 where it has another form."""
    return _count(batch[0]) if isinstance(batch, list | tuple) and len(batch) else 0


def _count(ids: Any) -> int:
    if isinstance(ids, Mapping):
        return sum(map(_count, ids.values()))
    return len(ids) if isinstance(ids, Tensor) else 0
