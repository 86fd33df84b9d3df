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

from gids._native import ThreadPool
from gids.budget import Memory, default_budget
from gids.dataset import Dataset
from gids.errors import ConfigError
from gids.loader.packed import labels_bytes, packed_options
from gids.pack.layout import choose_hot
from gids.pack.maker import MEMORY, Packing, disk_limit
from gids.pack.materialise import BUFFER_BYTES, block_bytes
from gids.pack.recipe import Recipe, count_batches, iter_pieces
from gids.runtime.options import MemoryOptions
from gids.storage import load_curve
from gids.storage.write_probe import probe_writes
from gids.types import TableKey
from gids.units import format_bytes, parse_bytes

#: Batches that are looked at, and bytes of rows that are packed on trial.
LOOKED_AT = 256
LOOKED_AT_SECONDS = 20.0
TRIAL_BYTES = 1 << 30
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

    Up to a GiB is written to the disk of ``path`` on trial, and removed.

    Parameters
    ----------
    dataset, path, seeds, epochs, reuse, disk, budget, hot, memory, topology, **arguments
        As in :func:`gids.pack.pack`.
    """
    recipe = Recipe(dataset, seeds, budget=budget, memory=MemoryOptions(topology=topology), **arguments)
    home = Path(path).absolute().parent
    if not home.is_dir():
        raise ConfigError(f"{home} must be a directory, to hold {Path(path).name} (there is none)")
    look = _Look(recipe)
    total = epochs * count_batches(recipe)
    room = _hot_bytes(recipe, look, hot, budget, total)
    share = look.hot_share(room)
    tables = recipe.tables
    asked = look.asked_bytes  # of a batch
    table_bytes = sum(table.total_bytes for table in tables.values())
    hot_bytes = min(room, table_bytes)
    rows_bytes = int(total * asked * (1 - share)) + hot_bytes
    samples_bytes = int(total * look.stored_bytes)
    limit = disk_limit(disk, table_bytes)
    disk_bytes = rows_bytes + samples_bytes if limit is None else min(limit, rows_bytes + samples_bytes)
    written = max(0, disk_bytes - samples_bytes)
    curve = load_curve(next(iter(tables.values())).stripes[0].path)
    with tempfile.TemporaryDirectory(prefix=".gids-pack-", dir=home) as scratch:
        write_rate = probe_writes(Path(scratch)).write
        delivered = _try_packed(recipe, Path(scratch) / "trial", asked, budget, memory)
    online = _try_online(recipe)
    sampling_s = total * look.seconds
    memory_bytes = parse_bytes(memory, "memory")
    buffers = total * min(BUFFER_BYTES[-1], int(asked))
    episodes = max(1, math.ceil(buffers / max(1, memory_bytes - block_bytes(memory_bytes))))
    moved_s = episodes * table_bytes / curve.bandwidth + written / write_rate
    packed_epoch = count_batches(recipe) / recipe.world_size * asked * (1 - share) / delivered
    online_epoch = len(recipe) * online
    packing_s = sampling_s + moved_s + samples_bytes * 2 / write_rate
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
    """What some batches of the first epoch ask for."""

    def __init__(self, recipe: Recipe):
        self._tables = recipe.tables
        pool = ThreadPool(len(os.sched_getaffinity(0)), "gids-look")
        topology = recipe.open_topology()
        self._batches: dict[TableKey, list[np.ndarray]] = {key: [] for key in self._tables}
        self.largest = dict.fromkeys(self._tables, 0)
        self.sample_bytes = 0
        sizes, begin, seconds = [], time.perf_counter(), 0.0
        for piece in islice(iter_pieces(recipe, 0), LOOKED_AT):
            if piece is None:
                continue
            start = time.perf_counter()
            sampled = recipe.sample(topology, 0, piece, pool)
            rows = {key: np.sort(ids.numpy()) for key, ids in sampled.rows.items()}
            seconds += time.perf_counter() - start
            sizes.append(len(sampled.data) + 4 * sum(map(len, rows.values())))
            self.sample_bytes = max(self.sample_bytes, sampled.size_bytes + 8 * sum(map(len, rows.values())))
            for key, ids in rows.items():
                self._batches[key].append(ids)
                self.largest[key] = max(self.largest[key], len(ids))
            if time.perf_counter() - begin > LOOKED_AT_SECONDS:
                break
        count = max(1, len(sizes))
        self.seconds = seconds / count
        self.stored_bytes = sum(sizes) / count
        self.asked_bytes = (
            sum(sum(map(len, batches)) * self._tables[key].row_bytes for key, batches in self._batches.items()) / count
        )

    def hot_share(self, room: int) -> float:
        """Return the share of the bytes that hot rows serve: chosen by every other batch, counted in the rest."""
        total = served = 0.0
        weights = {key: sum(map(len, b)) * self._tables[key].row_bytes for key, b in self._batches.items()}
        for key, batches in self._batches.items():
            table = self._tables[key]
            rows = int(room * weights[key] / max(1, sum(weights.values()))) // table.row_bytes
            counts = np.zeros(table.num_rows, np.uint32)
            for ids in batches[::2]:
                counts[ids] += np.uint32(2)  # in all epochs even these come more than once
            chosen = np.zeros(table.num_rows, bool)
            chosen[choose_hot(counts, rows)] = True
            for ids in batches[1::2] or batches:
                total += len(ids) * table.row_bytes
                served += int(chosen[ids].sum()) * table.row_bytes
        return served / max(total, 1.0)


def _hot_bytes(recipe: Recipe, look: _Look, hot: int | str | None, budget: int | str | None, total: int) -> int:
    if hot is not None:
        return parse_bytes(hot, "hot")
    room = Memory(default_budget() if budget is None else parse_bytes(budget, "budget"))
    tables = {key: (table, look.largest[key]) for key, table in recipe.tables.items()}
    standing = (64 * total, labels_bytes(recipe.dataset))
    options = packed_options(recipe.options, room, tables, look.sample_bytes, standing)
    assert isinstance(options.memory.host_buffer, int)
    return options.memory.host_buffer


def _try_packed(recipe: Recipe, path: Path, asked: float, budget: int | str | None, memory: int | str) -> float:
    """Pack a few batches, read them twice, and return the bytes of rows per second of the second time.

    The first reading of blocks that were just written is slow on some drives, and is no part of later epochs.
    """
    batches = int(max(2, min(count_batches(recipe), TRIAL_BYTES // max(asked, 1))))
    settings = {"epochs": 1, "reuse": True, "disk": None, "hot": 0, "budget": budget, "memory": memory}
    Packing(recipe, path, settings, most_batches=batches).run()
    with recipe.open_loader(path) as loader:
        loader.prepare()
        for _ in range(2):
            begin, rows = time.perf_counter(), 0
            for batch in loader:
                rows += sum(values.nbytes for values in batch.features.values())
                for by_layer in batch.edge_features:
                    rows += sum(values.nbytes for values in by_layer.values())
            seconds = time.perf_counter() - begin
    return rows / seconds


def _try_online(recipe: Recipe) -> float:
    """Read some batches as without packing; returns the seconds of one."""
    with recipe.open_loader(None) as loader:
        loader.prepare()
        batches = iter(loader)
        warm = sum(1 for _ in islice(batches, ONLINE_BATCHES)) if len(loader) > 2 * ONLINE_BATCHES else 0
        begin = time.perf_counter()
        count = sum(1 for _ in islice(batches, ONLINE_BATCHES if warm else None))
        return (time.perf_counter() - begin) / max(1, count)
