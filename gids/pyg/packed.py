"""Packed epochs of PyG's loaders: neighbourhoods that were sampled before training, as bytes and as mini-batches again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gids._native import piece_bytes
from gids.loader.packed import OpenedSample, PackedPiece
from gids.pyg.builder import DataBuilder, Places, SampledHops
from gids.pyg.hops import Neighborhood
from gids.pyg.seeds import Inputs
from gids.runtime.batch import tensor_sizes
from gids.runtime.work import Fetched
from gids.sampling import SampleKey, SeedOrder
from gids.sampling.stored import ArrayReader, ArrayWriter, damage_in_sample, edge_type


def encode_hops(found: Neighborhood, places: Places) -> bytes:
    """Return the bytes of a neighbourhood, and of the places of repeated nodes and edges."""
    arrays = ArrayWriter()
    nodes, edges = found.num_sampled_nodes, found.num_sampled_edges
    return arrays.data(
        {
            "node": arrays.add_by(found.node),
            "row": arrays.add_by(found.row),
            "col": arrays.add_by(found.col),
            "edge": arrays.add_by(found.edge),
            "batch": arrays.add_by(found.batch),
            "places": arrays.add_by(places),
            "num_sampled_nodes": None if nodes is None else list(nodes.items()),
            "num_sampled_edges": None if edges is None else list(edges.items()),
        }
    )


def decode_hops(data: bytes | memoryview) -> tuple[Neighborhood, Places]:
    """Return what :func:`encode_hops` wrote; every tensor has memory of its own."""
    with damage_in_sample():
        arrays = ArrayReader(data)
        stored, by = arrays.document, arrays.by
        nodes, edges = stored["num_sampled_nodes"], stored["num_sampled_edges"]
        found = Neighborhood(
            by(stored["node"], str),
            by(stored["row"], edge_type),
            by(stored["col"], edge_type),
            by(stored["edge"], edge_type),
            None if nodes is None else {str(ntype): list(counts) for ntype, counts in nodes},
            None if edges is None else {edge_type(etype): list(counts) for etype, counts in edges},
            batch=by(stored["batch"], str),
        )
        return found, by(stored["places"], lambda name: name if isinstance(name, str) else edge_type(name))


class StoredHops:
    """Builds PyG's mini-batches of stored neighbourhoods; see :class:`gids.loader.packed.StoredBatches`.

    Parameters
    ----------
    inputs : Inputs
        What batches begin with: which seeds a batch has, and the negatives of edges, are known without sampling.
    order_of : callable
        Returns this rank's order of an epoch.
    builder : DataBuilder
        Puts neighbourhood, rows and labels together.
    seed : int
        Of the loader.
    """

    def __init__(self, inputs: Inputs, order_of: Callable[[int], SeedOrder], builder: DataBuilder, seed: int):
        self._inputs, self._order_of, self._builder, self._seed = inputs, order_of, builder, seed
        self._order: tuple[int, SeedOrder] | None = None  # of the epoch that is read

    @property
    def labels_bytes(self) -> int:
        """Memory of the labels."""
        return self._builder.labels_bytes

    def open(self, piece: PackedPiece, data: memoryview) -> OpenedSample:
        """Return where a batch began, and its neighbourhood."""
        epoch, order = piece.stored_epoch, self._order
        if order is None or order[0] != epoch:
            self._order = order = (epoch, self._order_of(epoch))
        batch = order[1][piece.seeds.index]
        start = self._inputs.start(batch.nodes, SampleKey(self._seed, epoch, batch.global_index))
        found, places = decode_hops(data)
        size_bytes = sum(piece_bytes(size) for size in tensor_sizes((found, places)))
        return OpenedSample(SampledHops(start, found, places), size_bytes, sum(map(len, found.node.values())))

    def finish(self, fetched: Fetched) -> Any:
        """Put neighbourhood, rows and labels together as PyG has them."""
        return self._builder.build(fetched)
