"""Options of the commands that make datasets and plans: each is given, and what it changes is seen.

The last test looks for every option of every command in the tests; what no test gives stands there with the reason.
"""

import argparse
import importlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import gids
from gids.cli import COMMANDS, NESTED, main
from gids.generate import communities
from gids.partition import stored

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def dataset(tmp_path):
    return communities(tmp_path / "graph", num_nodes=400, degree=5, dim=4, train=0.3)


def run(*words):
    return main([str(word) for word in words])


def said(capsys, *words):
    capsys.readouterr()
    assert run(*words, "--json") == 0
    return json.loads(capsys.readouterr().out)


def test_partition(dataset, capsys):
    common = ("partition", dataset.path, "--parts", 4, "--method", "stream", "--quiet")
    one = said(capsys, *common, "--name", "one", "--passes", 1, "--seed", 3, "--threads", 1)
    assert (one["parts"], one["name"]) == (4, "one")
    assert run(*common, "--name", "one") == 1, "it exists"
    assert run(*common, "--name", "one", "--seed", 3, "--overwrite", "--threads", 2) == 0
    assert run(*common, "--name", "two", "--passes", 3, "--imbalance", 0.01, "--train-imbalance", 0.5) == 0
    assert run(*common, "--name", "three", "--split", "val") == 0
    assert stored.stored_names(dataset) == ["one", "three", "two"]
    two = stored.load(dataset, "two")
    assert two.balance() <= 1.01 + 4 / 400
    assert not np.array_equal(two.parts["_N"], stored.load(dataset, "one").parts["_N"])


def test_reorder(dataset, tmp_path):
    assert run("partition", dataset.path, "--parts", 4, "--name", "p", "--quiet") == 0
    assert run("partition", dataset.path, "--parts", 2, "--name", "q", "--quiet") == 0
    (tmp_path / "disk").mkdir()
    out = tmp_path / "new"
    words = ("--by", "partition", "--partition", "p", "--quiet")
    assert run("reorder", dataset.path, out, *words, "--stripe-dir", tmp_path / "disk") == 0
    first = gids.open(out)
    assert first.feature_table().stripes[0].path.is_relative_to(tmp_path / "disk")
    assert first.manifest.edges["_N", "_E", "_N"].edge_ids is None
    by_part = np.array(first.original_ids())
    parts = stored.load(dataset, "p").parts["_N"][by_part]
    assert (np.diff(parts) >= 0).all()
    assert run("reorder", dataset.path, out, "--by", "degree", "--quiet") == 1, "it exists"
    assert run("reorder", dataset.path, out, "--by", "degree", "--edge-ids", "--overwrite", "--quiet") == 0
    second = gids.open(out)
    assert second.manifest.edges["_N", "_E", "_N"].edge_ids is not None
    assert not np.array_equal(by_part, second.original_ids())


def test_generate_communities(tmp_path):
    common = ("generate", "communities", "--nodes", 2000, "--dim", 4, "--quiet")
    for name, words in {"few": ("--degree", 3), "many": ("--degree", 9)}.items():
        assert run(*common[:2], tmp_path / name, *common[2:], *words) == 0
    few, many = (gids.open(tmp_path / name).num_edges() for name in ("few", "many"))
    assert 2.5 < many / few < 3.5
    blocks = ("--blocks", 20, "--inside", 0.9)
    assert run(*common[:2], tmp_path / "even", *common[2:], *blocks, "--block-ratio", 1) == 0
    assert run(*common[:2], tmp_path / "uneven", *common[2:], *blocks, "--block-ratio", 8) == 0
    assert gids.open(tmp_path / "even").id != gids.open(tmp_path / "uneven").id


def known(path):
    return gids.open(path).knowledge


def facts(path):
    return gids.open(path).manifest.knowledge


