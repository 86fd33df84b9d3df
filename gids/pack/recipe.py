"""What is to be packed: everything that decides the batches of a loader, with nothing opened."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gids._native import ThreadPool
from gids.errors import ConfigError
from gids.loader import recipe as loader_recipe
from gids.loader.graph import open_topology
from gids.runtime.backend import SampledRows, sample_on_host
from gids.sampling import Sample, SampleKey, SeedBatch, SeedOrder, Topology
from gids.table import RowTable
from gids.types import EdgeType, TableKey


class Recipe(loader_recipe.Recipe):
    """A loader that is described and never opened; its batches are those that the loader would make."""

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

    def pieces(self, epoch: int, first: int = 0) -> Iterator[SeedBatch | None]:
        """Yield the seeds of every batch of an epoch over all ranks, from one on; None for one that a rank has not."""
        orders = self.orders(epoch)
        for number in range(first, self.batches_in_epoch()):
            index, rank = divmod(number, self.world_size)
            yield orders[rank][index] if index < len(orders[rank]) else None

    def batches_in_epoch(self) -> int:
        """Count the batches of an epoch over all ranks, those included that a rank has not."""
        return max(map(len, self.orders(0))) * self.world_size

    def open_topology(self) -> Topology:
        """Open the graph as a loader does."""
        return open_topology(self.dataset, self.options)

    def sample(self, topology: Topology, epoch: int, piece: SeedBatch, pool: ThreadPool) -> SampledRows:
        """Sample a batch, the same as every loader samples."""
        key = SampleKey(self.options.seed, epoch, piece.global_index)
        edge_types = list(dict.fromkeys(_edge(key) for key in self._edge_tables))
        found = sample_on_host(topology, self.sampler, piece.seeds, key, edge_types, pool)
        if type(found.sample) is not Sample:
            raise ConfigError(f"sampler must return a gids Sample to be packed (got {type(found.sample).__name__})")
        if found.node_places:
            raise ConfigError("sampler must share nodes between seeds to be packed (got one whose trees are disjoint)")
        return found

    def rows(self, sampled: SampledRows) -> dict[TableKey, Any]:
        """Return the rows that a batch wants of each table."""
        rows: dict[TableKey, Any] = {key: sampled.input_nodes[_node(key)] for key in self._node_tables}
        return rows | {key: sampled.edge_rows[_edge(key)] for key in self._edge_tables}


def _node(key: TableKey) -> str:
    assert isinstance(key.type, str)
    return key.type


def _edge(key: TableKey) -> EdgeType:
    assert not isinstance(key.type, str)
    return key.type
