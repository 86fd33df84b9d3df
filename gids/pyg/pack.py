"""gids.pyg.pack: sample epochs of one of PyG's loaders ahead of training and lay their rows out as they will be read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from gids._native import ThreadPool, piece_bytes
from gids.dataset import Dataset
from gids.dataset.packed import Packed
from gids.dataset.table_writer import Progress
from gids.errors import ConfigError
from gids.loader.graph import open_topology
from gids.pack.maker import MEMORY, Packing
from gids.pack.recipe import PackedSample
from gids.pyg.builder import WantedRows
from gids.pyg.feed import open_tables, sample_hops
from gids.pyg.loader import HopLoader
from gids.pyg.packed import decode_hops, encode_hops
from gids.runtime.batch import tensor_sizes
from gids.runtime.options import RuntimeOptions
from gids.sampling import SampleKey, SeedBatch, SeedOrder, Topology
from gids.table import RowTable
from gids.types import TableKey


class HopRecipe:
    """What decides the batches of a loader of PyG's; see :class:`gids.pack.recipe.Packable`.

    Parameters
    ----------
    loader : HopLoader
        Whose batches.
    """

    def __init__(self, loader: HopLoader):
        if loader.packed is not None:
            raise ConfigError(f"loader must be one that samples (got one over {loader.packed.path})")
        loader.check_packable()
        self._loader = loader
        self._wanted = WantedRows(loader.dataset, loader.tables, loader.hops, is_changed=False)

    @property
    def dataset(self) -> Dataset:
        """What is packed."""
        return self._loader.dataset

    @property
    def options(self) -> RuntimeOptions:
        """Of the loader."""
        return self._loader.options

    @property
    def tables(self) -> dict[TableKey, RowTable]:
        """The tables that batches ask for."""
        return open_tables(self.dataset, self._loader.tables)

    @property
    def world_size(self) -> int:
        """Ranks whose batches are packed."""
        return self._loader.world_size

    def identity(self) -> dict[str, Any]:
        """Return what decides the batches, but for the rank, and whose they are."""
        return self._loader.packed_identity()

    def orders(self, epoch: int) -> list[SeedOrder]:
        """Return the order of every rank."""
        return [self._loader.order(epoch, rank) for rank in range(self.world_size)]

    def open_topology(self) -> Topology:
        """Open the graph as the loader does."""
        times = self._loader.hops.times
        return open_topology(self.dataset, self.options, None if times is None else times.time_attr)

    def sample(self, topology: Topology, epoch: int, piece: SeedBatch, pool: ThreadPool) -> PackedSample:
        """Sample a batch, the same as the loader samples."""
        key = SampleKey(self.options.seed, epoch, piece.global_index)
        found = sample_hops(self._loader.hops, topology, self._loader.inputs.start(piece.nodes, key), key, pool)
        rows, places = self._wanted.of(found)
        size_bytes = sum(piece_bytes(size) for size in tensor_sizes((found, places, dict(rows))))
        return PackedSample(encode_hops(found, places), rows, size_bytes)

    def rows(self, data: bytes) -> Mapping[TableKey, Tensor]:
        """Return the rows that a stored batch wants of each table, in its order."""
        found, _ = decode_hops(data)
        return self._wanted.of(found)[0]


def pack(
    loader: HopLoader,
    path: str | os.PathLike[str],
    *,
    epochs: int = 1,
    reuse: bool = False,
    disk: int | str | None = None,
    hot: int | str | None = None,
    memory: int | str = MEMORY,
    progress: Progress | None = None,
) -> Packed:
    """Sample epochs of a loader and write their rows in the order in which training will read them.

    Give the result to a loader with the same arguments as ``packed=``: its batches are those of this one, to the bit.

    Parameters
    ----------
    loader : NeighborLoader or LinkNeighborLoader
        Whose batches, of all its ranks; its ``budget`` is that of training. A running epoch ends.
    path, epochs, reuse, disk, hot, memory, progress
        As in :func:`gids.pack`.
    """
    recipe = HopRecipe(loader)
    loader.pause("its batches are packed")
    budget = loader.options.budget
    settings = {"epochs": epochs, "reuse": reuse, "disk": disk, "hot": hot, "budget": budget, "memory": memory}
    return Packing(recipe, Path(path), settings, progress).run()
