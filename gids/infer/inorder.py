"""One layer of a graph with one edge type: groups of tiles one after the other, own rows in order, others kept or read by need.

What is read, when, and what stays in memory is known before the first row is read (:mod:`gids.infer.keeping`). While the tiles
of some groups are computed, the next ones' blocks are built and their rows read; results are written one thread behind.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gids import _native
from gids._native import DType, ThreadPool
from gids.dataset import TableWriter
from gids.errors import ConfigError
from gids.infer.feed import Graph, degrees_at
from gids.infer.keeping import (
    SURVEYED_NODE_BYTES,
    Group,
    Ids,
    Keeping,
    StoredEdges,
    Survey,
    gap_beforehand,
    grouped,
    keep,
    survey,
)
from gids.infer.layers import LayerBlock, LayerFunction, result_of
from gids.infer.results import WAITING_TILES, Results, WriteBehind
from gids.infer.schedule import LayerPlan
from gids.infer.sweep import SweepFacts
from gids.infer.tiles import Tile
from gids.infer.trial import TileSize
from gids.ledger import Account
from gids.runtime.options import RuntimeOptions
from gids.storage import PendingRead, RowReader, StorageOptions, load_curve
from gids.storage.reader import aligned_empty
from gids.table import DTYPES, RowTable
from gids.types import EdgeType
from gids.units import format_bytes, parse_bytes

#: Of the budget, what own rows of a group take; as many again are being read.
OWN_SHARE = 1 / 24
#: Memory that the device writes to, at most, and its share of a small budget.
STAGING_BYTES, STAGING_SHARE = 16 << 20, 1 / 16
#: Of what is left of the budget, the most that kept rows take where not all that are worth it can be kept.
KEPT_SHARE = 0.75
#: Of the budget, what results take that wait to be written: a disk that makes rows durable stops for a moment.
WAITING_SHARE = 1 / 48
#: Memory of every node while rows are read: where its row is, and its place in a tile's block.
NODE_BYTES = 16
#: Of an edge and of a node in a block.
BLOCK_EDGE_BYTES, BLOCK_NODE_BYTES = 8, 16
#: Memory of planning and placing one row.
PLANNED_ROW_BYTES = 64
#: Rows that are asked for at a time before the first group.
ASKED_ROWS = 1 << 16

_DTYPES = {torch_dtype: DType[name] for name, torch_dtype in DTYPES.items()}


@dataclass(frozen=True)
class Batch:
    """Tiles of a group whose rows from elsewhere are read together."""

    number: int
    group: Group
    tiles: Sequence[Tile]

    @property
    def opens(self) -> bool:
        """Whether the group begins with it."""
        return self.tiles[0].begin == self.group.begin


class TileBlock(NamedTuple):
    """A tile's edges, and where the rows of its sources are; see ``cpp/infer/keeping.hpp``."""

    tile: Tile
    offsets: Tensor
    source: Tensor
    nodes: Tensor
    location: Ids


@dataclass
class Prepared:
    """A batch whose blocks are built and whose rows are being read."""

    batch: Batch
    blocks: list[TileBlock]
    missing: Ids
    reads: list[PendingRead] = field(default_factory=list)


@dataclass(frozen=True)
class Division:
    """How the budget is used for some tiles.

    Attributes
    ----------
    found, keeping : Survey, Keeping
        Of the edges, and what stays.
    read_rows : int
        Rows of a batch from elsewhere, at most.
    parts : dict of str to int
        Bytes by part.
    """

    found: Survey
    keeping: Keeping
    read_rows: int
    parts: dict[str, int]

    def batches(self) -> Iterator[Batch]:
        """Yield tiles whose rows from elsewhere fit together."""
        number = at = 0
        for group in self.found.groups:
            chosen: list[Tile] = []
            rows = 0
            for tile, outside in zip(group.tiles, self.found.outside[at : at + len(group.tiles)], strict=True):
                if chosen and rows + outside > self.read_rows:
                    yield Batch(number, group, chosen)
                    number, chosen, rows = number + 1, [], 0
                chosen.append(tile)
                rows += int(outside)
            yield Batch(number, group, chosen)
            number, at = number + 1, at + len(group.tiles)


