"""gids infer: a model by its name, its weights from a file, a plan beforehand, accuracy afterwards."""

import json
import re
import sys

import pytest
import torch

import gids
from gids.cli import main
from gids.cli.infer import load_model
from gids.infer.layers import layers_of
from gids.models import GraphSAGE

from .conftest import DIM, in_memory, result

pytestmark = pytest.mark.usefixtures("nothing_left", "seeded")


def test_plan_run_and_accuracy(graph, tmp_path, capsys):
    model = GraphSAGE(DIM, 24, 5, 2)
    torch.save(model.state_dict(), tmp_path / "model.pt")
    arguments = {"in_dim": DIM, "hidden_dim": 24, "out_dim": 5, "num_layers": 2}
    command = ["infer", str(graph.path), str(tmp_path / "out"), "--model", "gids.models:GraphSAGE", "--json"]
    command += ["--args", json.dumps(arguments), "--weights", str(tmp_path / "model.pt"), "--budget", "64MiB"]
    assert main([*command, "--plan"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert not (tmp_path / "out").exists()
    assert main([*command, "--accuracy", "test"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert plan["bytes_written"] == facts["bytes_written"]
    assert plan["bytes_read"] == pytest.approx(facts["bytes_read"], rel=0.25)
    expected = in_memory(layers_of(model), graph)
    assert torch.equal(result(gids.open(tmp_path / "out")), expected)
    test = graph.split("test")
    assert facts["accuracy"] == float((expected[test].argmax(1) == graph.labels()[test]).double().mean())


def test_what_is_refused(graph, tmp_path, capsys):
    for model, arguments, message in [
        ("gids.models", "{}", "--model must be module:name"),
        ("gids.nothing:Model", "{}", "--model must name a module or a file that can be imported"),
        ("gids.models:Nothing", "{}", "--model must name a callable of gids.models"),
        ("gids.models:GraphSAGE", "{}", "--args must be the keyword arguments of gids.models:GraphSAGE"),
    ]:
        out = str(tmp_path / "out")
        assert main(["infer", str(graph.path), out, "--model", model, "--args", arguments, "--quiet"]) == 1
        assert message in capsys.readouterr().err


def test_what_follows_is_checked_before_anything_is_computed(graph, tmp_path, capsys, monkeypatch):
    (tmp_path / "there").mkdir()
    arguments = json.dumps({"in_dim": DIM, "hidden_dim": 24, "out_dim": 5, "num_layers": 2})
    command = ["infer", str(graph.path), str(tmp_path / "out"), "--model", "gids.models:GraphSAGE", "--quiet"]
    command += ["--args", arguments]
    monkeypatch.setattr("gids.infer.run.Inference.run", lambda self: pytest.fail("something was computed"))
    assert main([*command, "--accuracy", "tset"]) == 1
    assert "nodes must be one of the splits test (got 'tset')" in capsys.readouterr().err
    assert main([*command, "--parquet", str(tmp_path / "there")]) == 1
    assert "there exists; choose another path" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert main([*command, "--parquet", str(tmp_path / "new")]) == 1
    assert "writing Parquet needs pyarrow (pip install 'gids[parquet]')" in capsys.readouterr().err


MODEL = '''
import torch

def make(width):
    """Layers that look at edges: no gids.models."""

    def layer(block, x):
        (etype,) = block.edge_types
        every = torch.arange(len(block.src[etype]))
        seen = torch.cat([x[block.src[etype]], block.edge_features[etype]], 1) * block.weights[etype].unsqueeze(1)
        return torch.nn.functional.embedding_bag(
            every, seen, block.indptr[etype], mode="sum", include_last_offset=True
        )[:, :width]

    return [layer, layer]
'''


def test_every_option_reaches_what_is_computed(graph, tmp_path, capsys):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is an extra")
    (tmp_path / "model.py").write_text(MODEL)
    homes = [tmp_path / "a", tmp_path / "b"]
    for home in homes:
        home.mkdir()
    model = f"{tmp_path / 'model.py'}:make"
    command = ["infer", str(graph.path), str(tmp_path / "out"), "--model", model, "--args", '{"width": 4}', "--quiet"]
    command += ["--features", "half", "--edge-features", "feat", "--edge-weights", "--fanouts", "3", "2", "--seed", "9"]
    command += ["--name", "guess", "--dtype", "float16", "--top-k", "2", "--tile", "512", "--nodes", "_N"]
    rows = ["--stripe-dir", str(homes[0]), "--stripe-dir", str(homes[1]), "--parquet", str(tmp_path / "parts")]
    assert main([*command, *rows]) == 0
    layers = load_model(model, {"width": 4}, None, "cpu")
    expected = in_memory(layers, graph, [3, 2], seed=9, features="half", weights=True, edges=True).half()
    found = gids.open(tmp_path / "out")
    assert torch.equal(result(found, name="guess"), expected)
    assert len(found.feature_table(name="guess").stripes) == 2
    classes = result(found, name="guess_class")
    assert parquet.read_table(tmp_path / "parts").column_names == ["id", "guess", "guess_class", "guess_score"]
    assert main([*command, "--no-rows"]) == 1
    assert "exists" in capsys.readouterr().err
    assert main([*command, "--no-rows", "--overwrite"]) == 0
    assert gids.open(tmp_path / "out").feature_names() == ["guess_class", "guess_score"]
    assert torch.equal(result(gids.open(tmp_path / "out"), name="guess_class"), classes)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_a_device_that_is_not_there(graph, tmp_path, capsys):
    command = ["infer", str(graph.path), str(tmp_path / "out"), "--model", "gids.models:GraphSAGE", "--args"]
    command += [f'{{"in_dim": {DIM}, "hidden_dim": 24, "out_dim": 5, "num_layers": 2}}']
    assert main([*command, "--device", "cuda", "--device-budget", "64MiB", "--quiet"]) == 1
    assert re.search("cuda|CUDA|GPU", capsys.readouterr().err)
