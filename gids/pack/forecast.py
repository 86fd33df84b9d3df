"""What packing would take and when it pays: a few batches are sampled, packed and read, the rest is counted from them."""

from __future__ import annotations

import math
import os
import time
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from gids._native import ThreadPool, count_uses
from gids.budget import Memory, default_budget
from gids.dataset import Dataset
from gids.dataset.packed import Packed
from gids.errors import ConfigError
from gids.loader.packed import labels_bytes, packed_options
from gids.pack.arrange import HotRows, choose_segment, count_sizes
from gids.pack.layout import distinct_rows
from gids.pack.maker import MEMORY, Packing, Trial, disk_limit, rows_bytes_in
from gids.pack.materialise import block_bytes
from gids.pack.recipe import Recipe, count_batches, iter_pieces
from gids.pack.scratch import remove_orphans, trial_directory
from gids.runtime.options import MemoryOptions
from gids.storage import load_curve
from gids.storage.write_probe import probe_writes
from gids.table import RowTable
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
    segment_batches : int
        Batches that share a disk cache, chosen as packing chooses: 1 where the limit of the disk needs none.
    read_amplification : float
        Bytes of the pages that a batch reads over the bytes of its rows in them.
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
        Of an epoch: each row read for the first time since it was written or, with ``reuse``, once more.
    breaks_even : int or None
        Epochs after which packing has paid; None where it never does, or not in those that are packed.
    """

    epochs: int
    batches: int
    segment_batches: int
    read_amplification: float
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
        pays = f"after {self.breaks_even} epochs"
        if self.breaks_even is None:
            few = f"{self.epochs} epochs save less than packing takes"
            pays = "never: reading online is as fast" if saved <= 0 else f"never: {few}"
        return [
            f"{self.epochs} epochs of {self.batches} batches: {format_bytes(self.rows_bytes)} of packed rows, "
            f"{format_bytes(self.samples_bytes)} of samples; on disk {format_bytes(self.disk_bytes)}",
            f"segments of {self.segment_batches} batches, which read {self.read_amplification:.2f} times their rows",
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

    Up to a GiB of batches, with a limit of the disk at least one segment, and the rows that memory will hold, are written
    to the disk of ``path`` on trial, and removed. A limit that is too small is refused with the minimum.

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
    samples_bytes = int(total * look.stored_bytes)
    begin = time.perf_counter()
    segment = look.segment(hot_rows, total, disk_limit(disk, table_bytes))
    search_s = (time.perf_counter() - begin) * total / look.batches
    on_disk = int(look.rows_bytes(segment, hot_rows, total))
    written = hot_bytes + on_disk
    curve = load_curve(next(iter(tables.values())).stripes[0].path)
    remove_orphans(home)
    with trial_directory(home) as scratch:
        write_rate = probe_writes(scratch).write

        def moved_s(read_bytes: float, written_bytes: float) -> float:
            return read_bytes / curve.bandwidth + written_bytes / write_rate

        # Whole segments: fewer batches share fewer rows, and read them with other gaps.
        fit = int(TRIAL_BYTES // max(1, segment * on_disk // total))
        batches = min(total, max(2, segment * max(1, min(fit, count_batches(recipe) // segment))))
        held = min(1.0, TRIAL_HOT_BYTES / max(1, hot_bytes))
        trial = Trial(batches, segment, [rows.first(int(held * len(rows))) for rows in hot_rows])
        tried, first_s, again_s = _try_packed(recipe, scratch / "trial", trial, budget, memory)
    seconds = tried.facts["seconds"]
    # What copying takes beside the disk's own time, as the trial, which passes over the same tables, took it.
    beside = max(1.0, seconds["rows"] / moved_s(tried.facts["bytes_read"], tried.facts["bytes_written"]))
    online = _try_online(recipe)
    sampling_s = look.open_s + total * seconds["sampling"] / batches
    memory_bytes = parse_bytes(memory, "memory")
    room = max(1, memory_bytes - block_bytes(memory_bytes))
    read = 0
    for table, (held_hot, held_more) in zip(tables.values(), tried.facts["least_memory_bytes"], strict=True):
        read += table.total_bytes * max(1, math.ceil((held_hot + held_more * total / batches) / room))
    packing_s = sampling_s + search_s + total * seconds["layout"] / batches
    packing_s += beside * moved_s(read, written) + samples_bytes * 2 / write_rate
    packed_batch = again_s if reuse else first_s
    packed_epoch = count_batches(recipe) / recipe.world_size * packed_batch
    online_epoch = len(recipe) * online
    saved = online_epoch - packed_epoch
    pays = math.ceil(packing_s / saved) if saved > 0 else None
    return Forecast(
        epochs=epochs,
        batches=count_batches(recipe),
        segment_batches=segment,
        read_amplification=float(np.mean(tried.facts["read_amplification"])),
        rows_bytes=int(total * asked * (1 - share)) + hot_bytes,
        samples_bytes=samples_bytes,
        disk_bytes=written + samples_bytes,
        hot_bytes=hot_bytes,
        hot_share=share,
        read_bytes_per_s=curve.bandwidth,
        write_bytes_per_s=write_rate,
        packed_bytes_per_s=asked * (1 - share) / packed_batch,
        sampling_s=sampling_s,
        packing_s=packing_s,
        packed_epoch_s=packed_epoch,
        online_epoch_s=online_epoch,
        breaks_even=pays if reuse or pays is None or pays <= epochs else None,
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
        self.sample_bytes = self.data_bytes = held = 0
        sizes, begin = [], time.perf_counter()
        every = ((epoch, piece) for epoch in range(epochs) for piece in iter_pieces(recipe, epoch))
        self._is_all = True
        for epoch, piece in every:
            if piece is None:  # a batch that a rank has not is packed as an empty one
                sizes.append(0)
                for key, table in self._tables.items():
                    self._batches[key].append(np.empty(0, _ids_dtype(table)))
                continue
            if time.perf_counter() - begin > LOOKED_AT_SECONDS or held > LOOKED_AT_IDS:
                self._is_all = False
                break
            sampled = recipe.sample(self.topology, epoch, piece, pool)
            rows = {
                key: np.sort(ids.numpy().astype(_ids_dtype(self._tables[key]))) for key, ids in sampled.rows.items()
            }
            held += sum(map(len, rows.values()))
            self.data_bytes += len(sampled.data)
            sizes.append(len(sampled.data) + 4 * sum(map(len, rows.values())))
            self.sample_bytes = max(self.sample_bytes, sampled.size_bytes + 8 * sum(map(len, rows.values())))
            for key, ids in rows.items():
                self._batches[key].append(ids)
                self.largest[key] = max(self.largest[key], len(ids))
        self.batches = max(1, len(sizes))
        self.stored_bytes = sum(sizes) / self.batches
        asked = sum(sum(map(len, batches)) * self._tables[key].row_bytes for key, batches in self._batches.items())
        self.asked_bytes = asked / self.batches

    def hot(self, room: int) -> tuple[list[HotRows], float]:
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
                count_uses(ids, counts)
            if not self._is_all:
                counts *= 2  # in all epochs even rows that came once come more than once
            found.append(HotRows.of(counts, rows))
            chosen = np.zeros(table.num_rows, bool)
            chosen[found[-1].rows] = True
            for ids in batches if self._is_all else batches[1::2] or batches:
                total += len(ids) * table.row_bytes
                served += int(chosen[ids].sum()) * table.row_bytes
        return found, served / max(total, 1.0)

    def segment(self, hot: list[HotRows], total: int, limit_bytes: int | None) -> int:
        """Return the batches of a segment with so many batches in all, as packing chooses it; refuses too small a limit."""
        times = total / self.batches
        tables = list(self._tables.values())
        accesses = [int(times * sum(map(len, batches))) for batches in self._batches.values()]
        sizes = count_sizes(tables, accesses, total, hot, int(times * self.data_bytes))
        return choose_segment(total, lambda size: int(self.rows_bytes(size, hot, total)), sizes, limit_bytes)

    def rows_bytes(self, segment: int, hot: list[HotRows], total: int) -> float:
        """Return the bytes on disk of rows that are not hot; counted, or where not all was looked at, estimated."""
        found = 0.0
        for (key, batches), rows in zip(self._batches.items(), hot, strict=True):
            table, count = self._tables[key], len(batches)
            if self._is_all:
                packed = float(distinct_rows(batches, segment, rows.rows, table.num_rows))
            elif segment <= count:
                whole = count // segment * segment
                packed = distinct_rows(batches[:whole], segment, rows.rows, table.num_rows) * total / whole
            else:
                # A longer segment has more rows, by as much as the last doubling brought, but none twice.
                half = distinct_rows(batches[: count // 2], segment, rows.rows, table.num_rows)
                whole = distinct_rows(batches, segment, rows.rows, table.num_rows)
                power = math.log(whole / half) / math.log(count / (count // 2)) if half else 1.0
                packed = min(whole * (segment / count) ** power, table.num_rows - len(rows)) * total / segment
            found += packed * table.row_bytes
        return found


def _hot_bytes(recipe: Recipe, look: _Look, hot: int | str | None, budget: int | str | None, total: int) -> int:
    if hot is not None:
        return parse_bytes(hot, "hot")
    room = Memory(default_budget() if budget is None else parse_bytes(budget, "budget"))
    tables = {key: (table, look.largest[key]) for key, table in recipe.tables.items()}
    standing = (64 * total, labels_bytes(recipe.dataset))
    options = packed_options(recipe.options, room, tables, look.sample_bytes, standing)
    assert isinstance(options.memory.host_buffer, int)
    return rows_bytes_in(options.memory.host_buffer, recipe.tables.values())


def _ids_dtype(table: RowTable) -> type[np.uint32] | type[np.int64]:
    return np.uint32 if table.num_rows < 1 << 32 else np.int64


def _try_packed(
    recipe: Recipe, path: Path, trial: Trial, budget: int | str | None, memory: int | str
) -> tuple[Packed, float, float]:
    """Pack a few batches and read them twice; returns what was packed, and the seconds of a batch both times.

    On some drives blocks that were just written are slow when they are read for the first time. So is all of an epoch
    that is read once; one that is used again is read like the second time here.
    """
    epochs = -(-trial.batches // count_batches(recipe))  # a segment may reach over several
    settings = {"epochs": epochs, "reuse": True, "disk": None, "hot": None, "budget": budget, "memory": memory}
    packed = Packing(recipe, path, settings, trial=trial).run()
    seconds = []
    with recipe.open_loader(path) as loader:
        loader.prepare()
        for _ in range(2):
            begin = time.perf_counter()
            count = sum(1 for _ in loader)
            seconds.append((time.perf_counter() - begin) / max(1, count))
    first, again = seconds
    return packed, first, again


def _try_online(recipe: Recipe) -> float:
    """Read some batches as without packing; returns the seconds of one."""
    with recipe.open_loader(None) as loader:
        loader.prepare()
        batches = iter(loader)
        warm = sum(1 for _ in islice(batches, ONLINE_BATCHES)) if len(loader) > 2 * ONLINE_BATCHES else 0
        begin = time.perf_counter()
        count = sum(1 for _ in islice(batches, ONLINE_BATCHES if warm else None))
        return (time.perf_counter() - begin) / max(1, count)
