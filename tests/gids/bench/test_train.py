"""``gids bench train``: peers on several node types give the rows that are stored, and small runs train through every door."""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import Namespace
from dataclasses import replace

import pytest
import torch

import gids
from gids.bench.harness import Report
from gids.bench.train import SMALL, Cells
from gids.bench.train_models import MODELS, TYPED_MODELS, make_model
from gids.bench.train_peers import TYPED_PEERS
from gids.bench.train_worker import Contender, Step, Trainer
from gids.bench.tuning import tune
from gids.bench.typed_graph import TARGET, make_typed_graph
from gids.errors import ConfigError, GidsError
from tests.packages import NO_DGL


@pytest.fixture(scope="module")
def typed(tmp_path_factory):
    path = tmp_path_factory.mktemp("typed") / "graph"
    make_typed_graph(path, papers=2000, dim=12)
    return gids.open(path)


@pytest.mark.parametrize("door", TYPED_PEERS)
@pytest.mark.parametrize("advice", ["random", "memory"])
def test_peers_on_several_types_give_what_is_stored(typed, door, advice):
    if door == "dgl":
        pytest.importorskip("dgl", reason=NO_DGL)
    maker, _, settings = TYPED_PEERS[door]
    peer = maker(
        {"data": str(typed.path), "fanouts": [3, 3], "batch_size": 50, "advice": advice, "setting": settings[0]}
    )
    whole = {t: table.rows.clone() for t, table in peer.tables.items()}
    batches = list(peer.prepared(0))
    peer.rest()
    assert torch.equal(torch.cat([batch.seeds for batch in batches]).sort().values, typed.split("train", TARGET))
    for batch in batches:
        assert torch.equal(batch.rows[TARGET], whole[TARGET][batch.nodes])
        assert set(batch.rows) == {"paper", "author"}


def test_unknown_models_are_refused(typed):
    with pytest.raises(ConfigError, match=r"model must be one of .*'rgcn'.* \(got 'gcn' of 'plain'\)"):
        make_model("plain", "gcn", typed, 8)
    assert not set(MODELS) & set(TYPED_MODELS)


def test_a_trainer_learns_a_batch_by_heart(typed):
    with gids.Loader(typed, (TARGET, "train"), fanouts=[3, 3], batch_size=100, budget="64MiB") as loader:
        batch = next(iter(loader))
    trainer = Trainer("plain", "rgcn", typed, 64)
    step = Step(batch.blocks, batch.x, batch.y[TARGET])
    found = [trainer.step(step) for _ in range(120)]
    assert found[0] < 0.3
    assert found[-1] > 0.8


@pytest.mark.parametrize("door", TYPED_PEERS)
@pytest.mark.parametrize("contender", ["gids", "peer"])
def test_a_round_trains_through_a_door(typed, door, contender):
    if door == "dgl":
        pytest.importorskip("dgl", reason=NO_DGL)
    spec = {"data": str(typed.path), "typed": True, "fanouts": [2, 2], "batch_size": 50, "torch_threads": 1}
    spec |= {"door": door, "contender": contender, "kind": "", "advice": "", "setting": TYPED_PEERS[door][2][0]}
    worker = Contender(spec | {"budget": "64MiB", "pipeline": {"prefetch": 1}})
    answer = worker.round(0, "rgcn", 8, lead_s=0.0, least_s=0.0)
    assert (answer["batches"], answer["seeds"]) == (1, 50)
    reached = worker.to_accuracy("rgcn", 8, accuracy=2.0, patience_s=300.0)
    assert (reached["batches"], reached["reached"]) == (4, False), "an epoch has no more seeds that are new"
    if contender == "gids":
        worker.source.loader.close()


def test_peers_are_tuned_by_what_they_reach():
    rates = {("a", 1): 5.0, ("a", 4): 9.0, ("a", 8): 7.0, ("b", 4): 3.0}

    def rate_of(kind, setting):
        if (kind, setting) not in rates:
            raise GidsError("too large")
        return rates[kind, setting]

    kinds = {"a": ("threads", (1, 4, 8)), "b": ("workers", (4, 8, 16)), "c": ("workers", (1, 2))}
    tuned, left_out = tune(kinds, rate_of, every=True)
    assert {kind: (found["setting"], found["rate"]) for kind, found in tuned.items()} == {"a": (4, 9.0), "b": (4, 3.0)}
    assert left_out == {"b, 8 workers": "too large", "c, 1 workers": "too large"}
    assert tune({"a": kinds["a"]}, rate_of, every=False)[0]["a"]["rate_by_setting"] == {4: 9.0}


class Told:
    """A contender's process that says what a test wants: the peer with the most threads is fastest, and fails at 256."""

    def __init__(self, kind, setting):
        self.kind, self.setting, self.killed = kind, setting, False

    def ask(self, what, number, *, hidden, **order):
        if what == "round" and self.kind == "index_select" and self.setting == 32 and hidden == 256:
            raise GidsError("ended early")
        return {"seeds": 100, "seconds": 1.0 if self.kind == "gids" else 64.0 / self.setting}

    def kill(self):
        self.killed = True


def test_a_peer_that_cannot_train_a_larger_model_gives_way_to_the_next(typed, monkeypatch):
    report, started = Report("train"), []

    def start(self, stack, door, kind, *, advice="", setting=0):
        started.append(Told("memory" if advice == "memory" else kind, setting or 1))
        return started[-1]

    monkeypatch.setattr(Cells, "_start", start)
    common = {"data": str(typed.path), "typed": True, "fanouts": [3, 3], "batch_size": 50}
    args = Namespace(quick=False, no_limit=True)
    Cells(common, replace(SMALL, hidden=(64, 256)), 2, args, report).measure("plain")
    assert report.extra["best_peer"] == {
        "plain, rgcn 64": "index_select, 32 threads",
        "plain, rgcn 256": "index_select, 16 threads",
    }
    assert report.extra["left_out"] == {"plain, rgcn 256": {"index_select, 32 threads": "ended early"}}
    assert [bar.value for bar in report.bars] == [2.0, 4.0]
    (failed,) = (worker for worker in started[3:] if worker.setting == 32)  # the first three were tuned
    assert failed.killed


def run(directory, *doors):
    command = [
        sys.executable, "-m", "gids", "bench", "train", "--quick", "--json", "--no-fail", "--no-limit", "--rounds", "1",
        "--data", str(directory), "--only", *doors,
    ]  # fmt: skip
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def check(report, doors):
    cells = {f"{door}, {model} 16" for door in doors for model in (*MODELS, *TYPED_MODELS)}
    seconds = report["results"]["seconds_per_epoch"]
    assert set(seconds) == cells
    assert all(set(cell) == {"gids", "best peer", "in memory"} for cell in seconds.values())
    assert set(report["results"]["best_peer"]) == set(report["results"]["over_memory"]) == cells
    assert len(report["results"]["rates"]) == 3 * len(cells)
    assert report["bars"] == [], "a quick run promises nothing"


@pytest.mark.long
def test_quick_run_through_every_door(tmp_path):
    pytest.importorskip("dgl", reason=NO_DGL)
    doors = ["plain", "dgl", "pyg"]
    report = run(tmp_path, *doors)
    check(report, doors)
    assert report["results"]["to_accuracy"]["gids"]["reached"]
