"""Contenders: their bytes are checked, their limits hold or it is said that they do not, and a missing one is loud."""

import sys

import numpy as np
import pytest

import gids
from experiments import tables
from experiments.baselines import CONTENDERS, Job, page_cache
from experiments.baselines.dgl_sampling import DglSampled
from experiments.baselines.hashing import batch_hash, combine, row_hashes
from experiments.baselines.race import PROCESS_BYTES, Turn, race
from experiments.baselines.rounds import Rounds
from gids.generate import rmat
from tests.packages import NO_DGL


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    path = tmp_path_factory.mktemp("baselines") / "graph"
    rmat(path, num_nodes=3000, degree=8, dim=12, train=0.5)
    return Job(str(path), batch_size=32, batches=3, fanouts=[3, 3], budget=48 << 20)


def test_hashes_depend_on_every_byte_row_and_place():
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)  # 12 bytes: padded to whole words
    hashes = row_hashes(rows)
    assert hashes.dtype == np.uint64
    assert len(set(hashes.tolist())) == 4
    assert batch_hash(rows) == combine(hashes)
    assert batch_hash(rows[::-1]) != batch_hash(rows)
    changed = rows.copy()
    changed.view(np.uint8)[2, 11] ^= 1
    assert (row_hashes(changed) != hashes).tolist() == [False, False, True, False]
    assert combine(np.array([3, 5], np.uint64)) == 3 * 1 + 5 * 3


@pytest.mark.parametrize("name", [name for name, kind in CONTENDERS.items() if not kind.SEPARATE])
def test_every_contender_gives_the_rows_of_its_nodes(name, job):
    if issubclass(CONTENDERS[name], DglSampled):
        pytest.importorskip("dgl", reason=NO_DGL)
    rounds = Rounds(CONTENDERS[name](job))
    try:
        order = job.order(rounds.contender.dataset, 2)
        for batch in rounds.contender.batches(2, 3):
            assert rounds._verify(batch)
            assert batch.x.shape == (len(batch.nodes), 12)
            assert batch.nodes[:32].tolist() == order[batch.index].seeds["_N"].tolist()
            assert len(batch.nodes.unique()) == len(batch.nodes)
            for layer in batch.layers or ():
                (src,), (count,) = layer.src.values(), layer.num_src.values()
                assert int(src.max()) == count - 1  # the last source is there because an edge needs it
    finally:
        rounds.contender.close()


def test_the_page_cache_is_filled_from_the_end(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(bytes(10))
    seen = []
    monkeypatch.setattr(page_cache, "CHUNK_BYTES", 4)
    monkeypatch.setattr(page_cache.os, "pread", lambda descriptor, count, offset: seen.append((count, offset)))
    page_cache.fill(path)
    assert seen == [(4, 8), (4, 4), (4, 0)]


def test_wrong_bytes_are_found(job):
    rounds = Rounds(CONTENDERS["DGL in memory"](Job(job.data, 32, 3, ladies=[64, 32])))
    rounds.contender._features[:, 3] += 1
    with pytest.raises(gids.GidsError, match="batch 0 of DglMemory has other bytes"):
        rounds.warm_up(0, 1, None)


def test_configurations_of_gids_give_the_same_batches(job):
    names = ("BaM", "GIDS", "Ginex", "GNNDrive", "gids")
    results = race([Turn(name, job, 3) for name in names], rounds=1, isolated=False, train=True)
    assert len({results[name]["digest"] for name in names}) == 1
    for result in results.values():
        assert set(result["stages_per_batch"]) == {"waiting", "training"}
        assert result["cache"] + result["host"] + result["duplicates"] + result["disk"] == pytest.approx(1)


def test_ladies_over_a_map_and_through_gids_is_the_same_job(job):
    ladies = Job(job.data, 32, 3, ladies=[64, 32], budget=job.budget)
    results = race([Turn(n, ladies, 3) for n in ("DGL mmap, MADV_RANDOM", "gids")], rounds=1, isolated=False)
    assert results["gids"]["digest"] == results["DGL mmap, MADV_RANDOM"]["digest"]


def test_a_process_of_its_own_keeps_its_limit(job, capfd):
    limit = 1 << 30
    plain = Job(job.data, 32, 3, [3, 3])
    here = race([Turn("gids", job, 3)], rounds=1, isolated=False)["gids"]
    mapped = "DGL mmap, MADV_RANDOM"
    ladies = Job(job.data, 32, 3, ladies=[64, 32])  # sampled without DGL, which takes seconds to import
    both = race([Turn("gids", plain, 3), Turn(mapped, ladies, 1)], rounds=1, limit_bytes=limit)
    assert both[mapped]["rows_per_s"] > 0  # warmed up beside, measured in turn
    result = both["gids"]
    assert result["digest"] == here["digest"]
    if result["memory_limit_bytes"] is None:
        assert "NO MEMORY LIMIT" in capfd.readouterr().err
        assert "NO memory limit" in tables.markdown({"results": {"gids": result}})
    else:
        assert 0 < result["cgroup_peak_bytes"] <= limit
        assert result["budget_bytes"] == limit - PROCESS_BYTES


def test_a_contender_that_cannot_run_is_loud(job, capfd, monkeypatch):
    monkeypatch.delenv("GIDS_GRAPHBOLT_PYTHON", raising=False)
    results = race([Turn("GraphBolt", job, 1)], rounds=1, isolated=False)
    assert "torch" in results["GraphBolt"]["skipped"]
    assert "SKIPPED GraphBolt" in capfd.readouterr().err
    assert "not run: GraphBolt" in tables.markdown({"results": results})


def test_without_dgl_its_contenders_are_skipped_where_they_need_it(job, capfd, monkeypatch):
    monkeypatch.setitem(sys.modules, "dgl", None)
    ladies = Job(job.data, 32, 3, ladies=[64, 32])
    turns = [Turn("pread, one thread", job, 1), Turn("DGL in memory", ladies, 1)]
    results = race(turns, rounds=1, isolated=False)
    assert "dgl is not installed" in results["pread, one thread"]["skipped"]
    assert "SKIPPED pread" in capfd.readouterr().err
    assert results["DGL in memory"]["rows_per_s"] > 0


def test_a_contender_that_fails_in_a_round_leaves_the_others_theirs(job, capfd, monkeypatch):
    timed = Rounds.timed

    def fail(self, epoch, *arguments):
        if type(self.contender).__name__ == "DglMemory" and epoch == 2:
            raise gids.GidsError("contender ended early (exit code -9)")
        return timed(self, epoch, *arguments)

    monkeypatch.setattr(Rounds, "timed", fail)
    ladies = Job(job.data, 32, 3, ladies=[64, 32])
    results = race([Turn("DGL in memory", ladies, 1), Turn("gids", job, 1)], rounds=3, isolated=False)
    assert results["DGL in memory"]["failed"] == "killed by the memory limit"
    assert "rows_per_s" not in results["DGL in memory"]
    assert results["gids"]["rounds"] == 3


def test_an_impossible_budget_is_a_result_not_a_crash(job, capfd):
    poor = Job(job.data, 32, 3, [3, 3], budget=1 << 20)
    ladies = Job(job.data, 32, 3, ladies=[64, 32])
    results = race([Turn("gids", poor, 1), Turn("DGL in memory", ladies, 1)], rounds=1, isolated=False)
    assert "budget" in results["gids"]["failed"]
    assert results["DGL in memory"]["rows_per_s"] > 0
    assert "FAILED gids" in capfd.readouterr().err