def test_generate_knowledge(tmp_path):
    common = ("--entities", 500, "--quiet")
    assert run("generate", "kg", tmp_path / "a", *common) == 0
    base = facts(tmp_path / "a")
    assert (base.base_relations, base.identity) == (64, False)
    changed = {
        "relations": ("--relations", 5),
        "degree": ("--degree", 3),
        "communities": ("--communities", 2),
        "locality": ("--locality", 0.1),
        "skew": ("--skew", 1),
        "relation-skew": ("--relation-skew", 1),
        "identity": ("--identity",),
        "held out": ("--valid", 0.1, "--test", 0.2),
    }
    ids = {gids.open(tmp_path / "a").id}
    for name, words in changed.items():
        assert run("generate", "kg", tmp_path / name, *common, *words) == 0
        ids.add(gids.open(tmp_path / name).id)
    assert len(ids) == 1 + len(changed)
    assert facts(tmp_path / "relations").base_relations == 5
    assert facts(tmp_path / "degree").num_triples < base.num_triples / 2
    assert facts(tmp_path / "identity").identity
    valid, test = (len(known(tmp_path / "held out").queries(split)) for split in ("valid", "test"))
    assert 0 < valid < test
    assert run("generate", "kg", tmp_path / "a", *common) == 1, "it exists"
    assert run("generate", "kg", tmp_path / "a", *common, "--relations", 7, "--overwrite") == 0
    assert facts(tmp_path / "a").base_relations == 7


def test_convert_knowledge(tmp_path):
    rows = [("b", "r", "a"), ("c", "r", "b"), ("a", "s", "c"), ("d", "s", "a"), ("a", "r", "d"), ("e", "r", "a")]
    (tmp_path / "t.txt").write_text("tail;relation;head\n" + "".join(f"{t};{r};{h}\n" for h, r, t in rows))
    text = ("--from", "text", "--separator", ";", "--columns", "trh", "--header", "--quiet")
    assert run("convert", "kg", tmp_path / "t.txt", tmp_path / "a", *text, "--identity") == 0
    assert (known(tmp_path / "a").num_entities, facts(tmp_path / "a").base_relations) == (5, 2)
    assert facts(tmp_path / "a").identity
    assert run("convert", "kg", tmp_path / "t.txt", tmp_path / "a", *text) == 1, "it exists"
    shares = ("--valid", 0.3, "--test", 0.3, "--train", 1)
    assert run("convert", "kg", tmp_path / "t.txt", tmp_path / "a", *text, *shares, "--overwrite") == 0
    assert len(known(tmp_path / "a").queries("valid")) + len(known(tmp_path / "a").queries("test")) > 0
    (tmp_path / "n.tsv").write_text("0\t0\t1\n1\t0\t2\n")
    assert run("convert", "kg", tmp_path / "n.tsv", tmp_path / "n", "--numeric", "--quiet") == 0
    assert known(tmp_path / "n").num_entities == 3
    (tmp_path / "l.nt").write_text('<a> <r> <b> .\n<b> <r> "word" .\n')
    for name, words, entities in (("without", (), 2), ("with", ("--literals",), 3)):
        assert run("convert", "kg", tmp_path / "l.nt", tmp_path / name, *words, "--quiet") == 0
        assert known(tmp_path / name).num_entities == entities
    assert run("generate", "kg", tmp_path / "g", "--entities", 300, "--reverse", "--quiet") == 0
    words = ("--from", "gids", "--inductive", 0.2, "--quiet")
    assert run("convert", "kg", tmp_path / "g", tmp_path / "inductive", *words) == 0


def test_slice(tmp_path, capsys):
    assert run("generate", "kg", tmp_path / "g", "--entities", 300, "--quiet") == 0
    words = ("slice", tmp_path / "g", "--hops", 2, "--limit", 20, "--quiet", "--atom-cache", "1MiB")
    small = said(capsys, *words, "--path", tmp_path / "small", "--slice", "1KiB")
    large = said(capsys, *words, "--path", tmp_path / "large", "--slice", "8KiB")
    assert small["slices"] > large["slices"]


