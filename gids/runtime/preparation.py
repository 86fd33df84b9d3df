"""What is found out about a run while it already goes on: profile, division of the budget, ranking, host buffer."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gids.budget import Division, local_processes
from gids.budget.division import DEFAULT_WINDOW
from gids.dataset.scratch import load_arrays
from gids.ledger import Stopped
from gids.runtime.threads import Worker
from gids.runtime.work import Work
from gids.table import RowTable
from gids.tiers import HostBuffer, HostRows, HotRows
from gids.tiers.shared import SharedTensor
from gids.types import TableKey

#: Batches that a profile looks at: so many, or as many as ask for so many rows together. Row ids are kept while they take
#: less than this part of the budget.
PROFILED_BATCHES = 64
PROFILED_ROWS = 8 << 20
PROFILED_SHARE = 1 / 8
#: Of the form of stored results; older ones are found out anew.
STORED_VERSION = 1


def _as_it_is(rows: Any) -> Tensor:
    found: Tensor = rows
    return found


class Observed:
    """Rows that consecutive batches asked for, as far as memory allows. Filled by one thread, read by another.

    Parameters
    ----------
    keys : list of TableKey
        The tables.
    max_bytes : int
        Memory for the row ids.
    epoch_batches : int
        Batches of an epoch: one that is shorter than a profile is observed once.
    """

    def __init__(self, keys: list[TableKey], max_bytes: int, epoch_batches: int = PROFILED_BATCHES):
        self.rows: dict[TableKey, list[Tensor]] = {key: [] for key in keys}
        self.largest_rows = dict.fromkeys(keys, 0)
        self.largest_sample_bytes = 0
        self.complete = threading.Event()
        self._max_bytes = max_bytes
        self._batches = self._total = 0
        self._enough = max(1, min(PROFILED_BATCHES, epoch_batches))

    def add(self, work: Work, row_ids: Callable[[Any], Tensor] = _as_it_is) -> None:
        """Take note of a batch, until enough were seen; ``row_ids`` brings its rows to host memory."""
        if self.complete.is_set():
            return
        self.largest_sample_bytes = max(self.largest_sample_bytes, work.size_bytes)
        kept = self._total * torch.int64.itemsize < self._max_bytes or self._batches <= 2
        for key, rows in work.rows.items():
            self.largest_rows[key] = max(self.largest_rows[key], len(rows))
            if kept:
                self.rows[key].append(row_ids(rows))
        self._batches += 1
        self._total += sum(map(len, work.rows.values()))
        if self._batches >= self._enough or (self._total > PROFILED_ROWS and self._batches > 2):
            self.complete.set()

    @property
    def batches(self) -> Mapping[TableKey, list[Tensor]]:
        """Return the rows of every batch; none where a table was not named by every batch."""
        count = max(map(len, self.rows.values()), default=0)
        return self.rows if all(len(rows) == count for rows in self.rows.values()) else {key: [] for key in self.rows}


@dataclass(frozen=True)
class Prepared:
    """What was found out.

    Attributes
    ----------
    division : Division
        Of the budget.
    host_rows : dict of TableKey to Tensor[int64]
        Rows of the host buffers, ascending.
    popularity : dict of TableKey to uint8[rows]
        Of the tables whose cache is to know it.
    """

    division: Division
    host_rows: dict[TableKey, Tensor]
    popularity: dict[TableKey, NDArray[np.uint8]]

    @classmethod
    def choose(
        cls,
        division: Division,
        tables: Mapping[TableKey, RowTable],
        rankings: Callable[[], Mapping[TableKey, HotRows]],
    ) -> Prepared:
        """Choose the rows of host buffers, which all processes of the machine share: every one adds its part."""
        counts = {key: share.host_rows * local_processes() for key, share in division.shares.items()}
        popular = [key for key, share in division.shares.items() if share.popular]
        ranked = rankings() if popular or any(counts.values()) else {}
        return cls(
            division,
            {key: ranked[key].top(min(n, tables[key].num_rows)) for key, n in counts.items() if n and key in ranked},
            {key: ranked[key].levels() for key in popular if key in ranked},
        )


class PreparedFile:
    """Keeps what was found out for the next run with the same settings, beside the dataset.

    Parameters
    ----------
    directory : Path
        Where; made if it is not there.
    identity : str
        What the results are a function of.
    """

    def __init__(self, directory: Path, identity: str):
        self._path = directory / f"prepared-{hashlib.sha256(identity.encode()).hexdigest()[:32]}.npz"

    def load(self) -> Prepared | None:
        """Return what an earlier run kept; a damaged or foreign file is the same as none."""
        stored = load_arrays(self._path)
        if stored is None:
            return None
        with suppress(ValueError, KeyError, TypeError):
            about = json.loads(bytes(stored["about"]).decode())
            if about["version"] != STORED_VERSION:
                return None
            division = Division.from_dict(about["division"])
            keys = list(division.shares)
            return Prepared(
                division,
                {keys[number]: torch.from_numpy(stored[f"host {number}"]) for number in about["host"]},
                {keys[number]: stored[f"popularity {number}"] for number in about["popularity"]},
            )
        return None

    def save(self, prepared: Prepared) -> None:
        """Keep results, whole or not at all; where nothing can be written, the next run finds them out again."""
        keys = list(prepared.division.shares)
        about = {
            "version": STORED_VERSION,
            "division": prepared.division.as_dict(),
            "host": [keys.index(key) for key in prepared.host_rows],
            "popularity": [keys.index(key) for key in prepared.popularity],
        }
        arrays: dict[str, Any] = {"about": np.frombuffer(json.dumps(about).encode(), np.uint8)}
        arrays |= {f"host {keys.index(key)}": rows.numpy() for key, rows in prepared.host_rows.items()}
        arrays |= {f"popularity {keys.index(key)}": levels for key, levels in prepared.popularity.items()}
        temporary = self._path.with_name(f".{self._path.name}.{threading.get_native_id()}.tmp.npz")
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            try:
                np.savez(temporary, **arrays)
                temporary.replace(self._path)
            finally:
                temporary.unlink(missing_ok=True)


def share_rows(
    table: RowTable, rows: Tensor, read: Callable[[RowTable, Tensor, Tensor], None]
) -> tuple[HostBuffer, SharedTensor]:
    """Put rows of a table in memory that every process of this machine that asks for the same rows maps."""
    rows = rows.sort().values
    which = hashlib.sha256(rows.numpy().tobytes())
    for stripe in table.stripes:
        status = stripe.path.stat()
        which.update(f"{stripe} {status.st_ino} {status.st_size} {status.st_mtime_ns}".encode())

    def fill(values: Tensor) -> None:
        read(table, rows, values)

    shared = SharedTensor(which.hexdigest(), (len(rows), table.dim), table.torch_dtype, fill)
    return HostBuffer(HostRows(rows), shared.tensor), shared


class Preparation:
    """Runs steps on a thread of its own, one after the other, until they end or the loader is closed.

    Parameters
    ----------
    steps : callable
        Does the work; checks :meth:`check` between its parts.
    failed : callable
        Called with what went wrong.
    """

    def __init__(self, steps: Callable[[Preparation], None], failed: Callable[[BaseException], None]):
        self._steps, self._failed = steps, failed
        # Not events: an interrupt of the main thread inside one can leave its lock taken for ever.
        self._stopping = self._ended = False
        self._threads: list[Worker] = []  # each adds itself, once it runs; all but the first do nothing

    def start(self) -> None:
        """Begin, unless it has begun."""
        if not self._threads and not self._stopping:
            Worker(self._run, "gids-prepare", self._no_thread).start()

    def _no_thread(self, error: BaseException) -> None:
        self._failed(error)
        self._ended = True

    def _run(self) -> None:
        # As in Run.ahead: an interrupt of whoever starts a thread leaves none that nobody knows of.
        worker = threading.current_thread()
        assert isinstance(worker, Worker)
        self._threads.append(worker)
        if self._threads[0] is not worker:
            return
        try:
            self.check()
            self._steps(self)
        except Stopped:
            pass
        except BaseException as error:
            self._failed(error)
        finally:
            self._ended = True

    def check(self) -> None:
        """Raise Stopped if the loader is being closed."""
        if self._stopping:
            raise Stopped

    def wait_for(self, event: threading.Event) -> None:
        """Wait for an event, or for the end of the loader."""
        while not event.wait(0.05):
            self.check()

    def wait(self) -> None:
        """Return when everything was found out, or failed."""
        self.start()
        while not self._ended:
            if self._threads:
                self._threads[0].wait_until_ended(1.0)
            else:  # it has not begun
                time.sleep(0.001)

    @property
    def ended(self) -> bool:
        """Whether nothing is left to do."""
        return self._ended

    def stop(self) -> None:
        """Tell the thread to end."""
        self._stopping = True

    def join(self, timeout_s: float) -> bool:
        """Return whether the thread has ended, after waiting for it so long."""
        others = [thread for thread in self._threads if thread is not threading.current_thread()]
        return all(thread.wait_until_ended(timeout_s) for thread in others)


def without_tiers(division: Division) -> Division:
    """Return a division whose cache and host buffer are empty: what a run begins with while the rest is found out."""
    division = without_host(division)
    shares = {key: replace(share, cache_rows=0, host_rows=0, popular=False) for key, share in division.shares.items()}
    return replace(division, shares=shares, allotment=replace(division.allotment, cache=0, host_buffer=0))


def without_host(division: Division) -> Division:
    """Return a division whose host buffer is empty: what a run uses while the buffer is filled.

    Nothing is spilled meanwhile: a superbatch without the buffer's rows would be copied anew with them.
    """
    if division.spill is not None and any(share.host_rows for share in division.shares.values()):
        division = replace(division, spill=None, window=min(division.window, DEFAULT_WINDOW))
    shares = {key: replace(share, host_rows=0) for key, share in division.shares.items()}
    return replace(division, shares=shares)


def identity_of(parts: Mapping[str, Any]) -> str:
    """Write down what results are a function of."""
    return json.dumps(
        {name: asdict(v) if hasattr(v, "__dataclass_fields__") else v for name, v in parts.items()}, default=str
    )
