"""What inference would take, before it is run: bytes and seconds of every layer."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gids.dataset import checksum
from gids.infer.feed import SweepFeed
from gids.infer.inorder import InOrderSweep, TileBlock
from gids.infer.layers import LayerBlock, evaluating, unwrap
from gids.infer.run import Inference, Opened
from gids.infer.scan import ScanSweep
from gids.infer.schedule import LayerPlan
from gids.infer.tiles import Tile
from gids.runtime.work import Work
from gids.storage import RowReader, StorageOptions, load_curve
from gids.storage.curve import DeviceCurve
from gids.storage.plan import PlanLimits, plan_reads
from gids.table import RowTable, Stripe
from gids.types import TableKey
from gids.units import format_bytes

#: Consecutive tiles that are looked at together, as a run reads them, and at how many places.
TOGETHER, PLACES = 32, 6
#: Tiles that are computed to see how long a layer takes.
TIMED_TILES = 4


@dataclass(frozen=True)
class LayerForecast:
    """One layer.

    Attributes
    ----------
    bytes_read, bytes_written : int
        From and to disk.
    least_bytes : int
        Rows that are needed, each once.
    io_s, compute_s : float
        Seconds of the disk, and of the processors for sampling, copying, computing and checksums.
    before_s : float
        Seconds before the first tile: looking at the edges, and reading rows that are kept from the start.
    """

    bytes_read: int
    bytes_written: int
    least_bytes: int
    io_s: float
    compute_s: float
    before_s: float = 0.0

    @property
    def seconds(self) -> float:
        """The longer of the two, as they overlap, after what comes before."""
        return self.before_s + max(self.io_s, self.compute_s)


@dataclass(frozen=True)
class Forecast:
    """All layers of a job; ``curve`` says whether the disk was probed."""

    layers: list[LayerForecast]
    budget_bytes: int
    curve: str

    @property
    def seconds(self) -> float:
        """Of all layers, one after the other."""
        return sum(layer.seconds for layer in self.layers)

    def as_dict(self) -> dict[str, Any]:
        """Return everything in values that JSON knows."""
        layers = [asdict(layer) | {"seconds": layer.seconds} for layer in self.layers]
        totals = {name: sum(layer[name] for layer in layers) for name in ("bytes_read", "bytes_written", "seconds")}
        return totals | {"layers": layers, "budget_bytes": self.budget_bytes, "curve": self.curve}

    def lines(self) -> list[str]:
        """Return it for people."""
        lines = [
            f"layer {number}: {format_bytes(layer.bytes_read)} read ({layer.bytes_read / max(1, layer.least_bytes):.2f} "
            f"of the least), {format_bytes(layer.bytes_written)} written, about {layer.seconds:.1f} s "
            f"({layer.before_s:.1f} s before; disk {layer.io_s:.1f} s, processors {layer.compute_s:.1f} s)"
            for number, layer in enumerate(self.layers)
        ]
        total = self.as_dict()
        lines.append(
            f"in all: {format_bytes(total['bytes_read'])} read, {format_bytes(total['bytes_written'])} written, about "
            f"{self.seconds:.1f} s within {format_bytes(self.budget_bytes)} (the disk's speeds are from: {self.curve})"
        )
        return lines


def forecast(job: Inference) -> Forecast:
    """Say what a job would take: the division of the budget as in a run, reads planned at some places, tiles computed.

    Parameters
    ----------
    job : Inference
        Not run yet.
    """
    curve = load_curve(next(iter(job.tables.values())).stripes[0].path)
    with evaluating(job.model), Opened(job) as opened:
        tables, layers = job.tables, []
        cpu = ReadingCost(0.0, 0.0)
        for plan in opened.plans:
            layer = _Layer(job, opened, plan, tables, cpu)
            layers.append(layer.forecast())
            cpu = layer.cpu
            tables = {
                ntype: _not_there(job, ntype, of.trial.dim, of.trial.dtype, f"{ntype}/rows-{plan.number}")
                for ntype, of in plan.types.items()
            }
    return Forecast(layers, job.budget, curve.source)


def _not_there(job: Inference, ntype: str, dim: int, dtype: torch.dtype, name: str) -> RowTable:
    """Describe the table of a layer that will be written where the results go."""
    rows, item = job.dataset.num_nodes(ntype), dtype.itemsize
    kind = str(dtype).removeprefix("torch.")
    return RowTable(name, kind, dim, rows, dim * item, (Stripe(job.out.parent, 0, rows),), max(1, rows))


class ReadingCost(NamedTuple):
    """Processor time of reading, which a layer's own work waits for."""

    per_read_s: float
    per_byte_s: float


