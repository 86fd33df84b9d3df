"""What packing would take and when it pays: a few batches are sampled, packed and read, the rest is counted from them."""

from __future__ import annotations

import math
import os
import tempfile
import time
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gids._native import ThreadPool
from gids.budget import Memory, default_budget
from gids.dataset import Dataset
from gids.dataset.packed import Packed
from gids.errors import ConfigError
from gids.loader.packed import labels_bytes, packed_options
from gids.pack.layout import choose_hot
from gids.pack.maker import MEMORY, Packing, Trial, disk_limit, rows_bytes_in
from gids.pack.materialise import BUFFER_BYTES, block_bytes
from gids.pack.recipe import Recipe, count_batches, iter_pieces
from gids.runtime.options import MemoryOptions
from gids.storage import load_curve
from gids.storage.write_probe import probe_writes
from gids.types import TableKey
from gids.units import format_bytes, parse_bytes

#: For how long batches are looked at, how many ids of rows are held, and bytes of rows that are packed on trial.
LOOKED_AT_SECONDS = 20.0
LOOKED_AT_IDS = 64 << 20
TRIAL_BYTES = 1 << 30
#: Bytes of hot rows on trial; with more in memory than that the prediction is too high.
TRIAL_HOT_BYTES = 4 << 30
#: Batches that are read online on trial, after as many that are not timed.
ONLINE_BATCHES = 32


@dataclass(frozen=True)
class Forecast:
    """What packing would take. Sizes in bytes, times in seconds; predicted, from what a trial measured.

    Attributes
    ----------
    epochs, batches : int
        To pack, and of each epoch.
    rows_bytes, samples_bytes : int
        Of packed rows without a limit, and of sampled batches with positions.
    disk_bytes : int
        Of everything, under the limit.
    hot_bytes : int
        Rows in memory.
    hot_share : float
        Of what batches ask for.
    read_bytes_per_s, write_bytes_per_s : float
        Of the disk: as probed, and as tried now.
    packed_bytes_per_s : float
        Rows from disk that a packed loader delivered in the trial.
    sampling_s, packing_s : float
        To sample all batches, and to pack everything, sampling included.
    packed_epoch_s, online_epoch_s : float
        Of an epoch.
    breaks_even : int or None
        Epochs after which packing has paid; None where it never does.
    """

    epochs: int
    batches: int
    rows_bytes: int
    samples_bytes: int
    disk_bytes: int
    hot_bytes: int
    hot_share: float
    read_bytes_per_s: float
    write_bytes_per_s: float
    packed_bytes_per_s: float
    sampling_s: float
    packing_s: float
    packed_epoch_s: float
    online_epoch_s: float
    breaks_even: int | None

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return asdict(self)

    def lines(self) -> list[str]:
        """Return it for people."""
        saved = self.online_epoch_s - self.packed_epoch_s
        pays = "never: reading online is as fast" if saved <= 0 else f"after {self.breaks_even} epochs"
        return [
            f"{self.epochs} epochs of {self.batches} batches: {format_bytes(self.rows_bytes)} of packed rows, "
            f"{format_bytes(self.samples_bytes)} of samples; on disk {format_bytes(self.disk_bytes)}",
            f"in memory {format_bytes(self.hot_bytes)} of rows, {self.hot_share:.0%} of what batches ask for",
            f"packing takes {self.packing_s:.1f} s, of which sampling {self.sampling_s:.1f} s (predicted)",
            f"an epoch takes {self.packed_epoch_s:.2f} s packed, {self.online_epoch_s:.2f} s online (predicted)",
            f"packing pays {pays}",
            f"disk: {format_bytes(self.read_bytes_per_s)}/s read (probed), "
            f"{format_bytes(self.write_bytes_per_s)}/s written, packed batches at "
            f"{format_bytes(self.packed_bytes_per_s)}/s (both tried now)",
        ]


