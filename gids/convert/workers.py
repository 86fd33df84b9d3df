"""Who runs the tasks of a conversion: processes of this machine, or a Ray cluster that sees the same files."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from types import TracebackType
from typing import Any, Protocol

from gids.errors import ConfigError, GidsError
from gids.units import parse_bytes

#: Memory of a task beside that of its interpreter, where the user names none.
TASK_MEMORY = "512MiB"
#: Tasks handed out at a time, for each that can run: enough that no worker waits for the next one.
AHEAD = 2


class Workers(Protocol):
    """Runs tasks. Each is a function of its arguments and of files, and may be run again."""

    memory_bytes: int

    def run(self, function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]]) -> Iterator[tuple[int, Any]]:
        """Yield (number of the task, what it returned) as tasks end; raises what a task raised."""
        ...


class _Closing:
    def close(self) -> None:
        """Let the workers go."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class LocalWorkers(_Closing):
    """Processes of this machine.

    Parameters
    ----------
    count : int
        Processes.
    memory : int or str
        Memory of a task beside that of its interpreter.
    """

    def __init__(self, count: int, memory: int | str = TASK_MEMORY):
        if count < 1:
            raise ConfigError(f"workers must be at least 1 (got {count})")
        self.count, self.memory_bytes = count, task_memory(memory)
        # Not forked: threads of this process, and what they hold, would be missing in a copy of it.
        self._pool = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"))

    def run(self, function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]]) -> Iterator[tuple[int, Any]]:
        """See :class:`Workers`."""
        waiting: dict[Future[Any], int] = {}
        begun = 0
        try:
            while begun < len(tasks) or waiting:
                while begun < len(tasks) and len(waiting) < AHEAD * self.count:
                    waiting[self._pool.submit(function, *tasks[begun])] = begun
                    begun += 1
                for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                    yield waiting.pop(future), future.result()
        except BrokenProcessPool as error:
            raise GidsError(
                "a worker process ended early, for example for want of memory: run the same command again, it goes on; "
                "--task-memory and --workers say how much memory is used"
            ) from error
        finally:
            for future in waiting:
                future.cancel()

    def close(self) -> None:
        """End the processes."""
        self._pool.shutdown(cancel_futures=True)

    def __enter__(self) -> LocalWorkers:
        return self


class RayWorkers(_Closing):
    """Tasks on Ray; every node must see source and target under the same paths, and have the same gids.

    Parameters
    ----------
    address : str
        Of a cluster, as ``ray.init`` takes it; ``"local"`` starts Ray on this machine.
    count : int, optional
        Processors that ``"local"`` uses; by default all. Of a cluster, most tasks at a time.
    memory : int or str
        Memory of a task, which Ray takes into account where it places it.
    """

    def __init__(self, address: str, count: int | None = None, memory: int | str = TASK_MEMORY):
        try:
            import ray
        except ImportError as error:
            raise ConfigError(f"--ray needs Ray: pip install 'gids[ray]' ({error})") from error
        if count is not None and count < 1:
            raise ConfigError(f"workers must be at least 1 (got {count})")
        self._ray: Any = ray
        self.memory_bytes = task_memory(memory)
        self._ours = not ray.is_initialized()
        if self._ours:
            options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
            if address == "local":  # a cluster has processors and a dashboard of its own
                options |= {"num_cpus": count, "include_dashboard": False}
            try:
                ray.init(address, **options)
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise ConfigError(
                    f"ray must be 'local' or the address of a cluster (got {address!r}: {error})"
                ) from error
        processors = int(self._ray.cluster_resources().get("CPU", 1))
        self.count = max(1, processors if count is None else min(count, processors))

    def run(self, function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]]) -> Iterator[tuple[int, Any]]:
        """See :class:`Workers`."""
        ray = self._ray
        remote = ray.remote(function).options(num_cpus=1, memory=self.memory_bytes)
        waiting: dict[Any, int] = {}
        begun = 0
        try:
            while begun < len(tasks) or waiting:
                while begun < len(tasks) and len(waiting) < AHEAD * self.count:
                    waiting[remote.remote(*tasks[begun])] = begun
                    begun += 1
                for reference in ray.wait(list(waiting), num_returns=1)[0]:
                    number = waiting.pop(reference)
                    try:
                        yield number, ray.get(reference)
                    except ray.exceptions.RayTaskError as error:
                        raise error.cause from None
                    except ray.exceptions.RayError as error:
                        raise GidsError(
                            f"Ray could not finish task {number} of {len(tasks)}: run the same command again, it goes on "
                            f"({error})"
                        ) from error
        finally:
            for reference in waiting:
                ray.cancel(reference, force=True)

    def close(self) -> None:
        """Leave Ray, where this has joined it."""
        if self._ours:
            self._ray.shutdown()

    def __enter__(self) -> RayWorkers:
        return self


def task_memory(memory: int | str) -> int:
    """Return the bytes that a task may use; at least 1 MiB."""
    found = parse_bytes(memory, "task memory")
    if found < 1 << 20:
        raise ConfigError(f"task memory must be at least 1 MiB (got {memory!r})")
    return found
