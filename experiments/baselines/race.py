"""Let contenders take turns on one job: each in a process and a memory limit of its own, or all in this process."""

from __future__ import annotations

import statistics
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Protocol

from experiments import graphs
from experiments.baselines import CONTENDERS, Contender, Job
from experiments.baselines.checksum import hashes_path
from experiments.baselines.rounds import Rounds
from experiments.baselines.worker import serve
from gids.bench.epoch import Worker
from gids.errors import GidsError

#: Python, torch and what malloc keeps, outside the budget of a gids loader in a contender's process.
PROCESS_BYTES = 340 << 20
#: Contenders that start and warm up at the same time; of those that use the page cache, one warms up.
TOGETHER = 6
PAGES = threading.Lock()


@dataclass(frozen=True)
class Turn:
    """How one contender takes part.

    Attributes
    ----------
    contender : str
        Key of :data:`experiments.baselines.CONTENDERS`.
    job : Job
        The same for all but for what a contender's own options are.
    batches : int
        Batches of a round: fewer for slow ones, always the first of the same epoch.
    rows : int, optional
        Cut batches to so many rows, for the very slow.
    name : str, optional
        Shown instead of the contender's.
    warm_batches : int, optional
        Batches of the verified round before the clock runs; by default as many as a round has.
    """

    contender: str
    job: Job
    batches: int
    rows: int | None = None
    name: str | None = None
    warm_batches: int | None = None

    @property
    def label(self) -> str:
        return self.name or self.contender

    @property
    def kind(self) -> type[Contender]:
        return CONTENDERS[self.contender]


class _Runner(Protocol):
    def ask(self, what: str, number: int, batches: int = 0, rows: int | None = None) -> dict[str, Any]: ...
    def close(self) -> None: ...


class _Here:
    """A contender in this process, for small scales and for comparisons of gids with itself."""

    def __init__(self, turn: Turn):
        self._rounds = Rounds(turn.kind(turn.job))

    def ask(self, what: str, number: int, batches: int = 0, rows: int | None = None) -> dict[str, Any]:
        return serve({"what": what, "number": number, "batches": batches, "rows": rows}, self._rounds)

    def close(self) -> None:
        self._rounds.contender.close()


def race(
    turns: list[Turn], *, rounds: int, limit_bytes: int | None = None, isolated: bool = True, train: bool = False
) -> dict[str, dict[str, Any]]:
    """Warm every contender up with one verified round, then alternate.

    Parameters
    ----------
    turns : list of Turn
        Who takes part; in every other round the order is reversed.
    rounds : int
        Timed rounds; round ``n`` is epoch ``n`` for all.
    limit_bytes : int, optional
        Memory limit of each contender's process, page cache included; a gids loader's budget follows from it.
    isolated : bool
        False runs all of them in this process, without a limit.
    train : bool
        Train a model on every batch.

    Returns
    -------
    dict
        By label: the rate with its spread, seconds a batch by stage, the digest of the verified round, and facts; or
        ``skipped``/``failed`` with the reason.
    """
    results: dict[str, dict[str, Any]] = {turn.label: {"about": turn.kind.ABOUT} for turn in turns}
    with ExitStack() as stack:
        able = [turn for turn in turns if _can_run(turn, isolated, results[turn.label])]
        jobs = [(turn, _prepared(turn, limit_bytes, isolated)) for turn in able]
        open_runners: list[_Runner] = []
        stack.callback(_close, open_runners)

        def begin(turn: Turn, job: Job) -> _Runner | None:
            return _begin(turn, job, limit_bytes, isolated, results[turn.label], open_runners)

        # No clock runs yet: processes start and warm up side by side.
        with ThreadPoolExecutor(TOGETHER if isolated else 1) as pool:
            runners = list(pool.map(lambda entry: begin(*entry), jobs))
        running = [(turn, runner) for turn, runner in zip(able, runners, strict=True) if runner is not None]
        answers: dict[str, list[dict[str, Any]]] = {turn.label: [] for turn, _ in running}
        for number in range(rounds):
            for turn, runner in running if number % 2 == 0 else reversed(running):
                if "failed" in results[turn.label]:
                    continue
                try:
                    answer = runner.ask("train" if train else "round", number + 1, turn.batches, turn.rows)
                    answers[turn.label].append(answer)
                except GidsError as error:
                    _fail(turn, error, results[turn.label])
        for turn, runner in running:
            if "failed" not in results[turn.label]:
                results[turn.label] |= _summary(answers[turn.label]) | runner.ask("facts", 0)
    return results


