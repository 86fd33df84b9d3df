"""What inference leaves behind: tables that open and verify, tables added to their dataset, classes, Parquet."""

import numpy as np
import pytest
import torch

import gids
from gids.dataset.verifier import verify
from gids.errors import ConfigError, DatasetError
from gids.infer.layers import layers_of
from gids.models import GraphSAGE
from gids.partition import load, make, reorder

from .conftest import DIM, NODES, in_memory, result

pytestmark = pytest.mark.usefixtures("nothing_left", "seeded")
OPTIONS = {"budget": "64MiB", "tile": 512}


@pytest.fixture
def model():
    return GraphSAGE(DIM, 24, 5, 2)


def test_dtype_stripes_and_checksums(graph, model, tmp_path):
    homes = [tmp_path / "a", tmp_path / "b"]
    for home in homes:
        home.mkdir()
    found = gids.infer(model, graph, tmp_path / "out", dtype="float16", stripe_dirs=homes, **OPTIONS)
    table = found.feature_table(name="embedding")
    assert (table.dtype, table.dim, table.num_rows, len(table.stripes)) == ("float16", 5, NODES, 2)
    assert torch.equal(result(found), in_memory(layers_of(model), graph).half())
    assert verify(found) == []


def test_classes_and_scores(graph, model, tmp_path):
    found = gids.infer(model, graph, tmp_path / "out", top_k=2, rows=False, name="guess", **OPTIONS)
    scores, classes = in_memory(layers_of(model), graph).sort(dim=1, descending=True, stable=True)
    assert found.feature_names() == ["guess_class", "guess_score"]
    assert torch.equal(result(found, name="guess_class"), classes[:, :2].int())
    assert torch.equal(result(found, name="guess_score"), scores[:, :2])


def test_results_are_features_of_the_next_model(graph, model, tmp_path):
    data = tmp_path / "data"
    reorder(graph, data, order={"_N": torch.arange(NODES)})
    dataset = gids.open(data)
    make(dataset, 4)
    before = dataset.id
    added = gids.infer(model, dataset, **OPTIONS)
    assert added.path == data
    assert added.id != before
    assert added.feature_names() == ["feat", "half", "embedding"]
    assert verify(added) == []
    assert load(added).num_parts == 4  # partitions name the dataset by its contents, and were told
    assert torch.equal(result(added), in_memory(layers_of(model), dataset))
    assert [path.name for path in data.iterdir() if path.name.startswith(".")] == []
    second = GraphSAGE(5, 8, 3, 2)
    found = gids.infer(second, added, tmp_path / "out", features="embedding", **OPTIONS)
    assert torch.equal(result(found), in_memory(layers_of(second), added, features="embedding"))
    with pytest.raises(ConfigError, match="has _N/embedding already"):
        gids.infer(second, added, features="embedding", **OPTIONS)
    again = gids.infer(second, added, features="embedding", overwrite=True, **OPTIONS)
    assert torch.equal(result(again), result(found))
    assert verify(again) == []


