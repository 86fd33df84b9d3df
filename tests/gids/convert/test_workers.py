"""Conversion in tasks: the bytes of one process, by any workers, in bounded memory, and on after a task was lost."""

import filecmp
import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from gids.cli import main
from gids.convert import ConvertOptions, LocalWorkers, RayWorkers, convert, spread
from gids.convert.workers import task_memory
from gids.dataset import checksum
from gids.dataset.verifier import verify
from gids.errors import ConfigError, GidsError

from .graphs import random_edges

N, E, DIM = 3000, 60_000, 16


def measured(function, arguments):
    """What a function returns, and the most bytes that were allocated meanwhile."""
    tracemalloc.start()
    found = function(*arguments)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return found, peak


class Inline:
    """Runs tasks one after the other in this process, the last ones first; measures what each allocates."""

    def __init__(self, memory_bytes, lose=None):
        self.memory_bytes, self.lose, self.done, self.peak_bytes = memory_bytes, lose, [], 0

    def run(self, function, tasks):
        for number in reversed(range(len(tasks))):
            if len(self.done) == self.lose:
                raise GidsError("a worker process ended early")
            found, peak = measured(function, tasks[number])
            if peak > self.memory_bytes:  # perhaps something else's, by chance: a task may be run again
                found, peak = measured(function, tasks[number])
            self.peak_bytes = max(self.peak_bytes, peak)
            self.done.append(function.__name__)
            yield number, found


@pytest.fixture(autouse=True)
def _small_tasks(monkeypatch):
    monkeypatch.setattr(spread, "TASK_BYTES", 1 << 16)
    for name in ("fsync", "fdatasync"):  # hundreds of tasks of a few KiB; nothing here cuts the power
        monkeypatch.setattr(os, name, lambda descriptor: None)