def test_pack(dataset, tmp_path):
    with gids.DatasetWriter(tmp_path / "rich") as writer:
        writer.add_nodes(200)
        writer.add_features(torch.randn(200, 3))
        writer.add_features(torch.randn(200, 2), name="more")
        writer.add_csc(torch.arange(201) * 2, torch.arange(400) % 200)
        writer.add_edge_features(torch.randn(400, 2), name="weight")
        writer.add_split("train", torch.arange(0, 200, 2))
        writer.add_split("val", torch.arange(50))
    common = ("pack", tmp_path / "rich", "--fanouts", 2, "--batch-size", 10, "--quiet", "--hot", "1KiB")
    words = ("--seeds", "val", "--seed", 5, "--no-shuffle", "--features", "more", "--edge-features", "weight")
    words += ("--world-size", 2, "--reuse", "--memory", "64MiB", "--topology", "disk")
    assert run(*common[:2], tmp_path / "packed", *common[2:], *words) == 0
    packed = gids.pack.Packed(tmp_path / "packed")
    assert {str(key.name) for key in packed.tables} == {"more", "weight"}
    assert packed.reuse
    assert len(packed.batches_of_rank) == 2
    assert (packed.identity["seed"], packed.identity["shuffle"]) == (5, False)
    assert packed.identity["seeds"]["_N"][0] == 50
    assert run(*common[:2], tmp_path / "labor", *common[2:], "--sampler", "labor") == 0
    assert "Labor" in gids.pack.Packed(tmp_path / "labor").identity["sampler"]


def test_budget(dataset, capsys):
    common = ("budget", dataset.path, "--budget", "64MiB", "--batch-size", 16, "--fanouts", 3, 3)
    fixed = ("--cache", "2KiB", "--groups", "128KiB", "--staging", "1MiB", "--sweep-batches", 2, "--seed", 3)
    document = json.dumps(said(capsys, *common, *fixed, "--features", "feat"))
    assert re.search(rf"\b{1 << 20}\b", document), "staging"
    assert said(capsys, *common, "--features") != said(capsys, *common, "--features", "feat")
    assert run(*common, "--edge-features", "none") == 1
    described = ("budget", "--rows", "1M", "--dim", 128, "--batch-rows", "10k", "--budget", "1GiB")
    half, full = (said(capsys, *described, "--dtype", dtype) for dtype in ("float16", "float32"))
    assert half != full


def test_convert_arrays(tmp_path):
    place = tmp_path / "a"
    place.mkdir()
    arrays = {
        "x": np.ones((5, 3), np.float32), "y": np.array([0, 1, 0, 1, 0]), "p": np.array([0, 1, 2, 3, 3, 4]),
        "i": np.array([1, 2, 3, 0]), "w": np.arange(4, dtype=np.float32), "e": np.ones((4, 2), np.float32),
        "v": np.array([1]), "t": np.array([False, False, True, True, False]),
    }  # fmt: skip
    for name, values in arrays.items():
        np.save(place / f"{name}.npy", values)
    words = {
        "--features": "x", "--labels": "y", "--indptr": "p", "--indices": "i", "--edge-weights": "w",
        "--edge-features": "e", "--val": "v", "--test": "t",
    }  # fmt: skip
    given = [word for option, name in words.items() for word in (option, place / f"{name}.npy")]
    assert run("convert", place, tmp_path / "out", "--from", "arrays", "--quiet", *given) == 0
    made = gids.open(tmp_path / "out")
    assert made.labels().tolist() == [0, 1, 0, 1, 0]
    assert (made.split("val").tolist(), made.split("test").tolist()) == ([1], [2, 3])
    entry = made.manifest.edges["_N", "_E", "_N"]
    assert entry.weights is not None
    assert list(entry.features) == ["feat"]
    np.testing.assert_array_equal(made.indptr(), arrays["p"])


