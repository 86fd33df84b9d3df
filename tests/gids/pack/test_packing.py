"""Packing survives kills, keeps to its limits, leaves nothing half made, and says what is damaged."""

import json
import os
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
import torch

import gids
from gids.cli import main
from gids.dataset.packed import BATCH, INDEX, POSITIONS, SAMPLES, encode_positions
from gids.errors import ConfigError, DatasetError
from gids.pack import arrange, materialise, sampled
from gids.pack.maker import Packing
from gids.pack.recipe import Recipe
from gids.sampling import SampleKey
from gids.sampling.stored import StoredSample, decode, encode

from .conftest import equal, tensors

pytestmark = pytest.mark.usefixtures("nothing_left")
ARGUMENTS = {"seeds": "train", "fanouts": [4, 4], "batch_size": 64, "hot": "8KiB"}


def contents(path):
    """The files of packed epochs, but for the manifest, which has times in it."""
    return {file.name: file.read_bytes() for file in path.iterdir() if file.name != "manifest.json"}


def names(path):
    return [file.name for file in path.iterdir()]


@pytest.fixture(scope="module")
def whole(graph, tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "packed"
    gids.pack(graph, path, epochs=2, **ARGUMENTS)
    return path


class Killed(BaseException):
    """Stands for a kill: nothing of ours catches it."""


@pytest.mark.parametrize(
    ("step", "at"), [("samples", 1), ("samples", 8), ("layout", 5), ("_N/feat", 1), ("_N/feat", 5), ("_N/feat", 12)]
)
def test_goes_on_after_a_kill(graph, whole, tmp_path, monkeypatch, step, at):
    """Wherever it is killed, the same call makes the same files, and does not begin anew."""
    monkeypatch.setattr(sampled, "NOTED_BATCHES", 3)
    monkeypatch.setattr(materialise, "CHECKPOINT_BYTES", 20_000)
    monkeypatch.setattr(materialise, "LEAST_BLOCK_BYTES", 10_000)
    monkeypatch.setattr(materialise, "MOST_BLOCK_BYTES", 10_000)
    calls = 0

    def progress(name, done, total):
        nonlocal calls
        calls += name == step
        if calls == at:
            raise Killed

    arguments = ARGUMENTS | {"epochs": 2}
    with pytest.raises(Killed):
        gids.pack(graph, tmp_path / "packed", progress=progress, **arguments)
    assert not (tmp_path / "packed").exists()
    packed = gids.pack(graph, tmp_path / "packed", **arguments)
    assert contents(tmp_path / "packed") == contents(whole)
    assert names(tmp_path) == ["packed"]
    done_before = (at - 1) // 2 * 20_000 if step == "_N/feat" else 0  # a checkpoint after every second block
    assert packed.facts["bytes_read"] <= packed.facts["table_bytes"] - done_before


def test_a_failure_beside_the_layout_is_the_callers(graph, tmp_path, monkeypatch):
    """Positions are written on a thread of their own, rows counted on several."""
    calls = []

    def fail(*arguments):
        calls.append(arguments)
        raise ConfigError("no such positions")

    monkeypatch.setattr(arrange, "encode_positions", fail)
    with pytest.raises(ConfigError, match="no such positions"):
        gids.pack(graph, tmp_path / "packed", epochs=20, **ARGUMENTS)
    assert len(calls) <= 2 * arrange.BATCHES_AHEAD, "what has failed is not gone on with"
    monkeypatch.setattr(sampled, "count_uses", fail)
    with pytest.raises(ConfigError, match="no such positions"):
        gids.pack(graph, tmp_path / "packed", epochs=1, **ARGUMENTS)
    assert names(tmp_path) == []


def test_an_interrupt_is_not_kept_waiting(graph, tmp_path, monkeypatch):
    """Ctrl-C while one segment of all batches is laid out: the thread beside it writes the batch at hand and no more."""
    written = []
    monkeypatch.setattr(arrange, "encode_positions", lambda *found: written.append(found) or encode_positions(*found))

    def interrupt(name, done, total):
        if (name, done) == ("layout", 3):
            raise KeyboardInterrupt

    monkeypatch.setattr(Packing, "_segment", lambda self, *found: 7 * 20)
    with pytest.raises(KeyboardInterrupt):
        gids.pack(graph, tmp_path / "packed", epochs=20, progress=interrupt, **ARGUMENTS)
    assert len(written) <= 3


def test_a_long_segment_takes_no_more_memory(graph, tmp_path, monkeypatch):
    """Rows of its batches are read as they are laid out, never held: ten times as many batches cost a few lists."""

    def peak(epochs):
        def progress(name, done, total):
            if name == "samples" and done == total:
                tracemalloc.start()
            if name == "layout" and done == total and tracemalloc.is_tracing():
                peaks.append(tracemalloc.get_traced_memory()[1])
                tracemalloc.stop()

        peaks = []
        monkeypatch.setattr(Packing, "_segment", lambda self, *found: 7 * epochs)
        gids.pack(graph, tmp_path / f"{epochs}", epochs=epochs, progress=progress, **ARGUMENTS)
        return peaks[0]

    peak(1)  # what is imported or made once
    assert peak(60) - peak(6) < 300_000, "where ids and positions of a segment are held it is 4 MB"


def test_a_killed_job_of_other_tables_is_not_gone_on_with(graph, tmp_path, monkeypatch):
    monkeypatch.setattr(sampled, "NOTED_BATCHES", 3)

    def kill(name, done, total):
        if name == "_N/feat":
            raise Killed

    with pytest.raises(Killed):
        gids.pack(graph, tmp_path / "packed", progress=kill, features=["feat"], **ARGUMENTS)
    gids.pack(graph, tmp_path / "packed", features=["feat", "year"], **ARGUMENTS)
    gids.pack(graph, tmp_path / "fresh", features=["feat", "year"], **ARGUMENTS)
    assert contents(tmp_path / "packed") == contents(tmp_path / "fresh")


def test_a_real_kill(graph, whole, tmp_path):
    """A process that is killed in the middle of its passes leaves what the next one goes on from."""
    script = f"""
import os, signal, gids
from gids.pack import materialise
materialise.CHECKPOINT_BYTES = 20_000
materialise.LEAST_BLOCK_BYTES = materialise.MOST_BLOCK_BYTES = 10_000
count = 0
def progress(name, done, total):
    global count
    count += name.endswith("feat")
    if count == 6:
        os.kill(os.getpid(), signal.SIGKILL)
gids.pack({str(graph.path)!r}, {str(tmp_path / "packed")!r}, epochs=2, progress=progress, **{ARGUMENTS!r})
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -9
    gids.pack(graph, tmp_path / "packed", epochs=2, **ARGUMENTS)
    assert contents(tmp_path / "packed") == contents(whole)


@pytest.mark.parametrize("memory", ["1MiB", "200KiB"])
def test_memory_changes_only_the_passes(graph, whole, tmp_path, monkeypatch, memory):
    monkeypatch.setattr(materialise, "LEAST_BLOCK_BYTES", 10_000)
    monkeypatch.setattr(materialise, "BUFFER_BYTES", (8192, 4096))
    monkeypatch.setattr(materialise, "CALL_BYTES", 3_000)  # a block is copied in parts
    packed = gids.pack(graph, tmp_path / "packed", epochs=2, memory=memory, **ARGUMENTS)
    assert (packed.facts["episodes"][0] > 1) == (memory == "200KiB")
    assert contents(tmp_path / "packed") == contents(whole)


def test_too_small_a_disk_is_refused_with_the_minimum(graph, tmp_path):
    with pytest.raises(ConfigError, match=r"disk must be at least .* sampled batches alone"):
        gids.pack(graph, tmp_path / "packed", epochs=1, disk="10KiB", **ARGUMENTS)
    with pytest.raises(ConfigError, match=r"disk must be at least .* bytes\), with one segment") as refused:
        gids.pack(graph, tmp_path / "packed", epochs=1, disk="150KiB", **ARGUMENTS)
    least = int(str(refused.value).split("(")[1].split()[0])
    assert names(tmp_path) == [], "nothing is left"
    packed = gids.pack(graph, tmp_path / "packed", epochs=1, disk=least, **ARGUMENTS)
    assert packed.segment_batches > 1
    assert packed.size_bytes <= least


@pytest.mark.parametrize("call", ["pwrite", "posix_fallocate"])
def test_a_full_disk_leaves_nothing(graph, tmp_path, monkeypatch, call):
    """While samples are written, and while space for the rows is taken."""

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, call, full)
    with pytest.raises(DatasetError, match="No space left on device: free some space"):
        gids.pack(graph, tmp_path / "packed", epochs=1, **ARGUMENTS)
    assert names(tmp_path) == []


def test_never_more_disk_than_allowed_while_packing(graph, tmp_path, whole):
    limit = gids.Packed(whole).size_bytes
    most = 0

    def progress(name, done, total):
        nonlocal most
        files = [file for file in tmp_path.rglob("*") if file.is_file()]
        most = max(most, sum(file.stat().st_size for file in files))

    gids.pack(graph, tmp_path / "packed", epochs=2, disk=limit, progress=progress, **ARGUMENTS)
    assert 0 < most <= limit


def test_verify_and_info(graph, whole, tmp_path, capsys):
    assert main(["verify", str(whole)]) == 0
    shown = capsys.readouterr()
    assert "no problem" in shown.out
    assert "14/14" in shown.err, "batches are counted, rows are bytes"
    assert "14/14 bytes" not in shown.err
    assert main(["info", str(whole)]) == 0
    assert "2 epochs of 7 batches" in capsys.readouterr().out
    assert main(["info", str(whole), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tables"]["_N/feat"]["dim"] == 20


@pytest.mark.parametrize("offset", [0, 5000, -1])
def test_damage_is_named(graph, tmp_path, capsys, offset):
    packed = gids.pack(graph, tmp_path / "packed", epochs=1, **ARGUMENTS)
    rows = tmp_path / "packed" / "rows-0.bin"
    data = bytearray(rows.read_bytes())
    data[offset] ^= 64
    rows.write_bytes(data)
    assert main(["verify", str(packed.path), "--json"]) == 1
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert problem["first_row"] == problem["last_row"] == (offset % len(data)) // 80


@pytest.mark.parametrize("name", [SAMPLES, POSITIONS])
def test_damaged_samples_fail_their_batch(graph, tmp_path, name):
    packed = gids.pack(graph, tmp_path / "packed", epochs=1, **ARGUMENTS)
    offset = int(packed.index[3]["sample_offset" if name == SAMPLES else "positions_offset"])
    data = bytearray((tmp_path / "packed" / name).read_bytes())
    data[offset + 20] ^= 1
    (tmp_path / "packed" / name).write_bytes(data)
    assert main(["verify", str(packed.path), "--quiet"]) == 1
    with gids.Loader(graph, packed=packed, budget="64MiB") as loader:
        with pytest.raises(DatasetError, match=f"{name} is damaged in bytes"):
            list(loader)
        assert loader.state_dict()["batches_done"] <= 3


def test_a_damaged_manifest_or_index_does_not_open(graph, tmp_path):
    packed = gids.pack(graph, tmp_path / "packed", epochs=1, **ARGUMENTS)
    index = packed.index.copy()
    index["seeds"][0] += 1
    (tmp_path / "packed" / INDEX).write_bytes(np.asarray(index, BATCH).tobytes())
    with pytest.raises(DatasetError, match="is damaged"):
        gids.Packed(packed.path)
    (tmp_path / "packed" / SAMPLES).unlink()
    with pytest.raises(DatasetError, match="is missing"):
        gids.Packed(packed.path)
    with pytest.raises(DatasetError, match="`gids pack` makes them"):
        gids.Packed(graph.path)


def test_stored_samples_are_the_same_bit_for_bit(papers):
    recipe = Recipe(papers, "train", sampler=gids.LadiesSampler([20, 20]), batch_size=40)
    from gids._native import ThreadPool

    key, seeds = SampleKey(recipe.options.seed), recipe.order(0)[0].seeds
    sample = recipe.sampler.sample(recipe.open_topology(), seeds, key, ThreadPool(1))
    again = decode(encode(StoredSample(sample)))
    assert all(torch.equal(a, b) for a, b in zip(tensors(sample), tensors(again.sample), strict=True))
    with pytest.raises(DatasetError, match="a stored sample is damaged"):
        decode(b"12345678 nothing")


def test_the_command(graph, tmp_path, capsys):
    command = ["pack", str(graph.path), str(tmp_path / "packed"), "--fanouts", "3", "3", "--batch-size", "50"]
    assert main([*command, "--epochs", "2", "--hot", "4KiB", "--quiet"]) == 0
    assert "2 epochs of 8 batches" in capsys.readouterr().out
    with (
        gids.Loader(graph, "train", fanouts=[3, 3], batch_size=50, budget="64MiB") as online,
        gids.Loader(graph, packed=tmp_path / "packed", budget="64MiB") as packed,
    ):
        assert all(equal(one, two) for one, two in zip(online, packed, strict=True))
    assert main(command) == 1
    assert "exists; choose another path, or remove it" in capsys.readouterr().err
