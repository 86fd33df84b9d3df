"""One layer by adding every source's row to its destinations' sums as it is read: the table is read in order, not by need.

A layer that only needs the sum or the mean of its neighbours' rows need not have them all at once. As many destinations as
fit into memory with their sums are taken at a time; for each such part the rows of all sources pass by once, in order. A
destination's sources are added in the order of their ids, so that the results depend neither on the parts nor on memory.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gids import _native
from gids._native import ThreadPool
from gids.dataset import Dataset, TableWriter
from gids.dataset.rows import as_tensor, read_rows
from gids.errors import ConfigError
from gids.infer.feed import Graph
from gids.infer.layers import ConvLayer, LayerFunction, result_rows
from gids.infer.results import WAITING_TILES, Results, WriteBehind
from gids.infer.schedule import LayerPlan
from gids.infer.sweep import SweepFacts
from gids.infer.tiles import Tile
from gids.ledger import Account
from gids.runtime.options import RuntimeOptions
from gids.storage import RowReader, StorageOptions
from gids.storage.reader import aligned_empty
from gids.table import RowTable
from gids.types import EdgeType
from gids.units import format_bytes, parse_bytes

#: Rows that are read at a time, and as many again that are being read; less where the budget is small.
BLOCK_BYTES = 16 << 20
BLOCK_SHARE = 1 / 32
LEAST_BLOCK_ROWS = 64
#: Memory that the device writes to.
STAGING_BYTES = 16 << 20
#: Memory of planning and placing one row.
PLANNED_ROW_BYTES = 64
#: Of an edge: its source in its block, and its destination.
GROUPED_EDGE_BYTES = 8
#: Edges that are in memory at a time while parts are foreseen.
PIECE_EDGES = 1 << 21


class Part(NamedTuple):
    """Destinations whose sums are in memory together: consecutive tiles, and their in-edges."""

    tiles: Sequence[Tile]
    edges: int

    @property
    def begin(self) -> int:
        """First destination."""
        return self.tiles[0].begin

    @property
    def end(self) -> int:
        """Destination after the last one."""
        return self.tiles[-1].end


@dataclass(frozen=True)
class Grouped:
    """In-edges of a part by block of sources; see ``cpp/infer/accumulate.hpp``."""

    begin: npt.NDArray[np.int64]
    source: npt.NDArray[np.uint32]
    destination: npt.NDArray[np.uint32]

    def blocks(self) -> list[int]:
        """Return the blocks that have edges: rows of others are not read."""
        return [int(block) for block in np.flatnonzero(np.diff(self.begin))]


def check_scan(dataset: Dataset, layers: Sequence[LayerFunction], asked: Mapping[str, bool]) -> None:
    """Refuse what cannot be computed while rows pass by.

    Parameters
    ----------
    dataset : Dataset
        The graph.
    layers : sequence of callables
        The model.
    asked : mapping of str to bool
        Options that were given and do not go with it.
    """
    if len(dataset.node_types) != 1 or len(dataset.edge_types) != 1:
        raise ConfigError(f"scan needs a graph of one node type and one edge type (got {dataset.edge_types})")
    given = [name for name, is_given in asked.items() if is_given]
    if given:
        raise ConfigError(f"scan must be without {', '.join(given)}: rows are added as they are read")
    for number, layer in enumerate(layers):
        if not isinstance(layer, ConvLayer) or layer.reduced is None:
            kind = type(getattr(layer, "module", layer)).__name__
            raise ConfigError(
                f"scan needs layers that take the sum or the mean of their neighbours' rows, such as those of "
                f"GraphSAGE and GCN: with reduce and update, see docs/inference.md (got {kind} as layer {number})"
            )


class ScanSweep:
    """Computes a layer of a graph with one edge type, part by part.

    Parameters
    ----------
    layer : ConvLayer
        What to compute; it has ``reduced``.
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
        Threads for grouping, adding and copying.
    """

    def __init__(
        self,
        layer: ConvLayer,
        plan: LayerPlan,
        graph: Graph,
        table: RowTable,
        results: Results,
        options: RuntimeOptions,
        pool: ThreadPool,
    ):
        assert layer.reduced is not None  # as check_scan found
        self.layer, self._reduced, self._graph, self._table, self._pool = layer, layer.reduced, graph, table, pool
        self._results, self._number = results, plan.number
        ((self._ntype, self.of_type),) = plan.types.items()
        (self.kind,) = plan.inputs.values()
        self._etype: EdgeType = graph.dataset.edge_types[0]
        self._offsets = graph.dataset.stored_offsets(self._etype)
        assert options.budget is not None
        self._budget = parse_bytes(options.budget, "budget")
        given = options.storage
        given = StorageOptions(engine=given) if isinstance(given, str) else given or StorageOptions()
        self.storage = replace(given, staging_bytes=min(given.staging_bytes, STAGING_BYTES))
        size = min(BLOCK_BYTES, int(self._budget * BLOCK_SHARE)) // self.kind.row_bytes
        self.block_rows = max(LEAST_BLOCK_ROWS, min(size, table.num_rows))
        with torch.inference_mode():
            none = torch.zeros(1, self.kind.dim, dtype=self.kind.dtype)
            self.width = self._reduced.contribution(none, torch.ones(1, dtype=torch.int64)).shape[1]

    @property
    def num_edges(self) -> int:
        """Edges of the graph."""
        return self._graph.dataset.num_edges(self._etype)

    def _standing_bytes(self) -> int:
        """Memory of everything but the sums and edges of a part."""
        of_type, kind = self.of_type, self.kind
        rows = max(tile.end - tile.begin for tile in of_type.tiles)
        written = of_type.trial.dim * of_type.trial.dtype.itemsize
        written += self._results.row_bytes(of_type.trial.dim, of_type.trial.dtype)
        # Beside the own rows of two tiles, a layer takes for one tile what it would take with all its edges, at most.
        tiles = (WAITING_TILES + 1) * rows * written + 2 * rows * kind.row_bytes
        tiles += of_type.scratch_bytes(self._graph.dataset.num_nodes(self._ntype))
        block = self.block_rows * (2 * kind.row_bytes + 2 * self.width * kind.dtype.itemsize + 2 * PLANNED_ROW_BYTES)
        degrees = sum(counts.nbytes for counts in (self._graph.out_degrees or {}).values())
        return tiles + block + degrees + self._graph.topology.resident_bytes() + self.storage.staging_bytes

    def _part_bytes(self, destinations: int, edges: int) -> int:
        """Memory of a part: sums and offsets of its destinations; its edges, as stored and grouped."""
        stored = self._graph.dataset.indices_table(self._etype).row_bytes
        return destinations * (self.width * self.kind.dtype.itemsize + 16) + edges * (GROUPED_EDGE_BYTES + stored)

    def parts(self, tiles: Sequence[Tile]) -> list[Part]:
        """Cut tiles into parts that the budget holds; refuses one that does not hold the largest tile."""
        standing = self._standing_bytes()
        room = self._budget - standing
        ends = [int(self._offsets[tiles[0].begin]), *(int(self._offsets[tile.end]) for tile in tiles)]
        least = standing + max(
            self._part_bytes(tile.end - tile.begin, end - begin)
            for tile, begin, end in zip(tiles, ends[:-1], ends[1:], strict=True)
        )
        if least > self._budget:
            raise ConfigError(
                f"budget must be at least {format_bytes(least + least // 20)} for layer {self._number} of a scan, or tile "
                f"smaller (got {format_bytes(self._budget)})"
            )
        found: list[Part] = []
        chosen: list[Tile] = []
        edges = 0
        for tile, begin, end in zip(tiles, ends[:-1], ends[1:], strict=True):
            if chosen and self._part_bytes(tile.end - chosen[0].begin, edges + end - begin) > room:
                found.append(Part(chosen, edges))
                chosen, edges = [], 0
            chosen.append(tile)
            edges += end - begin
        return [*found, Part(chosen, edges)]

    def run(self, writers: Mapping[str, Mapping[str, TableWriter]]) -> SweepFacts:
        """Compute every tile whose rows are not all written; returns what was done."""
        facts, behind = SweepFacts(), WriteBehind(writers)
        try:
            done = behind.rows_done(self._ntype)
            tiles = [tile for tile in self.of_type.tiles if tile.end > done]
            if tiles:
                self._run_tiles(tiles, behind, facts)
            rows = self._graph.dataset.num_nodes(self._ntype) - done
            facts.bytes_written += rows * sum(writer.table.row_bytes for writer in writers[self._ntype].values())
            behind.finish()
        finally:
            behind.close()
        return facts

    def _run_tiles(self, tiles: Sequence[Tile], behind: WriteBehind, facts: SweepFacts) -> None:
        account = Account("sums", self._budget - self._standing_bytes())
        parts = self.parts(tiles)
        facts.reasons += (f"rows of all sources pass by {len(parts)} times",)
        most = max(self.block_rows, max(tile.end - tile.begin for tile in tiles))
        stored = self._table.torch_dtype
        buffers = [aligned_empty(most, self.kind.dim, stored) for _ in range(2)]
        if stored != self.kind.dtype:  # half precision: together they take what two buffers of the layer's type would
            buffers.append(torch.empty(most, self.kind.dim, dtype=self.kind.dtype))
        with RowReader(self._table, self.storage, self._pool) as reader:
            for part in parts:
                size = self._part_bytes(part.end - part.begin, part.edges)
                account.reserve(size)
                self._run_part(part, reader, buffers, behind, facts)
                account.give(size)
            stats = reader.stats()
        facts.bytes_read += stats["bytes_read"]
        facts.rows_read += stats["rows"]
        facts.memory["sums"] = asdict(account.usage)

    def group(self, part: Part) -> Grouped:
        """Return the in-edges of a part by block of sources."""
        offsets = self._offsets[part.begin : part.end + 1]
        stored = self._graph.dataset.indices_table(self._etype)
        sources = as_tensor(stored, read_rows(stored, int(offsets[0]), int(offsets[-1]))).numpy()
        found = _native.group_edges(self._pool, offsets, sources, self._table.num_rows, self.block_rows)
        return Grouped(*found)

    def _run_part(
        self, part: Part, reader: RowReader, buffers: list[Tensor], behind: WriteBehind, facts: SweepFacts
    ) -> None:
        begin = time.perf_counter()
        edges = self.group(part)
        facts.edge_bytes_read += part.edges * self._graph.dataset.indices_table(self._etype).row_bytes
        sums = torch.zeros(part.end - part.begin, self.width, dtype=self.kind.dtype)
        facts.compute_s += time.perf_counter() - begin
        ranges = [self.rows_of(block) for block in edges.blocks()]
        for first, rows in self._in_order(reader, ranges, buffers, facts):
            begin = time.perf_counter()
            self.add(edges, first // self.block_rows, rows, sums)
            facts.compute_s += time.perf_counter() - begin
            facts.rows_asked += len(rows)
        del edges
        own = self._in_order(reader, [(tile.begin, tile.end) for tile in part.tiles], buffers, facts)
        for tile, (_, rows) in zip(part.tiles, own, strict=True):
            begin = time.perf_counter()
            made = self._results.of(self.finished(tile, rows, sums[tile.begin - part.begin : tile.end - part.begin]))
            facts.compute_s += time.perf_counter() - begin
            begin = time.perf_counter()
            behind.put(self._ntype, tile.begin, made)
            facts.write_wait_s += time.perf_counter() - begin
            facts.tiles, facts.rows = facts.tiles + 1, facts.rows + len(rows)
            facts.rows_asked += len(rows)

    def rows_of(self, block: int) -> tuple[int, int]:
        """Return first row of a block, and the one after its last."""
        return block * self.block_rows, min((block + 1) * self.block_rows, self._table.num_rows)

    def add(self, edges: Grouped, block: int, rows: Tensor, sums: Tensor) -> None:
        """Add the rows of a block to the sums of their destinations."""
        first, end = self.rows_of(block)
        with torch.inference_mode():
            given = self._reduced.contribution(rows, self._sent(first, end)).contiguous()
        chosen = slice(int(edges.begin[block]), int(edges.begin[block + 1]))
        _native.add_rows(
            self._pool, edges.source[chosen], edges.destination[chosen], given.detach().numpy(), sums.numpy()
        )

    def finished(self, tile: Tile, own_rows: Tensor, sums: Tensor) -> Tensor:
        """Return the rows of a tile from its destinations' own rows and their sums, which are changed."""
        received = torch.from_numpy(np.diff(self._offsets[tile.begin : tile.end + 1]))
        with torch.inference_mode():
            if self._reduced.mean:
                sums /= received.clamp(min=1).to(sums.dtype).unsqueeze(1)
            out = self.layer.activated(self._reduced.update(own_rows, sums, received, self._sent(tile.begin, tile.end)))
            rows = result_rows(out, len(own_rows), self._ntype, self._number)
            # Rows that pass by lie where others will be read while these wait to be written.
            passing = rows.untyped_storage().data_ptr() == own_rows.untyped_storage().data_ptr()
            return rows.clone() if passing else rows

    def _sent(self, begin: int, end: int) -> Tensor | None:
        """Return out-degrees of consecutive nodes, where the layer asks for them."""
        if self._graph.out_degrees is None:
            return None
        return torch.from_numpy(self._graph.out_degrees[self._etype][begin:end].astype(np.int64))

    def _in_order(
        self, reader: RowReader, ranges: list[tuple[int, int]], buffers: list[Tensor], facts: SweepFacts
    ) -> Iterator[tuple[int, Tensor]]:
        """Yield first ids with the rows that follow; those of the next range are read meanwhile.

        They are read to the first two buffers in turn, and converted to a third where there is one.
        """
        coming: tuple[int, Any] | None = None
        for number, (begin, end) in enumerate([*ranges, (0, 0)]):
            ahead = None
            if number < len(ranges):
                out = buffers[number % 2][: end - begin]
                ahead = (begin, reader.submit(np.arange(begin, end), out))
            if coming is not None:
                started = time.perf_counter()
                rows = coming[1].wait()
                facts.read_wait_s += time.perf_counter() - started
                yield coming[0], buffers[2][: len(rows)].copy_(rows) if len(buffers) > 2 else rows
            coming = ahead

    def rows_passing(self, part: Part) -> int:
        """Count the rows that pass by for a part, from its edges alone."""
        stored, touched = self._graph.dataset.indices_table(self._etype), set()
        begin, last = int(self._offsets[part.begin]), int(self._offsets[part.end])
        for first in range(begin, last, PIECE_EDGES):
            sources = as_tensor(stored, read_rows(stored, first, min(first + PIECE_EDGES, last)))
            touched.update(torch.unique(sources // self.block_rows).tolist())
        return sum(end - first for first, end in map(self.rows_of, touched))
