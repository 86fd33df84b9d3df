"""One layer over the nodes of one type: blocks are read ahead, computed tile by tile, and written behind."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from gids.dataset import TableWriter
from gids.errors import GidsError
from gids.infer.layers import LayerFunction, result_of, unwrap
from gids.infer.memory import PLANNED_ROW_BYTES, LayerMemory, TileSize, Trial
from gids.infer.tiles import Tile, TileMaker
from gids.ledger import Ledger
from gids.storage import PendingRead, RowReader, aligned_empty
from gids.types import EdgeType

#: ``finish(rows)`` returns what is written of the rows of a layer, by table.
Finish = Callable[[Tensor], dict[str, Tensor]]


@dataclass
class SweepFacts:
    """What a sweep did: counts, and the seconds that computing took and waited for reads and for writes."""

    blocks: int = 0
    tiles: int = 0
    rows: int = 0
    rows_read: int = 0
    compute_s: float = 0.0
    read_wait_s: float = 0.0
    write_wait_s: float = 0.0

    def add(self, other: SweepFacts) -> None:
        """Add what another sweep did."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


@dataclass
class Sources:
    """Where the rows of a layer come from: node rows by type, and edge rows by edge type."""

    nodes: dict[str, RowReader]
    edges: dict[EdgeType, RowReader] = field(default_factory=dict)
    dtypes: dict[str, torch.dtype] = field(default_factory=dict)

    def row_bytes(self, ntype: str) -> int:
        """Bytes of a row in memory."""
        return self.nodes[ntype].table.dim * self.dtypes[ntype].itemsize

    def bytes_read(self) -> int:
        """Bytes that devices delivered so far."""
        return sum(reader.stats()["bytes_read"] for reader in (*self.nodes.values(), *self.edges.values()))

    def tile_bytes(self, tile: Tile) -> int:
        """Memory of a tile's rows and lists."""
        block = tile.block
        total = tile.edges_bytes
        for ntype, count in block.num_src.items():
            total += count * (self.row_bytes(ntype) + PLANNED_ROW_BYTES) if count else 0
        for etype, reader in self.edges.items():
            total += len(block.src[etype]) * (reader.table.dim * edge_dtype(reader).itemsize + PLANNED_ROW_BYTES)
        return total


def edge_dtype(reader: RowReader) -> torch.dtype:
    """Return the dtype that edge rows have in memory: half precision is widened."""
    return widened(reader.table.torch_dtype)