def test_a_kill_before_results_are_added(graph, model, tmp_path, monkeypatch):
    reorder(graph, tmp_path / "data", order={"_N": torch.arange(NODES)})
    dataset = gids.open(tmp_path / "data")

    def killed(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("gids.dataset.extend._publish", killed)
        with pytest.raises(KeyboardInterrupt):
            gids.infer(model, dataset, **OPTIONS)
    assert gids.open(dataset.path).feature_names() == ["feat", "half"]
    monkeypatch.setattr("gids.infer.run.LayerSweep.run", killed)  # nothing is computed again
    assert torch.equal(result(gids.infer(model, dataset, **OPTIONS)), in_memory(layers_of(model), dataset))


def test_relabelled_nodes_keep_their_original_ids(graph, model, tmp_path):
    order = torch.randperm(NODES, generator=torch.Generator().manual_seed(5))
    shuffled = reorder(graph, tmp_path / "shuffled", order={"_N": order})
    found = gids.infer(model, shuffled, tmp_path / "out", **OPTIONS)
    assert np.array_equal(found.original_ids(), order.numpy())
    expected = in_memory(layers_of(model), graph)
    assert torch.equal(result(found), expected[order])


def test_parquet_in_parts(graph, model, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is an extra")
    order = torch.randperm(NODES, generator=torch.Generator().manual_seed(5))
    shuffled = reorder(graph, tmp_path / "shuffled", order={"_N": order})
    found = gids.infer(model, shuffled, tmp_path / "out", top_k=1, **OPTIONS)
    paths = gids.infer.to_parquet(found, tmp_path / "table", part="32KiB")
    assert len(paths) > 1
    whole = parquet.read_table(tmp_path / "table")
    assert whole.column_names == ["id", "embedding", "embedding_class", "embedding_score"]
    assert np.array_equal(whole["id"].to_numpy(), order.numpy())
    rows = np.stack(whole["embedding"].to_numpy())
    assert np.array_equal(rows, result(found).numpy())
    assert np.array_equal(whole["embedding_class"].to_numpy(), result(found, name="embedding_class").numpy())
    with pytest.raises(DatasetError, match="exists; choose another path"):
        gids.infer.to_parquet(found, tmp_path / "table")


def test_exact_accuracy(graph, model, tmp_path):
    found = gids.infer(model, graph, tmp_path / "out", top_k=1, **OPTIONS)
    rows = gids.infer(model, graph, tmp_path / "rows", **OPTIONS)
    test = graph.split("test")
    right = int((in_memory(layers_of(model), graph)[test].argmax(1) == graph.labels()[test]).sum())
    for results in (found, rows):
        score = gids.infer.accuracy(results, graph, "test", budget="64KiB")
        assert (score.correct, score.total, score.share) == (right, 700, right / 700)


@pytest.mark.parametrize("fixed", [False, True])
def test_ranks_of_links(graph, model, tmp_path, fixed):
    found = gids.infer(model, graph, tmp_path / "out", **OPTIONS)
    generator = torch.Generator().manual_seed(7)
    src, dst = (torch.randint(0, NODES, (150,), generator=generator) for _ in range(2))
    negatives = torch.randint(0, NODES, (150, 30), generator=generator) if fixed else 30
    ranks = gids.infer.link_ranks(found, src, dst, negatives=negatives, ks=(1, 10), seed=3)
    assert ranks == gids.infer.link_ranks(found, src, dst, negatives=negatives, ks=(1, 10), seed=3, budget="64KiB")
    if fixed:
        x = result(found)
        true, false = (x[src] * x[dst]).sum(1), torch.einsum("nd,nkd->nk", x[src], x[negatives])
        other = negatives != dst[:, None]
        expected = 1 + ((false > true[:, None]) & other).sum(1) + ((false == true[:, None]) & other).sum(1) / 2
        assert ranks.mrr == pytest.approx(float((1 / expected).mean()), rel=1e-6)
        assert ranks.hits == {k: int((expected <= k).sum()) / 150 for k in (1, 10)}
    else:
        assert ranks != gids.infer.link_ranks(found, src, dst, negatives=30, ks=(1, 10), seed=4)
    with pytest.raises(ConfigError, match=r"src must be in \[0, 3000\) \(got .* to 3000\)"):
        gids.infer.link_ranks(found, torch.tensor([NODES]), dst[:1])


def test_a_model_that_has_diverged_ranks_last(graph, tmp_path):
    found = gids.infer([lambda block, x: x[: block.num_dst["_N"]] * float("nan")], graph, tmp_path / "out", **OPTIONS)
    ranks = gids.infer.link_ranks(
        found, torch.tensor([1, 2]), torch.tensor([3, 4]), negatives=torch.tensor([[5, 6, 3]] * 2)
    )
    # The true tail is among the first edge's negatives, and does not count there.
    assert ranks.mrr == pytest.approx((1 / 3 + 1 / 4) / 2)
    assert ranks.hits == {1: 0.0, 3: 0.5, 10: 1.0}
