"""What becomes of a layer's rows: the tables that are written, and the thread that writes them behind the layer."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from gids.dataset import TableWriter
from gids.dataset.table_writer import dtype_name
from gids.errors import ConfigError
from gids.table import DTYPES

#: Tiles whose results wait to be written while the next one is computed.
WAITING_TILES = 2
#: Bytes after which results are made durable: at most about so much is computed again after a kill.
CHECKPOINT_BYTES = 64 << 20
#: Table of an intermediate layer.
HIDDEN = "rows"


@dataclass(frozen=True)
class Results:
    """Tables that are made of the rows of a layer.

    Attributes
    ----------
    name : str
        Of the rows themselves; others are called after it.
    dtype : str, optional
        What rows and scores are stored as; by default as computed.
    rows : bool
        Whether the rows are written.
    top_k : int, optional
        How many of the highest values are written with their places.
    """

    name: str = HIDDEN
    dtype: str | None = None
    rows: bool = True
    top_k: int | None = None

    def __post_init__(self) -> None:
        if self.top_k is not None and self.top_k < 1:
            raise ConfigError(f"top_k must be at least 1 (got {self.top_k})")
        if not self.rows and self.top_k is None:
            raise ConfigError("rows must be written, or top_k be given (got neither)")
        if self.dtype is not None and not DTYPES[dtype_name(self.dtype)].is_floating_point:
            raise ConfigError(f"dtype of results must be floating point (got {self.dtype!r})")

    @property
    def names(self) -> list[str]:
        """Names of the tables."""
        more = [] if self.top_k is None else [f"{self.name}_class", f"{self.name}_score"]
        return ([self.name] if self.rows else []) + more

    def kinds(self, dim: int, computed: torch.dtype) -> dict[str, tuple[int, torch.dtype]]:
        """Return width and dtype of every table, for rows of this width."""
        stored = computed if self.dtype is None else DTYPES[dtype_name(self.dtype)]
        kinds = {self.name: (dim, stored)} if self.rows else {}
        if self.top_k is not None:
            if self.top_k > dim:
                raise ConfigError(f"top_k must be at most the {dim} values of a row (got {self.top_k})")
            kinds[f"{self.name}_class"] = (self.top_k, torch.int32)
            kinds[f"{self.name}_score"] = (self.top_k, stored)
        return kinds

    def row_bytes(self, dim: int, computed: torch.dtype) -> int:
        """Return the bytes that are written for a node."""
        return sum(width * dtype.itemsize for width, dtype in self.kinds(dim, computed).values())

    def of(self, rows: Tensor) -> dict[str, Tensor]:
        """Return what is written of some rows, by table, in host memory."""
        kinds = self.kinds(rows.shape[1], rows.dtype)
        found = {self.name: rows.to("cpu", kinds[self.name][1])} if self.rows else {}
        if self.top_k is not None:
            # Stable: of equal values the one with the lower number comes first.
            scores, classes = rows.sort(dim=1, descending=True, stable=True)
            found[f"{self.name}_class"] = classes[:, : self.top_k].to("cpu", torch.int32).contiguous()
            score_dtype = kinds[f"{self.name}_score"][1]
            found[f"{self.name}_score"] = scores[:, : self.top_k].to("cpu", score_dtype).contiguous()
        return found


class WriteBehind:
    """Appends results on a thread of its own, a few tiles behind; what failed there is raised by the next call.

    Parameters
    ----------
    writers : mapping of str to mapping of str to TableWriter
        By node type and table.
    waiting : int
        Tiles that wait at most.
    """

    def __init__(self, writers: Mapping[str, Mapping[str, TableWriter]], waiting: int = WAITING_TILES):
        self._writers, self._most_waiting = writers, waiting
        self._thread = ThreadPoolExecutor(1, "gids-infer-write")
        self._waiting: deque[Future[None]] = deque()
        self._unsaved = 0  # of the writing thread
        self._failed = False  # of the writing thread

    def rows_done(self, ntype: str) -> int:
        """Return the rows of a type that every table has."""
        return min(writer.rows_done for writer in self._writers[ntype].values())

    def put(self, ntype: str, first: int, results: dict[str, Tensor]) -> None:
        """Hand over the results of consecutive rows; waits while too many are waiting."""
        while len(self._waiting) >= self._most_waiting:
            self._waiting.popleft().result()
        self._waiting.append(self._thread.submit(self._append, ntype, first, results))

    def finish(self) -> None:
        """Return when everything was appended."""
        while self._waiting:
            self._waiting.popleft().result()

    def close(self) -> None:
        """End the thread; what waits is dropped."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _append(self, ntype: str, first: int, results: dict[str, Tensor]) -> None:
        if self._failed:  # rows would follow a gap
            return
        self._failed = True
        self._append_rows(ntype, first, results)
        self._failed = False

    def _append_rows(self, ntype: str, first: int, results: dict[str, Tensor]) -> None:
        for name, writer in self._writers[ntype].items():
            values = results[name]
            skip = min(max(writer.rows_done - first, 0), len(values))  # what was written before a kill
            if skip < len(values):
                writer.append(values[skip:])
                self._unsaved += values[skip:].nbytes
        if self._unsaved >= CHECKPOINT_BYTES:
            for writer in self._writers[ntype].values():
                writer.checkpoint()
            self._unsaved = 0
