"""What the loaders of every door share: a runtime per process, one active iteration, epochs that resume, statistics."""

from __future__ import annotations

import contextlib
import hashlib
import html
import os
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from torch import Tensor
from torch.utils.data import get_worker_info

from gids._native import ThreadPool
from gids.budget import Division, Memory
from gids.dataset import Dataset
from gids.errors import ConfigError, GidsError
from gids.loader.backends import open_backend
from gids.loader.embeddings import automatic_nodes
from gids.loader.history import History
from gids.loader.statistics import RuntimeStatistics
from gids.runtime.backend import Backend
from gids.runtime.divider import Divider
from gids.runtime.feed import Feed
from gids.runtime.options import HistoryOptions, RuntimeOptions
from gids.runtime.pipeline import PipelineRun
from gids.runtime.runtime import Runtime
from gids.runtime.stats import LoaderStats
from gids.runtime.trace import Trace
from gids.runtime.transform import transform_batch
from gids.runtime.work import Fetched
from gids.sampling import HistorySampler, SeedOrder
from gids.sampling.order import Arrangement
from gids.tiers import Store
from gids.types import TableKey

if TYPE_CHECKING:
    from rich.progress import Progress

B = TypeVar("B")

STATE_VERSION = 2
#: Runtimes that a forked child inherited. Their threads do not exist there, so they are neither used nor destroyed.
_INHERITED: list[Runtime] = []


