"""What is fuzzed: each target writes bytes where a file of ours would be, reads it, and knows which errors are answers.

A target raises nothing, whatever the bytes are: an answer of ours (:class:`gids.GidsError`) is caught, anything else is a
defect. ``valid()`` is a file as gids writes it, from which mutations begin; formats with a digest are sealed again after a
change, because a stranger can compute it too.
"""

from __future__ import annotations

import gzip
import json
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash

import gids
from gids.convert.formats import read_layout
from gids.convert.sources import NpzRows, npz_keys
from gids.convert.text import TextRows
from gids.dataset import manifest as manifests
from gids.dataset import packed as packs
from gids.dataset.in_place import read_npy_header
from gids.errors import GidsError
from gids.generate import communities
from gids.kg.slice_log import SliceLog, SliceRecord
from gids.nvme import superblock as superblocks
from gids.nvme.extents import ExtentMap, FileExtents
from gids.nvme.superblock import StoredFile, Superblock
from gids.partition import stored as partitions
from gids.report.run import load_run
from gids.runtime.preparation import PreparedFile
from gids.sampling import stored as samples
from gids.sampling.visits import load_visits
from gids.storage.curve import DEFAULT_CURVE, curve_path, load_curve, save_curve
from gids.tiers.rank import rank_nodes


class Target(ABC):
    """A parser and a file for it."""

    def __init__(self, directory: Path):
        self.directory = directory

    @property
    def name(self) -> str:
        """What it is called in TARGETS, on the command line and in the corpus."""
        return type(self).__name__.lower()

    @abstractmethod
    def valid(self) -> bytes:
        """Return a file that is right."""

    @abstractmethod
    def parse(self, data: bytes) -> None:
        """Read the bytes as such a file."""

    def document(self) -> Any:
        """Return the JSON document in a file that is right; None where there is none."""
        try:
            return json.loads(self.valid())
        except ValueError:
            return None

    def seal(self, document: Any) -> bytes:
        """Return a changed JSON document as whoever wrote it would have written it."""
        return json.dumps(document).encode()

    def __call__(self, data: bytes) -> None:
        """Read the bytes; an error of ours is an answer."""
        try:
            self.parse(data)
        except GidsError:
            return

    def both(self, data: bytes) -> None:
        """Read the bytes as such a file, and, where they are a document, what it says under a right digest."""
        self(data)
        try:
            document = json.loads(data)
        except (ValueError, RecursionError):
            return
        try:
            sealed = self.seal(document)
        except RecursionError:
            return  # the digest of a stranger's own making
        self(sealed)


def _sealed(document: Any, digest: Callable[[Any], str]) -> bytes:
    if isinstance(document, dict):
        document = {key: value for key, value in document.items() if key != "digest"}
        document = {"digest": digest(document), **document}
    return json.dumps(document).encode()


def _graph(directory: Path) -> gids.Dataset:
    path = directory / "graph"
    return gids.open(path) if path.exists() else communities(path, num_nodes=60, degree=4, dim=5, train=0.5)


class Manifest(Target):
    """manifest.json of a dataset."""

    def valid(self) -> bytes:
        return (_graph(self.directory).path / manifests.MANIFEST).read_bytes()

    def parse(self, data: bytes) -> None:
        manifests.parse(data, self.directory / "graph")

    def seal(self, document: Any) -> bytes:
        return _sealed(document, manifests._digest)


class Packed(Target):
    """manifest.json of packed epochs."""

    def _path(self) -> Path:
        path = self.directory / "packed"
        if not path.exists():
            gids.pack(_graph(self.directory), path, "train", fanouts=[2], batch_size=8, hot="1KiB")
        return path

    def valid(self) -> bytes:
        return (self._path() / packs.MANIFEST).read_bytes()

    def parse(self, data: bytes) -> None:
        (self._path() / packs.MANIFEST).write_bytes(data)
        for table in packs.Packed(self._path()).tables.values():
            assert table.table.stripes[0].path.parent == self._path()

    def seal(self, document: Any) -> bytes:
        return _sealed(document, packs.digest_of)


