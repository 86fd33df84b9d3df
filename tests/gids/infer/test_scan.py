"""A scan adds rows to sums as they pass by: the bits of the layers in memory, whatever the parts, kills and faults are."""

import errno
import itertools
import re
from pathlib import Path

import pytest
import torch

import gids
from gids.cli import main
from gids.dataset.table_writer import TableWriter
from gids.errors import ConfigError, StorageError
from gids.infer import Inference, InferOptions, results
from gids.infer.forecast import forecast
from gids.infer.layers import layers_of
from gids.infer.run import Opened
from gids.models import GAT, GCN, GraphSAGE
from gids.storage import StorageOptions
from gids.storage.options import FaultOptions

from .conftest import DIM, NODES, in_memory, result, whole

pytestmark = pytest.mark.usefixtures("nothing_left", "seeded")
MODELS = {
    "sage": lambda: GraphSAGE(DIM, 24, 5, 2, dropout=0.5),
    "gcn, narrower": lambda: GCN(DIM, 8, 5, 2),
    "gcn, wider, three layers": lambda: GCN(DIM, 32, 40, 3, self_loops=False),
}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Blocks of a few rows, and little memory beside the sums."""
    monkeypatch.setattr("gids.infer.scan.BLOCK_BYTES", 32 << 10)
    monkeypatch.setattr("gids.infer.scan.STAGING_BYTES", 1 << 20)


@pytest.fixture(scope="module")
def ascending(graph, tmp_path_factory):
    """The same graph, every list of in-edges by source."""
    indptr, indices = torch.from_numpy(graph.indptr().copy()), whole(graph.indices_table())
    lists = [indices[a:b].sort().values for a, b in itertools.pairwise(indptr)]
    with gids.DatasetWriter(tmp_path_factory.mktemp("graph") / "ascending") as writer:
        writer.add_nodes(NODES)
        writer.add_features(whole(graph.feature_table()))
        writer.add_features(whole(graph.feature_table(name="half")), name="half")
        writer.add_csc(indptr, torch.cat(lists))
    return gids.open(writer.path)


def job(model, dataset, out, **options):
    return Inference(model, dataset, out, InferOptions(scan=True, tile=256, **options))


def least(model, dataset, out):
    """The least budget that a scan takes: as much as its widest layer."""
    budget = "1MiB"
    while True:
        try:
            with Opened(job(model, dataset, out, budget=budget)):
                return budget
        except ConfigError as refused:
            budget = re.search(r"budget must be at least ([\d.]+ MiB) for layer \d of a scan", str(refused))[1]


@pytest.mark.parametrize("model", MODELS)
def test_a_scan_gives_the_bits_of_the_layers_in_memory(graph, ascending, tmp_path, model):
    model = MODELS[model]().eval()
    expected = in_memory(layers_of(model), ascending)
    # Order of a list, budget, and the way in which rows are read: nothing of it matters.
    by_need = gids.infer(model, ascending, tmp_path / "need", tile=256)
    assert torch.equal(result(by_need), expected)
    passes = set()
    for number, budget in enumerate([least(model, graph, tmp_path / "out"), "1GiB"]):
        run = job(model, graph, tmp_path / str(number), budget=budget)
        assert torch.equal(result(run.run()), expected)
        passes.add(int(re.search(r"pass by (\d+) times", run.facts["layers"][0]["reasons"][0])[1]))
        for layer in run.facts["layers"]:
            assert layer["memory"]["sums"]["peak"] <= layer["memory"]["sums"]["allotted"]
    assert min(passes) == 1 < max(passes)


def test_half_precision_is_widened(graph, ascending, tmp_path):
    model = GraphSAGE(DIM, 24, 5, 2)
    found = gids.infer(model, graph, tmp_path / "out", scan=True, tile=256, features="half")
    assert torch.equal(result(found), in_memory(layers_of(model), ascending, features="half"))


def test_the_plan_knows_every_byte(graph, tmp_path):
    model = GraphSAGE(DIM, 24, 5, 2)
    run = job(model, graph, tmp_path / "out", budget=least(model, graph, tmp_path / "out"))
    planned = forecast(run)
    run.run()
    facts = run.facts["layers"]
    assert [layer.bytes_written for layer in planned.layers] == [layer["bytes_written"] for layer in facts]
    for layer, fact in zip(planned.layers, facts, strict=True):
        assert layer.bytes_read == pytest.approx(fact["bytes_read"], rel=0.1)  # sectors at the ends of blocks


def files(path):
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.mark.parametrize("writes", [3, 9, 20])
def test_a_killed_scan_goes_on_where_it_was(graph, tmp_path, monkeypatch, writes):
    monkeypatch.setattr(results, "CHECKPOINT_BYTES", 1)
    monkeypatch.setattr("gids.dataset.checksum.CHUNK_BYTES", 2048)
    model = GraphSAGE(DIM, 24, 5, 2)
    whole_run = job(model, graph, tmp_path / "whole")
    expected = files(whole_run.run().path)
    left, append = [writes], TableWriter.append

    def killed(self, rows):
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        append(self, rows)

    budget = least(model, graph, tmp_path / "out")
    with monkeypatch.context() as patched:
        patched.setattr(TableWriter, "append", killed)
        with pytest.raises(KeyboardInterrupt):
            job(model, graph, tmp_path / "out", budget=budget).run()
    again = job(model, graph, tmp_path / "out", budget=budget)
    assert files(again.run().path) == expected
    computed = sum(layer["tiles"] for layer in again.facts["layers"])
    assert 0 < computed < sum(layer["tiles"] for layer in whole_run.facts["layers"])


@pytest.mark.parametrize("engine", ["uring", "pread"])
def test_a_failed_read_names_file_and_offset(graph, tmp_path, engine):
    fault = FaultOptions(fail_at=5, error_number=errno.EIO)
    storage = StorageOptions(engine=engine, merge_gap_bytes=0, max_io_bytes=4096, fault=fault)
    with pytest.raises(StorageError, match="Input/output error") as caught:
        job(GraphSAGE(DIM, 24, 5, 2), graph, tmp_path / "out", storage=storage).run()
    tables = {table.stripes[0].path: table for table in (graph.feature_table(), graph.indices_table())}
    assert 0 <= caught.value.offset < tables[Path(caught.value.path)].total_bytes
    del caught


def test_what_is_refused(graph, typed, tmp_path):
    sage = GraphSAGE(DIM, 24, 5, 2)
    for model, dataset, options, message in [
        (GAT(DIM, 16, 5, 2, heads=2), graph, {}, r"scan needs layers that take the sum or the mean .*got GATLayer"),
        (sage, graph, {"fanouts": [3, 3]}, "scan must be without fanouts"),
        (sage, graph, {"edge_weights": True}, "scan must be without edge_weights"),
        (sage, graph, {"edge_features": "feat"}, "scan must be without edge_features"),
        (sage, typed, {}, "scan needs a graph of one node type and one edge type"),
    ]:
        with pytest.raises(ConfigError, match=message):
            gids.infer(model, dataset, tmp_path / "out", scan=True, **options)


def test_the_command(graph, tmp_path, capsys):
    arguments = f'{{"in_dim": {DIM}, "hidden_dim": 24, "out_dim": 5, "num_layers": 2}}'
    command = ["infer", str(graph.path), str(tmp_path / "out"), "--model", "gids.models:GraphSAGE", "--args", arguments]
    assert main([*command, "--scan", "--plan"]) == 0
    assert re.search(r"layer 0: .* read \(2\.\d+ of the least\)", capsys.readouterr().out)
    assert main([*command, "--scan", "--quiet"]) == 0
    assert gids.open(tmp_path / "out").feature_names() == ["embedding"]
