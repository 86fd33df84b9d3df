"""Samples for many clients at once: a native queue, futures, asyncio; and batches in order, several under way."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from torch import Tensor

from gids import _native
from gids.errors import CancelledError, ConfigError, GidsError
from gids.sampling.sample import Sample, SampleKey, SeedEdges
from gids.sampling.sampler import Sampler, build_sample
from gids.sampling.seeds import EdgeSeeds, Seeds
from gids.sampling.topology import Topology

if TYPE_CHECKING:
    import asyncio

_SLICE_MS = 100


class ServedSample(Sample):
    """A :class:`Sample` whose tensors are made when somebody looks: until then it costs Python one object."""

    def __init__(self, topology: Topology, native: _native.SampledBatch, edges: EdgeSeeds | None) -> None:
        object.__setattr__(self, "_source", (topology, native, edges))

    def __getattr__(self, name: str) -> Any:
        source = self.__dict__.get("_source")
        if source is None or name.startswith("_"):
            raise AttributeError(name)
        self._build()
        return getattr(self, name)

    @property
    def edges(self) -> SeedEdges | None:  # a default of the parent hides it from __getattr__
        """The pairs, where seeds were edges."""
        self._build()
        return self.__dict__["edges"]  # type: ignore[no-any-return]

    @property
    def trees(self) -> dict[str, Tensor] | None:
        """The seed that each input node belongs to, where seeds share none."""
        self._build()
        return self.__dict__["trees"]  # type: ignore[no-any-return]

    def _build(self) -> None:
        source = self.__dict__.pop("_source", None)
        if source is not None:
            topology, native, edges = source
            self.__dict__.update(vars(build_sample(topology, native.arrays(), edges)))


class SampleFuture:
    """A request that was submitted. Can be waited for by any thread, and awaited."""

    def __init__(self, server: SampleServer, ticket: _native.SampleTicket, edges: EdgeSeeds | None) -> None:
        self._server, self._ticket, self._edges = server, ticket, edges
        self._sample: Sample | None = None

    def done(self) -> bool:
        """Return whether the request has ended, one way or another."""
        return self._ticket.ended

    def cancelled(self) -> bool:
        """Return whether the request was cancelled."""
        return self._ticket.cancelled

    def cancel(self) -> bool:
        """Take the request out of the queue; False where it is being sampled or has ended."""
        return self._server._native.cancel(self._ticket)

    def result(self, timeout: float | None = None) -> Sample:
        """Return the sample, after waiting for it.

        Raises TimeoutError where it takes longer than ``timeout`` seconds, CancelledError where it was cancelled,
        OverloadError where it had to make room, or what sampling raised.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._ticket.ended:
            left = _SLICE_MS if deadline is None else int(min(_SLICE_MS, (deadline - time.monotonic()) * 1000) + 1)
            if not self._ticket.wait_ms(max(left, 0)) and deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"the sample did not come within {timeout} s")
        if self._sample is None:
            self._sample = ServedSample(self._server.topology, self._server._native.take(self._ticket), self._edges)
        return self._sample

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return what the request raised, or None; raises TimeoutError as :meth:`result` does."""
        try:
            self.result(timeout)
        except TimeoutError:
            raise
        except (GidsError, Exception) as error:
            return error
        return None

    @property
    def latency_s(self) -> float:
        """Seconds from the request to its end; 0 while it runs."""
        return self._ticket.latency_s

    @property
    def waited_s(self) -> float:
        """Seconds that the request waited in the queue; 0 while it runs."""
        return self._ticket.waited_s

    def __await__(self) -> Generator[Any, None, Sample]:
        yield from self._server._until_ended(self._ticket).__await__()
        return self.result()


class SampleServer:
    """Answers requests of any number of threads and coroutines with samples.

    Requests wait in a native queue, clients are served in turn, and what is read for them from a graph on disk is
    shared. Where too many wait, the client with the most loses its latest (OverloadError). No Python lock is taken while
    a request waits or is sampled. A sample is the one that :meth:`Sampler.sample` gives for the same key and seeds.

    Parameters
    ----------
    sampler : Sampler
        What to sample.
    topology : Topology
        The graph.
    workers : int, optional
        Requests that are sampled at once; by default one per processor, and four for a graph on disk, most of which wait.
    max_waiting : int
        Requests that may wait.
    """

    def __init__(
        self, sampler: Sampler, topology: Topology, *, workers: int | None = None, max_waiting: int = 1024
    ) -> None:
        sampler.check(topology)
        self.sampler, self.topology = sampler, topology
        self.workers = default_workers(topology) if workers is None else workers
        self._native = _native.SampleService(topology.native, sampler.function(topology), self.workers, max_waiting)
        self._clients = itertools.count(1)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watched: dict[int, asyncio.Future[None]] = {}

    def client(self) -> SampleClient:
        """Return a client of its own: turns are taken by clients, not by requests."""
        return SampleClient(self, next(self._clients))

    def sample(self, seeds: Seeds, key: SampleKey, *, client: int = 0) -> Sample:
        """Return the sample of ``seeds``; on the caller's thread where a worker is free for it."""
        plan = self.sampler.plan(self.topology, seeds, key)
        native = self._native.sample(client, plan.excluded, plan.times, key.seed, key.epoch, key.batch, plan.nodes)
        return ServedSample(self.topology, native, plan.edges)

    def submit(self, seeds: Seeds, key: SampleKey, *, client: int = 0) -> SampleFuture:
        """Queue a request; raises OverloadError where there is no room for it."""
        plan = self.sampler.plan(self.topology, seeds, key)
        ticket = self._native.submit(client, plan.excluded, plan.times, key.seed, key.epoch, key.batch, plan.nodes)
        return SampleFuture(self, ticket, plan.edges)

    def stats(self) -> dict[str, float]:
        """Return counts since the start, the rate per second, and the latency of the last requests."""
        return dict(self._native.stats())

    def served_by_client(self) -> dict[int, int]:
        """Return the number of requests served, by client."""
        return dict(self._native.served_by_client())

    def close(self) -> None:
        """Cancel what waits and return when what runs has ended."""
        if self._loop is not None and not self._loop.is_closed():
            with contextlib.suppress(RuntimeError):
                self._loop.remove_reader(self._native.event_descriptor)
        self._native.close()
        for future in self._watched.values():
            if not future.done() and not future.get_loop().is_closed():
                future.get_loop().call_soon_threadsafe(future.set_exception, CancelledError("the service is closed"))

    def __enter__(self) -> SampleServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _until_ended(self, ticket: _native.SampleTicket) -> None:
        import asyncio  # 20 ms that only those pay who await

        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._watched and self._loop is not None and not self._loop.is_closed():
                raise ConfigError("a server must be awaited in one event loop at a time (another one waits for it)")
            if self._loop is not None and not self._loop.is_closed():
                self._loop.remove_reader(self._native.event_descriptor)
            loop.add_reader(self._native.event_descriptor, self._wake)
            self._loop = loop
        future = self._watched[ticket.number] = loop.create_future()
        try:
            if not self._native.watch(ticket):
                return
            await future
        finally:
            self._watched.pop(ticket.number, None)

    def _wake(self) -> None:
        for ticket in self._native.ended():
            future = self._watched.get(ticket.number)
            if future is not None and not future.done():
                future.set_result(None)