class Sample(Target):
    """A stored sample."""

    def valid(self) -> bytes:
        packed = packs.Packed(Packed(self.directory)._path())
        record = packed.record(0, 0)
        with (packed.path / packs.SAMPLES).open("rb") as file:
            file.seek(int(record["sample_offset"]))
            return file.read(int(record["sample_bytes"]))

    def parse(self, data: bytes) -> None:
        samples.decode(data)


class Header(Target):
    """The header of an .npy file."""

    def valid(self) -> bytes:
        np.save(self.directory / "x.npy", np.arange(12, dtype=np.float32).reshape(4, 3))
        return (self.directory / "x.npy").read_bytes()

    def parse(self, data: bytes) -> None:
        (self.directory / "x.npy").write_bytes(data)
        read_npy_header(self.directory / "x.npy")


class Archive(Target):
    """An ``.npz`` archive to be converted."""

    def valid(self) -> bytes:
        np.savez_compressed(self.directory / "x.npz", edge_index=np.arange(12).reshape(2, 6), labels=np.arange(6))
        return (self.directory / "x.npz").read_bytes()

    def parse(self, data: bytes) -> None:
        path = self.directory / "x.npz"
        path.write_bytes(data)
        for key in npz_keys(path):
            rows = NpzRows(path, key)
            if rows.num_rows * rows.dim < 1 << 20:  # a header may claim more than the archive has, and more than memory
                list(rows.read(0, 4))


class Text(Target):
    """Numbers as text."""

    def valid(self) -> bytes:
        return b"# edges\n0,1\n1,2\n3,4\n"

    def parse(self, data: bytes) -> None:
        (self.directory / "edges.csv").write_bytes(data)
        for rows in TextRows(self.directory / "edges.csv").read(0, 100):
            np.asarray(rows)


class Layout(Target):
    """A file that describes a graph in another layout, among files that are right; what is read before anything is written."""

    layout: str
    file: str

    def place(self) -> Path:
        """Return the directory of the graph, which has everything but the description."""
        path = self.directory / self.layout
        if not path.exists():
            path.mkdir()
            np.arange(7).tofile(path / "indptr.dat")
            np.zeros(6, np.int64).tofile(path / "indices.dat")
            np.ones((6, 3), np.float32).tofile(path / "features.dat")
            np.zeros(6, np.float64).tofile(path / "labels.dat")
            np.save(path / "edges.npy", np.zeros((2, 6), np.int64))
            np.save(path / "feat.npy", np.ones((6, 3), np.float32))
            np.save(path / "ids.npy", np.arange(3))
            torch.save({"train": torch.arange(3)}, path / "split_idx.pth")
        return path

    def parse(self, data: bytes) -> None:
        (self.place() / self.file).write_bytes(data)
        read_layout(self.layout, self.place())


class Ginex(Layout):
    """conf.json of Ginex and GNNDrive."""

    layout, file = "ginex", "conf.json"

    def valid(self) -> bytes:
        parts = {"indptr": ([7], "int64"), "indices": ([6], "int64"), "features": ([6, 3], "float32")}
        conf: dict[str, Any] = {
            "num_nodes": 6,
            "num_classes": 2,
            "labels_shape": [6, 1],
            "labels_dtype": "torch.float64",
        }
        for name, (shape, dtype) in parts.items():
            conf |= {f"{name}_shape": shape, f"{name}_dtype": dtype}
        return json.dumps(conf).encode()


class GraphBolt(Layout):
    """metadata.yaml of GraphBolt."""

    layout, file = "graphbolt", "metadata.yaml"

    def valid(self) -> bytes:
        files = {name: {"name": name, "format": "numpy", "path": "ids.npy"} for name in ("seeds", "labels")}
        document = {
            "dataset_name": "toy",
            "graph": {"nodes": [{"num": 6}], "edges": [{"format": "numpy", "path": "edges.npy"}]},
            "feature_data": [{"domain": "node", "type": None, "name": "feat", "format": "numpy", "path": "feat.npy"}],
            "tasks": [{"name": "one", "num_classes": 5, "train_set": [{"data": list(files.values())}]}],
        }
        return json.dumps(document).encode()  # which is YAML


