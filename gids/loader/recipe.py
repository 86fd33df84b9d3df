"""What decides the batches of gids.Loader: its arguments, resolved and checked, with nothing opened."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch

from gids.dataset import Dataset
from gids.dataset.packed import Packed
from gids.errors import ConfigError
from gids.loader.epochs import describe_arrangement, describe_ids, describe_sampler
from gids.loader.graph import Features, Seeds, arrangement_of, as_dataset, feature_tables, resolve_seeds
from gids.loader.packed import as_packed, check_identity
from gids.runtime.backend import Sampler
from gids.runtime.options import (
    MemoryOptions,
    OrderOptions,
    OutputOptions,
    PipelineOptions,
    RuntimeOptions,
    SpillOptions,
)
from gids.runtime.peers import Sharding
from gids.sampling import EdgeSeeds, NeighborSampler, SeedOrder, TimedSeeds
from gids.sampling.order import by_type, check_order
from gids.storage import StorageOptions

#: What decides the order of an epoch, in the order in which it is described.
ORDER_NAMES = ("batch_size", "seed", "shuffle", "drop_last", "rank", "world_size", "uneven")


class Recipe:
    """The arguments of :class:`gids.Loader`, resolved; a loader is one that is opened, packing needs no more.

    Parameters
    ----------
    dataset, seeds, fanouts, sampler, batch_size, features, budget, device
        See :class:`gids.Loader`.
    order, memory, pipeline, storage, output, shards, packed, spill
        See :class:`gids.Loader`.
    """

    _epoch = 0

    def __init__(
        self,
        dataset: Dataset | str | os.PathLike[str],
        seeds: Seeds = None,
        *,
        fanouts: Sequence[Any] | None = None,
        sampler: Sampler | None = None,
        batch_size: int | None = None,
        features: Features = "feat",
        budget: int | str | None = None,
        device: torch.device | str | None = None,
        order: OrderOptions | None = None,
        memory: MemoryOptions | None = None,
        pipeline: PipelineOptions | None = None,
        storage: StorageOptions | str | None = None,
        output: OutputOptions | None = None,
        shards: Sharding | None = None,
        packed: Packed | str | os.PathLike[str] | None = None,
        spill: SpillOptions | int | str | None = None,
    ) -> None:
        self.dataset = as_dataset(dataset)
        self.packed = None if packed is None else as_packed(packed)
        if (fanouts is not None and sampler is not None) or (packed is None and fanouts is None and sampler is None):
            raise ConfigError("exactly one of fanouts and sampler must be given")
        self._named_seeds = seeds if isinstance(seeds, str) else None
        tables = feature_tables(self.dataset, features)
        if fanouts is not None:
            sampler = NeighborSampler(fanouts, edge_ids=any(key.is_edge for key in tables))
        self._sampler = sampler
        self.order_options = OrderOptions() if order is None else order
        rank, world_size = self.order_options.resolved()
        chosen = self.order_options
        of_order = {"drop_last": chosen.drop_last, "uneven": chosen.uneven}
        given: dict[str, Any] = {"batch_size": batch_size, "seed": chosen.seed, "shuffle": chosen.shuffle}
        given = {name: value for name, value in given.items() if value is not None}
        if self.packed is not None:
            known_seeds = seeds is not None or self.packed.beyond == "online"
            self.seeds = resolve_seeds(self.dataset, seeds) if known_seeds else {}
            self._arrangement = arrangement_of(self.dataset, order, self.seeds) if known_seeds else None
            given |= of_order if order is not None else {}
            given |= {"seeds": self._describe_seeds()} if known_seeds else {}
            given |= describe_arrangement(self._arrangement) if known_seeds and order is not None else {}
            given |= {} if sampler is None else {"sampler": describe_sampler(sampler)}
            check_identity(self.packed, self.dataset, given | {"world_size": world_size})
            names = ("batch_size", "seed", "shuffle", *of_order)
            given |= {name: self.packed.identity[name] for name in names}
            if self.packed.beyond == "online" and sampler is None:
                raise ConfigError(
                    "fanouts or sampler must be given to go on online beyond the packed epochs (got none)"
                )
        else:
            self.seeds = resolve_seeds(self.dataset, seeds)
            self._arrangement = arrangement_of(self.dataset, order, self.seeds)
            given = {"batch_size": 1024, "seed": 0, "shuffle": True} | of_order | given
        self._order: dict[str, Any] = given | {"rank": rank, "world_size": world_size}
        self._order = {name: self._order[name] for name in ORDER_NAMES}
        checked = {name: self._order[name] for name in ("batch_size", "rank", "world_size", "uneven")}
        check_order(**checked)
        if self.packed is not None:
            stored = list(self.packed.tables)
            if features != "feat" and tables != stored:
                raise ConfigError(f"features must be {list(map(str, stored))}, as they were packed (got {features})")
            tables = stored
        self._node_tables = [key for key in tables if not key.is_edge]
        self._edge_tables = [key for key in tables if key.is_edge]
        self.options = RuntimeOptions(
            budget=budget,
            memory=MemoryOptions() if memory is None else memory,
            pipeline=PipelineOptions() if pipeline is None else pipeline,
            storage=storage,
            output=OutputOptions() if output is None else output,
            shards=shards,
            device=None if device is None else torch.device(device),
            seed=self._order["seed"],
            spill=spill,
        )

    @property
    def sampler(self) -> Sampler:
        """What makes samples; unknown where batches were packed and it was not given."""
        if self._sampler is None:
            raise ConfigError("sampler is not known: these epochs were packed, and none was given")
        return self._sampler

    def __len__(self) -> int:
        """Batches of an epoch on this rank."""
        return len(self.order()) if self.packed is None else self.packed.batches_of_rank[self._order["rank"]]

    def order(self, epoch: int | None = None, rank: int | None = None, world_size: int | None = None) -> SeedOrder:
        """Return the seeds of every batch of an epoch.

        Parameters
        ----------
        epoch : int, optional
            By default the one that runs, or that the next ``iter()`` begins.
        rank, world_size : int, optional
            Whose part; by default ours.
        """
        if self.packed is not None and not self.seeds:
            raise ConfigError("the order needs the seeds: these epochs were packed, and none were given")
        changed = {"rank": rank, "world_size": world_size}
        settings: dict[str, Any] = self._order | {name: value for name, value in changed.items() if value is not None}
        settings["epoch"] = self._epoch if epoch is None else epoch
        return SeedOrder(self.seeds, arrangement=self._arrangement, **settings)

    def _describe_seeds(self) -> dict[str, list[Any]]:
        seeds = self.seeds
        if isinstance(seeds, EdgeSeeds):
            parts = {"src": seeds.src, "dst": seeds.dst} | ({} if seeds.times is None else {"times": seeds.times})
        elif isinstance(seeds, TimedSeeds):
            times = {f"times of {ntype}": times for ntype, times in by_type(seeds.times).items()}
            parts = by_type(seeds.nodes) | times
        else:
            parts = seeds
        return describe_ids(parts)

    def _order_identity(self) -> dict[str, Any]:
        if self.packed is not None:
            return self.packed.identity | {"rank": self._order["rank"]}
        made_by = {"seeds": self._describe_seeds(), "sampler": describe_sampler(self.sampler)}
        return {"dataset": self.dataset.id} | made_by | self._order | describe_arrangement(self._arrangement)
