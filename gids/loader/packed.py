"""The feed of packed epochs: batches that were sampled before training, and rows that lie where they are read in order."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gids._native import piece_bytes
from gids.budget import Demand, Memory, Pace, Request, TableDemand, default_budget, divide
from gids.budget.parts import host_bytes
from gids.dataset import Dataset
from gids.dataset.packed import Packed, PackedReader
from gids.errors import ConfigError
from gids.loader.feed import BatchBuilder
from gids.runtime.backend import Backend, SampledRows
from gids.runtime.batch import Batch, tensor_sizes
from gids.runtime.options import RuntimeOptions, optional_bytes
from gids.runtime.work import Fetched, Work
from gids.sampling import SeedBatch
from gids.sampling.stored import decode
from gids.storage.curve import DEFAULT_CURVE
from gids.table import RowTable
from gids.tiers import HotRows
from gids.tiers.store import output_dtype
from gids.types import TableKey

#: Bytes from disk that a group should have: enough that a step of the pipeline costs little beside its read.
GROUP_BYTES = 32 << 20
MOST_GROUP_BATCHES = 16
#: Groups in memory: one is read while one waits and one is copied from.
GROUPS_IN_FLIGHT = 3
#: Accesses that no group has: batches are grouped by bytes, because a chunk is one access however many rows it has.
ANY_ACCESSES = 1 << 40
#: Whose batches are packed where the identity does not say.
LOADER = "gids.Loader"


@dataclass(frozen=True)
class PackedPiece:
    """One piece of the order: which stored batch, and the epoch of training that it is used in."""

    seeds: SeedBatch
    epoch: int
    stored_epoch: int
    num_seeds: int


class HotFirst:
    """A ranking in which the first rows of a table are the best and all others are never hot.

    Parameters
    ----------
    rows : int
        How many.
    """

    def __init__(self, rows: int):
        self._rows = rows

    def top(self, count: int) -> Tensor:
        """Return the first rows, as many as are hot."""
        return torch.arange(min(count, self._rows))

    def places(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows themselves; see :class:`gids.tiers.HotRows`."""
        return np.where(rows < self._rows, rows, np.iinfo(np.int64).max)

    def levels(self, rows: NDArray[np.int64] | None = None) -> NDArray[np.uint8]:
        """Say of hot rows that they are used, and of others that they are not."""
        return np.zeros(0, np.uint8) if rows is None else (rows < self._rows).astype(np.uint8)


class OpenedSample(NamedTuple):
    """A stored sample, opened.

    Attributes
    ----------
    payload : object
        What :meth:`StoredBatches.finish` needs of it.
    size_bytes : int
        Memory that it takes.
    num_inputs : int
        Nodes whose rows it needs.
    """

    payload: Any
    size_bytes: int
    num_inputs: int


class StoredBatches(Protocol):
    """What a door makes of stored samples and of their rows."""

    @property
    def labels_bytes(self) -> int:
        """Memory of the labels."""

    def open(self, piece: PackedPiece, data: memoryview) -> OpenedSample:
        """Return what was sampled for a piece."""

    def finish(self, fetched: Fetched) -> Any:
        """Return the batch of an opened sample and its rows."""


class StoredBlocks:
    """Builds :class:`gids.Batch`; see :class:`StoredBatches`.

    Parameters
    ----------
    builder : BatchBuilder
        Puts blocks, rows and labels together.
    """

    def __init__(self, builder: BatchBuilder):
        self._builder = builder

    @property
    def labels_bytes(self) -> int:
        """Memory of the labels."""
        return self._builder.labels_bytes

    def open(self, piece: PackedPiece, data: memoryview) -> OpenedSample:
        """Return what was sampled for a piece."""
        stored = decode(data)
        sample = stored.sample
        size_bytes = sum(piece_bytes(size) for size in tensor_sizes(stored))
        sampled = SampledRows(sample, sample.input_nodes, stored.edge_rows, stored.edge_places, size_bytes)
        # As they were given, repeated ones included: doors that show seeds have them from here.
        given = {ntype: ids[sample.seed_rows[ntype]] for ntype, ids in sample.seeds.items()}
        piece = replace(piece, seeds=replace(piece.seeds, seeds=given))
        inputs = sum(map(len, sample.input_nodes.values()))
        return OpenedSample(self._builder.payload(piece, sampled), size_bytes, inputs)

    def finish(self, fetched: Fetched) -> Batch:
        """Put blocks, rows and labels together."""
        return self._builder.build(fetched)