def forecast(
    dataset: Dataset | str | os.PathLike[str],
    path: str | os.PathLike[str],
    seeds: Any = None,
    *,
    epochs: int = 1,
    reuse: bool = False,
    disk: int | str | None = None,
    budget: int | str | None = None,
    hot: int | str | None = None,
    memory: int | str = MEMORY,
    topology: str = "memory",
    **arguments: Any,
) -> Forecast:
    """Say what :func:`gids.pack.pack` with these arguments would take, and how long epochs take then and without.

    Up to a GiB of batches, and the rows that memory will hold, are written to the disk of ``path`` on trial, and removed.

    Parameters
    ----------
    dataset, path, seeds, epochs, reuse, disk, budget, hot, memory, topology, **arguments
        As in :func:`gids.pack.pack`.
    """
    recipe = Recipe(dataset, seeds, budget=budget, memory=MemoryOptions(topology=topology), **arguments)
    home = Path(path).absolute().parent
    if not home.is_dir():
        raise ConfigError(f"{home} must be a directory, to hold {Path(path).name} (there is none)")
    look = _Look(recipe, epochs)
    total = epochs * count_batches(recipe)
    hot_rows, share = look.hot(_hot_bytes(recipe, look, hot, budget, total))
    tables = recipe.tables
    asked = look.asked_bytes  # of a batch
    table_bytes = sum(table.total_bytes for table in tables.values())
    hot_bytes = sum(len(rows) * table.row_bytes for rows, table in zip(hot_rows, tables.values(), strict=True))
    rows_bytes = int(total * asked * (1 - share)) + hot_bytes
    samples_bytes = int(total * look.stored_bytes)
    limit = disk_limit(disk, table_bytes)
    disk_bytes = rows_bytes + samples_bytes if limit is None else min(limit, rows_bytes + samples_bytes)
    written = max(0, disk_bytes - samples_bytes)
    curve = load_curve(next(iter(tables.values())).stripes[0].path)
    with tempfile.TemporaryDirectory(prefix=".gids-pack-", dir=home) as scratch:
        write_rate = probe_writes(Path(scratch)).write

        def moved_s(read_bytes: float, written_bytes: float) -> float:
            return read_bytes / curve.bandwidth + written_bytes / write_rate

        batches = int(max(2, min(total, count_batches(recipe), TRIAL_BYTES // max(asked * (1 - share), 1))))
        held = min(1.0, TRIAL_HOT_BYTES / max(1, hot_bytes))
        trial = Trial(batches, [rows[: int(held * len(rows))] for rows in hot_rows])
        tried, packed_batch = _try_packed(recipe, Path(scratch) / "trial", trial, budget, memory)
    seconds = tried.facts["seconds"]
    # What copying takes beside the disk's own time, as the trial, which passes over the same tables, took it.
    beside = max(1.0, seconds["rows"] / moved_s(tried.facts["bytes_read"], tried.facts["bytes_written"]))
    online = _try_online(recipe)
    sampling_s = look.open_s + total * seconds["sampling"] / batches
    memory_bytes = parse_bytes(memory, "memory")
    buffers = total * min(BUFFER_BYTES[-1], int(asked))
    episodes = max(1, math.ceil(buffers / max(1, memory_bytes - block_bytes(memory_bytes))))
    packing_s = sampling_s + total * seconds["layout"] / batches
    packing_s += beside * moved_s(episodes * table_bytes, written) + samples_bytes * 2 / write_rate
    packed_epoch = count_batches(recipe) / recipe.world_size * packed_batch
    delivered = asked * (1 - share) / packed_batch
    online_epoch = len(recipe) * online
    saved = online_epoch - packed_epoch
    pays = math.ceil(packing_s / saved) if saved > 0 else None
    return Forecast(
        epochs,
        count_batches(recipe),
        rows_bytes,
        samples_bytes,
        disk_bytes,
        hot_bytes,
        share,
        curve.bandwidth,
        write_rate,
        delivered,
        sampling_s,
        packing_s,
        packed_epoch,
        online_epoch,
        pays,
    )


class _Look:
    """What batches ask for: all of them, where they are few or soon sampled."""

    def __init__(self, recipe: Recipe, epochs: int):
        self._tables = recipe.tables
        pool = ThreadPool(len(os.sched_getaffinity(0)), "gids-look")
        begin = time.perf_counter()
        self.topology = recipe.open_topology()  # kept, so that the trial finds it open
        self.open_s = time.perf_counter() - begin
        self._batches: dict[TableKey, list[np.ndarray]] = {key: [] for key in self._tables}
        self.largest = dict.fromkeys(self._tables, 0)
        self.sample_bytes = held = 0
        sizes, begin = [], time.perf_counter()
        every = ((epoch, piece) for epoch in range(epochs) for piece in iter_pieces(recipe, epoch))
        self._is_all = True
        for epoch, piece in every:
            if piece is None:
                continue
            if time.perf_counter() - begin > LOOKED_AT_SECONDS or held > LOOKED_AT_IDS:
                self._is_all = False
                break
            sampled = recipe.sample(self.topology, epoch, piece, pool)
            rows = {
                key: np.sort(ids.numpy().astype(np.uint32 if self._tables[key].num_rows < 1 << 32 else np.int64))
                for key, ids in sampled.rows.items()
            }
            held += sum(map(len, rows.values()))
            sizes.append(len(sampled.data) + 4 * sum(map(len, rows.values())))
            self.sample_bytes = max(self.sample_bytes, sampled.size_bytes + 8 * sum(map(len, rows.values())))
            for key, ids in rows.items():
                self._batches[key].append(ids)
                self.largest[key] = max(self.largest[key], len(ids))
        count = max(1, len(sizes))
        self.stored_bytes = sum(sizes) / count
        self.asked_bytes = (
            sum(sum(map(len, batches)) * self._tables[key].row_bytes for key, batches in self._batches.items()) / count
        )

    def hot(self, room: int) -> tuple[list[NDArray[np.int64]], float]:
        """Return the rows of each table that memory will hold, and the share of the bytes that they serve.

        As packing chooses them where all batches were looked at; otherwise by every other batch, counted in the rest.
        """
        total = served = 0.0
        found = []
        weights = {key: sum(map(len, b)) * self._tables[key].row_bytes for key, b in self._batches.items()}
        for key, batches in self._batches.items():
            table = self._tables[key]
            rows = int(room * weights[key] / max(1, sum(weights.values()))) // table.row_bytes
            counts = np.zeros(table.num_rows, np.uint32)
            for ids in batches if self._is_all else batches[::2]:
                # In all epochs even rows that came once come more than once.
                counts[ids] += np.uint32(1 if self._is_all else 2)
            found.append(choose_hot(counts, rows))
            chosen = np.zeros(table.num_rows, bool)
            chosen[found[-1]] = True
            for ids in batches if self._is_all else batches[1::2] or batches:
                total += len(ids) * table.row_bytes
                served += int(chosen[ids].sum()) * table.row_bytes
        return found, served / max(total, 1.0)


def _hot_bytes(recipe: Recipe, look: _Look, hot: int | str | None, budget: int | str | None, total: int) -> int:
    if hot is not None:
        return parse_bytes(hot, "hot")
    room = Memory(default_budget() if budget is None else parse_bytes(budget, "budget"))
    tables = {key: (table, look.largest[key]) for key, table in recipe.tables.items()}
    standing = (64 * total, labels_bytes(recipe.dataset))
    options = packed_options(recipe.options, room, tables, look.sample_bytes, standing)
    assert isinstance(options.memory.host_buffer, int)
    return rows_bytes_in(options.memory.host_buffer, recipe.tables.values())


def _try_packed(
    recipe: Recipe, path: Path, trial: Trial, budget: int | str | None, memory: int | str
) -> tuple[Packed, float]:
    """Pack a few batches and read them twice; returns what was packed, and the seconds of a batch.

    The second reading counts. The first one of blocks that were just written is slow on some drives, and is no part of
    later epochs.
    """
    settings = {"epochs": 1, "reuse": True, "disk": None, "hot": None, "budget": budget, "memory": memory}
    packed = Packing(recipe, path, settings, trial=trial).run()
    with recipe.open_loader(path) as loader:
        loader.prepare()
        for _ in range(2):
            begin = time.perf_counter()
            count = sum(1 for _ in loader)
            seconds = time.perf_counter() - begin
    return packed, seconds / count


def _try_online(recipe: Recipe) -> float:
    """Read some batches as without packing; returns the seconds of one."""
    with recipe.open_loader(None) as loader:
        loader.prepare()
        batches = iter(loader)
        warm = sum(1 for _ in islice(batches, ONLINE_BATCHES)) if len(loader) > 2 * ONLINE_BATCHES else 0
        begin = time.perf_counter()
        count = sum(1 for _ in islice(batches, ONLINE_BATCHES if warm else None))
        return (time.perf_counter() - begin) / max(1, count)