class Ogb(Layout):
    """The list of relations of an OGB dataset, compressed."""

    layout, file = "ogb", "raw/triplet-type-list.csv.gz"

    def place(self) -> Path:
        path = super().place()
        (path / "raw" / "relations" / "a___to___b").mkdir(parents=True, exist_ok=True)
        counts = {"num-node-dict.csv.gz": b"a,b\n3,3\n", "relations/a___to___b/num-edge-list.csv.gz": b"2\n"}
        for name, text in counts.items():
            (path / "raw" / name).write_bytes(gzip.compress(text))
        (path / "raw" / "relations" / "a___to___b" / "edge.csv.gz").write_bytes(gzip.compress(b"0,1\n1,2\n"))
        return path

    def valid(self) -> bytes:
        return gzip.compress(b"a,to,b\n", mtime=0)


class Curve(Target):
    """A curve of ``gids probe``: a damaged one is the same as none."""

    def valid(self) -> bytes:
        return save_curve(self.directory, DEFAULT_CURVE).read_bytes()

    def parse(self, data: bytes) -> None:
        path = curve_path(self.directory)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        curve = load_curve(self.directory)
        assert curve.best_depth >= 1
        assert curve.merge_gap_bytes >= 0
        assert curve.iops(8) > 0


class State(Target):
    """The state of a loader, as JSON."""

    def _loader(self) -> gids.Loader:
        return gids.Loader(_graph(self.directory), "train", fanouts=[2], batch_size=8, budget="16MiB")

    def valid(self) -> bytes:
        return json.dumps(self._loader().state_dict()).encode()

    def parse(self, data: bytes) -> None:
        try:
            state = json.loads(data)
        except (ValueError, RecursionError):
            return  # the caller's own reading of it
        loader = self._loader()
        loader.load_state_dict(state)
        assert loader.epoch >= 0
        assert loader.state_dict()["batches_done"] <= len(loader)


class Report(Target):
    """A run, a benchmark or a trace that ``gids report`` shows."""

    def valid(self) -> bytes:
        return b'{"format": "gids-run", "version": 1, "name": "demo", "title": "A run"}'

    def parse(self, data: bytes) -> None:
        (self.directory / "run.json").write_bytes(data)
        load_run(self.directory / "run.json")


class Extents(Target):
    """A map of extents, as ``gids nvme map`` writes it."""

    def valid(self) -> bytes:
        path = self.directory / "map.json"
        ExtentMap("S1", 1, (FileExtents("/data/x", 4096, ((0, 4096, 8192),), ((0, "00"),)),)).save(path)
        return path.read_bytes()

    def document(self) -> Any:
        return json.loads(json.loads(self.valid())["map"])

    def seal(self, document: Any) -> bytes:
        text = json.dumps(document)
        checksum = xxhash.xxh64_hexdigest(text.encode("utf-8", "surrogatepass"))
        return json.dumps({"version": 1, "checksum": checksum, "map": text}).encode()

    def parse(self, data: bytes) -> None:
        (self.directory / "map.json").write_bytes(data)
        ExtentMap.load(self.directory / "map.json")


class Block(Target):
    """The superblock of a drive."""

    def valid(self) -> bytes:
        return Superblock("0" * 32, 0, 1, "S1", "id", (StoredFile("feat.bin", 100, 4096, 65536, "00"),)).to_bytes()

    def document(self) -> Any:
        return json.loads(self.valid()[superblocks._HEADER.size :].rstrip(b"\0"))

    def seal(self, document: Any) -> bytes:
        text = json.dumps(document).encode()
        header = superblocks._HEADER.pack(
            superblocks.MAGIC, superblocks.VERSION, len(text), xxhash.xxh64_intdigest(text)
        )
        return (header + text).ljust(superblocks.SUPERBLOCK_BYTES, b"\0")

    def parse(self, data: bytes) -> None:
        Superblock.from_bytes(data, "drive")


