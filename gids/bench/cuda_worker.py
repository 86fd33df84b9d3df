"""One setting of ``gids bench cuda``, in a process whose CUDA driver is the stand-in: writes the trace of its calls."""

from __future__ import annotations

import ctypes
import functools
import json
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import gids
from gids.cuda import arrivals, backend, staged
from gids.cuda.sampling import PinnedTopology
from gids.cuda.sampling.topology import PIECE_BYTES
from gids.cuda.session import BLOCK_THREADS, CudaSession, open_device
from gids.cuda.store import CudaTableStore, DeviceTicket
from gids.generate import communities
from gids.sampling import NeighborSampler, SampleKey, Topology

#: How many batches are under way at once, and so how much memory they take together, depends on the threads: after so
#: many epochs at most, none is a new record.
MOST_EPOCHS = 6
DEVICE_BYTES = 1 << 30
ALLOCATIONS = ("pool alloc", "alloc", "pin", "register")


def count_items(library: Any) -> None:
    """Tell the stand-in what each launch is for."""
    launch = CudaSession.launch

    @functools.wraps(launch)
    def noted(self: CudaSession, kernel: str, items: int, *arguments: Any, **more: Any) -> None:
        blocks = more.get("blocks")
        library.gids_standin_items(ctypes.c_uint64(items if blocks is None else blocks * BLOCK_THREADS))
        launch(self, kernel, items, *arguments, **more)

    CudaSession.launch = noted  # type: ignore[method-assign]


def follow_posts(library: Any) -> None:
    """Let the stand-in know when a thread goes on because a stream has told it to."""
    wait = arrivals.wait_for_post

    @functools.wraps(wait)
    def told(signal: Any, event: Any, what: str) -> None:
        wait(signal, event, what)
        library.gids_standin_told(ctypes.c_void_p(int(event.handle)))

    for module in (arrivals, staged):
        vars(module)[wait.__name__] = told


class Parts:
    """Lets the stand-in know for which batch, or for which batches of a group, each call of a thread is."""

    def __init__(self, library: Any):
        self._library, self._now, self._planned = library, threading.local(), 0
        self._groups: weakref.WeakKeyDictionary[Any, range] = weakref.WeakKeyDictionary()  # batches of each ticket
        self._reads: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._follow(
            backend.CudaBackend, "sample", lambda _, topology, sampler, seeds, key, *rest: f"batch {key.batch}"
        )
        self._follow(CudaTableStore, "plan", lambda _, batches, ahead: self._next(len(batches)), self._group)
        self._follow(CudaTableStore, "gather", lambda _, ticket, batch: f"batch {self._groups[ticket][batch]}")
        self._follow(DeviceTicket, "start", lambda ticket: words_of(self._groups[ticket]))
        # Another thread copies what was read.
        self._follow(staged.StagedReader, "submit", lambda *_: self.now, self._read)
        self._follow(staged.StagedReader, "_copy", lambda _, chunk: self._reads.get(chunk.read, ""))

    @property
    def now(self) -> str:
        """What the calling thread's calls are for."""
        return getattr(self._now, "part", "")

    def say(self, part: str) -> None:
        """From here on the calling thread's calls are for this."""
        self._now.part = part
        self._library.gids_standin_part(part.encode())

    def begin_epoch(self) -> None:
        """Count the batches that are planned anew."""
        self._planned = 0

    def _next(self, batches: int) -> str:
        return words_of(range(self._planned, self._planned + batches))

    def _group(self, ticket: Any) -> None:
        batches = len(ticket.pending.batch_rows)
        self._groups[ticket] = range(self._planned, self._planned + batches)
        self._planned += batches

    def _read(self, read: Any) -> None:
        self._reads[read] = self.now

    def _follow(
        self, owner: type, name: str, part_of: Callable[..., str], note: Callable[[Any], None] | None = None
    ) -> None:
        call = vars(owner)[name]

        @functools.wraps(call)
        def noted(*arguments: Any) -> Any:
            before = self.now
            self.say(part_of(*arguments))
            try:
                found = call(*arguments)
                if note is not None:
                    note(found)
                return found
            finally:
                self.say(before)

        setattr(owner, name, noted)


def words_of(batches: range) -> str:
    """Name the batches of a group."""
    return f"batch {batches[0]}" if len(batches) == 1 else f"batches {batches[0]} to {batches[-1]}" if batches else ""


