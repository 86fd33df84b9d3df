"""What a careful person would use instead of gids: the peers of ``gids bench epoch``, each with a setting to tune."""

from __future__ import annotations

import abc
import mmap
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

import gids
from gids.sampling import NeighborSampler, Sample, SampleKey, SeedOrder, Topology
from gids.storage import RowReader, StorageOptions

#: Rows of each batch that are compared with the file, byte by byte, about; and threads that read them.
VERIFIED_ROWS = 512
VERIFYING_THREADS = 16
#: Input nodes of a batch, and their rows.
Rows = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Prepared:
    """A batch: input nodes, their rows (by node type where there are several), what a model walks along, and the seeds."""

    nodes: Tensor
    rows: Any
    graph: Any
    seeds: Tensor


def check_rows(dataset: gids.Dataset, nodes: Tensor, x: Tensor, *, as_float16: bool = False) -> None:
    """Compare some rows of a batch with what the file holds, or with that in half precision."""
    table = dataset.feature_table()
    files = [os.open(stripe.path, os.O_RDONLY) for stripe in table.stripes]

    def stored(node: int) -> bytes:
        stripe, offset = table.locate(node)
        return os.pread(files[stripe], table.row_bytes, offset)

    places = range(0, len(nodes), max(1, len(nodes) // VERIFIED_ROWS))
    chosen = nodes[:: places.step].tolist()
    try:
        for file in files:  # rows lie far apart: what lies between them need not be read
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
        with ThreadPoolExecutor(VERIFYING_THREADS) as pool:
            for place, node, held in zip(places, chosen, pool.map(stored, chosen), strict=True):
                if as_float16:
                    held = np.frombuffer(held, np.float32).astype(np.float16).astype(np.float32).tobytes()
                if held != x[place].numpy().tobytes():
                    raise gids.GidsError(f"row {node} of a batch is not what {table.name} holds")
    finally:
        for file in files:
            os.close(file)


def order_of(spec: dict[str, Any], dataset: gids.Dataset) -> Callable[[int], SeedOrder]:
    """Return the very order that gids.Loader uses."""
    seeds = dataset.split("train")
    return lambda epoch: SeedOrder(seeds, batch_size=spec["batch_size"], seed=0, epoch=epoch)


class Peer(abc.ABC):
    """A way to prepare batches. Making one is not measured; neither are the first batches of a round.

    Parameters
    ----------
    spec : dict
        ``data``, ``fanouts``, ``batch_size``, and ``setting``: what the peer is tuned by.
    """

    #: Batches that are under way at once: so many are taken before the clock runs.
    under_way = 1
    as_float16 = False

    def __init__(self, spec: dict[str, Any]):
        self.setting = int(spec.get("setting", 0))
        self.dataset = gids.open(spec["data"])
        self.order = order_of(spec, self.dataset)
        self.batch_size = spec["batch_size"]

    @abc.abstractmethod
    def prepared(self, epoch: int) -> Iterator[Prepared]:
        """Yield the batches of an epoch."""

    def batches(self, epoch: int) -> Iterator[Rows]:
        """Yield what data preparation is judged by."""
        for batch in self.prepared(epoch):
            yield batch.nodes, batch.rows

    def rest(self) -> None:  # noqa: B027 - most have nothing to let go of
        """Let go of what another contender would find in memory."""

    def count_anew(self) -> None:  # noqa: B027 - the clock is enough for all but gids
        """Begin to count: the clock runs from here."""

    def counts(self) -> dict[str, Any]:
        """Return what was counted since, beside rows and seconds."""
        return {}

    def seeds(self, epoch: int) -> Tensor:
        """Return all seeds of an epoch in their order."""
        order = self.order(epoch)
        return torch.cat([order[index].nodes["_N"] for index in range(len(order))])


class MappedTable:
    """The feature table as a mapped file, or all of it in memory: ``rows`` is a tensor over it.

    Parameters
    ----------
    dataset : Dataset
        Whose features.
    advice : str
        ``"random"`` asks the kernel not to read ahead; ``"memory"`` maps nothing.
    ntype : str, optional
        Which node type's.
    """

    def __init__(self, dataset: gids.Dataset, advice: str, ntype: str | None = None):
        table = dataset.feature_table(ntype)
        self.map: mmap.mmap | None = None
        if advice == "memory":
            values = np.fromfile(
                table.stripes[0].path, np.float32, table.num_rows * table.dim, offset=table.stripes[0].data_offset
            )
            self.rows = torch.from_numpy(values.reshape(table.num_rows, table.dim))
            return
        with table.stripes[0].path.open("rb") as file:
            # Private and writable: torch warns of arrays that it must not write to. Nothing is written.
            self.map = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE)
        if advice == "random":
            self.map.madvise(mmap.MADV_RANDOM)
        raw = np.frombuffer(self.map, np.float32, table.num_rows * table.dim, table.stripes[0].data_offset)
        self.rows = torch.from_numpy(raw.reshape(table.num_rows, table.dim))

    def rest(self) -> None:
        """Unmap the pages, so that the page cache can forget them."""
        if self.map is not None:
            self.map.madvise(mmap.MADV_DONTNEED)


def dgl_graph(dataset: gids.Dataset) -> Any:
    """Return the dataset's graph as DGL's, in the types that it has on disk."""
    import dgl

    indices = dataset.indices_table()
    stripe = indices.stripes[0]
    sources = np.fromfile(stripe.path, dtype=indices.dtype, count=indices.num_rows, offset=stripe.data_offset)
    indptr = torch.from_numpy(np.array(dataset.indptr())).to(torch.from_numpy(sources).dtype)
    none = torch.empty(0, dtype=indptr.dtype)
    return dgl.graph(("csc", (indptr, torch.from_numpy(sources), none)), num_nodes=dataset.num_nodes())


class Mapped(Peer):
    """The papers' baseline: DGL's NeighborSampler, then features from a memory-mapped file, one batch after the other."""

    def __init__(self, spec: dict[str, Any]):
        import dgl

        super().__init__(spec)
        self.graph = dgl_graph(self.dataset)
        # DGL 1.1.3's fused sampler carries ids from batch to batch on int32 graphs: nodes that came before go missing.
        self.sampler = dgl.dataloading.NeighborSampler(spec["fanouts"], fused=False)
        self.table = MappedTable(self.dataset, spec["advice"])
        self.features = self.table.rows

    def prepared(self, epoch: int) -> Iterator[Prepared]:
        """Yield the batches of an epoch."""
        for index in range(len(order := self.order(epoch))):
            nodes, seeds, blocks = self.sampler.sample(self.graph, order[index].nodes["_N"].to(self.graph.idtype))
            yield Prepared(nodes.long(), self.features[nodes.long()], blocks, seeds.long())

    def rest(self) -> None:
        """Unmap the pages."""
        self.table.rest()

    def round(self, number: int, batches: int, rows: int | None) -> dict[str, Any]:
        """Prepare some batches of an epoch, or only so many rows of each."""
        order, done, sampling = self.order(number), 0, 0.0
        begin = time.perf_counter()
        for index in range(batches):
            start = time.perf_counter()
            nodes, _, _ = self.sampler.sample(self.graph, order[index].nodes["_N"].to(self.graph.idtype))
            sampling += time.perf_counter() - start
            nodes = nodes.long()[:rows]
            x = self.features[nodes]
            done += len(nodes)
        seconds = time.perf_counter() - begin
        check_rows(self.dataset, nodes, x)
        return {"rows": done, "seconds": seconds, "sampling_seconds": sampling}


def take_rows(features: Tensor, nodes: Tensor) -> Tensor:
    """Return rows; in a worker process where the one that trains can have them without a copy, as PyG does it."""
    out = None
    if torch.utils.data.get_worker_info() is not None:
        size = len(nodes) * features.shape[1]
        storage = features.untyped_storage()._new_shared(size * features.element_size())  # type: ignore[no-untyped-call]
        out = features.new(storage).view(len(nodes), features.shape[1])
    return torch.index_select(features, 0, nodes, out=out)


class DglWorkers(Mapped):
    """DGL's DataLoader over the mapped file; ``setting`` worker processes sample and take the rows."""

    def __init__(self, spec: dict[str, Any]):
        import dgl

        if spec.get("setting", 0):  # threads of OpenMP's do not survive the fork of a worker
            dgl.utils.set_num_threads(1)
        super().__init__(spec | {"advice": spec["advice"] or "random"})
        self.under_way = max(1, self.setting)
        self.graph = self.graph.formats("csc")  # or DGL would make two more for its workers
        features, inner = self.features, self.sampler

        class WithRows(dgl.dataloading.Sampler):  # type: ignore[misc] # DGL has no types
            def sample(self, graph: Any, seeds: Tensor) -> tuple[Tensor, Tensor, Any, Tensor]:
                nodes, seeds, blocks = inner.sample(graph, seeds)
                return nodes, take_rows(features, nodes.long()), blocks, seeds

        self.with_rows = WithRows()

    def prepared(self, epoch: int) -> Iterator[Prepared]:
        """Yield the batches of an epoch."""
        import dgl

        loader = dgl.dataloading.DataLoader(
            self.graph,
            self.seeds(epoch).to(self.graph.idtype),
            self.with_rows,
            batch_size=self.batch_size,
            shuffle=False,
            num_workers=self.setting,
        )
        for nodes, rows, blocks, seeds in loader:
            yield Prepared(nodes.long(), rows, blocks, seeds.long())


class PygWorkers(Peer):
    """PyG's NodeLoader with ``data.x`` a mapped file; gids samples, as pyg-lib cannot be installed everywhere."""

    def __init__(self, spec: dict[str, Any]):
        from torch_geometric.data import Data

        from gids.pyg import NeighborSampler as PygSampler

        super().__init__(spec)
        self.under_way = max(1, self.setting)
        self.table = MappedTable(self.dataset, spec["advice"] or "random")
        # The graph is the sampler's; PyG only wants to see that there is an edge_index to fill.
        self.data = Data(x=self.table.rows, edge_index=torch.empty(2, 0, dtype=torch.int64))
        self.sampler = PygSampler(self.dataset, spec["fanouts"][::-1])

    def prepared(self, epoch: int) -> Iterator[Prepared]:
        """Yield the batches of an epoch."""
        from torch_geometric.loader import NodeLoader

        loader = NodeLoader(
            self.data,
            self.sampler,
            input_nodes=self.seeds(epoch),
            batch_size=self.batch_size,
            shuffle=False,
            num_workers=self.setting,
            filter_per_worker=self.setting > 0,
        )
        for batch in loader:
            yield Prepared(batch.n_id, batch.x, batch.edge_index, batch.n_id[: batch.batch_size])

    def rest(self) -> None:
        """Unmap the pages."""
        self.table.rest()


class OwnLoop(Peer):
    """A loop that somebody wrote with care: our sampler works one batch ahead on a thread of its own."""

    def __init__(self, spec: dict[str, Any]):
        super().__init__(spec)
        self.topology = Topology.from_dataset(self.dataset)
        self.sampler = NeighborSampler(spec["fanouts"])
        self.ahead = ThreadPoolExecutor(1)

    def prepared(self, epoch: int) -> Iterator[Prepared]:
        """Yield the batches of an epoch."""
        order = self.order(epoch)

        def sampled(index: int) -> Sample:
            return self.sampler.sample(self.topology, order[index].nodes, SampleKey(0, epoch, index))

        coming = self.ahead.submit(sampled, 0)
        for index in range(len(order)):
            sample = coming.result()
            if index + 1 < len(order):
                coming = self.ahead.submit(sampled, index + 1)
            nodes = sample.input_nodes["_N"]
            yield Prepared(nodes, self.rows(nodes), sample.blocks, sample.seeds["_N"])

    @abc.abstractmethod
    def rows(self, nodes: Tensor) -> Tensor:
        """Return the rows of nodes."""


def rows_by_threads(table: Tensor, nodes: Tensor, pool: ThreadPoolExecutor, threads: int) -> Tensor:
    """Return rows, so many of them copied at once, each part by ``index_select``."""
    out = torch.empty(len(nodes), table.shape[1])
    step = max(1, -(-len(nodes) // threads))

    def part(begin: int) -> None:
        torch.index_select(table, 0, nodes[begin : begin + step], out=out[begin : begin + step])

    list(pool.map(part, range(0, len(nodes), step)))
    return out


class IndexSelect(OwnLoop):
    """``torch.index_select`` from the mapped file, by ``setting`` threads: so many page faults are under way."""

    def __init__(self, spec: dict[str, Any]):
        super().__init__(spec)
        self.table = MappedTable(self.dataset, spec["advice"] or "random")
        self.pool = ThreadPoolExecutor(self.setting)

    def rows(self, nodes: Tensor) -> Tensor:
        """Return the rows of nodes."""
        return rows_by_threads(self.table.rows, nodes, self.pool, self.setting)

    def rest(self) -> None:
        """Unmap the pages."""
        self.table.rest()


class Reads(OwnLoop):
    """One read a row past the page cache, ``setting`` of them under way."""

    engine = ""

    def __init__(self, spec: dict[str, Any]):
        super().__init__(spec)
        options = StorageOptions(engine=self.engine, queue_depth=self.setting, threads=1, merge_gap_bytes=0)
        self.reader = RowReader(self.dataset.feature_table(), options)

    def rows(self, nodes: Tensor) -> Tensor:
        """Return the rows of nodes."""
        return self.reader.read(nodes)


class Pread(Reads):
    """``pread`` by ``setting`` threads."""

    engine = "pread"


class Uring(Reads):
    """io_uring at depth ``setting``."""

    engine = "uring"


class HalfInMemory(OwnLoop):
    """All rows in memory as float16."""

    as_float16 = True

    def __init__(self, spec: dict[str, Any]):
        super().__init__(spec)
        table = self.dataset.feature_table()
        self.half = torch.empty(table.num_rows, table.dim, dtype=torch.float16)
        with RowReader(table) as reader:
            for begin in range(0, table.num_rows, 1 << 16):
                rows = torch.arange(begin, min(begin + (1 << 16), table.num_rows))
                self.half[begin : begin + len(rows)] = reader.read(rows)

    def rows(self, nodes: Tensor) -> Tensor:
        """Return the rows of nodes."""
        return self.half[nodes].float()


#: Kind of peer -> its class, what the setting is called, and the settings that are tried.
PEERS: dict[str, tuple[type[Peer], str, tuple[int, ...]]] = {
    "DGL's DataLoader": (DglWorkers, "workers", (0, 4, 8, 16)),
    "PyG's NodeLoader": (PygWorkers, "workers", (0, 4, 8, 16)),
    "index_select": (IndexSelect, "threads", (4, 16, 32)),
    "pread": (Pread, "threads", (4, 16, 32)),
    "io_uring": (Uring, "deep", (64, 128, 256)),
    "float16 in memory": (HalfInMemory, "", (0,)),
}