def save(root: Path, text=False, edges=E, nodes=N):
    root.mkdir()
    generator = np.random.default_rng(4)
    pairs = random_edges(nodes, nodes, edges, seed=3)
    pairs[1, : edges // 8] = 7  # one destination has more edges than a task can hold
    if text:
        header = "source,destination\n# a comment\n"
        (root / "edges.csv").write_text(header + "\n".join(f"{s},{d}" for s, d in pairs.T) + "\n")
    else:
        np.save(root / "edges.npy", pairs)
        np.save(root / "edge_weights.npy", generator.random(edges))
        np.save(root / "edge_features.npy", generator.random((edges, 2)))
    np.save(root / "features.npy", generator.standard_normal((nodes, DIM), dtype=np.float32))
    np.save(root / "labels.npy", np.arange(nodes) % 4)
    np.save(root / "train.npy", np.arange(50))
    return root


def same_files(left: Path, right: Path) -> bool:
    names = sorted(str(path.relative_to(left)) for path in left.rglob("*") if path.is_file())
    assert names == sorted(str(path.relative_to(right)) for path in right.rglob("*") if path.is_file())
    return filecmp.cmpfiles(left, right, names, shallow=False) == (names, [], [])


@pytest.mark.parametrize("kind", ["arrays", "text", "reverse", "float16"])
def test_tasks_write_the_bytes_of_one_process(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(checksum, "CHUNK_BYTES", 1 << 10)
    monkeypatch.setattr("gids.convert.text.BLOCK_BYTES", 1 << 12)
    source = save(tmp_path / "in", text=kind == "text")
    given = {"add_reverse": kind == "reverse", "feature_dtype": "float16" if kind == "float16" else None}
    convert(source, tmp_path / "one", options=ConvertOptions(**given))
    workers = Inline(1 << 20)
    made = convert(source, tmp_path / "many", options=ConvertOptions(workers=workers, **given))
    assert {name: workers.done.count(name) > 1 for name in set(workers.done)} == dict.fromkeys(workers.done, True)
    assert set(workers.done) == {"_copy", "_fill", "_merge", "seal"}
    assert same_files(tmp_path / "one", tmp_path / "many")
    assert verify(made) == []


def test_rows_on_several_drives_are_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(checksum, "CHUNK_BYTES", 1 << 10)
    source = save(tmp_path / "in")
    for name, workers in (("one", None), ("many", Inline(1 << 20))):
        places = [tmp_path / name / drive for drive in "ab"]
        for place in places:
            place.mkdir(parents=True)
        made = convert(source, tmp_path / name / "g", options=ConvertOptions(workers=workers, stripe_dirs=places))
        assert verify(made) == []
    homes = [sorted((tmp_path / name).glob("[ab]/*/nodes/_N/features/*.bin")) for name in ("one", "many")]
    assert [path.read_bytes() for path in homes[0]] == [path.read_bytes() for path in homes[1]]
    assert len(homes[0]) == 2


def test_ten_times_the_memory_of_all_tasks(tmp_path, monkeypatch):
    monkeypatch.setattr(spread, "TASK_BYTES", 4 << 20)
    source = save(tmp_path / "in", edges=500_000, nodes=40_000)
    sizes = sum(path.stat().st_size for path in source.iterdir())
    workers = Inline(1 << 20)  # and two of them at a time are 2 MiB
    convert(source, tmp_path / "out", options=ConvertOptions(workers=workers))
    assert sizes > 10 * 2 * workers.memory_bytes
    assert workers.peak_bytes <= workers.memory_bytes


@pytest.mark.parametrize("lose", [3, 20, 1000])
def test_a_lost_task_stops_the_job_and_the_next_run_goes_on(tmp_path, monkeypatch, lose):
    monkeypatch.setattr(checksum, "CHUNK_BYTES", 1 << 10)
    source = save(tmp_path / "in")
    whole = Inline(1 << 20)
    convert(source, tmp_path / "one", options=ConvertOptions(workers=whole))
    with pytest.raises(GidsError, match="ended early"):
        convert(
            source, tmp_path / "many", options=ConvertOptions(workers=Inline(1 << 20, min(lose, len(whole.done) - 1)))
        )
    assert not (tmp_path / "many").exists()
    rest = Inline(1 << 20)
    convert(source, tmp_path / "many", options=ConvertOptions(workers=rest))
    assert len(rest.done) == len(whole.done) - min(lose, len(whole.done) - 1)
    assert same_files(tmp_path / "one", tmp_path / "many")


def test_what_one_process_began_tasks_end_and_the_other_way_round(tmp_path):
    source = save(tmp_path / "in")
    convert(source, tmp_path / "one")
    with pytest.raises(GidsError, match="ended early"):
        convert(source, tmp_path / "many", options=ConvertOptions(workers=Inline(1 << 20, 5)))
    convert(source, tmp_path / "many")
    assert same_files(tmp_path / "one", tmp_path / "many")


def test_processes(tmp_path):
    source = save(tmp_path / "in")
    convert(source, tmp_path / "one")
    with LocalWorkers(2, "1MiB") as workers:
        convert(source, tmp_path / "many", options=ConvertOptions(workers=workers))
        assert same_files(tmp_path / "one", tmp_path / "many")
        pairs = np.load(source / "edges.npy")
        pairs[0, 77] = -5
        np.save(source / "edges.npy", pairs)
        with pytest.raises(ConfigError, match=r"source id of edge 77 of _N:_E:_N must be in \[0, 3000\) \(got -5\)"):
            convert(source, tmp_path / "bad", options=ConvertOptions(workers=workers))
    assert not (tmp_path / "bad").exists()


def test_ray(tmp_path):
    pytest.importorskip("ray", reason="ray is not installed: pip install 'gids[ray]'")
    source = save(tmp_path / "in")
    convert(source, tmp_path / "one")
    words = ["--ray", "local", "--workers", "2", "--task-memory", "1MiB", "--quiet"]
    with RayWorkers("local", 2, "1MiB") as workers:
        assert workers.count == 2
        assert main(["convert", str(source), str(tmp_path / "many"), *words]) == 0  # joins Ray where it runs
        assert same_files(tmp_path / "one", tmp_path / "many")
        pairs = np.load(source / "edges.npy")
        pairs[0, 77] = -5
        np.save(source / "edges.npy", pairs)
        with pytest.raises(ConfigError, match="source id of edge 77"):
            convert(source, tmp_path / "bad", options=ConvertOptions(workers=workers))


def test_refusals():
    with pytest.raises(ConfigError, match="task memory must be at least 1 MiB"):
        task_memory("1KiB")
    with pytest.raises(ConfigError, match="workers must be at least 1"):
        LocalWorkers(0)
