"""gids.Loader: an iterable of mini-batches whose features stay on disk."""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from gids.dataset import Dataset, open_dataset
from gids.errors import ConfigError, GidsError
from gids.loader.batch import Batch
from gids.loader.engine import Engine, Sampler
from gids.loader.options import LoaderOptions, optional_bytes
from gids.loader.pipeline import PipelineOptions, PipelineRun
from gids.loader.seeds import SeedOrder, Uneven
from gids.loader.stats import LoaderStats, stage_stats, table_counts, table_stats
from gids.loader.trace import Trace
from gids.sampling import EdgeSeeds, NeighborSampler
from gids.storage import StorageOptions
from gids.tiers import Policy
from gids.units import parse_bytes

if TYPE_CHECKING:
    from rich.progress import Progress

STATE_VERSION = 1
#: Where no profile chooses: the tables fit in memory, or the user fixed all the rest.
DEFAULT_WINDOW = 16
DEFAULT_MAX_GROUP = 32
#: Engines that a forked child inherited. Their threads do not exist there, so they are neither used nor destroyed.
_INHERITED: list[Engine] = []


class Loader(IterableDataset[Batch]):
    """Yields mini-batches of a dataset, sampled and read ahead of training within a memory budget.

    Parameters
    ----------
    dataset : Dataset or path-like
        What :func:`gids.open` gives, or where it is.
    split : str, optional
        Name of the split whose nodes are the seeds.
    seeds : Tensor[int64], mapping of str to Tensor[int64], or EdgeSeeds, optional
        Seeds themselves, instead of a split; by node type on a heterograph. With :class:`gids.sampling.EdgeSeeds` (link
        prediction) a batch has ``batch_size`` of its edges and their negatives: :attr:`Batch.pairs` says which rows of
        ``batch.seeds`` each pair connects, ``batch.y`` which pairs are edges.
    fanouts : sequence, optional
        For a :class:`gids.sampling.NeighborSampler`, outermost layer first.
    sampler : Sampler, optional
        Any other sampler.
    batch_size : int
        Seeds in a batch.
    topology : {"memory", "disk"}
        Where neighbour lists are. ``"disk"`` keeps only offsets and the hottest lists in memory; same batches.
    topology_budget : int or str
        Memory for those lists, within ``budget``.
    features, edge_features : str, sequence of str, or mapping of type to those, optional
        Feature tables to fetch, by name; a name alone means every type that has it.
    labels : bool
        Whether batches carry the labels of their seeds.
    budget : int or str, optional
        Memory for everything this loader holds, e.g. ``"2GiB"``; by default half of what is available.
    cache, host_buffer, groups : int or str, optional
        Memory for the cache, for the constant host buffer, and for rows being read. What is not given is chosen by a
        short profile before the first epoch; :meth:`stats` tells what was chosen and why.
    host_rank : {"visits", "pagerank", "degree", "counted", "random"}, .npy file, array or Tensor, or mapping, optional
        Which rows the host buffer holds: by the visits that neighbour sampling with these fan-outs is expected to make
        (the default; needs a :class:`gids.sampling.NeighborSampler`), by weighted reverse PageRank from the seeds (the
        default with other samplers), by degree, by the accesses of an epoch that is sampled for the purpose, by chance,
        or by scores of your own, one per node (by node type on a heterograph; not negative, nodes of score 0 stay out).
        Loaders of this machine that hold the same rows, in whatever process, share one copy.
    policy : str or Policy
        Which rows stay in the cache.
    popularity : bool, optional
        With policy ``window``: whether rows that the window does not need stay by ``host_rank`` instead of by their uses
        while they were cached. Takes one byte for every row of the table, out of the cache's memory; by default where
        that is at most 1/16 of it (and ``host_rank`` is not chance), and :meth:`stats` tells.
    window : int, optional
        Batches that are sampled ahead of the group being planned, so that the cache knows what is coming; by default
        chosen by the profile.
    max_group : int, optional
        Most batches whose rows are read together; by default the profile chooses, up to 32.
    storage : StorageOptions or str, optional
        How to read; a string names the engine.
    seed : int
        With epoch and batch number the only source of randomness.
    shuffle, drop_last : bool
        As in PyTorch's DataLoader.
    rank, world_size : int, optional
        Which part of the seeds is ours; by default from ``torch.distributed`` where that is initialised.
    uneven : {"pad", "join"}
        What happens where the seeds cannot be shared out evenly, see :class:`gids.loader.SeedOrder`.
    dtype : torch.dtype, optional
        Floating point type of the rows in a batch; by default the table's.
    device : torch.device or str, optional
        Where batches are delivered. With ``"cuda"`` they are also sampled, planned and cached there; a sampler of your
        own, and topology that is read from disk, sample on the CPU, and :attr:`notes` says so. The batches are the same.
    device_budget : int or str, optional
        With ``device="cuda"``: device memory for everything this loader holds; by default 80 % of what is free.
    pin_memory : bool
        Deliver through page-locked memory.
    prefetch : int
        Batches that are finished, or being made, while the training loop works on another.
    in_order : bool
        If False, batches come as they are ready; every batch is the same either way.
    sample_workers : int
        Sampling threads; more than one needs ``in_order=False``.
    threads : int, optional
        Threads that share the work of sampling, planning and copying; by default as many as there are cores.
    progress : bool
        Show a progress bar.
    record : bool
        Remember which rows were asked for, so that :meth:`stats` can tell the best possible hit ratio. Takes memory.

    Notes
    -----
    Every ``iter()`` is one epoch; the epoch number then counts up by itself, or is set with :meth:`set_epoch`. A batch is
    a function of (seed, epoch, rank, world size, batch number) and the options that say what a batch is; budget, policy,
    storage engine and threads change only how fast it comes.

    One iteration is active at a time: starting another ends the one before. Inside workers of a
    ``torch.utils.data.DataLoader`` (with ``batch_size=None``) every worker makes its share of the batches.

    Examples
    --------
    >>> with gids.Loader("my-graph", split="train", fanouts=[10, 10], batch_size=1024, budget="2GiB") as loader:
    ...     for batch in loader:
    ...         train_on(batch.blocks, batch.x, batch.y)
    """

    def __init__(
        self,
        dataset: Dataset | str | os.PathLike[str],
        split: str | None = None,
        *,
        seeds: Tensor | Mapping[str, Tensor] | EdgeSeeds | None = None,
        fanouts: Sequence[Any] | None = None,
        sampler: Sampler | None = None,
        batch_size: int = 1024,
        topology: str = "memory",
        topology_budget: int | str = "64MiB",
        features: str | Sequence[str] | Mapping[str, str | Sequence[str]] | None = "feat",
        edge_features: Any = None,
        labels: bool = True,
        budget: int | str | None = None,
        cache: int | str | None = None,
        host_buffer: int | str | None = None,
        host_rank: Any = None,
        groups: int | str | None = None,
        policy: str | Policy = "window",
        popularity: bool | None = None,
        window: int | None = None,
        max_group: int | None = None,
        groups_in_flight: int = 2,
        storage: StorageOptions | str | None = None,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        uneven: Uneven = "pad",
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        device_budget: int | str | None = None,
        pin_memory: bool = False,
        prefetch: int = 2,
        in_order: bool = True,
        sample_workers: int = 1,
        threads: int | None = None,
        progress: bool = False,
        record: bool = False,
    ) -> None:
        self.dataset = dataset if isinstance(dataset, Dataset) else open_dataset(dataset)
        if (split is None) == (seeds is None):
            raise ConfigError("exactly one of split and seeds must be given")
        if (fanouts is None) == (sampler is None):
            raise ConfigError("exactly one of fanouts and sampler must be given")
        self.split = split
        self.seeds = _as_seeds(self.dataset, split, seeds)
        if sampler is None:
            assert fanouts is not None
            sampler = NeighborSampler(fanouts, edge_ids=edge_features is not None)
        self.sampler: Sampler = sampler
        rank, world_size = _rank_and_world(rank, world_size)
        self.options = LoaderOptions(
            batch_size=batch_size,
            topology=topology,
            topology_bytes=parse_bytes(topology_budget, "topology_budget"),
            features=features,
            edge_features=edge_features,
            with_labels=labels,
            budget=optional_bytes(budget, "budget"),
            cache_bytes=optional_bytes(cache, "cache"),
            host_bytes=optional_bytes(host_buffer, "host_buffer"),
            host_rank=host_rank,
            group_bytes=optional_bytes(groups, "groups"),
            policy=policy,
            popularity=popularity,
            storage=StorageOptions(engine=storage) if isinstance(storage, str) else storage or StorageOptions(),
            staging_fixed=isinstance(storage, StorageOptions),
            window_fixed=window is not None,
            group_fixed=max_group is not None,
            seed=seed,
            shuffle=shuffle,
            drop_last=drop_last,
            rank=rank,
            world_size=world_size,
            uneven=uneven,
            dtype=dtype,
            device=None if device is None else torch.device(device),
            device_budget=optional_bytes(device_budget, "device_budget"),
            pin_memory=pin_memory,
            threads=len(os.sched_getaffinity(0)) if threads is None else threads,
            progress=progress,
            record=record,
            pipeline=PipelineOptions(
                window=DEFAULT_WINDOW if window is None else window,
                max_group=DEFAULT_MAX_GROUP if max_group is None else max_group,
                groups_in_flight=groups_in_flight,
                prefetch=prefetch,
                in_order=in_order,
                sample_workers=sample_workers,
            ),
        )
        self.trace = Trace()
        self._begin()

    def _begin(self) -> None:
        self._engine: Engine | None = None
        self._active: weakref.ref[LoaderIterator] | None = None
        self._closed = False
        self._epoch = 0
        self._delivered: set[int] = set()  # of the current epoch; empty between epochs
        self._begun = False  # an iterator was made for this epoch and has not ended it
        self._since: dict[str, dict[str, int]] = {}
        self._epochs = self._batches = self._seeds_seen = 0
        self._stall_s = 0.0
        self._stages: list[Any] = []

    def __len__(self) -> int:
        """Batches of an epoch on this rank."""
        return len(self.order())

    def order(self, epoch: int | None = None, rank: int | None = None, world_size: int | None = None) -> SeedOrder:
        """Give the seeds of every batch of an epoch (default: the next or current one) for a rank (default: this)."""
        o = self.options
        return SeedOrder(
            self.seeds,
            batch_size=o.batch_size,
            seed=o.seed,
            epoch=self._epoch if epoch is None else epoch,
            shuffle=o.shuffle,
            drop_last=o.drop_last,
            rank=o.rank if rank is None else rank,
            world_size=o.world_size if world_size is None else world_size,
            uneven=o.uneven,
        )

    @property
    def epoch(self) -> int:
        """The epoch that runs, or that the next ``iter()`` begins."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next ``iter()``; ends one that runs."""
        if epoch < 0:
            raise ConfigError(f"epoch must not be negative (got {epoch})")
        self._end_active("set_epoch was called")
        self._go_to(epoch, set())

    def _go_to(self, epoch: int, delivered: set[int]) -> None:
        self._epoch, self._delivered, self._begun = epoch, delivered, False

    def prepare(self) -> Loader:
        """Open files and divide the budget now rather than at the first ``iter()``; raises what is wrong with them."""
        self._open_engine()
        return self

    def _open_engine(self) -> Engine:
        if self._closed:
            raise GidsError("the loader is closed")
        if self._engine is not None and self._engine.pid != os.getpid():
            _INHERITED.append(self._engine)
            self._engine, self._active = None, None
        if self._engine is None:
            kind = _engine_kind(self.options.device)
            profile = self.order(0, rank=0, world_size=1)
            self._engine = kind(self.dataset, self.sampler, self.options, self.seeds, profile, self.trace)
        return self._engine

    def __iter__(self) -> LoaderIterator:
        """Begin an epoch, or go on with the one that :meth:`load_state_dict` restored."""
        self._end_active("another iteration of this loader began")
        if self._begun:  # and dropped before its end
            self._go_to(self._epoch + 1, set())
        iterator = LoaderIterator(self, self._open_engine())
        self._active, self._begun = weakref.ref(iterator), True
        return iterator

    def _end_active(self, reason: str) -> None:
        active = self._active() if self._active is not None else None
        if active is not None and (self._engine is None or self._engine.pid == os.getpid()):
            active.abandon(reason)
        self._active = None

    def state_dict(self) -> dict[str, Any]:
        """Give what :meth:`load_state_dict` needs to go on with exactly the batches that are left of this epoch."""
        done = 0
        while done in self._delivered:
            done += 1
        return {
            "version": STATE_VERSION,
            "epoch": self._epoch,
            "batches_done": done,
            "also_done": sorted(index for index in self._delivered if index > done),
            "order": self._order_identity(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where :meth:`state_dict` was taken, with the next ``iter()``."""
        if state.get("version") != STATE_VERSION:
            raise ConfigError(f"version of a loader's state must be {STATE_VERSION} (got {state.get('version')!r})")
        ours = self._order_identity()
        for name, value in state["order"].items():
            if ours.get(name) != value:
                raise ConfigError(f"{name} must be {value!r}, as when the state was taken (got {ours.get(name)!r})")
        self._end_active("load_state_dict was called")
        self._go_to(int(state["epoch"]), set(range(state["batches_done"])) | set(state["also_done"]))

    def _order_identity(self) -> dict[str, Any]:
        o = self.options
        # Plain sums tell other seeds apart well enough, whatever their order in memory.
        seeds = self.seeds
        parts = {"src": seeds.src, "dst": seeds.dst} if isinstance(seeds, EdgeSeeds) else seeds
        sums = {name: [len(ids), int(ids.sum())] for name, ids in parts.items()}
        names = ("batch_size", "seed", "shuffle", "drop_last", "rank", "world_size", "uneven")
        return {"dataset": self.dataset.id, "seeds": sums} | {name: getattr(o, name) for name in names}

    @property
    def notes(self) -> dict[str, str]:
        """With ``device="cuda"``: which storage engine each table got and why, and why a stage is not on the device."""
        return dict(getattr(self._engine, "notes", {}))

    def stats(self, optimum: bool = False) -> LoaderStats:
        """Tell what was done since the beginning or the last :meth:`reset_stats`.

        Parameters
        ----------
        optimum : bool
            Also compute what the best possible cache would have served; needs ``record=True``.
        """
        if optimum and not self.options.record:
            raise ConfigError("optimum needs a loader with record=True (got record=False)")
        engine = self._engine
        tables = {}
        if engine is not None:
            for key, store in engine.table_set.stores.items():
                name = engine.tables[key].name
                tables[name] = table_stats(store, self._since.get(name, {}), optimum)
        return LoaderStats(
            self._epochs,
            self._batches,
            self._seeds_seen,
            self._stall_s,
            tables,
            stage_stats(self._stages),
            None if engine is None else engine.allotment,
            () if engine is None else engine.division.reasons,
        )

    def reset_stats(self) -> None:
        """Begin to count anew."""
        self._epochs = self._batches = self._seeds_seen = 0
        self._stall_s, self._stages = 0.0, []
        if self._engine is not None:
            for key, store in self._engine.table_set.stores.items():
                self._since[self._engine.tables[key].name] = table_counts(store)
                if store.recorded is not None:
                    store.recorded.clear()

    @contextlib.contextmanager
    def profile(self, path: str | os.PathLike[str]) -> Iterator[Trace]:
        """Record what every stage does while the body runs, and write it to ``path`` for https://ui.perfetto.dev."""
        self.trace.start()
        try:
            yield self.trace
        finally:
            self.trace.stop()
            self.trace.save(Path(path))

    def close(self) -> None:
        """End a running epoch and give files, threads and memory back. The loader cannot be used afterwards."""
        self._end_active("the loader was closed")
        self._closed = True
        if self._engine is not None and self._engine.pid == os.getpid():
            self._engine.close()
            self._engine = None

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Describe the loader for another process: the same batches, with files, threads and memory of its own."""
        kept = ("split", "seeds", "sampler", "options", "_epoch", "_delivered")
        return {"path": str(self.dataset.path)} | {name: self.__dict__[name] for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.dataset = open_dataset(state.pop("path"))
        self.trace = Trace()
        self._begin()
        self.__dict__.update(state)

    def __repr__(self) -> str:
        o = self.options
        part = f", rank {o.rank} of {o.world_size}" if o.world_size > 1 else ""
        what = f"split={self.split!r}" if self.split else "seeds"
        return f"Loader({str(self.dataset.path)!r}, {what}, {len(self)} batches of {o.batch_size}{part})"

    def _repr_html_(self) -> str:
        import html

        return f"<p><code>{html.escape(repr(self))}</code></p>{self.stats()._repr_html_()}"


class LoaderIterator:
    """One epoch of a loader. Ends its threads at the end, on an error, when it is dropped, and when told."""

    def __init__(self, loader: Loader, engine: Engine):
        epoch, self._loader = loader._epoch, loader
        order = loader.order()
        todo = [index for index in _my_share(len(order)) if index not in loader._delivered]
        self._run: PipelineRun[Batch] = engine.pipeline.run(
            (order[index] for index in todo),
            lambda seeds: engine.sample(seeds, epoch),
            lambda fetched: engine.make_batch(fetched, epoch),
        )
        self._deliver: Callable[[Batch], Batch] = engine.deliver
        self._ended: str | None = None
        loader._epochs += 1
        loader._stages = self._run.run.channels
        self._left = len(todo)
        self._progress = _progress_bar(epoch, len(order), len(loader._delivered)) if loader.options.progress else None

    def __iter__(self) -> LoaderIterator:
        return self

    def __len__(self) -> int:
        """Batches that are left."""
        return self._left

    def __next__(self) -> Batch:
        if self._ended:
            raise GidsError(f"this iteration has ended: {self._ended}")
        begin = time.perf_counter()
        try:
            with self._loader.trace.span("wait for batch"):
                batch = self._deliver(next(self._run))
        except StopIteration:
            self._finish()
            raise
        except BaseException:
            self._finish()
            raise
        self._left -= 1
        loader = self._loader
        loader._stall_s += time.perf_counter() - begin
        loader._delivered.add(batch.index)
        loader._batches += 1
        loader._seeds_seen += batch.batch_size
        if self._progress is not None:
            self._progress.advance(self._progress.task_ids[0])
        return batch

    def _finish(self) -> None:
        """Move the loader on to the next epoch, once."""
        self._run.close()
        self._deliver = _as_it_is  # lets go of the engine, and so of its memory once the loader is closed
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
        loader, active = self._loader, self._loader._active
        if active is not None and active() is self:
            loader._active = None
            loader._go_to(loader._epoch + 1, set())

    def abandon(self, reason: str) -> None:
        """End the epoch here; taking another batch from this iterator is an error that says ``reason``."""
        self._finish()
        self._ended = reason

    def close(self) -> None:
        """End the epoch here."""
        self.abandon("it was closed")

    def __del__(self) -> None:
        if hasattr(self, "_run"):
            self._run.close()
        if getattr(self, "_progress", None) is not None:
            self._progress.stop()  # type: ignore[union-attr]


def _as_it_is(batch: Batch) -> Batch:
    return batch


def _engine_kind(device: torch.device | None) -> type[Engine]:
    if device is None or device.type != "cuda":
        return Engine
    from gids.cuda.engine import CudaEngine  # needs nothing of CUDA before it is used

    return CudaEngine


def _as_seeds(
    dataset: Dataset, split: str | None, seeds: Tensor | Mapping[str, Tensor] | EdgeSeeds | None
) -> dict[str, Tensor] | EdgeSeeds:
    if split is not None:
        if len(dataset.node_types) == 1:
            return {dataset.node_types[0]: dataset.split(split)}
        found = {n: dataset.split(split, n) for n in dataset.node_types if split in dataset.split_names(n)}
        if not found:
            raise ConfigError(f"split must be one that a node type has (got {split!r})")
        return found
    if isinstance(seeds, EdgeSeeds):
        if seeds.etype is None and len(dataset.edge_types) > 1:
            raise ConfigError(f"etype of EdgeSeeds must be given where a graph has several (has {dataset.edge_types})")
        if seeds.etype is not None and seeds.etype not in dataset.edge_types:
            raise ConfigError(f"etype of EdgeSeeds must be among {dataset.edge_types} (got {seeds.etype})")
        return replace(seeds, src=_on_host(seeds.src), dst=_on_host(seeds.dst))
    if isinstance(seeds, Mapping):
        return {ntype: _on_host(ids) for ntype, ids in seeds.items()}
    assert seeds is not None
    seeds = _on_host(seeds)
    if len(dataset.node_types) > 1:
        raise ConfigError(f"seeds must be given by node type where a graph has several (has {dataset.node_types})")
    return {dataset.node_types[0]: seeds}


def _on_host(seeds: Any) -> Tensor:
    if isinstance(seeds, Tensor) and not seeds.is_cuda:
        return seeds
    if hasattr(seeds, "__cuda_array_interface__"):
        from gids.cuda.interop import seeds_to_host

        return seeds_to_host(seeds)
    return torch.as_tensor(seeds)


def _rank_and_world(rank: int | None, world_size: int | None) -> tuple[int, int]:
    if (rank is None) != (world_size is None):
        raise ConfigError(f"rank and world_size must be given together (got {rank} and {world_size})")
    if rank is not None and world_size is not None:
        return rank, world_size
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


def _my_share(batches: int) -> range:
    worker = get_worker_info()
    return range(batches) if worker is None else range(worker.id, batches, worker.num_workers)


def _progress_bar(epoch: int, total: int, done: int) -> Progress:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    bar = Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar.add_task(f"epoch {epoch}", total=total, completed=done)
    bar.start()
    return bar