class PackedFeed:
    """Reads stored batches and lets a door build its own of them; see :class:`gids.runtime.feed.Feed`.

    Parameters
    ----------
    packed : Packed
        The batches and their rows.
    batches : StoredBatches
        What the door makes of them.
    backend : Backend
        Where batches are delivered.
    rank, world_size : int
        Which batches are ours.
    """

    samples_on_consumer = False
    replays = True
    identity = None

    def __init__(self, packed: Packed, batches: StoredBatches, backend: Backend, rank: int, world_size: int):
        self.packed, self._batches, self._backend = packed, batches, backend
        self._rank, self._world_size = rank, world_size
        self._reader = PackedReader(packed)
        self.tables: dict[TableKey, RowTable] = {key: entry.table for key, entry in packed.tables.items()}

    @property
    def standing_bytes(self) -> tuple[int, int]:
        """Memory of the records of all batches, and of the labels."""
        return self.packed.index.nbytes, self._batches.labels_bytes

    @property
    def num_batches(self) -> int:
        """Batches of an epoch on this rank."""
        return self.packed.batches_of_rank[self._rank]

    def pieces(self, epoch: int, stored_epoch: int, indices: Any) -> Iterator[PackedPiece]:
        """Yield the pieces of batches ``indices`` of this rank."""
        for index in indices:
            number = index * self._world_size + self._rank
            record = self.packed.record(stored_epoch, number)
            batch = SeedBatch(index, number, {}, int(record["padding"]))
            yield PackedPiece(batch, epoch, stored_epoch, int(record["seeds"]))

    def first(self) -> tuple[Work, int] | None:
        """Return the first batch of this rank, and no memory for sampling."""
        piece = next(self.pieces(0, 0, range(min(1, self.num_batches))), None)
        return None if piece is None else (self._work(piece, on_host=True), 0)

    def profile(self) -> Iterator[Work]:
        """Yield the batches of the first epoch."""
        for piece in self.pieces(0, 0, range(self.num_batches)):
            yield self._work(piece, on_host=True)

    def sample(self, piece: PackedPiece) -> Work:
        """Read what was sampled for a batch, and where its rows are."""
        return self._work(piece, on_host=False)

    def _work(self, piece: PackedPiece, on_host: bool) -> Work:
        record = self.packed.record(piece.stored_epoch, piece.seeds.global_index)
        opened = self._batches.open(piece, self._reader.sample(record))
        positions = {key: torch.from_numpy(rows) for key, rows in self._reader.positions(record).items()}
        size_bytes = opened.size_bytes + sum(piece_bytes(size) for size in tensor_sizes(positions))
        rows: dict[TableKey, Any] = dict(positions)
        if not on_host:
            rows = {key: self._backend.place(where) for key, where in positions.items()}
        return Work(opened.payload, rows, size_bytes, piece.num_seeds, opened.num_inputs)

    def finish(self, fetched: Fetched) -> Any:
        """Put what was sampled, rows and labels together."""
        return self._batches.finish(fetched)

    def is_ranked(self, key: TableKey) -> bool:
        """Whether rows of a table are hot."""
        return self.packed.tables[key].hot_rows > 0

    def rankings(self) -> Mapping[TableKey, HotRows]:
        """Rank the rows of every table: packing put the hot ones first."""
        return {key: HotFirst(entry.hot_rows) for key, entry in self.packed.tables.items()}

    @property
    def scratch_dir(self) -> Path | None:
        """Where results would be kept; there are none."""
        return None

    @property
    def bytes_read(self) -> int:
        """Bytes of samples and positions that were read."""
        return self._reader.bytes_read

    def close(self) -> None:
        """Close the files."""
        self._reader.close()


def as_packed(packed: Packed | str | os.PathLike[str]) -> Packed:
    """Return packed epochs, opened by their path where that was given."""
    return packed if isinstance(packed, Packed) else Packed(packed)


def check_identity(packed: Packed, dataset: Dataset, given: Mapping[str, Any], door: str = LOADER) -> None:
    """Refuse packed epochs of another dataset, and arguments that say something else than what was packed.

    Parameters
    ----------
    packed : Packed
        The epochs.
    dataset : Dataset
        What the loader reads labels from.
    given : mapping of str to object
        Arguments of the user's, by their names in :attr:`Packed.identity`; those left out are not here.
    door : str
        Whose batches are read: those of PyG's loaders are sampled otherwise.
    """
    made = packed.identity.get("door", LOADER)
    if made != door:
        raise ConfigError(f"packed must hold batches of {door} (got {packed.path}, of {made})")
    if dataset.id != packed.dataset_id:
        raise ConfigError(
            f"packed must hold epochs of dataset {dataset.id} (got {packed.path}, of {packed.dataset_id})"
        )
    for name, value in given.items():
        if packed.identity.get(name) != value:
            raise ConfigError(f"{name} must be {packed.identity.get(name)!r}, as it was packed (got {value!r})")


def stored_epoch(packed: Packed, epoch: int) -> int | None:
    """Return the packed epoch that serves as ``epoch``; None where it is to be sampled online, refused where it is not."""
    stored = packed.stored_epoch(epoch)
    if stored is None and packed.beyond == "error":
        advice = ["pack more epochs", "pack with reuse to train on these again"]
        who = "let gids.Loader, with seeds and sampler, " if packed.identity.get("door", LOADER) == LOADER else ""
        advice.append(f"{who}go on online with packed=gids.Packed({str(packed.path)!r}, beyond='online')")
        raise ConfigError(
            f"epoch must be below {packed.epochs}, as many as {packed.path} has (got {epoch}): "
            f"{', '.join(advice[:-1])}, or {advice[-1]}"
        )
    return stored