class EpochLoader(Generic[B]):
    """Yields the batches of one epoch after the other through a :class:`gids.runtime.Runtime`.

    A door derives from it, sets :attr:`options`, calls :meth:`_begin`, and says who samples (:meth:`_make_feed`), what
    is to be sampled (:meth:`_pieces`) and what decides it (:meth:`_order_identity`).
    """

    options: RuntimeOptions
    #: Embeddings of the last batches, of a loader that was asked for them; the model calls its ``exchange``.
    history: History | None = None

    #: Attributes that belong to one process.
    _OF_THIS_PROCESS = ("trace", "_runtime", "_active", "_closed", "_begun", "_statistics", "_last_stats")

    def _begin(self) -> None:
        self.trace = Trace()
        self._runtime: Runtime | None = None
        self._active: weakref.ref[EpochIterator[B]] | None = None
        self._closed = False
        self._epoch = 0
        self._delivered: set[int] = set()  # of the current epoch; empty between epochs
        self._begun = False  # an iterator was made for this epoch and has not ended it
        self._statistics = RuntimeStatistics()
        self._last_stats: LoaderStats | None = None  # of a loader that is closed

    def _open_backend(self, pool: ThreadPool) -> Backend:
        """Open where batches are made: what the device asks for, unless a door knows better."""
        return open_backend(self.options, pool)

    def _make_feed(self, backend: Backend, pool: ThreadPool) -> Feed[Any, B]:
        raise NotImplementedError

    def _pieces(self, indices: Sequence[int]) -> Iterable[Any]:
        """Return what the feed is to sample for the batches ``indices`` of the current epoch, in order."""
        raise NotImplementedError

    def _order_identity(self) -> dict[str, Any]:
        """Describe what decides which batches an epoch has and what is in them."""
        raise NotImplementedError

    def __len__(self) -> int:
        """Batches of an epoch on this rank."""
        raise NotImplementedError

    @property
    def epoch(self) -> int:
        """The epoch that runs, or that the next ``iter()`` begins."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next ``iter()``; ends one that runs.

        Parameters
        ----------
        epoch : int
            Its number, from 0.
        """
        if epoch < 0:
            raise ConfigError(f"epoch must not be negative (got {epoch})")
        self._end_active("set_epoch was called")
        self._go_to(epoch, set())

    def _go_to(self, epoch: int, delivered: set[int]) -> None:
        self._epoch, self._delivered, self._begun = epoch, delivered, False

    def prepare(self: E) -> E:
        """Wait until profile, ranking and host buffer are done rather than let training begin meanwhile.

        With a sampler of DGL's own, whose first batches are observed, this returns at once until they were.
        """
        self._open().prepare()
        return self

    def _open(self) -> Runtime:
        if self._closed:
            raise GidsError("the loader is closed")
        if self._runtime is not None and self._runtime.pid != os.getpid():
            _INHERITED.append(self._runtime)
            self._runtime, self._active = None, None
        if self._runtime is None:
            options = self.options
            pool = ThreadPool(options.pipeline.threads or len(os.sched_getaffinity(0)), "gids-pool")
            backend = self._open_backend(pool)
            try:
                runtime = Runtime(self._make_feed(backend, pool), backend, options, self.trace)
            except BaseException:
                backend.close()
                raise
            try:
                first = runtime.feed.first()
                if first is not None:
                    runtime.open(*first)
            except BaseException:
                runtime.close()
                raise
            self._runtime = runtime
        return self._runtime

    def foresee(self, device_bytes: int | None = None) -> Division:
        """Return how :meth:`prepare` divides the budget; what ``gids budget`` prints.

        Parameters
        ----------
        device_bytes : int, optional
            As on a CUDA device with so much memory for the loader, rather than as this loader is.
        """
        runtime = self._open()
        memory, pace = runtime.backend.memory, runtime.backend.pace
        if device_bytes is not None:
            from gids.cuda.backend import cuda_pace, held_bytes

            topology, sampler = (getattr(runtime.feed, name, None) for name in ("topology", "sampler"))
            held = 0 if topology is None else held_bytes(topology, sampler, device_bytes).total
            memory, pace = (
                Memory(memory.host, device_bytes - held),
                cuda_pace(self.options.pipeline, self.options.reading),
            )
        first = runtime.feed.first()
        if first is None:
            raise ConfigError("the division can be foreseen only with a sampler of gids (got one of a framework)")
        return Divider(runtime.feed, self.options, memory, pace).foresee(*first)

    def _with_nodes(
        self,
        history: HistoryOptions,
        dataset: Dataset,
        seeds: Mapping[str, Tensor],
        fanouts: Sequence[Any],
        order: SeedOrder,
    ) -> HistoryOptions:
        """Return the options with nodes chosen where that is left to us; to be called before there is a history."""
        if history.nodes is not None:
            return history
        division = self.foresee()
        runtime, self._runtime = self._open(), None  # what follows opens one with less memory for rows
        runtime.close()
        return automatic_nodes(dataset, seeds, fanouts, order, history, self.options, division)

    def __iter__(self) -> Iterator[B]:
        """Begin an epoch, or go on with the one that :meth:`load_state_dict` restored."""
        self._end_active("another iteration of this loader began")
        if self._begun:  # and dropped before its end
            self._go_to(self._epoch + 1, set())
        runtime = self._open()
        iterator = EpochIterator(self)
        self._active = weakref.ref(iterator)
        self._begun = True
        iterator.start(runtime)
        return iterator

    def _end_active(self, reason: str) -> None:
        active = self._active() if self._active is not None else None
        if self._runtime is not None and self._runtime.pid == os.getpid():
            if active is not None:
                active.abandon(reason)
            self._runtime.end_run(reason)  # one whose iterator was interrupted while it was made
        self._active = None

    def state_dict(self) -> dict[str, Any]:
        """Return what :meth:`load_state_dict` needs to go on with exactly the batches that are left of this epoch."""
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
        """Go on where :meth:`state_dict` was taken, with the next ``iter()``.

        Parameters
        ----------
        state : mapping
            What :meth:`state_dict` returned, of a loader with the same order of the same seeds.
        """
        epoch, delivered = self._checked_state(state)
        self._end_active("load_state_dict was called")
        self._go_to(epoch, delivered)

    def _checked_state(self, state: Mapping[str, Any]) -> tuple[int, set[int]]:
        """Return the epoch of a state and what was delivered of it, where it is one of a loader like this."""
        if not isinstance(state, Mapping):
            raise ConfigError(f"a loader's state must be a mapping, as state_dict() returns it (got {state!r})")
        if state.get("version") != STATE_VERSION:
            raise ConfigError(f"version of a loader's state must be {STATE_VERSION} (got {state.get('version')!r})")
        ours, theirs = self._order_identity(), state.get("order")
        if not isinstance(theirs, Mapping) or theirs.keys() != ours.keys():
            raise ConfigError(f"order of a loader's state must say {', '.join(ours)} (got {theirs!r})")
        for name, value in theirs.items():
            if ours[name] != value:
                raise ConfigError(f"{name} must be {value!r}, as when the state was taken (got {ours[name]!r})")
        epoch, done, also = state.get("epoch"), state.get("batches_done"), state.get("also_done")
        if type(epoch) is not int or epoch < 0:
            raise ConfigError(f"epoch of a loader's state must be a whole number from 0 (got {epoch!r})")
        if type(done) is not int or not 0 <= done <= len(self):
            raise ConfigError(f"batches_done of a loader's state must be in [0, {len(self)}] (got {done!r})")
        if not isinstance(also, list) or not all(type(index) is int and done < index < len(self) for index in also):
            raise ConfigError(f"also_done of a loader's state must be batches after the first {done} (got {also!r})")
        return epoch, {*range(done), *also}

    @property
    def notes(self) -> dict[str, str]:
        """Which storage engine each table got and why, and why a stage is not on the device."""
        return {} if self._runtime is None else dict(self._runtime.backend.notes)

    @property
    def division(self) -> Division | None:
        """How the budget is divided now; None before the first batch of a sampler of a framework, and once closed."""
        return None if self._runtime is None else self._runtime.division

    @property
    def stores(self) -> Mapping[TableKey, Store[Any, Any, Any]]:
        """The open store of every table, for tools that look inside."""
        pipeline = None if self._runtime is None else self._runtime.pipeline
        return {} if pipeline is None else pipeline.tiers.stores

    def stats(self, optimum: bool = False) -> LoaderStats:
        """Tell what was done since the beginning or the last :meth:`reset_stats`.

        Parameters
        ----------
        optimum : bool
            Also compute what the best possible cache would have served; needs ``record=True``.
        """
        if optimum and not self.options.output.record:
            raise ConfigError("optimum needs a loader with record=True (got record=False)")
        if self._runtime is None and self._last_stats is not None:
            return self._last_stats
        counted = self._statistics.read(self._runtime, optimum)
        if self.history is None:
            return counted
        return replace(counted, approximate=(self.history.name,), history=self.history.stats())

    def reset_stats(self) -> None:
        """Begin to count anew."""
        self._statistics.reset(self._runtime)

    @contextlib.contextmanager
    def tracing(self, path: str | os.PathLike[str]) -> Iterator[Trace]:
        """Record what every stage does while the body runs, and write it down for https://ui.perfetto.dev.

        Parameters
        ----------
        path : path-like
            File to write.
        """
        self.trace.start()
        try:
            yield self.trace
        finally:
            self.trace.stop()
            self.trace.save(Path(path))

    def close(self) -> None:
        """End a running epoch and give files, threads and memory back. The loader cannot be used afterwards."""
        self._closed = True
        self._end_active("the loader was closed")
        if self._runtime is not None and self._runtime.pid == os.getpid():
            self._last_stats = self.stats()
            self._runtime.close()
            self._runtime = None

    def __enter__(self: E) -> E:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        # Without close() the runtime's threads would keep it, and its memory, for ever.
        runtime = self.__dict__.get("_runtime")
        if runtime is not None:
            with contextlib.suppress(GidsError):
                runtime.close()

    def __getstate__(self) -> dict[str, Any]:
        """Describe the loader for another process: the same batches, with files, threads and memory of its own."""
        return {name: value for name, value in self.__dict__.items() if name not in self._OF_THIS_PROCESS}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._begin()
        self.__dict__.update(state)

    def _repr_html_(self) -> str:
        return f"<p><code>{html.escape(repr(self))}</code></p>{self.stats()._repr_html_()}"