def test_convert_in_another_order(tmp_path, monkeypatch):
    place = tmp_path / "cliques"  # of even and of odd nodes
    place.mkdir()
    edges = [(i, j) for i in range(12) for j in range(i % 2, 12, 2) if i != j]
    np.save(place / "edges.npy", np.array(edges).T)
    np.save(place / "features.npy", np.arange(24, dtype=np.float32).reshape(12, 2))
    words = ("convert", place, tmp_path / "new", "--order", "partition", "--parts", 2, "--in-place", "--quiet")
    with monkeypatch.context() as patch:
        patch.setattr("gids.cli.convert.reorder", lambda *a, **k: (_ for _ in ()).throw(gids.GidsError("killed")))
        assert run(*words) == 1
    with monkeypatch.context() as patch:  # what was converted is found again
        patch.setattr("gids.cli.convert.convert", lambda *a, **k: pytest.fail("it was converted"))
        assert run(*words) == 0
    made = gids.open(tmp_path / "new")
    ids = np.array(made.original_ids())
    assert sorted(ids[:6] % 2) in ([0] * 6, [1] * 6)
    rows = made.feature_table()
    with gids.storage.RowReader(rows) as reader:
        np.testing.assert_array_equal(reader.read(torch.arange(12)).numpy()[:, 0], 2 * ids)
    assert stored.stored_names(made) == ["2"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cliques", "new"]
    assert run(*words) == 1, "it exists"
    assert run("convert", place, tmp_path / "other", "--order", "degree", "--parts", 2, "--quiet") == 1, "no parts"
    assert run("convert", place, tmp_path / "other", "--order", "degree", "--quiet") == 0


@pytest.mark.slow
def test_status_of_other_evidence(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("GIDS_CACHE_DIR", str(ROOT / "build" / "cache"))  # kernels for seven devices take 20 s
    page, text = tmp_path / "page.md", "# A page\n<!-- status:begin -->\n{}\n<!-- status:end -->\nends\n"
    page.write_text(text.format("an old table"))
    assert run("status", "--evidence", tmp_path, "--write", page) == 0
    table = capsys.readouterr().out.rstrip("\n")
    assert table.count("|") > 10
    assert page.read_text().rstrip("\n") == text.format(table).rstrip("\n")
    page.write_text("no markers")
    assert run("status", "--write", page) == 1
    assert "must have the lines" in capsys.readouterr().err
    assert run("status", "--registers") == 0
    assert capsys.readouterr().out.startswith("| kernel | sm_")


#: Options that no test gives, each with the reason.
NOT_GIVEN = {
    "convert kg --inverses": "needs WordNet's database, which the tests of the converter read directly",
    "nvme load --overwrite": "writes to a drive that the command line opens by its device; the function is tested",
} | {
    f"bench {name}": "a benchmark's own option: every benchmark runs with --quick, and with others by hand"
    for name in (
        "epoch --batches", "epoch --option", "doors --batches", "doors --budget", "sample --rounds", "sample --keep",
        "sample --only", "disk --keep", "cache --seed", "pack --only", "pack --medium", "pack --rounds",
        "pack --no-plan", "pack --option", "kg --data", "kg --no-limit", "cuda --profile", "cuda --storage",
        "partition --only",
    )
}  # fmt: skip


def options_of(parser, prefix):
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield from options_of(below, (*prefix, name))
        else:
            yield from ((prefix, o) for o in action.option_strings if o.startswith("--") and o != "--help")


def test_every_option_is_given_by_some_test():
    texts = [path.read_text() for path in (ROOT / "tests").rglob("*.py")] + [(ROOT / "README.md").read_text()]
    texts = [text.split("#: Options that no " + "test gives")[0] for text in texts]

    def is_given(words, option):
        return any(
            re.search(rf"[\"' ]{option}[\"' =`]", text)
            and all(re.search(rf"[\"' ]{re.escape(word)}[\"' ]", text) for word in words)
            for text in texts
        )

    missing = set()
    for command in [*((name,) for name in COMMANDS), *NESTED]:
        parser = argparse.ArgumentParser()
        importlib.import_module("gids.cli." + "_".join(command)).configure(parser)
        missing |= {
            f"{' '.join(words)} {option}"
            for words, option in options_of(parser, command)
            if not is_given(words, option)
        }
    assert missing == set(NOT_GIVEN)