class InOrderSweep:
    """Computes a layer of a graph with one edge type and all in-edges, group by group.

    Parameters
    ----------
    layer : callable
        What to compute.
    plan : LayerPlan
        Its tiles.
    graph : Graph
        The edges.
    table : RowTable
        Rows of the nodes.
    results : Results
        What is written.
    options : RuntimeOptions
        Budget, and how to read.
    pool : ThreadPool
        Threads for planning and copying.
    """

    def __init__(
        self,
        layer: LayerFunction,
        plan: LayerPlan,
        graph: Graph,
        table: RowTable,
        results: Results,
        options: RuntimeOptions,
        pool: ThreadPool,
    ):
        self._layer, self._graph, self.table, self._pool = layer, graph, table, pool
        self._results, self._number = results, plan.number
        ((self.ntype, self.of_type),) = plan.types.items()
        (self.kind,) = plan.inputs.values()
        self._etype: EdgeType = graph.dataset.edge_types[0]
        self._edges = StoredEdges(graph.dataset, self._etype)
        assert options.budget is not None
        self._budget = parse_bytes(options.budget, "budget")
        given = options.reading
        staging = min(STAGING_BYTES, max(2 * given.max_io_bytes, int(self._budget * STAGING_SHARE)))
        self.storage = replace(given, staging_bytes=min(given.staging_bytes, staging))
        trial, most = self.of_type.trial, max(tile.end - tile.begin for tile in self.of_type.tiles)
        each = trial.dim * trial.dtype.itemsize + results.row_bytes(trial.dim, trial.dtype)
        self._tile_result_bytes = most * each  # as computed and as stored
        self._waiting = max(WAITING_TILES, int(self._budget * WAITING_SHARE) // self._tile_result_bytes)
        self._slot = np.full(table.num_rows, -1, np.int32)
        self._place = np.full(table.num_rows, -1, np.int32)

    def divide(self, tiles: Sequence[Tile]) -> Division:
        """Look at the edges of tiles and divide the budget; refuses one that is too small."""
        nodes, row_bytes = self.table.num_rows, self.table.row_bytes
        found = survey(self._edges, grouped(tiles, int(self._budget * OWN_SHARE) // row_bytes), nodes)
        own = max(group.end - group.begin for group in found.groups)
        destinations = max(tile.end - tile.begin for tile in tiles)
        trial, kind = self.of_type.trial, self.kind
        scratch = trial.scratch(TileSize(found.most_sources, destinations, self.of_type.most_edges))
        blocks = found.most_edges * (BLOCK_EDGE_BYTES + self._edges.id_bytes) + found.most_blocks * BLOCK_NODE_BYTES
        parts = {
            "graph": self._graph.topology.resident_bytes(),
            "degrees": self._graph.degrees_bytes,
            "nodes": nodes * NODE_BYTES,
            "blocks": 2 * blocks,
            "own rows": 2 * own * (row_bytes + PLANNED_ROW_BYTES),
            "staging": self.storage.staging_bytes,
            "tile": found.most_sources * kind.row_bytes + scratch,
            "results": (self._waiting + 1) * self._tile_result_bytes,
        }
        fixed = sum(parts.values())
        least = int(found.outside.max(initial=0))
        each = 2 * (row_bytes + PLANNED_ROW_BYTES)  # of a row from elsewhere: another is read meanwhile
        needed = max(fixed + least * each, parts["graph"] + parts["degrees"] + nodes * SURVEYED_NODE_BYTES)
        if needed > self._budget:
            raise ConfigError(
                f"budget must be at least {format_bytes(needed + needed // 20)} for layer {self._number}, or tile smaller "
                f"(got {format_bytes(self._budget)})"
            )
        room = self._budget - fixed

        sizes = [len(group.tiles) for group in found.groups]
        of_group = max(map(int, np.add.reduceat(found.outside, np.cumsum([0, *sizes[:-1]]))))

        def capacity(worth: int) -> int:
            most = (room - least * each) // row_bytes
            # What all rows of a group from elsewhere leave free is of no use to anything else.
            share = max(int(room * KEPT_SHARE), room - of_group * each) // row_bytes
            return worth if worth <= most else min(most, share)

        keeping = keep(found, capacity)
        parts["kept rows"] = keeping.slots * row_bytes
        read_rows = min(of_group, (room - parts["kept rows"]) // each)
        parts["rows from elsewhere"] = read_rows * each
        return Division(found, keeping, read_rows, parts)

    def run(self, writers: Mapping[str, Mapping[str, TableWriter]]) -> SweepFacts:
        """Compute every tile whose rows are not all written; returns what was done."""
        facts, behind = SweepFacts(), WriteBehind(writers, self._waiting)
        try:
            done = behind.rows_done(self.ntype)
            tiles = [tile for tile in self.of_type.tiles if tile.end > done]
            if tiles:
                self._run_tiles(tiles, behind, facts)
            rows = self._graph.dataset.num_nodes(self.ntype) - done
            facts.bytes_written += rows * sum(writer.table.row_bytes for writer in writers[self.ntype].values())
            behind.finish()
        finally:
            behind.close()
        return facts

    def _run_tiles(self, tiles: Sequence[Tile], behind: WriteBehind, facts: SweepFacts) -> None:
        begin = time.perf_counter()
        division = self.divide(tiles)
        facts.plan_s += time.perf_counter() - begin
        keeping = division.keeping
        facts.reasons += (
            f"at most {keeping.slots} rows are kept at once; {len(keeping.beforehand)} are read beforehand and "
            f"{len(keeping.taken)} stay from their group on",
            f"groups of {division.found.groups[0].end - division.found.groups[0].begin} rows; at most "
            f"{division.read_rows} rows from elsewhere are read together",
        )
        for part, size in division.parts.items():
            account = Account(part, size)
            account.take(size)
            facts.memory[part] = asdict(account.usage)
        with ExitStack() as stack:
            rows = _Rows(self, division, stack, facts)
            rows.read_beforehand()
            thread = stack.enter_context(ThreadPoolExecutor(1, "gids-infer-read"))
            batches = division.batches()
            coming: Future[Prepared] | None = thread.submit(rows.prepare, next(batches))
            while coming is not None:
                begin = time.perf_counter()
                prepared = coming.result()
                rows.arrive(prepared)
                after = next(batches, None)
                coming = None if after is None else thread.submit(rows.prepare, after)
                facts.read_wait_s += time.perf_counter() - begin
                for block in prepared.blocks:
                    self._compute(rows, prepared, block, behind, facts)
        facts.edge_bytes_read = self._edges.bytes_read

    def _compute(
        self, rows: _Rows, prepared: Prepared, block: TileBlock, behind: WriteBehind, facts: SweepFacts
    ) -> None:
        begin = time.perf_counter()
        x = rows.gather(prepared, block)
        facts.gather_s += time.perf_counter() - begin
        begin = time.perf_counter()
        made = self.computed(self.layer_block(block), x)
        facts.compute_s += time.perf_counter() - begin
        begin = time.perf_counter()
        behind.put(self.ntype, block.tile.begin, made)
        facts.write_wait_s += time.perf_counter() - begin
        facts.tiles, facts.rows = facts.tiles + 1, facts.rows + block.tile.end - block.tile.begin
        facts.rows_asked += len(x)

    def storage_beforehand(self, rows: Ids) -> StorageOptions:
        """Return how rows are read before the first group."""
        curve = load_curve(self.table.stripes[0].path)
        gap = gap_beforehand(rows, self.table.num_rows, self.table.row_bytes, curve)
        return replace(self.storage, merge_gap_bytes=gap)

    def load(self, group: Group) -> tuple[Ids, np.ndarray]:
        """Return offsets and sources of a group's edges."""
        return self._edges.of(group.begin, group.end)

    def missing(self, batch: Batch, offsets: Ids, sources: np.ndarray) -> Ids:
        """Return the rows of a batch that are neither its group's own nor kept."""
        group, mine = batch.group, slice(batch.tiles[0].begin, batch.tiles[-1].end)
        edges = sources[offsets[mine.start - group.begin] : offsets[mine.stop - group.begin]]
        return _native.missing_rows(edges, (group.begin, group.end), self._slot)

    def blocks(self, batch: Batch, offsets: Ids, sources: np.ndarray, missing: Ids, kept: int) -> list[TileBlock]:
        """Build the blocks of a batch; what was read for it alone is then forgotten."""
        group, found = batch.group, []
        for tile in batch.tiles:
            mine = offsets[tile.begin - group.begin : tile.end - group.begin + 1]
            source, nodes, location = _native.build_tile(
                sources[mine[0] : mine[-1]],
                (tile.begin, tile.end),
                (group.begin, group.end),
                kept,
                self._slot,
                self._place,
            )
            indptr = torch.from_numpy(mine - mine[0])
            found.append(TileBlock(tile, indptr, torch.from_numpy(source), torch.from_numpy(nodes), location))
        self._slot[missing] = -1
        return found

    def blocks_of(self, division: Division, batch: Batch) -> tuple[list[TileBlock], Ids]:
        """Build the blocks of a batch as a sweep does when it comes to it, and return the rows that it then reads by need."""
        group, keeping = batch.group, division.keeping
        alive = keeping.by_last[keeping.last_ends[group.number - 1] if group.number else 0 :]
        late = keeping.taken[np.searchsorted(keeping.taken, group.begin) :]
        self._slot[alive] = 0
        self._slot[late] = -1
        offsets, sources = self.load(group)
        missing = self.missing(batch, offsets, sources)
        blocks = self.blocks(batch, offsets, sources, missing, keeping.slots)
        self._slot[alive] = -1
        return blocks, missing

    def layer_block(self, found: TileBlock) -> LayerBlock:
        """Return what a layer takes."""
        nodes = {self.ntype: found.nodes.numpy()}
        return LayerBlock(
            num_src={self.ntype: len(found.nodes)},
            num_dst={self.ntype: found.tile.end - found.tile.begin},
            indptr={self._etype: found.offsets},
            src={self._etype: found.source},
            edge_ids=None,
            nodes={self.ntype: found.nodes},
            out_degrees=degrees_at(self._graph.out_degrees, nodes),
            in_degrees=degrees_at(self._graph.in_degrees, nodes),
        )

    def computed(self, block: LayerBlock, x: Tensor) -> dict[str, Tensor]:
        """Return what is written of a tile."""
        with torch.inference_mode():
            rows = result_of(self._layer(block, x), self.ntype, block, self._number)
            assert rows is not None  # the trial had a result
            made = self._results.of(rows)
            # Rows that a layer passes on lie where others will be while these wait to be written.
            here = x.untyped_storage().data_ptr()
            return {
                name: values.clone() if values.untyped_storage().data_ptr() == here else values
                for name, values in made.items()
            }


class _Rows:
    """Rows of a table during one sweep: kept ones, own ones of two groups, and two batches' from elsewhere."""

    def __init__(self, sweep: InOrderSweep, division: Division, stack: ExitStack, facts: SweepFacts):
        self._sweep, self._division, self._facts = sweep, division, facts
        table, found = sweep.table, division.found
        own = max(group.end - group.begin for group in found.groups)
        self._kept = aligned_empty(division.keeping.slots, table.dim, table.torch_dtype)
        self._own = [aligned_empty(own, table.dim, table.torch_dtype) for _ in range(2)]
        self._read = [aligned_empty(division.read_rows, table.dim, table.torch_dtype) for _ in range(2)]
        self._x = aligned_empty(found.most_sources, table.dim, sweep.kind.dtype)
        self._free = np.arange(division.keeping.slots, dtype=np.int32)
        self._num_free = division.keeping.slots
        self._edges: tuple[Ids, np.ndarray] | None = None
        self._stack = stack
        self._reader: RowReader | None = None

    def read_beforehand(self) -> None:
        """Read the rows that are needed before their own group comes; then open the reader of the others."""
        sweep, rows, begin = self._sweep, self._division.keeping.beforehand, time.perf_counter()
        if len(rows):
            table = sweep.table
            with RowReader(table, sweep.storage_beforehand(rows), sweep._pool) as reader:
                slots, last = self._take_slots(len(rows)), None
                sweep._slot[rows] = slots
                for first in range(0, len(rows), ASKED_ROWS):
                    asked = slice(first, first + ASKED_ROWS)
                    read = reader.submit(rows[asked], self._kept, places=slots[asked])
                    if last is not None:
                        last.wait()
                    last = read
                assert last is not None
                last.wait()
                self._count(reader)
        self._facts.beforehand_s += time.perf_counter() - begin
        self._reader = self._stack.enter_context(RowReader(sweep.table, sweep.storage, sweep._pool))
        self._stack.callback(self._count, self._reader)

    def _count(self, reader: RowReader) -> None:
        stats = reader.stats()
        self._facts.bytes_read += stats["bytes_read"]
        self._facts.rows_read += stats["rows"]
        self._facts.reads += stats["reads"]

    def _take_slots(self, count: int) -> np.ndarray:
        self._num_free -= count
        assert self._num_free >= 0  # as planned
        taken: np.ndarray = self._free[self._num_free : self._num_free + count].copy()
        return taken

    def prepare(self, batch: Batch) -> Prepared:
        """Ask for the rows of a batch and build its blocks, on a thread of its own."""
        sweep, group, reader = self._sweep, batch.group, self._reader
        assert reader is not None  # opened before the first batch
        reads = []
        if batch.opens:
            own = self._own[group.number % 2][: group.end - group.begin]
            reads.append(reader.submit(np.arange(group.begin, group.end), own))
            self._edges = sweep.load(group)
        assert self._edges is not None
        missing = sweep.missing(batch, *self._edges)
        if len(missing):
            reads.append(reader.submit(missing, self._read[batch.number % 2][: len(missing)]))
        blocks = sweep.blocks(batch, *self._edges, missing, self._division.keeping.slots)
        return Prepared(batch, blocks, missing, reads)

    def arrive(self, prepared: Prepared) -> None:
        """Return when the rows of a batch are there; with a new group, let go of rows and keep others."""
        for read in prepared.reads:
            read.wait()
        group, keeping, slot = prepared.batch.group, self._division.keeping, self._sweep._slot
        if not prepared.batch.opens:
            return
        if group.number:
            done = keeping.done_after(group.number - 1)
            self._free[self._num_free : self._num_free + len(done)] = slot[done]
            self._num_free += len(done)
            slot[done] = -1
        taken = keeping.taken_of(group)
        if len(taken):
            slots = self._take_slots(len(taken))
            slot[taken] = slots
            _native.admit_rows(
                self._sweep._pool,
                _bytes(self._kept),
                slots.astype(np.int64),
                _bytes(self._own[group.number % 2]),
                taken - group.begin,
                self._sweep.table.row_bytes,
            )

    def gather(self, prepared: Prepared, block: TileBlock) -> Tensor:
        """Put the rows of a tile's sources together; valid until the next tile."""
        group, table = prepared.batch.group, self._sweep.table
        x = self._x[: len(block.location)]
        _native.gather_rows(
            self._sweep._pool,
            _bytes(self._kept),
            _bytes(self._own[group.number % 2][: group.end - group.begin]),
            _bytes(self._read[prepared.batch.number % 2]),
            block.location,
            _bytes(x),
            _DTYPES[self._sweep.kind.dtype],
            _DTYPES[table.torch_dtype],
            table.dim,
            table.row_bytes,
        )
        return x


def _bytes(tensor: Tensor) -> npt.NDArray[np.uint8]:
    flat = tensor.view(-1).view(torch.uint8) if tensor.numel() else torch.empty(0, dtype=torch.uint8)
    found: npt.NDArray[np.uint8] = flat.numpy()
    return found