def _can_run(turn: Turn, isolated: bool, result: dict[str, Any]) -> bool:
    reason = turn.kind.unavailable(turn.job)
    if not isolated and turn.kind.SEPARATE:
        reason = reason or "it needs a process of its own, and this scale has none"
    if reason:
        result["skipped"] = reason
        print(f"  SKIPPED {turn.label}: {reason}", file=sys.stderr, flush=True)
    return not reason


def _prepared(turn: Turn, limit_bytes: int | None, isolated: bool) -> Job:
    """Return the job as this contender gets it, with the files that it needs; made here, outside every limit."""
    job = turn.job
    dataset = graphs.opened(job.data)
    hashes_path(dataset)
    if isolated and turn.kind.PAGE_CACHE and job.features is None:
        job = replace(job, features=str(graphs.copy_of_features(dataset, turn.contender)))
    if isolated and limit_bytes is not None and job.budget is None:
        job = replace(job, budget=limit_bytes - PROCESS_BYTES)
    return job


def _begin(
    turn: Turn, job: Job, limit_bytes: int | None, isolated: bool, result: dict[str, Any], open_runners: list[_Runner]
) -> _Runner | None:
    """Start a contender and have its verified round run; None where it failed, with the reason in ``result``."""
    try:
        begin = time.perf_counter()
        runner = _start(turn, job, limit_bytes, isolated, result)
        started = time.perf_counter()
        open_runners.append(runner)
        # Several groups that drop pages at their limits at the same time may hold each other up: 155 s instead of 15 were seen once.
        with PAGES if turn.kind.PAGE_CACHE else nullcontext():
            begun = time.perf_counter()
            result |= runner.ask("warm up", 0, turn.warm_batches or turn.batches, turn.rows)
            warm = time.perf_counter() - begun
        print(f"  {turn.label}: started in {started - begin:.1f} s, verified in {warm:.1f} s", flush=True)
        return runner
    except GidsError as error:
        _fail(turn, error, result)
        return None


def _close(runners: list[_Runner]) -> None:
    """End all of them; an interpreter takes a while to end, so they do it together."""
    with ThreadPoolExecutor(max(1, len(runners))) as pool:
        list(pool.map(lambda runner: runner.close(), runners))


def _fail(turn: Turn, error: GidsError, result: dict[str, Any]) -> None:
    killed = "killed by the memory limit" if "exit code -9" in str(error) else str(error)
    result["failed"] = killed
    print(f"  FAILED {turn.label}: {killed}", file=sys.stderr, flush=True)


def _start(turn: Turn, job: Job, limit_bytes: int | None, isolated: bool, result: dict[str, Any]) -> _Runner:
    if not isolated:
        return _Here(turn)
    name = "".join(c if c.isalnum() else "-" for c in turn.label)
    command = turn.kind.command(turn.contender, job)
    if limit_bytes is None or turn.kind.UNLIMITED:
        result["memory_limit_bytes"] = None
        return Worker({"name": name}, None, command)
    try:
        result["memory_limit_bytes"] = limit_bytes
        return Worker({"name": name}, limit_bytes, command)
    except GidsError as error:
        if "cgroup" not in str(error):
            raise
        result |= {"memory_limit_bytes": None, "no_memory_limit": str(error)}
        print(f"  NO MEMORY LIMIT for {turn.label}: {error}", file=sys.stderr, flush=True)
        return Worker({"name": name}, None, command)


def _summary(answers: list[dict[str, Any]]) -> dict[str, Any]:
    rates = [a["rows"] / a["seconds"] for a in answers]
    median = statistics.median(rates)
    batches = sum(a["batches"] for a in answers)
    names = sorted({name for a in answers for name in a["stages"]})
    return {
        "rows_per_s": median,
        "mad": statistics.median(abs(rate - median) for rate in rates),
        "rounds": len(rates),
        "rows_per_batch": sum(a["rows"] for a in answers) / batches,
        "seconds_per_batch": statistics.median(a["seconds"] / a["batches"] for a in answers),
        "stages_per_batch": {name: sum(a["stages"].get(name, 0.0) for a in answers) / batches for name in names},
        "peak_rss_bytes": max((a["peak_rss_bytes"] for a in answers if "peak_rss_bytes" in a), default=None),
        "cgroup_peak_bytes": max((a["cgroup_peak_bytes"] for a in answers if "cgroup_peak_bytes" in a), default=None),
    }