E = TypeVar("E", bound=EpochLoader[Any])


class Delivered(NamedTuple):
    """A finished batch, and which one it is: its position among the pieces of the run, its seeds and input nodes."""

    position: int
    num_seeds: int
    num_inputs: int
    batch: Any


class EpochIterator(Generic[B]):
    """One epoch of a loader. Ends its threads at the end, on an error, when it is dropped, and when it is closed.

    Parameters
    ----------
    loader : EpochLoader
        Whose current epoch; what it has delivered is left out.
    """

    # Of the class too: what an interrupt leaves half made is finalized like any other.
    _run: PipelineRun[Delivered] | None = None
    _progress: Progress | None = None

    def __init__(self, loader: EpochLoader[B]):
        self._ended: str | None = None
        self._loader = loader
        self._count = len(loader)
        self._todo = [index for index in _my_share(self._count) if index not in loader._delivered]
        self._left = len(self._todo)

    def start(self, runtime: Runtime) -> None:
        """Begin to sample and read."""
        loader, feed = self._loader, runtime.feed
        transform = loader.options.output.transform

        def deliver(fetched: Fetched) -> Delivered:
            work, batch = fetched.work, feed.finish(fetched)
            if transform is not None:
                batch = transform_batch(transform, batch, loader.options.device)
            return Delivered(work.index, work.num_seeds, work.num_inputs, batch)

        loader._statistics.epoch_begun()
        self._run = runtime.run(loader._pieces(self._todo), deliver)
        if loader.options.output.progress:
            self._progress = _progress_bar(loader._epoch, self._count, len(loader._delivered))

    def __iter__(self) -> EpochIterator[B]:
        return self

    def __len__(self) -> int:
        """Batches that are left."""
        return self._left

    def __next__(self) -> B:
        if self._ended or self._run is None:
            raise GidsError(f"this iteration has ended: {self._ended or 'it was interrupted while it was made'}")
        begin = time.perf_counter()
        try:
            with self._loader.trace.span("wait for batch"):
                delivered = next(self._run)
        except StopIteration:
            self._finish()
            self._move_on()
            raise
        except BaseException:
            # What was delivered stays known: state_dict() tells what is left, and the next iter() begins another epoch.
            self._finish()
            raise
        self._left -= 1
        loader = self._loader
        loader._delivered.add(self._todo[delivered.position])
        loader._statistics.batch_taken(delivered.num_seeds, delivered.num_inputs, time.perf_counter() - begin)
        if self._progress is not None:
            self._progress.advance(self._progress.task_ids[0])
        batch: B = delivered.batch
        return batch

    def _finish(self, reason: str | None = None) -> None:
        if self._run is not None:
            self._run.close(reason)
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def _move_on(self) -> None:
        """Move the loader on to the next epoch, once."""
        loader, active = self._loader, self._loader._active
        if active is not None and active() is self:
            loader._active = None
            loader._go_to(loader._epoch + 1, set())

    def abandon(self, reason: str) -> None:
        """End the epoch here; taking another batch from this iterator is an error that says ``reason``."""
        self._ended = reason
        self._finish(reason)
        self._move_on()

    def close(self) -> None:
        """End the epoch here."""
        self.abandon("it was closed")

    def __del__(self) -> None:
        self._finish()


def describe_ids(parts: Mapping[str, Tensor]) -> dict[str, list[Any]]:
    """Describe ids by how many there are and by a digest, for the identity of an order."""
    return {name: [len(ids), hashlib.sha256(ids.numpy().tobytes()).hexdigest()[:16]] for name, ids in parts.items()}


def describe_sampler(sampler: object) -> str:
    """Describe a sampler by its class and settings, for the identity of an order."""
    if isinstance(sampler, HistorySampler):
        return sampler.identity
    settings = [f"{name}={value!r}" for name, value in sorted(getattr(sampler, "__dict__", {}).items())]
    return f"{type(sampler).__name__}({', '.join(settings)})"


def describe_arrangement(arrangement: Arrangement | None) -> dict[str, str | None]:
    """Describe an order that is not a plain shuffle, for the identity of an order."""
    return {"parts": None if arrangement is None else arrangement.identity}


def _my_share(batches: int) -> range:
    worker = get_worker_info()
    return range(batches) if worker is None else range(worker.id, batches, worker.num_workers)


def _progress_bar(epoch: int, total: int, done: int) -> Progress:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    bar = Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar.add_task(f"epoch {epoch}", total=total, completed=done)
    bar.start()
    return bar
