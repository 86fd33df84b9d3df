"""One layer over all its tiles: rows come through the runtime ahead of it, results are written behind it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from gids._native import ThreadPool
from gids.dataset import TableWriter
from gids.infer.feed import Graph, SweepFeed, TileRows
from gids.infer.layers import LayerFunction, result_of, unwrap
from gids.infer.results import WAITING_TILES, Results, WriteBehind
from gids.infer.schedule import LayerPlan
from gids.infer.tiles import Tile
from gids.loader.backends import open_backend
from gids.runtime.options import RuntimeOptions
from gids.runtime.pipeline import PipelineRun
from gids.runtime.runtime import Runtime
from gids.runtime.trace import Trace
from gids.table import RowTable
from gids.types import EdgeType


@dataclass
class SweepFacts:
    """What a sweep did: counts, bytes, the seconds that computing took and waited, and memory by part.

    ``bytes_read`` are of rows; ``edge_bytes_read``, where edges are read in order from disk or the page cache.
    """

    tiles: int = 0
    rows: int = 0
    rows_asked: int = 0
    rows_read: int = 0
    bytes_read: int = 0
    edge_bytes_read: int = 0
    bytes_written: int = 0
    reads: int = 0
    plan_s: float = 0.0
    beforehand_s: float = 0.0
    gather_s: float = 0.0
    compute_s: float = 0.0
    read_wait_s: float = 0.0
    write_wait_s: float = 0.0
    memory: dict[str, Any] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()


class LayerSweep:
    """Computes a layer, one node type after the other.

    Parameters
    ----------
    layer : callable
        What to compute.
    plan : LayerPlan
        Its tiles, and what it takes.
    graph : Graph
        The edges.
    tables, edge_tables, weights : mapping of type to RowTable
        Rows that it gets.
    results : Results
        What is written.
    options : RuntimeOptions
        Budget, device, and how to read.
    pool : ThreadPool
        Threads for sampling, planning and copying.
    """

    def __init__(
        self,
        layer: LayerFunction,
        plan: LayerPlan,
        graph: Graph,
        tables: Mapping[str, RowTable],
        edge_tables: Mapping[EdgeType, RowTable],
        weights: Mapping[EdgeType, RowTable],
        results: Results,
        options: RuntimeOptions,
        pool: ThreadPool,
    ):
        self._layer, self._plan, self._graph, self._tables = layer, plan, graph, tables
        self._edge_tables, self._weights, self._results, self._pool = edge_tables, weights, results, pool
        self._options = options
        self._homogeneous = len(graph.dataset.node_types) == 1

    def _computing_bytes(self, ntype: str) -> int:
        """Memory of a layer at work, and of results that wait to be written: as computed and as stored."""
        of_type = self._plan.types[ntype]
        rows = max(tile.end - tile.begin for tile in of_type.tiles)
        trial = of_type.trial
        each = trial.dim * trial.dtype.itemsize + self._results.row_bytes(trial.dim, trial.dtype)
        nodes = sum(self._graph.dataset.num_nodes(source) for source in self._plan.inputs)
        return (WAITING_TILES + 1) * rows * each + of_type.scratch_bytes(nodes)

    def open(self, ntype: str) -> Runtime:
        """Open the tables within the budget; refuses one that is too small."""
        runtime = self.unopened(ntype)
        try:
            first = runtime.feed.first()
            assert first is not None  # a layer has a tile
            runtime.open(*first)
        except BaseException:
            runtime.close()
            raise
        return runtime

    def unopened(self, ntype: str) -> Runtime:
        """Return a runtime whose tables are closed, to open or to foresee."""
        options = replace(self._options, embeddings_bytes=self._computing_bytes(ntype))
        backend = open_backend(options, self._pool)
        plan = self._plan.types[ntype]
        try:
            feed = SweepFeed(
                self._graph,
                self._tables,
                self._edge_tables,
                self._weights,
                plan.tiles,
                plan.largest,
                backend,
                self._pool,
            )
            return Runtime(feed, backend, options, Trace())
        except BaseException:
            backend.close()
            raise

    def run(self, writers: Mapping[str, Mapping[str, TableWriter]]) -> SweepFacts:
        """Compute every tile whose rows are not all written; returns what was done."""
        facts, behind = SweepFacts(), WriteBehind(writers)
        try:
            for ntype, of_type in self._plan.types.items():
                done = behind.rows_done(ntype)
                tiles = [tile for tile in of_type.tiles if tile.end > done]
                if tiles:
                    self._run_type(ntype, tiles, behind, facts)
                rows = self._graph.dataset.num_nodes(ntype) - done
                facts.bytes_written += rows * sum(writer.table.row_bytes for writer in writers[ntype].values())
            behind.finish()
        finally:
            behind.close()
        return facts

    def _run_type(self, ntype: str, tiles: list[Tile], behind: WriteBehind, facts: SweepFacts) -> None:
        runtime = self.open(ntype)
        try:
            self._compute(runtime, tiles, behind, facts)
        finally:
            for part, usage in runtime.usage().items():
                if part not in facts.memory or facts.memory[part]["peak"] < usage.peak:
                    facts.memory[part] = asdict(usage)
            if runtime.division is not None:
                facts.reasons += tuple(runtime.division.reasons)
            runtime.close()

    def _compute(self, runtime: Runtime, tiles: list[Tile], behind: WriteBehind, facts: SweepFacts) -> None:
        batches: PipelineRun[TileRows] = runtime.run(tiles)
        begin = time.perf_counter()
        for found in batches:
            facts.read_wait_s += time.perf_counter() - begin
            begin = time.perf_counter()
            results = self._results.of(self._run_layer(found))
            facts.compute_s += time.perf_counter() - begin
            tile, begin = found.tile, time.perf_counter()
            behind.put(tile.ntype, tile.begin, results)
            facts.write_wait_s += time.perf_counter() - begin
            facts.tiles, facts.rows = facts.tiles + 1, facts.rows + tile.end - tile.begin
            facts.rows_asked += sum(map(len, found.rows.values()))
            del found, results
            begin = time.perf_counter()
        counts = runtime.counts().values()
        facts.bytes_read += sum(table["bytes_read"] for table in counts)
        facts.rows_read += sum(table["disk"] for table in counts)

    def _run_layer(self, found: TileRows) -> Tensor:
        # The mode belongs to a thread; a caller's thread may be in any.
        with torch.inference_mode():
            out = self._layer(found.block, unwrap(found.rows, self._homogeneous))
        rows = result_of(out, found.tile.ntype, found.block, self._plan.number)
        assert rows is not None  # the trial had a result for this type
        return rows
