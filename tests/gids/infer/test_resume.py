"""Killed at any point, a run goes on where it was and ends with the same bytes; a full disk and a failed read lose nothing."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import gids
from gids.dataset import DatasetWriter, table_writer
from gids.dataset.table_writer import TableWriter
from gids.errors import DatasetError, StorageError
from gids.infer import results
from gids.infer.inorder import InOrderSweep
from gids.infer.sweep import LayerSweep
from gids.models import GraphSAGE
from gids.storage import StorageOptions
from gids.storage.options import FaultOptions

from .conftest import DIM, NODES, result

pytestmark = pytest.mark.usefixtures("nothing_left", "seeded")
OPTIONS = {"budget": "64MiB", "tile": 256, "top_k": 1}


@pytest.fixture(autouse=True)
def often(monkeypatch):
    """Make results durable after every tile."""
    monkeypatch.setattr(results, "CHECKPOINT_BYTES", 1)
    monkeypatch.setattr("gids.dataset.checksum.CHUNK_BYTES", 2048)


@pytest.fixture
def model():
    return GraphSAGE(DIM, 24, 5, 3)


def files(path):
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


class Killed(BaseException):
    """Ends a run where a kill would: nothing that follows is done."""


def killed_at(number, monkeypatch, calls):
    """Let every step that reaches the disk count, and end the process's run at one of them."""
    left = [number]

    def counted(function):
        def call(*arguments, **keywords):
            left[0] -= 1
            if left[0] == 0:
                raise Killed
            return function(*arguments, **keywords)

        return call

    for owner, name in calls:
        monkeypatch.setattr(owner, name, counted(getattr(owner, name)))


STEPS = [(table_writer, "_write"), (TableWriter, "_checkpoint"), (DatasetWriter, "finish"), (shutil, "rmtree")]


COMPUTES = [(InOrderSweep, "computed"), (LayerSweep, "_run_layer")]


