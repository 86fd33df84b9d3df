"""What is to be packed: everything that decides the batches of a loader, with nothing opened."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from gids._native import ThreadPool
from gids.dataset import Dataset
from gids.errors import ConfigError
from gids.loader import Loader
from gids.loader import recipe as loader_recipe
from gids.loader.graph import open_topology
from gids.runtime.backend import sample_on_host
from gids.runtime.options import OrderOptions, RuntimeOptions
from gids.sampling import Sample, SampleKey, SeedBatch, SeedOrder, Topology
from gids.sampling.stored import StoredSample, decode_rows, encode
from gids.table import RowTable
from gids.types import EdgeType, TableKey


class PackedSample(NamedTuple):
    """A sampled batch, as it is stored.

    Attributes
    ----------
    data : bytes
        What a loader needs to make the batch of its rows.
    rows : mapping of TableKey to Tensor[int64]
        Distinct rows that it wants of each table.
    size_bytes : int
        Memory that it takes in a loader.
    """

    data: bytes
    rows: Mapping[TableKey, Tensor]
    size_bytes: int


class Packable(Protocol):
    """A loader whose batches can be packed: what decides them, how they are sampled, and how they are stored."""

    @property
    def dataset(self) -> Dataset:
        """What is packed."""

    @property
    def options(self) -> RuntimeOptions:
        """Of the loader."""

    @property
    def tables(self) -> dict[TableKey, RowTable]:
        """The tables that batches ask for, nodes first."""

    @property
    def world_size(self) -> int:
        """Ranks whose batches are packed."""

    def identity(self) -> dict[str, Any]:
        """Return what decides the batches, but for the rank: all ranks are packed."""

    def orders(self, epoch: int) -> list[SeedOrder]:
        """Return the order of every rank."""

    def open_topology(self) -> Topology:
        """Open the graph as a loader does."""

    def sample(self, topology: Topology, epoch: int, piece: SeedBatch, pool: ThreadPool) -> PackedSample:
        """Sample a batch, the same as every loader samples."""

    def rows(self, data: bytes) -> Mapping[TableKey, Tensor]:
        """Return the rows that a stored batch wants of each table, in its order."""


def iter_pieces(recipe: Packable, epoch: int, first: int = 0) -> Iterator[SeedBatch | None]:
    """Yield the seeds of every batch of an epoch over all ranks, from one on; None for one that a rank has not."""
    orders = recipe.orders(epoch)
    for number in range(first, count_batches(recipe)):
        index, rank = divmod(number, recipe.world_size)
        yield orders[rank][index] if index < len(orders[rank]) else None


def count_batches(recipe: Packable) -> int:
    """Count the batches of an epoch over all ranks, those included that a rank has not."""
    return max(map(len, recipe.orders(0))) * recipe.world_size


class Recipe(loader_recipe.Recipe):
    """A :class:`gids.Loader` that is described and never opened; see :class:`Packable`."""

    @property
    def tables(self) -> dict[TableKey, RowTable]:
        """The tables that batches ask for, nodes first."""
        node = {key: self.dataset.feature_table(_node(key), key.name) for key in self._node_tables}
        return node | {key: self.dataset.edge_feature_table(_edge(key), key.name) for key in self._edge_tables}

    @property
    def world_size(self) -> int:
        """Ranks whose batches are packed."""
        return int(self._order["world_size"])

    def identity(self) -> dict[str, Any]:
        """Return what decides the batches, but for the rank: all ranks are packed."""
        return {name: value for name, value in self._order_identity().items() if name != "rank"}

    def orders(self, epoch: int) -> list[SeedOrder]:
        """Return the order of every rank."""
        return [self.order(epoch, rank=rank) for rank in range(self.world_size)]

    def open_topology(self) -> Topology:
        """Open the graph as a loader does."""
        return open_topology(self.dataset, self.options)

    def sample(self, topology: Topology, epoch: int, piece: SeedBatch, pool: ThreadPool) -> PackedSample:
        """Sample a batch, the same as every loader samples."""
        key = SampleKey(self.options.seed, epoch, piece.global_index)
        edge_types = list(dict.fromkeys(_edge(key) for key in self._edge_tables))
        found = sample_on_host(topology, self.sampler, piece.seeds, key, edge_types, pool)
        if type(found.sample) is not Sample:
            raise ConfigError(f"sampler must return a gids Sample to be packed (got {type(found.sample).__name__})")
        if found.node_places:
            raise ConfigError("sampler must share nodes between seeds to be packed (got one whose trees are disjoint)")
        edges = {etype: list(parts) for etype, parts in found.edge_places.items()}
        data = encode(StoredSample(found.sample, dict(found.edge_rows), edges))
        return PackedSample(data, self._rows(found.input_nodes, found.edge_rows), found.size_bytes)

    def rows(self, data: bytes) -> Mapping[TableKey, Tensor]:
        """Return the rows that a stored batch wants of each table, in its order."""
        return self._rows(*decode_rows(data))

    def _rows(self, input_nodes: Mapping[str, Tensor], edge_rows: Mapping[EdgeType, Tensor]) -> dict[TableKey, Tensor]:
        rows = {key: input_nodes[_node(key)] for key in self._node_tables}
        return rows | {key: edge_rows[_edge(key)] for key in self._edge_tables}

    def open_loader(self, packed: str | os.PathLike[str] | None) -> Loader:
        """Open a loader of these batches, over packed ones or online."""
        chosen = self.options
        if packed is not None:
            return Loader(self.dataset, packed=packed, budget=chosen.budget)
        return Loader(
            self.dataset,
            self.seeds,
            sampler=self.sampler,
            batch_size=self._order["batch_size"],
            features=_names([*self._node_tables, *self._edge_tables]),
            budget=chosen.budget,
            order=OrderOptions(shuffle=self._order["shuffle"], seed=chosen.seed),
            memory=chosen.memory,
        )


def _names(keys: list[TableKey]) -> dict[Any, list[str]]:
    names: dict[Any, list[str]] = {}
    for key in keys:
        names.setdefault(key.type, []).append(key.name)
    return names


def _node(key: TableKey) -> str:
    assert isinstance(key.type, str)
    return key.type


def _edge(key: TableKey) -> EdgeType:
    assert not isinstance(key.type, str)
    return key.type