class SampleClient:
    """One of several users of a server, with its own turn."""

    def __init__(self, server: SampleServer, number: int) -> None:
        self.server, self.number = server, number

    def sample(self, seeds: Seeds, key: SampleKey) -> Sample:
        """Return the sample of ``seeds``."""
        return self.server.sample(seeds, key, client=self.number)

    def submit(self, seeds: Seeds, key: SampleKey) -> SampleFuture:
        """Queue a request."""
        return self.server.submit(seeds, key, client=self.number)


def serve(sampler: Sampler, topology: Topology, *, workers: int | None = None, max_waiting: int = 1024) -> SampleServer:
    """Return a :class:`SampleServer` of this sampler and graph."""
    return SampleServer(sampler, topology, workers=workers, max_waiting=max_waiting)


def stream_samples(
    sampler: Sampler,
    topology: Topology,
    batches: Iterable[tuple[Seeds, SampleKey]],
    *,
    in_flight: int | None = None,
) -> Iterator[Sample]:
    """Yield the samples of ``batches`` in their order, with several under way: while one waits for disk, others work.

    Parameters
    ----------
    sampler : Sampler
        What to sample.
    topology : Topology
        The graph.
    batches : iterable of (seeds, key)
        Taken a few ahead of what is yielded.
    in_flight : int, optional
        Batches under way; the samples are the same for any number. By default as for :class:`SampleServer`.
    """
    under_way = default_workers(topology) if in_flight is None else in_flight
    with SampleServer(sampler, topology, workers=under_way, max_waiting=under_way) as server:
        waiting: deque[SampleFuture] = deque()
        for seeds, key in batches:
            waiting.append(server.submit(seeds, key))
            if len(waiting) >= under_way:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def default_workers(topology: Topology) -> int:
    """Return how many requests are best sampled at once: those that wait for disk leave processors to others."""
    processors = len(os.sched_getaffinity(0))
    return processors if topology.disk_memory is None else max(4, 2 * processors)