class _Layer:
    """The forecast of one layer; ``cpu`` is what reading costs the processors, measured where the table is there."""

    def __init__(
        self, job: Inference, opened: Opened, plan: LayerPlan, tables: Mapping[str, RowTable], cpu: ReadingCost
    ):
        self._job, self._opened, self._plan, self._tables, self.cpu = job, opened, plan, tables, cpu
        self._read = self._least = 0.0
        self._io_s = self._compute_s = self._before_s = 0.0

    def forecast(self) -> LayerForecast:
        """Return what all types of the layer take."""
        for ntype in self._plan.types:
            self._add_type(ntype)
        written = self._job.layer_bytes(self._plan)
        return LayerForecast(int(self._read), written, int(self._least), self._io_s, self._compute_s, self._before_s)

    def _add_type(self, ntype: str) -> None:
        sweep = self._opened.sweep(self._plan, self._tables)
        if isinstance(sweep, ScanSweep):
            self._add_scan(sweep, self._tables[ntype])
            return
        if isinstance(sweep, InOrderSweep):
            self._add_in_order(sweep, self._tables[ntype])
            return
        runtime = sweep.unopened(ntype)
        try:
            feed = runtime.feed
            assert isinstance(feed, SweepFeed)
            first = feed.first()
            assert first is not None  # a layer has a tile
            division = runtime.foresee(*first)
            cached = {key: share.cache_rows for key, share in division.shares.items()}
            self._add_reads(feed, ntype, cached)
            self._add_compute(feed, ntype)
        finally:
            runtime.close()

    def _add_in_order(self, sweep: InOrderSweep, table: RowTable) -> None:
        """Divide the budget as a run does, and look at what some batches read and take."""
        begin = time.perf_counter()
        division = sweep.divide(sweep.of_type.tiles)
        planning = time.perf_counter() - begin
        curve, keeping, threads = load_curve(table.stripes[0].path), division.keeping, self._opened.pool.threads
        storage = sweep.storage_beforehand(keeping.beforehand)
        before = self._reads(table, keeping.beforehand, storage)
        self._before_s += planning + curve.cost.seconds(*before)
        batches = list(division.batches())
        chosen = [batches[int(at)] for at in np.linspace(0, len(batches) - 1, min(PLACES, len(batches)))]
        by_need = np.zeros(2)
        together = alone = 0.0  # seconds of steps that use all processors, and of those that use one
        tiles = 0
        for number, batch in enumerate([chosen[0], *chosen]):  # what is only done once is not counted
            begin = time.perf_counter()
            blocks, missing = sweep.blocks_of(division, batch)
            built = time.perf_counter() - begin
            if not number:
                self._time_reading(table, (batch.group.begin, batch.group.end), missing, sweep.storage)
            timed = blocks[: max(1, TIMED_TILES // len(chosen))]
            took, passing = self._time_tiles(sweep, timed)
            if number:
                by_need += self._reads(table, missing, sweep.storage)
                share = len(blocks) / len(timed)
                together, alone, tiles = together + took * share, alone + built + passing * share, tiles + len(blocks)
        by_need *= len(batches) / len(chosen)
        in_order = np.array([table.total_bytes / sweep.storage.max_io_bytes, table.total_bytes])
        per_byte = curve.cost.per_byte_s
        if self._plan.number and curve.read_back_bandwidth is not None:  # of what was just written
            per_byte = max(per_byte, 1 / curve.read_back_bandwidth)
        reads, size = in_order + by_need
        self._read += size + before[1]
        self._least += table.total_bytes
        self._io_s += curve.cost.per_read_s * float(reads) + per_byte * float(size)
        self._add_writing(curve)
        alone += (
            (self.cpu.per_read_s * float(reads) + self.cpu.per_byte_s * float(size)) * tiles / len(sweep.of_type.tiles)
        )
        self._compute_s += (together + alone / threads) * len(sweep.of_type.tiles) / tiles

    def _reads(self, table: RowTable, rows: npt.NDArray[np.int64], storage: StorageOptions) -> tuple[int, int]:
        """Return reads and bytes of some rows."""
        gap = storage.merge_gap_bytes
        if gap is None:
            gap = load_curve(table.stripes[0].path).merge_gap_bytes
        found = plan_reads(table, rows, PlanLimits(512, gap, storage.max_io_bytes))
        return found.num_reads, found.total_bytes

    def _time_reading(
        self, table: RowTable, own: tuple[int, int], missing: npt.NDArray[np.int64], storage: StorageOptions
    ) -> None:
        """Read consecutive rows and some others, where they are there, to see what that takes of the processors."""
        if not table.stripes[0].path.is_file():
            return
        costs = []
        with RowReader(table, storage, self._opened.pool) as reader:
            for rows in (np.arange(*own), missing):
                begin = time.process_time()
                reader.read(rows)
                costs.append(time.process_time() - begin)
        reads, size = self._reads(table, missing, storage)
        per_byte = costs[0] / ((own[1] - own[0]) * table.row_bytes)
        self.cpu = ReadingCost(max(0.0, costs[1] - per_byte * size) / max(1, reads), per_byte)

    def _time_tiles(self, sweep: InOrderSweep, blocks: list[TileBlock]) -> tuple[float, float]:
        """Compute tiles with rows of random numbers: seconds of gathering and computing, and of passing results on."""
        took = passing = 0.0
        for found in blocks:
            stored = torch.rand(found.tile.end - found.tile.begin, sweep.kind.dim).to(sweep.table.torch_dtype)
            places = torch.from_numpy(found.location) % len(stored)
            begin = time.perf_counter()
            x = stored[places].to(sweep.kind.dtype)
            made = sweep.computed(sweep.layer_block(found), x)
            took += time.perf_counter() - begin
            begin = time.perf_counter()
            self._pass_on(made)
            passing += time.perf_counter() - begin
        return took, passing

    def _add_writing(self, curve: DeviceCurve) -> None:
        """Count what writing takes of the disk, where that was probed."""
        if curve.write_bandwidth is not None:
            self._io_s += self._job.layer_bytes(self._plan) / curve.write_bandwidth

    def _add_scan(self, sweep: ScanSweep, table: RowTable) -> None:
        """Count the rows that pass by, by the edges; time a part's grouping, two of its blocks and one of its tiles."""
        parts = sweep.parts(sweep.of_type.tiles)
        rows = table.num_rows + sum(map(sweep.rows_passing, parts))  # and every destination's own row
        curve = load_curve(table.stripes[0].path)
        self._read += rows * table.row_bytes
        self._least += table.total_bytes
        self._io_s += rows * table.row_bytes * (curve.cost.per_byte_s + curve.cost.per_read_s / (128 << 10))
        self._add_writing(curve)
        part = parts[0]
        self._time_reading(table, sweep.rows_of(0), np.empty(0, np.int64), sweep.storage)
        begin = time.perf_counter()
        edges = sweep.group(part)
        grouping = (time.perf_counter() - begin) / max(1, part.edges)
        sums = torch.zeros(part.end - part.begin, sweep.width, dtype=sweep.kind.dtype)
        sums += 0  # memory that nobody touched yet is not there
        adding, added = 0.0, 0
        for block in edges.blocks()[:2]:
            first, end = sweep.rows_of(block)
            given = torch.rand(end - first, sweep.kind.dim, dtype=sweep.kind.dtype)
            begin = time.perf_counter()
            sweep.add(edges, block, given, sums)
            adding += time.perf_counter() - begin
            added += int(edges.begin[block + 1] - edges.begin[block])
        tile, results = part.tiles[0], self._job.results_of(self._plan)
        own = torch.rand(tile.end - tile.begin, sweep.kind.dim, dtype=sweep.kind.dtype)
        begin = time.perf_counter()
        self._pass_on(results.of(sweep.finished(tile, own, sums[: len(own)])))
        finishing = (time.perf_counter() - begin) * len(sweep.of_type.tiles)
        self._before_s += grouping * sweep.num_edges  # no rows are read meanwhile
        copying = self.cpu.per_byte_s * rows * table.row_bytes / self._opened.pool.threads
        self._compute_s += adding / max(1, added) * sweep.num_edges + finishing + copying

    def _pass_on(self, made: Mapping[str, Tensor]) -> None:
        """Do with results what the writing of them costs the processors."""
        for values in made.values():
            data = values.reshape(len(values), -1).view(torch.uint8).numpy()
            checksum.chunk_records(data, checksum.chunk_rows(data.shape[1]), self._opened.pool)
            data.copy()  # to the page cache

    def _add_reads(self, feed: SweepFeed, ntype: str, cached: Mapping[TableKey, int]) -> None:
        """Plan the reads of some groups of tiles, less the rows that a cache of the run's size keeps."""
        tiles = self._plan.types[ntype].tiles
        together = min(TOGETHER, len(tiles))
        places = sorted({int(place) for place in np.linspace(0, len(tiles) - together, PLACES)})
        kept = self._kept(feed, cached)
        for begin in places:
            group = tiles[begin : begin + together]
            works = [feed.on_host(tile) for tile in group]
            share = len(tiles) / (len(places) * together)
            for key, table in feed.tables.items():
                rows = np.unique(np.concatenate([np.asarray(work.rows[key]) for work in works]))
                own = key.type == ntype
                near = (rows >= group[0].begin) & (rows < group[-1].end) if own else np.zeros(len(rows), bool)
                missing = rows[near | ~kept[key][rows]]
                curve = load_curve(table.stripes[0].path)
                reads = plan_reads(table, missing, PlanLimits(512, curve.merge_gap_bytes, 128 << 10))
                self._read += reads.total_bytes * share
                self._io_s += (
                    curve.cost.per_read_s * reads.num_reads + curve.cost.per_byte_s * reads.total_bytes
                ) * share
        # Every node is a destination or a source, and every edge is somebody's.
        self._least += sum(table.total_bytes for table in feed.tables.values())

    def _kept(self, feed: SweepFeed, cached: Mapping[TableKey, int]) -> dict[TableKey, Any]:
        """Return which rows of every table stay in the cache once they were read."""
        ranked, kept = feed.rankings(), {}
        for key, table in feed.tables.items():
            kept[key] = np.zeros(table.num_rows, bool)
            if cached[key] >= table.num_rows:
                kept[key][:] = True
            elif key in ranked:
                kept[key][ranked[key].top(cached[key]).numpy()] = True
        return kept

    def _add_compute(self, feed: SweepFeed, ntype: str) -> None:
        """Time what the processors do for some tiles, one step after the other: each step uses all of them."""
        job, of_type = self._job, self._plan.types[ntype]
        step = max(1, len(of_type.tiles) // TIMED_TILES)
        timed = of_type.tiles[::step][:TIMED_TILES]
        layer, homogeneous = job.layers[self._plan.number], len(job.dataset.node_types) == 1
        results = job.results_of(self._plan)

        def took(tile: Tile) -> float:
            begin = time.perf_counter()
            work = feed.on_host(tile)
            sampled = time.perf_counter() - begin
            block, rows = self._block(feed, work)
            begin = time.perf_counter()
            rows = {name: values.clone() for name, values in rows.items()}  # as gathering does
            with torch.inference_mode():
                found = layer(block, unwrap(rows, homogeneous))
                made = results.of(found[ntype] if isinstance(found, dict) else found)
            self._pass_on(made)
            return sampled + time.perf_counter() - begin

        took(timed[0])  # what is only done once is not counted
        self._compute_s += sum(map(took, timed)) / len(timed) * len(of_type.tiles)

    def _block(self, feed: SweepFeed, work: Work) -> tuple[LayerBlock, dict[str, Tensor]]:
        """Make a tile's block with rows of random numbers."""
        generator = torch.Generator().manual_seed(0)
        fetched = {}
        for key, table in feed.tables.items():
            dtype = torch.float32 if table.torch_dtype.itemsize == 2 else table.torch_dtype
            fetched[key] = torch.randn(len(work.rows[key]), table.dim, generator=generator, dtype=dtype)
        found = feed.built(work, fetched)
        return found.block, found.rows