def held_neighbors(topology: Topology, read: PinnedTopology, fanouts: list[int], batch_size: int) -> float:
    """Return the share of sampled neighbours that are in pieces of lists on the device, of an epoch on the CPU."""
    ((etype, relation),) = read.relations.items()
    if relation.held is None:
        return 0.0
    session = CudaSession(open_device())
    bits = session.download(relation.held.pieces).reshape(-1, 2)[:, 0].copy()
    session.close()
    held = np.unpackbits(bits.view(np.uint8), bitorder="little").astype(bool)
    per_piece = PIECE_BYTES // relation.indices.array.dtype.itemsize
    sampler, found = NeighborSampler(fanouts, edge_ids=True), []
    seeds = torch.randperm(topology.num_nodes[etype[2]], generator=torch.Generator().manual_seed(1))
    for begin in range(0, len(seeds), batch_size):
        for block in sampler.sample(topology, seeds[begin : begin + batch_size], SampleKey(1, 0, begin)).blocks:
            assert block.edge_ids is not None
            found.append(held[block.edge_ids[etype].numpy() // per_piece])
    return float(np.concatenate(found).mean())


def run(options: dict[str, Any], directory: Path) -> dict[str, Any]:
    """Load epochs; trace the first one that finds room for everything in the memory of those before: steady state."""
    library = ctypes.CDLL("libcuda.so.1")
    count_items(library)
    follow_posts(library)
    parts = Parts(library)
    dataset = communities(
        directory / "graph", num_nodes=options["nodes"], degree=options["degree"], dim=options["dim"], train=0.5
    )
    lists_bytes = sum(dataset.indices_table(etype).total_bytes for etype in dataset.edge_types)
    backend.LISTS_SHARE = int(DEVICE_BYTES / (lists_bytes * options["lists_share"]))
    rows: list[int] = []
    reads: list[int] = []
    edges, text = 0, ""
    with gids.Loader(
        dataset,
        "train",
        fanouts=options["fanouts"],
        batch_size=options["batch_size"],
        order=gids.OrderOptions(seed=1),
        pipeline=gids.PipelineOptions(sweep_batches=options["group"]),
        memory=gids.MemoryOptions(
            cache=options["cache"], host_buffer=0, device_budget=DEVICE_BYTES
        ),  # the rest is read
        device="cuda:0",
        storage=gids.StorageOptions(engine=options["storage"], merge_gap_bytes=options["merge_gap_bytes"]),
    ) as loader:
        loader.prepare()
        for _ in loader:
            pass

        def so_far() -> tuple[int, int, int]:
            tables = loader.stats().tables.values()
            return (
                sum(table.reads for table in tables),
                sum(table.bytes_read for table in tables),
                sum(table.disk for table in tables),
            )

        for _ in range(MOST_EPOCHS):
            before, rows, edges = so_far(), [], 0
            library.gids_standin_trace(1)
            parts.begin_epoch()
            parts.say("batch 0")
            for number, batch in enumerate(loader):
                library.gids_standin_mark(f"batch {number}".encode())
                parts.say(f"batch {number + 1}")
                rows.append(int(batch.x.shape[0]))
                edges += sum(block.num_edges() for block in batch.blocks)
            library.gids_standin_trace(0)
            reads = [now - then for now, then in zip(so_far(), before, strict=True)]
            text = trace_text(library)
            if not any(line.startswith(ALLOCATIONS) for line in text.splitlines()):
                break
        notes = dict(loader.notes)
        runtime: Any = loader._runtime
        held = held_neighbors(
            runtime.feed.topology, runtime.backend._sampled, options["fanouts"], options["batch_size"]
        )
    return {"trace": text, "rows": rows, "edges": edges, "reads": reads, "notes": notes, "held_neighbors": held}


def trace_text(library: Any) -> str:
    """Return the trace of the stand-in."""
    size = library.gids_standin_trace_text
    size.restype = ctypes.c_size_t
    text = ctypes.create_string_buffer(size(None, ctypes.c_size_t(0)))
    size(text, ctypes.c_size_t(len(text)))
    return text.raw.decode()


def main() -> None:
    """Read options from the first argument; print one JSON object."""
    options = json.loads(sys.argv[1])
    sys.path.insert(0, options["fake_torch"])
    import fake_torch  # type: ignore[import-not-found, unused-ignore]

    fake_torch.install().copies = False
    with tempfile.TemporaryDirectory(prefix="gids-bench-cuda-") as directory:
        print(json.dumps(run(options, Path(directory))))


if __name__ == "__main__":
    main()
