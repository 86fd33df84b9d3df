"""Where the demo's batches come from: the same ones from disk through a loader, and from memory the plain way."""

from __future__ import annotations

from collections.abc import Iterator

import torch

import gids
from gids.dataset import Dataset
from gids.demo.progress import Steps
from gids.demo.settings import Settings
from gids.demo.training import Triple
from gids.generate import communities
from gids.runtime import MemoryOptions, OrderOptions, PipelineOptions
from gids.sampling import NeighborSampler, SampleKey, SeedOrder, Topology


def open_or_generate(settings: Settings, steps: Steps) -> Dataset:
    """Open the demo's dataset; generate it where it is missing or was made with other settings."""
    path = settings.directory / "graph"
    wanted = {
        "num_nodes": settings.num_nodes,
        "degree": settings.degree,
        "dim": settings.dim,
        "num_classes": settings.num_classes,
        "homophily": settings.homophily,
        "signal": settings.signal,
        "train": settings.train,
        "test": settings.test,
        "val": 0.0,
        "seed": settings.seed,
    }
    if path.exists():
        dataset = gids.open(path)
        if all(dataset.attributes.get(name) == value for name, value in wanted.items()):
            return dataset
    settings.directory.mkdir(parents=True, exist_ok=True)
    with steps.step("generate the graph", settings.table_bytes) as step:
        return communities(path, overwrite=True, progress=step.bytes_of("feat"), **wanted)  # type: ignore[arg-type]


class FromDisk:
    """Batches from a :class:`gids.Loader`: features stay on disk, memory within the budget."""

    def __init__(self, dataset: Dataset, settings: Settings, split: str):
        self.loader = gids.Loader(
            dataset,
            split,
            fanouts=list(settings.fanouts),
            batch_size=settings.batch_size,
            order=OrderOptions(shuffle=split == "train", seed=settings.seed),
            budget=settings.budget_bytes,
            memory=MemoryOptions(host_buffer=settings.host_buffer_bytes, staging=settings.staging_bytes),
            pipeline=PipelineOptions(window=settings.window, sweep_batches=settings.sweep_batches),
        )

    def __len__(self) -> int:
        return len(self.loader)

    def epoch(self, number: int) -> Iterator[Triple]:
        """Walk over the batches of an epoch."""
        self.loader.set_epoch(number)
        for batch in self.loader:
            yield batch.blocks, batch.x, batch.y

    def __enter__(self) -> FromDisk:
        return self

    def __exit__(self, *exception: object) -> None:
        self.loader.close()


class FromMemory:
    """The same batches made the plain way: sample, then index a table that is all in memory."""

    def __init__(self, dataset: Dataset, settings: Settings, split: str, topology: Topology, table: torch.Tensor):
        self._settings, self._shuffle = settings, split == "train"
        self._seeds, self._labels = dataset.split(split), dataset.labels()
        self._topology, self._table = topology, table
        self._sampler = NeighborSampler(list(settings.fanouts))

    def _order(self, epoch: int) -> SeedOrder:
        settings = self._settings
        return SeedOrder(
            self._seeds, batch_size=settings.batch_size, seed=settings.seed, epoch=epoch, shuffle=self._shuffle
        )

    def __len__(self) -> int:
        return len(self._order(0))

    def epoch(self, number: int) -> Iterator[Triple]:
        """Walk over the batches of an epoch."""
        assert self._labels is not None
        order = self._order(number)
        for index in range(len(order)):
            seeds = order[index]
            key = SampleKey(self._settings.seed, number, seeds.global_index)
            sample = self._sampler.sample(self._topology, seeds.seeds, key)
            (input_nodes,), (seed_nodes,) = sample.input_nodes.values(), sample.seeds.values()
            yield sample.blocks, self._table[input_nodes], self._labels[seed_nodes]
