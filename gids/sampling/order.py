"""The first verb, seeds: which seed nodes make batch b of rank r, as a pure function of (seed, epoch, rank, world)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from gids.errors import ConfigError
from gids.sampling.sample import NODE
from gids.sampling.seeds import EdgeSeeds, TimedSeeds

Uneven = Literal["pad", "join"]
_ROUNDS = 6
_MASK64 = (1 << 64) - 1


def _mix(values: NDArray[np.uint64], key: int) -> NDArray[np.uint64]:
    """SplitMix64's finaliser over ``values + key``: every output bit depends on every input bit."""
    mixed: NDArray[np.uint64] = values + np.uint64(key)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed = mixed ^ (mixed >> np.uint64(31))
    return mixed


class Permutation:
    """A random permutation of ``range(count)`` that takes no memory to speak of, whatever the count.

    A keyed Feistel network permutes ``[0, 4**k)`` with ``4**k > count``; positions that fall outside ``range(count)``
    are sent through it again until they fall inside (cycle walking), which leaves a permutation of ``range(count)``.
    A rank or a resumed run computes only its own part of it. On a handful of elements such a network is not uniform
    and a sort costs nothing, so up to ``SORTED`` elements are sorted by random keys instead.
    """

    SORTED = 1 << 16

    def __init__(self, count: int, seed: int, epoch: int):
        self.count = count
        state = _mix(np.array([seed & _MASK64], dtype=np.uint64), 0x9E3779B97F4A7C15)
        state = _mix(state ^ np.uint64(epoch & _MASK64), 0xD1B54A32D192ED03)
        self._keys = [int(_mix(state, (number + 1) * 0x9E3779B97F4A7C15 & _MASK64)[0]) for number in range(_ROUNDS)]
        self._half_bits = np.uint64((count.bit_length() + 1) // 2)
        self._mask = np.uint64((1 << int(self._half_bits)) - 1)
        self._sorted: NDArray[np.int64] | None = None
        if count <= self.SORTED:
            self._sorted = np.argsort(_mix(np.arange(count, dtype=np.uint64), self._keys[0]), kind="stable")

    def _once(self, positions: NDArray[np.uint64]) -> NDArray[np.uint64]:
        left, right = positions >> self._half_bits, positions & self._mask
        for key in self._keys:
            left, right = right, left ^ (_mix(right, key) & self._mask)
        joined: NDArray[np.uint64] = (left << self._half_bits) | right
        return joined

    def __call__(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the elements at ``positions`` (each in ``range(count)``)."""
        if self._sorted is not None:
            return self._sorted[positions]
        walked = self._once(positions.astype(np.uint64))
        outside = np.flatnonzero(walked >= self.count)
        while outside.size:
            walked[outside] = self._once(walked[outside])
            outside = outside[walked[outside] >= self.count]
        return walked.astype(np.int64)


class Arrangement(Protocol):
    """An order of seeds that is not a plain shuffle, e.g. :class:`gids.partition.PartitionOrder`."""

    @property
    def identity(self) -> str:
        """What decides the order beside seed and epoch."""

    def arrange(self, seed: int, epoch: int) -> NDArray[np.int64]:
        """Return the positions of the seeds in the order of an epoch, each once."""


@dataclass(frozen=True)
class SeedBatch:
    """Seeds of one batch.

    Attributes
    ----------
    index : int
        Number of the batch within the epoch of this rank; also the batch number of the sampler's random key on one
        rank.
    global_index : int
        ``index * world_size + rank``: different for every batch of the epoch over all ranks.
    seeds : dict of str to Tensor, TimedSeeds, or EdgeSeeds
        int64 ids for each node type that has seeds in this batch, with their times where they have some; or the edges of
        this batch.
    padding : int
        How many of the seeds, at the end, repeat seeds of another rank so that all ranks have as many batches.
    """

    index: int
    global_index: int
    seeds: dict[str, torch.Tensor] | TimedSeeds | EdgeSeeds
    padding: int = 0

    @property
    def nodes(self) -> dict[str, torch.Tensor]:
        """The seeds, which must be nodes."""
        if isinstance(self.seeds, EdgeSeeds):
            raise ConfigError("seeds must be nodes (got edges)")
        return by_type(self.seeds.nodes) if isinstance(self.seeds, TimedSeeds) else self.seeds

    @property
    def num_seeds(self) -> int:
        """Seeds of the batch: nodes over all types, or edges."""
        return len(self.seeds.src) if isinstance(self.seeds, EdgeSeeds) else sum(map(len, self.nodes.values()))


class SeedOrder:
    """The batches of one epoch for one rank.

    The permuted seeds are cut into chunks of ``batch_size * world_size``; rank r gets the r-th part of each. All parts
    have ``batch_size`` seeds, except in the last chunk, whose parts differ by at most one seed. So every seed is
    visited once per epoch over all ranks and every rank has the same number of batches, as DistributedDataParallel
    needs. Only when the last chunk has fewer seeds than there are ranks must some rank go without:

    - ``uneven="pad"`` gives that rank a seed of the same chunk again and says so in :attr:`SeedBatch.padding`;
    - ``uneven="join"`` gives it one batch less, for use inside ``DistributedDataParallel.join()``.

    ``drop_last`` leaves out the incomplete last chunk on all ranks.

    Parameters
    ----------
    seeds : Tensor, mapping of str to Tensor, TimedSeeds, or EdgeSeeds
        int64 ids, ids per node type, ids with times, or edges.
    batch_size, seed, epoch, shuffle, drop_last, rank, world_size, uneven
        As in :class:`gids.Loader`.
    arrangement : Arrangement, optional
        How seeds are shuffled, instead of each with all others.
    """

    def __init__(
        self,
        seeds: torch.Tensor | Mapping[str, torch.Tensor] | TimedSeeds | EdgeSeeds,
        *,
        batch_size: int,
        seed: int = 0,
        epoch: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        rank: int = 0,
        world_size: int = 1,
        uneven: Uneven = "pad",
        arrangement: Arrangement | None = None,
    ):
        check_order(batch_size=batch_size, rank=rank, world_size=world_size, uneven=uneven)
        self._edges = seeds if isinstance(seeds, EdgeSeeds) else None
        if isinstance(seeds, EdgeSeeds):
            self._seeds = {"edges": seeds.src}
        else:
            self._seeds = by_type(seeds.nodes if isinstance(seeds, TimedSeeds) else seeds)
        self._times = by_type(seeds.times) if isinstance(seeds, TimedSeeds) else None
        if self._times is not None and _lengths(self._times) != _lengths(self._seeds):
            raise ConfigError(
                f"times must be as many as nodes of each type (got {_lengths(self._times)} for {_lengths(self._seeds)})"
            )
        self._ends = np.cumsum([len(ids) for ids in self._seeds.values()], dtype=np.int64)
        self.count = int(self._ends[-1]) if len(self._ends) else 0
        self.batch_size, self.rank, self.world_size = batch_size, rank, world_size
        self.shuffled = shuffle
        self._arguments = {
            "batch_size": batch_size,
            "seed": seed,
            "shuffle": shuffle,
            "drop_last": drop_last,
            "rank": rank,
            "world_size": world_size,
            "uneven": uneven,
            "arrangement": arrangement,
        }
        if arrangement is not None and not shuffle:
            raise ConfigError("parts must not be given with shuffle=False: their order is one by chance")
        self._shuffle_key, self._arrangement = (seed, epoch), arrangement
        self._arranged: NDArray[np.int64] | None = None  # made with the first batch: 8 bytes for each seed
        self._permutation = Permutation(self.count, seed, epoch) if shuffle and arrangement is None else None
        chunk = batch_size * world_size
        whole, rest = divmod(self.count, chunk)
        self._whole_chunks, self._rest = whole, 0 if drop_last else rest
        has_part = self._rest > rank or (self._rest > 0 and uneven == "pad")
        self.num_batches = whole + (1 if has_part else 0)

    def for_epoch(self, epoch: int) -> SeedOrder:
        """Return the same order for another epoch."""
        seeds: dict[str, torch.Tensor] | TimedSeeds | EdgeSeeds = self._seeds if self._edges is None else self._edges
        if self._times is not None:
            seeds = TimedSeeds(self._seeds, self._times)
        return SeedOrder(seeds, epoch=epoch, **self._arguments)  # type: ignore[arg-type]

    @property
    def identity(self) -> list[int | str]:
        """What batches are like, whichever the seed, for results that are kept."""
        shape: list[int | str] = [self.batch_size, self.count, int(self.shuffled), len(self)]
        return shape if self._arrangement is None else [*shape, self._arrangement.identity]

    def __len__(self) -> int:
        return self.num_batches

    def __getitem__(self, index: int) -> SeedBatch:
        """Return batch ``index``."""
        if not 0 <= index < self.num_batches:
            raise IndexError(f"batch index must be in [0, {self.num_batches}) (got {index})")
        first = index * self.batch_size * self.world_size
        padding = 0
        if index < self._whole_chunks:
            begin = first + self.rank * self.batch_size
            positions = np.arange(begin, begin + self.batch_size, dtype=np.int64)
        else:
            small, larger = divmod(self._rest, self.world_size)
            size = small + (self.rank < larger)
            begin = first + self.rank * small + min(self.rank, larger)
            if size == 0:
                padding, size, begin = 1, 1, first + self.rank % self._rest
            positions = np.arange(begin, begin + size, dtype=np.int64)
        if self._permutation is not None:
            positions = self._permutation(positions)
        elif self._arrangement is not None:
            if self._arranged is None:
                self._arranged = self._arrangement.arrange(*self._shuffle_key)
            positions = self._arranged[positions]
        return SeedBatch(index, index * self.world_size + self.rank, self._take(positions), padding)

    def _take(self, positions: NDArray[np.int64]) -> dict[str, torch.Tensor] | TimedSeeds | EdgeSeeds:
        if self._edges is not None:
            chosen = torch.from_numpy(positions)
            times = self._edges.times
            return replace(
                self._edges,
                src=self._edges.src[chosen],
                dst=self._edges.dst[chosen],
                times=None if times is None else times[chosen],
            )
        places = self._places(positions)
        nodes = {name: self._seeds[name][mine] for name, mine in places.items()}
        if self._times is None:
            return nodes
        return TimedSeeds(nodes, {name: self._times[name][mine] for name, mine in places.items()})

    def _places(self, positions: NDArray[np.int64]) -> dict[str, torch.Tensor]:
        """Return the positions within each type's seeds, of the types that have some."""
        if len(self._seeds) == 1:
            (name,) = self._seeds
            return {name: torch.from_numpy(positions)}
        kind = np.searchsorted(self._ends, positions, side="right")
        places = {}
        for number, (name, ids) in enumerate(self._seeds.items()):
            mine = positions[kind == number] - (int(self._ends[number]) - len(ids))
            if mine.size:
                places[name] = torch.from_numpy(mine)
        return places


def by_type(seeds: object) -> dict[str, torch.Tensor]:
    """Return ids, or times, by node type; those of a graph with one type by the name of that."""
    given = dict(seeds) if isinstance(seeds, Mapping) else {NODE: seeds}
    return {name: torch.as_tensor(ids) for name, ids in given.items()}


def _lengths(parts: Mapping[str, torch.Tensor]) -> dict[str, int]:
    return {name: len(ids) for name, ids in parts.items()}


def check_order(*, batch_size: int, rank: int, world_size: int, uneven: str) -> None:
    """Refuse arguments that no order can be made from."""
    if batch_size < 1:
        raise ConfigError(f"batch_size must be at least 1 (got {batch_size})")
    if world_size < 1 or not 0 <= rank < world_size:
        raise ConfigError(f"rank must be in [0, world_size) with world_size >= 1 (got rank {rank} of {world_size})")
    if uneven not in ("pad", "join"):
        raise ConfigError(f"uneven must be 'pad' or 'join' (got {uneven!r})")
