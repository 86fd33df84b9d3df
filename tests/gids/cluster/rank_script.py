"""One rank of the tests of gids.cluster: compares batches of split tables with those of whole ones, then what is asked.

    python -m tests.gids.cluster.rank_script RANK WORLD GROUP_FILE DATASET PARTS RESULT END

``PARTS`` has the part of each rank under its number: other rows are not there, whoever asks for them.

``END`` is how the last epoch ends: ``close``, ``die`` (rank 1 is killed in the middle of it), ``stop`` (it is halted) or
``cut`` (whoever runs this ends it). Under torchrun RANK is ``env``: rank, world and node are then what torchrun says. With
``restart`` nothing is compared before: rank 1 is killed in the middle of the first attempt, the second one goes on.
"""

import hashlib
import importlib
import importlib.util
import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import gids

TIMEOUT_S = 5.0
MEMORY = gids.MemoryOptions(host_buffer="40KiB", cache="20KiB")
HAS_DGL = importlib.util.find_spec("dgl") is not None


def digest(*tensors):
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.contiguous().numpy().tobytes())
    return found.hexdigest()[:16]


def loader(path, shards, **options):
    given = {"fanouts": [4, 4], "batch_size": 16, "budget": "64MiB", "features": ["feat", "year"], "memory": MEMORY}
    return gids.Loader(path, "train", **(given | options), shards=shards)


def digest_of(batch):
    return digest(batch.seeds, batch.x, batch.y, *batch.features.values())


def of_loader(path, shards):
    """Digests of an epoch, of what a resumed loader makes of the rest of the next, and what was exchanged."""
    with loader(path, shards).prepare() as ours:
        found = [digest_of(batch) for batch in ours]
        iterator = iter(ours)
        found += [digest_of(next(iterator)) for _ in range(3)]
        state = ours.state_dict()
        del iterator
        dist.barrier()  # until then the other may have asked for nothing yet
        exchange, tables = ours.stats().exchange, ours.stats().tables
    with loader(path, shards) as again:
        again.load_state_dict(state)
        found += [digest_of(batch) for batch in again]
    served = {name: [table.host, table.cache] for name, table in tables.items()}
    return {"batches": found, "exchange": exchange, "served": served}


def of_pyg(path, shards):
    order = gids.OrderOptions()
    options = {"batch_size": 16, "budget": "64MiB", "order": order, "shards": shards, "shuffle": True}
    with gids.pyg.NeighborLoader(path, [4, 4], "train", **options) as ours:
        return [digest(batch.x, batch.n_id, batch.edge_attr) for batch in ours]


def of_dgl(path, shards):
    sampler = gids.dgl.NeighborSampler([4, 4], prefetch_node_feats=["feat"])
    options = {"batch_size": 16, "use_ddp": True, "budget": "64MiB", "shards": shards}
    with gids.dgl.DataLoader(path, "train", sampler, **options) as ours:
        return [digest(inputs, blocks[0].srcdata["feat"]) for inputs, _, blocks in ours]


def compare(path, part, shards):
    """Results of split tables and of whole ones, through every door."""
    doors = {"loader": of_loader, "pyg": of_pyg} | ({"dgl": of_dgl} if HAS_DGL else {})
    doors = {name: make for name, make in doors.items() if name in os.environ.get("DOORS", name)}
    for module in {"pyg", "dgl"} & doors.keys():
        importlib.import_module(f"gids.{module}")  # takes longer than a rank waits for the other where cores are busy
    found = {}
    for name, make in doors.items():
        whole = make(path, None)
        dist.barrier()  # waits for half an hour
        found[name] = [make(part, shards), whole]
    return found


def last_epoch(path, shards, end):
    """Train on until the other rank is no more; returns what was raised and how long it took to come."""
    with loader(path, shards) as ours:
        seen, since = 0, time.monotonic()
        try:
            for _ in range(1000):
                for batch in ours:
                    seen += 1
                    since = time.monotonic()
                    if end == "close" and seen == 3:
                        return {"raised": None}
                    if dist.get_rank() == 1 and seen == 3 and end != "cut":
                        os.kill(os.getpid(), signal.SIGKILL if end == "die" else signal.SIGSTOP)
                    del batch
        except gids.PeerError as error:
            waited = time.monotonic() - since
            try:
                next(iter(ours))
                again = None
            except gids.PeerError as later:
                again = str(later)
            return {"raised": str(error), "again": again, "waited_s": waited}
    return {"raised": None}


def epoch_with_a_restart(path, part, shards, log):
    """Deliver one epoch, in two attempts; returns what was delivered in both, and what an epoch without a death has."""
    with loader(part, shards) as ours:
        done = []
        if log.exists():
            known = json.loads(log.read_text())
            done = known["done"]
            ours.load_state_dict(known["state"])
        resumed_at = len(done)
        for batch in ours:
            done.append(digest_of(batch))
            new = log.with_suffix(".new")
            new.write_text(json.dumps({"done": done, "state": ours.state_dict()}))
            new.rename(log)
            if dist.get_rank() == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and len(done) == 3:
                os.kill(os.getpid(), signal.SIGKILL)
    with loader(path, None) as whole:
        return {"resumed_at": resumed_at, "batches": [done, [digest_of(batch) for batch in whole]]}


def main(rank, world, group_file, path, parts, result, end):
    torch.set_num_threads(1)
    if rank == "env":
        dist.init_process_group("gloo")
        node = None
    else:
        node = int(rank)
        dist.init_process_group("gloo", init_method=f"file://{group_file}", rank=node, world_size=int(world))
    part = f"{parts}/{dist.get_rank()}"
    shards = gids.Shards(node=node, timeout_s=TIMEOUT_S, memory="1MiB")
    if end == "restart":
        found = epoch_with_a_restart(path, part, shards, Path(f"{result}-log{dist.get_rank()}"))
        Path(f"{result}.{dist.get_rank()}").write_text(json.dumps(found))
        dist.destroy_process_group()
        return
    found = compare(path, part, shards)
    write = Path(f"{result}.{dist.get_rank()}").write_text
    write(json.dumps(found))
    dist.barrier()
    write(json.dumps(found | {"end": last_epoch(part, shards, end)}))
    if end == "close":
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
