"""Everything that reads a dataset, over a file system that fails on demand: the file and the offset, or the right result.

Each user of datasets is run whole: as things are; with a bad sector in a file that it reads; with short reads; with a
slow server; and with the device gone. After each fault the same call gives the right result.
"""

import errno
import hashlib
import shutil
from pathlib import Path

import pytest
import torch

import gids
import gids.kg
from gids.dataset import verify
from gids.errors import GidsError, StorageError
from gids.generate import communities
from gids.models import GraphSAGE
from gids.partition import reorder
from gids.runtime.batch import map_tensors
from gids.storage import StorageOptions
from tests.faultfs import mounted

from .kg.graphs import make as make_triples
from .kg.graphs import random_triples

pytestmark = pytest.mark.usefixtures("nothing_left")
NODES, DIM = 2000, 33
STORAGE = StorageOptions(engine="pread", threads=1, merge_gap_bytes=0)


@pytest.fixture(scope="module")
def below(tmp_path_factory):
    """What lies below: a dataset, epochs packed from it, and a knowledge graph."""
    directory = tmp_path_factory.mktemp("below")
    dataset = communities(directory / "graph", num_nodes=NODES, degree=5, dim=DIM, train=0.2)
    gids.pack(dataset, directory / "packed", "train", fanouts=[3, 3], batch_size=64, hot="16KiB")
    (directory / "known").mkdir()
    make_triples(directory / "known", random_triples(400, 5, 3000, 4), num_entities=400)
    return directory


@pytest.fixture(scope="module")
def faults(below):
    with mounted(below, cached=False) as shown:
        yield shown


@pytest.fixture(autouse=True)
def scratch(monkeypatch, tmp_path):
    monkeypatch.setenv("GIDS_SCRATCH", str(tmp_path / "scratch"))


def digest(values):
    """Of every tensor in batches, in order."""
    found = hashlib.sha256()
    for value in values:
        map_tensors(value, lambda tensor: found.update(tensor.contiguous().numpy().tobytes()) or tensor)
    return found.hexdigest()


def files(path):
    """Of every file of a dataset but the manifest, which names times and places."""
    kept = sorted(file for file in Path(path).rglob("*.bin"))
    return [(file.name, hashlib.sha256(file.read_bytes()).hexdigest()) for file in kept]


def load(shown, out, **memory):
    memory = gids.MemoryOptions(cache="8KiB", host_buffer="8KiB", groups="64KiB", **memory)
    pipeline = gids.PipelineOptions(window=1, sweep_batches=2, threads=1)
    with gids.Loader(
        shown / "graph", "train", fanouts=[3, 3], batch_size=64, budget="64MiB",
        memory=memory, pipeline=pipeline, storage=STORAGE,
    ) as loader:  # fmt: skip
        return digest(loader)


def load_from_disk(shown, out):
    return load(shown, out, topology="disk", topology_budget=0)


def load_packed(shown, out):
    with gids.Loader(shown / "graph", packed=shown / "packed", budget="64MiB", storage=STORAGE) as loader:
        return digest(loader)


def pack(shown, out):
    gids.pack(shown / "graph", out, "train", fanouts=[3, 3], batch_size=64, hot="16KiB")
    return files(out)


def infer(shown, out, **options):
    torch.manual_seed(0)
    model = GraphSAGE(in_dim=DIM, hidden_dim=8, out_dim=4, num_layers=2)
    gids.infer(model, shown / "graph", out, budget="64MiB", storage=STORAGE, **options)
    return files(out)


def infer_by_scan(shown, out):
    return infer(shown, out, scan=True)


def relabel(shown, out):
    reorder(gids.open(shown / "graph"), out, by="degree")
    return files(out)


def check(shown, out):
    problems = verify(gids.open(shown / "graph"))
    assert problems == []
    return problems


def load_subgraphs(shown, out, through="slices"):
    memory = gids.MemoryOptions(topology="disk", topology_budget="64KiB", cache="64KiB")
    with gids.kg.Loader(
        shown / "known" / "kg", "train", hops=2, budget="64MiB", through=through, memory=memory, storage=STORAGE
    ) as loader:
        return digest(batch.subgraphs for batch in loader)


def load_exact_subgraphs(shown, out):
    return load_subgraphs(shown, out, "graph")


FEATURES, INDICES = "graph/nodes/_N/features/feat.bin", "indices.bin"
#: Who reads, the file that goes bad under it.
USERS = [
    pytest.param(load, FEATURES, id="loader, features"),
    pytest.param(load_from_disk, INDICES, id="loader, lists on disk"),
    pytest.param(load_packed, "packed", id="loader, packed rows"),
    pytest.param(pack, FEATURES, id="packing, features"),
    pytest.param(pack, INDICES, id="packing, lists"),
    pytest.param(infer, FEATURES, id="inference, features"),
    pytest.param(infer_by_scan, FEATURES, id="inference by scan, features"),
    pytest.param(infer_by_scan, INDICES, id="inference, lists"),
    pytest.param(relabel, FEATURES, id="relabelling, features"),
    pytest.param(relabel, INDICES, id="relabelling, lists"),
    pytest.param(check, FEATURES, id="verify"),
    pytest.param(load_subgraphs, "triples.bin", id="knowledge graph, slices"),
    pytest.param(load_exact_subgraphs, "triples.bin", id="knowledge graph, exact"),
]


def bad_file(below, name):
    """The largest file that a rule with this name is about."""
    fitting = [path for path in below.rglob("*") if path.is_file() and str(path).endswith(name)]
    if name == "packed":
        fitting = [path for path in (below / "packed").rglob("*.bin") if path.is_file()]
    return max(fitting, key=lambda path: path.stat().st_size)


def clean(out):
    """Remove what was made, and what a failed run kept to go on with."""
    for path in out.parent.glob(f"*{out.name}*"):
        shutil.rmtree(path)


@pytest.mark.parametrize(("use", "name"), USERS)
def test_faults_below(below, faults, tmp_path, use, name):
    out, path = tmp_path / "out", bad_file(below, name)
    shown = faults.path / path.relative_to(below)
    faults.set()
    right = use(faults.path, out)
    clean(out)

    middle = path.stat().st_size // 2 // 512 * 512
    faults.set({"name": str(path), "begin": middle, "end": middle + 512, "do": "error", "errno": errno.EIO})
    with pytest.raises(StorageError) as caught:
        use(faults.path, out)
    error = caught.value
    assert (error.path, error.errno) == (str(shown), errno.EIO)
    assert error.offset <= middle < error.offset + max(error.length, 1)
    faults.set()
    assert use(faults.path, out) == right, "goes on, or begins again, once the sector is back"
    clean(out)

    faults.set({"name": path.name, "do": "short"})
    assert use(faults.path, out) == right
    clean(out)

    faults.set({"name": str(path), "begin": middle, "end": middle + 512, "do": "delay", "seconds": 0.5})
    assert use(faults.path, out) == right
    clean(out)

    faults.set({"name": str(path), "do": "error", "errno": errno.ENODEV, "every": True})
    with pytest.raises(GidsError, match="No such device") as gone:
        use(faults.path, out)
    assert str(shown) in str(gone.value)
    faults.set()
    assert use(faults.path, out) == right