def widened(dtype: torch.dtype) -> torch.dtype:
    """Return float32 for half precision, and every other dtype as it is."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


@dataclass
class Block:
    """Tiles whose rows are read in one merged sweep."""

    tiles: list[Tile]
    reads: list[PendingRead]
    nodes: dict[str, Tensor]
    edges: dict[EdgeType, Tensor]
    size_bytes: int

    def rows_of(self) -> Iterator[tuple[Tile, dict[str, Tensor], dict[EdgeType, Tensor]]]:
        """Yield every tile with the rows of its sources and of its edges."""
        at = dict.fromkeys(self.nodes, 0)
        edge_at = dict.fromkeys(self.edges, 0)
        for tile in self.tiles:
            rows = {}
            for ntype, values in self.nodes.items():
                count = tile.block.num_src[ntype]
                rows[ntype] = values[at[ntype] : at[ntype] + count]
                at[ntype] += count
            of_edges = {}
            for etype, values in self.edges.items():
                count = len(tile.block.src[etype])
                of_edges[etype] = values[edge_at[etype] : edge_at[etype] + count]
                edge_at[etype] += count
            yield tile, rows, of_edges


class LayerSweep:
    """Computes a layer for one node type.

    Parameters
    ----------
    layer, number : callable, int
        What to compute, and its number for messages.
    maker : TileMaker
        Makes the tiles.
    sources : Sources
        Readers of the rows.
    memory, ledger : LayerMemory, Ledger
        How large a block may be, and where its memory is drawn from.
    trial : Trial
        What the layer allocates.
    finish : callable
        Turns rows into what is written, by table.
    writers : mapping of str to TableWriter
        The tables.
    """

    def __init__(
        self,
        layer: LayerFunction,
        number: int,
        maker: TileMaker,
        sources: Sources,
        memory: LayerMemory,
        ledger: Ledger,
        trial: Trial,
        finish: Finish,
        writers: Mapping[str, TableWriter],
    ):
        self._layer, self._number, self._maker, self._sources = layer, number, maker, sources
        self._memory, self._trial, self._finish, self._writers = memory, trial, finish, writers
        self._rows, self._outputs = ledger.account("rows"), ledger.account("outputs")
        self._scratch = ledger.account("compute")
        self._homogeneous = len(maker.topology.node_types) == 1
        self._out_bytes = sum(w.table.row_bytes for w in writers.values()) + trial.dim * trial.dtype.itemsize
        self.facts = SweepFacts()

    def run(self, ntype: str, bounds: list[tuple[int, int]]) -> SweepFacts:
        """Compute every tile whose rows are not all written; the last rows are durable when this returns."""
        done = min(writer.rows_done for writer in self._writers.values())
        tiles = iter([(begin, end) for begin, end in bounds if end > done])
        self._carried: Tile | None = None
        written: Future[None] | None = None
        ahead, behind = ThreadPoolExecutor(1, "gids-infer-read"), ThreadPoolExecutor(1, "gids-infer-write")
        coming = ahead.submit(self._prepare, ntype, tiles)
        try:
            while (block := coming.result()) is not None:
                coming = ahead.submit(self._prepare, ntype, tiles)
                written = self._compute(block, written, behind)
                del block
            if written is not None:
                written.result()
        finally:
            # Whatever ended the sweep: no read may write to memory that is given back, no write may follow.
            ahead.shutdown(wait=True, cancel_futures=True)
            behind.shutdown(wait=True)
            if not coming.cancelled():
                with suppress(GidsError):
                    self._drop(coming.result())
        return self.facts

    def _prepare(self, ntype: str, tiles: Iterator[tuple[int, int]]) -> Block | None:
        """Sample tiles until a block is full, and begin to read their rows."""
        chosen: list[Tile] = []
        size = out_size = 0
        while True:
            tile = self._carried
            if tile is None:
                bounds = next(tiles, None)
                if bounds is None:
                    break
                tile = self._maker.make(ntype, *bounds)
            self._carried = None
            more, out_more = self._sources.tile_bytes(tile), (tile.end - tile.begin) * self._out_bytes
            if chosen and (size + more > self._memory.rows or out_size + out_more > self._memory.outputs):
                self._carried = tile
                break
            chosen.append(tile)
            size, out_size = size + more, out_size + out_more
        return self._read(chosen, size) if chosen else None

    def _read(self, tiles: list[Tile], size: int) -> Block:
        self._rows.draw(size)
        block = Block(tiles, [], {}, {}, size)
        try:
            for ntype, reader in self._sources.nodes.items():
                ids = torch.cat([tile.block.nodes[ntype] for tile in tiles])
                dtype = self._sources.dtypes[ntype]
                block.nodes[ntype] = aligned_empty(len(ids), reader.table.dim, dtype)
                block.reads.append(reader.submit(ids, block.nodes[ntype], dtype))
            for etype, reader in self._sources.edges.items():
                ids = torch.cat([(tile.block.edge_ids or {})[etype] for tile in tiles])
                block.edges[etype] = aligned_empty(len(ids), reader.table.dim, edge_dtype(reader))
                block.reads.append(reader.submit(ids, block.edges[etype], edge_dtype(reader)))
        except BaseException:
            self._drop(block)
            raise
        return block

    def _drop(self, block: Block | None) -> None:
        if block is not None:
            for read in block.reads:
                read.cancel()
            self._rows.give(block.size_bytes)

    def _compute(self, block: Block, written: Future[None] | None, behind: ThreadPoolExecutor) -> Future[None]:
        """Compute the tiles of a block and hand the results to the writing thread, one block behind."""
        begin = time.perf_counter()
        try:
            for read in block.reads:
                read.wait()
            self.facts.read_wait_s += time.perf_counter() - begin
            begin = time.perf_counter()
            count = block.tiles[-1].end - block.tiles[0].begin
            out_bytes = count * self._out_bytes
            self._outputs.draw(out_bytes)
            results: dict[str, list[Tensor]] = {name: [] for name in self._writers}
            for tile, rows, of_edges in block.rows_of():
                scratch = self._trial.scratch(TileSize.of(tile))
                self._scratch.draw(scratch)
                for name, values in self._finish(self._run_layer(tile, rows, of_edges)).items():
                    results[name].append(values)
                self._scratch.give(scratch)
        finally:
            self._drop(block)
        first, last = block.tiles[0].begin, block.tiles[-1].end
        facts = self.facts
        facts.blocks, facts.tiles, facts.rows = (
            facts.blocks + 1,
            facts.tiles + len(block.tiles),
            facts.rows + last - first,
        )
        facts.rows_read += sum(len(values) for values in block.nodes.values())
        facts.compute_s += time.perf_counter() - begin
        begin = time.perf_counter()
        if written is not None:
            written.result()
        facts.write_wait_s += time.perf_counter() - begin
        return behind.submit(self._write, first, results, out_bytes)

    def _run_layer(self, tile: Tile, rows: dict[str, Tensor], of_edges: dict[EdgeType, Tensor]) -> Tensor:
        block = replace(tile.block, edge_features=of_edges) if of_edges else tile.block
        # The mode belongs to a thread; a caller's thread may be in any.
        with torch.inference_mode():
            out = self._layer(block, unwrap(rows, self._homogeneous))
        found = result_of(out, tile.ntype, tile.block, self._number)
        assert found is not None  # the trial had a result for this type
        return found

    def _write(self, first: int, results: dict[str, list[Tensor]], out_bytes: int) -> None:
        """Append what the tables do not have yet, and make it durable."""
        try:
            for name, writer in self._writers.items():
                at = first
                for values in results[name]:
                    skip = min(max(writer.rows_done - at, 0), len(values))
                    at += len(values)
                    if skip < len(values):
                        writer.append(values[skip:])
                writer.checkpoint()
        finally:
            self._outputs.give(out_bytes)
