"""The one interface of everything that is compared."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, ClassVar

import gids
from experiments.baselines.job import Job, Prepared


class Contender(ABC):
    """Prepares the batches of a job.

    A class says in ``ABOUT`` what it is and what was done to be fair to it. ``stages`` counts seconds by stage, as the
    training loop sees them: work that hides behind training does not appear.
    """

    ABOUT: ClassVar[str]
    #: Reads through the page cache, and so needs a copy of the feature file of its own.
    PAGE_CACHE: ClassVar[bool] = False
    #: Reads past the page cache, as gids does.
    DIRECT: ClassVar[bool] = False
    #: Must hold the whole table, and so cannot be held to a memory limit.
    UNLIMITED: ClassVar[bool] = False
    #: Cannot share an interpreter with the others, see :meth:`command`.
    SEPARATE: ClassVar[bool] = False

    def __init__(self, job: Job):
        self.job = job
        self.dataset = gids.open(job.data)
        self.stages: Counter[str] = Counter()

    @classmethod
    def unavailable(cls, job: Job) -> str:
        """Why this contender cannot do the job here; empty when it can."""
        return ""

    @classmethod
    def command(cls, name: str, job: Job) -> list[str]:
        """Return the program that serves rounds of this contender, see :mod:`experiments.baselines.worker`."""
        spec = json.dumps({"contender": name, "job": asdict(job)})
        return [sys.executable, "-m", "experiments.baselines.worker", spec]

    @abstractmethod
    def batches(self, epoch: int, count: int, rows: int | None = None) -> Iterator[Prepared]:
        """Return the first ``count`` batches of an epoch, each cut to ``rows`` rows where that is given."""

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.stages[name] += time.perf_counter() - begin

    def reset(self) -> None:
        """Forget what was counted."""
        self.stages.clear()

    def facts(self) -> dict[str, Any]:
        """What a reader should know beside the rate."""
        return {}

    def close(self) -> None:  # noqa: B027 # most hold nothing that outlives them
        """Release everything."""