def labels_bytes(dataset: Dataset) -> int:
    """Return the memory of a dataset's labels."""
    stored = (node.labels for node in dataset.manifest.nodes.values())
    return sum(labels.table.total_bytes for labels in stored if labels is not None)


def packed_options(
    options: RuntimeOptions,
    memory: Memory,
    tables: Mapping[TableKey, tuple[RowTable, int]],
    sample_bytes: int,
    standing_bytes: tuple[int, int],
    hot_bytes: int | None = None,
) -> RuntimeOptions:
    """Fill in how a budget is used best for packed epochs; what the user fixed stays.

    No row but a hot one comes twice, so nothing is cached and no window is looked at; whole groups are read, each in
    order, and all memory that is left holds hot rows.

    Parameters
    ----------
    options : RuntimeOptions
        What the user chose.
    memory : Memory
        What there is.
    tables : mapping of TableKey to (RowTable, int)
        Each table, and the rows that the largest batch asks of it.
    sample_bytes : int
        Memory of the largest stored batch.
    standing_bytes : tuple of int
        Memory of records and of labels.
    hot_bytes : int, optional
        Bytes of the rows that are hot: more memory than they take is not used.
    """
    if memory.device is not None:  # device cache and host buffer have memory of their own, and are divided by profile
        return options
    pipeline = replace(
        options.pipeline,
        window=0 if options.pipeline.window is None else options.pipeline.window,
        groups_in_flight=max(GROUPS_IN_FLIGHT, options.pipeline.groups_in_flight),
        accesses=options.pipeline.accesses or ANY_ACCESSES,
    )
    demand = Demand(
        {
            key: TableDemand.of(table, rows, output_dtype(table, options.output.dtype).itemsize)
            for key, (table, rows) in tables.items()
        },
        sample_bytes + sample_bytes // 10,
        0,
        *standing_bytes,
    )
    batch_bytes = max(1, demand.batch_bytes)
    together = pipeline.sweep_batches or max(1, min(MOST_GROUP_BATCHES, GROUP_BYTES // batch_bytes))
    request = replace(options, pipeline=pipeline).request()
    pace = Pace(pipeline.prefetch, pipeline.groups_in_flight, pipeline.sample_workers or 1)
    for batches in range(together, 0, -1):
        # Two groups and a half: less where the budget is small, and never less than one batch.
        for held in (2.5, 1.5, 1.0):
            asked = replace(request, cache=0, host_buffer=0, sweep_batches=batches, window=pipeline.window)
            groups = int(batch_bytes * batches * held)
            asked = replace(asked, groups=groups if request.groups is None else request.groups)
            try:
                found = _divided(memory, demand, {key: table for key, (table, _) in tables.items()}, asked, pace)
            except ConfigError:
                if batches > 1 or held > 1.0:
                    continue
                raise
            left = max(0, memory.host - found)
            return replace(
                options,
                pipeline=replace(pipeline, sweep_batches=batches),
                memory=replace(
                    options.memory,
                    cache=0 if options.memory.cache is None else options.memory.cache,
                    groups=asked.groups,
                    host_buffer=_hot_buffer(options, left, hot_bytes),
                ),
            )
    raise AssertionError("the last attempt returns or raises")


def open_packed_options(packed: Packed, options: RuntimeOptions, dataset: Dataset) -> RuntimeOptions:
    """Return the options with which a loader opens packed epochs."""
    if options.device is not None and options.device.type == "cuda":
        return options
    budget = optional_bytes(options.budget, "budget")
    memory = Memory(default_budget() if budget is None else budget)
    tables = {key: (entry.table, entry.largest_rows) for key, entry in packed.tables.items()}
    standing = (packed.index.nbytes, labels_bytes(dataset) if options.output.labels else 0)
    # The map of the host buffer doubles in steps, so what a few rows more would take is not known exactly.
    hot = sum(host_bytes(entry.hot_rows, entry.table.row_bytes) for entry in packed.tables.values())
    sample_bytes = packed.largest_sample_bytes
    found = packed_options(options, memory, tables, sample_bytes, standing, hot)
    return replace(found, budget=memory.host, spill=None)  # rows are read in order already


def _hot_buffer(options: RuntimeOptions, left: int, hot_bytes: int | None) -> int | str:
    if options.memory.host_buffer is not None:
        return options.memory.host_buffer
    return left if hot_bytes is None else min(left, hot_bytes)


def _divided(memory: Memory, demand: Demand, tables: Mapping[TableKey, RowTable], request: Request, pace: Pace) -> int:
    """Return the memory that a division without host buffer takes; refuses what does not fit."""
    return divide(memory, demand, tables, request, pace, curve=DEFAULT_CURVE).allotment.total