class Log(Target):
    """The log of slices of a knowledge graph."""

    def valid(self) -> bytes:
        path = self.directory / "slices.log"
        path.unlink(missing_ok=True)
        log = SliceLog(path)
        whole, small = np.array([0, 1], np.int64), np.array([0], np.int32)
        log.append(
            SliceRecord(whole, small, small, np.array([7], np.uint64), small, whole, small, np.array([3], np.int64))
        )
        log.close()
        return path.read_bytes()

    def parse(self, data: bytes) -> None:
        (self.directory / "slices.log").write_bytes(data)
        log = SliceLog(self.directory / "slices.log")
        try:
            list(log.replay())
        finally:
            log.close()


class Parts(Target):
    """The description of a partition."""

    def _folder(self) -> Path:
        dataset = _graph(self.directory)
        if not partitions.stored_names(dataset):
            parts = {"_N": np.zeros(60, np.int32)}
            partitions.save(dataset, partitions.Partition(parts, 1, dataset.id, 0, dataset.num_edges(), {}), "1")
        return dataset.scratch_dir / "partitions" / "1"

    def valid(self) -> bytes:
        return (self._folder() / "partition.json").read_bytes()

    def parse(self, data: bytes) -> None:
        (self._folder() / "partition.json").write_bytes(data)
        partitions.load(_graph(self.directory), "1")

    def seal(self, document: Any) -> bytes:
        return _sealed(document, partitions._digest)


class Prepared(Target):
    """What a loader found out and kept: a damaged file is the same as none."""

    def valid(self) -> bytes:
        memory = gids.MemoryOptions(cache="1KiB")  # the rest is found out
        loader = gids.Loader(_graph(self.directory), "train", fanouts=[2], batch_size=8, budget="16MiB", memory=memory)
        with loader:
            list(loader.prepare())
        return max(self._folder().glob("prepared-*.npz"), key=lambda path: path.stat().st_size).read_bytes()

    def _folder(self) -> Path:
        return _graph(self.directory).scratch_dir

    def parse(self, data: bytes) -> None:
        file = PreparedFile(self._folder(), "fuzzed")
        file._path.write_bytes(data)
        file.load()


class Visits(Target):
    """Expected visits that an earlier run kept: a damaged file is the same as none."""

    def _load(self) -> None:
        visits = load_visits(self.directory, {"_N": 60}, {}, {}, 10)
        assert [(array.shape, array.dtype) for array in visits.values()] == [((60,), np.float32)]

    def valid(self) -> bytes:
        self._load()
        return (self.directory / "expected-visits.npz").read_bytes()

    def parse(self, data: bytes) -> None:
        (self.directory / "expected-visits.npz").write_bytes(data)
        self._load()


class Ranking(Target):
    """A ranking that an earlier run kept: a damaged file is the same as none."""

    def _rank(self) -> Path:
        (scores,) = rank_nodes(_graph(self.directory), by="degree").values()
        assert (scores.shape, scores.dtype) == ((60,), np.uint64)
        (path,) = _graph(self.directory).scratch_dir.glob("rank-degree-*.npy")
        return path

    def valid(self) -> bytes:
        return self._rank().read_bytes()

    def parse(self, data: bytes) -> None:
        self._rank().write_bytes(data)
        self._rank()


TARGETS: dict[str, type[Target]] = {
    target.__name__.lower(): target
    for target in (
        Manifest, Packed, Sample, Header, Archive, Text, Ginex, GraphBolt, Ogb, Curve, State, Report, Extents, Block, Log,
        Parts, Prepared, Visits, Ranking,
    )
}  # fmt: skip


def opened(name: str) -> Target:
    """Return a target with a directory of its own, which lives as long as the process."""
    import atexit

    directory = Path(tempfile.mkdtemp(prefix=f"gids-fuzz-{name}-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    torch.set_num_threads(1)
    return TARGETS[name](directory)
