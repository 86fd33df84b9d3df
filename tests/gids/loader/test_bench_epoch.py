"""gids bench epoch, small: it runs, verifies its bytes, and reports what it promises."""

import json
import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import torch

import gids
from gids import generate
from gids.bench.epoch import run
from gids.bench.epoch_peers import PEERS, MappedTable, Peer, Prepared, check_rows
from gids.bench.epoch_regime import FINALISTS
from gids.bench.epoch_worker import clocked, verified
from gids.errors import ConfigError
from tests.packages import NO_DGL
from tests.resources import DEADLINE_S


def test_without_dgl_it_says_so_at_once(monkeypatch):
    monkeypatch.setitem(sys.modules, "dgl", None)
    with pytest.raises(ConfigError, match=r"Python 3\.10, 3\.11: pip install 'gids\[dgl\]'"):
        run(Namespace(quick=True, data=None))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("epoch") / "graph"
    generate.communities(path, num_nodes=400, degree=6, dim=24, num_classes=4)
    return path


def spec_of(data, setting=2):
    return {"data": str(data), "fanouts": [3, 3], "batch_size": 8, "setting": setting, "advice": "random"}


@pytest.mark.parametrize("kind", ["index_select", "pread", "io_uring", "float16 in memory"])
def test_every_loop_of_ours_gives_the_rows_of_the_nodes(data, kind):
    peer = PEERS[kind][0](spec_of(data))
    batches = list(peer.batches(1))
    assert [len(nodes) > 0 and len(nodes) == len(rows) for nodes, rows in batches] == [True] * len(peer.order(1))
    assert verified(peer, 1, len(batches)) == {"verified_batches": len(batches)}
    found = clocked(peer, 2, 3, lead_s=1e-6)
    assert found["batches"] == 3
    assert found["rows"] == sum(len(nodes) for nodes, _ in list(peer.batches(2))[1:4])


class Wrong(Peer):
    """Its second batch has a row that the file has not."""

    under_way = 4

    def prepared(self, epoch):
        rows = MappedTable(self.dataset, "normal").rows
        for index in range(len(order := self.order(epoch))):
            nodes = order[index].nodes["_N"]
            yield Prepared(nodes, rows[nodes] + (index == 1), None, nodes)


def test_one_wrong_batch_of_a_round_is_found(data):
    peer = Wrong(spec_of(data))
    assert clocked(peer, 0, 1)["batches"] == peer.under_way  # or readers ahead of the clock would count for nothing
    with pytest.raises(gids.GidsError, match="of a batch is not what"):
        verified(peer, 0, 4)


def test_rows_in_half_precision_are_compared_as_such(data):
    dataset, nodes = gids.open(data), torch.arange(8)
    rows = MappedTable(dataset, "normal").rows[nodes]
    check_rows(dataset, nodes, rows)
    check_rows(dataset, nodes, rows.half().float(), as_float16=True)
    with pytest.raises(gids.GidsError, match="of a batch is not what"):
        check_rows(dataset, nodes, rows.half().float())


@pytest.mark.long
def test_quick_run():
    pytest.importorskip("dgl", reason=NO_DGL)
    writable = any(os.access(path, os.W_OK) for path in ("/sys/fs/cgroup/memory", "/sys/fs/cgroup/cgroup.procs"))
    command = [
        sys.executable,
        "-m",
        "gids",
        "bench",
        "epoch",
        "--quick",
        "--json",
        *([] if writable else ["--no-limit"]),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            out, errors = process.communicate(timeout=DEADLINE_S)
        finally:
            process.kill()
    assert process.returncode == 0, errors[-3000:]
    report = json.loads(out)
    rates = {rate["name"]: rate["median"] for rate in report["results"]["rates"]}
    assert all(rate > 0 for rate in rates.values())
    bars = {bar["name"]: bar["holds"] for bar in report["bars"]}
    memory = ["peak resident memory / limit", "growth of the process / (1.05 x budget + 32 MiB)"]
    memory += ["peak of the memory cgroup / limit"] if writable else []
    assert bars == {regime + name: True for regime in ("", "sparse: ") for name in memory}
    for name, prefix in (("dense", ""), ("sparse", "sparse: ")):
        results = report["results"][name]
        finalists = {rate for rate in rates if rate.startswith("sparse: ") == bool(prefix)}
        assert {prefix + "gids", prefix + "dgl-mmap-random"} < finalists
        assert len(finalists) == 2 + FINALISTS
        assert set(results["peers"]) == set(PEERS), results["left_out"]
        assert set(results["times_peer"]) == {*PEERS, "dgl-mmap-random"}
        for kind, found in results["peers"].items():
            assert found["setting"] in PEERS[kind][2]
            assert found["in_words"].split()[0] in (str(found["setting"]), "all")
        assert sum(found["alternated"] for found in results["peers"].values()) == FINALISTS
        assert results["verified_batches"].pop("gids") == report["provenance"]["settings"][name]["batches"]
        assert all(count >= 2 for count in results["verified_batches"].values())
        assert len(results["verified_batches"]) == 1 + FINALISTS
        assert 0 < results["density"] < 1
        assert results["bytes_read_over_needed"] >= 1
        assert results["rows_per_read"] > 0
        assert results["reads_over_limit"] > 0
    (overlap,) = report["results"]["dense"]["overlap"]
    assert overlap["both_s"] > 0.5 * max(overlap["data_s"], overlap["compute_s"])
    assert not list(Path("/sys/fs/cgroup").glob(f"**/gids-bench-{process.pid}-*"))  # another bench may have its own