@pytest.mark.parametrize(
    ("step", "more"),
    [
        (29, {}),
        (29, {"fanouts": [11, 11, 11]}),  # through the runtime; no node has more in-edges
        pytest.param(5, {}, marks=pytest.mark.long),
    ],
)
def test_killed_at_many_points(graph, model, tmp_path, monkeypatch, step, more):
    options = OPTIONS | more
    expected = files(gids.infer(model, graph, tmp_path / "whole", **options).path)
    computed, points = [], 0
    while True:
        points += step  # of about 250: every kind of them, in every layer
        out = tmp_path / f"out{points}"
        with monkeypatch.context() as patched:
            killed_at(points, patched, STEPS)
            try:
                gids.infer(model, graph, out, **options)
                break  # there are no more points
            except Killed:
                pass
        with monkeypatch.context() as patched:
            tiles = []
            for owner, name in COMPUTES:
                patched.setattr(owner, name, noted(getattr(owner, name), tiles))
            found = files(gids.infer(model, graph, out, **options).path)
            changed = [name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name)]
            assert changed == [], f"killed at step {points}"
        computed.append(len(tiles))
        shutil.rmtree(out)
    every = 3 * -(-NODES // 256)
    assert len(computed) > 4
    assert every / 2 < max(computed) <= every
    # Finished tiles are not computed again: the later the kill, the fewer are left.
    assert computed == sorted(computed, reverse=True)
    assert computed[-1] < every / 4


def noted(function, calls):
    """The function, which notes every call in a list."""

    def call(*arguments):
        calls.append(1)
        return function(*arguments)

    return call


SCRIPT = """
import json, signal, sys, torch, gids
from gids.dataset.table_writer import TableWriter
from gids.infer import results
from gids.infer.inorder import InOrderSweep
from gids.infer.sweep import LayerSweep
from gids.models import GraphSAGE
results.CHECKPOINT_BYTES = 1
append, left = TableWriter.append, [int(sys.argv[4])]
def counted(self, rows):
    append(self, rows)
    left[0] -= 1
    if left[0] == 0:
        print("there", flush=True)
        signal.pause()
TableWriter.append = counted
torch.manual_seed(3)
model = GraphSAGE(20, 24, 5, 3)
gids.infer(model, sys.argv[1], sys.argv[2], **json.loads(sys.argv[3]))
print("complete", flush=True)
"""


@pytest.mark.parametrize("scan", [False, True])
def test_a_process_that_is_killed(graph, tmp_path, scan):
    torch.manual_seed(3)
    options = OPTIONS | {"scan": scan}
    expected = files(gids.infer(GraphSAGE(DIM, 24, 5, 3), graph, tmp_path / "whole", **options).path)
    for appends, said in [(4, "there\n"), (15, "there\n"), (0, "complete\n")]:  # in the first layer, in a later one
        command = [sys.executable, "-c", SCRIPT, str(graph.path), str(tmp_path / "out"), json.dumps(options)]
        process = subprocess.Popen([*command, str(appends)], stdout=subprocess.PIPE, text=True)
        assert process.stdout.readline() == said
        if appends:
            process.send_signal(signal.SIGKILL)
        process.communicate()
        assert (tmp_path / "out").exists() == (not appends)
    # Chunks of checksums have another size there.
    mine = {name: data for name, data in expected.items() if name.endswith(".bin")}
    assert {name: data for name, data in files(tmp_path / "out").items() if name.endswith(".bin")} == mine


def test_another_model_does_not_go_on_with_it(graph, tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        killed_at(60, patched, STEPS)
        with pytest.raises(Killed):
            gids.infer(GraphSAGE(DIM, 24, 5, 3), graph, tmp_path / "out", **OPTIONS)
    other = GraphSAGE(DIM, 24, 5, 3)
    found = gids.infer(other, graph, tmp_path / "out", **OPTIONS)
    assert torch.equal(result(found), result(gids.infer(other, graph, tmp_path / "fresh", **OPTIONS)))


def test_a_disk_without_room_is_refused_before_anything_is_computed(graph, model, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=100_000))
    monkeypatch.setattr("gids.infer.run.LayerSweep.run", lambda *arguments: pytest.fail("a layer was computed"))
    with pytest.raises(DatasetError, match=r"layers and results need 558\.5 KiB .* which has 97\.7 KiB free"):
        gids.infer(model, graph, tmp_path / "out", **OPTIONS)


def test_a_disk_that_fills_up_loses_nothing(graph, model, tmp_path, monkeypatch):
    expected = files(gids.infer(model, graph, tmp_path / "whole", **OPTIONS).path)
    written, pwrite = [0], os.pwrite

    def limited(descriptor, data, offset):
        written[0] += len(data)
        if written[0] > 400_000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return pwrite(descriptor, data, offset)

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", limited)
        with pytest.raises(DatasetError, match=r"writing .*layer-1.* No space left on device"):
            gids.infer(model, graph, tmp_path / "out", **OPTIONS)
    job = gids.infer.Inference(model, graph, tmp_path / "out", gids.infer.InferOptions(**OPTIONS))
    assert files(job.run().path) == expected
    assert job.facts["layers"][0]["tiles"] == 0  # what was complete stayed


@pytest.mark.parametrize("engine", ["uring", "pread"])
def test_a_failed_read_names_file_and_offset(graph, model, tmp_path, engine):
    expected = files(gids.infer(model, graph, tmp_path / "whole", **OPTIONS).path)
    fault = FaultOptions(fail_at=40, error_number=errno.EIO)
    storage = StorageOptions(engine=engine, merge_gap_bytes=0, max_io_bytes=4096, staging_bytes=1 << 20, fault=fault)
    with pytest.raises(StorageError, match="Input/output error") as caught:
        gids.infer(model, graph, tmp_path / "out", storage=storage, **OPTIONS)
    assert Path(caught.value.path) == graph.feature_table().stripes[0].path
    assert 0 <= caught.value.offset < graph.feature_table().total_bytes
    assert files(gids.infer(model, graph, tmp_path / "out", **OPTIONS).path) == expected
