"""Knowledge graphs from text, N-Triples, OGB's and WordNet's files: every triple once, by head, with its names."""

import gzip
import json

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gids
from gids import ConfigError, DatasetError
from gids.cli import main
from gids.convert.kg import KgOptions, convert_kg
from gids.convert.kg import write as module
from gids.convert.kg.text import TextOptions
from gids.dataset import verify

TSV = "paris\tcapital_of\tfrance\nlyon\tin\tfrance\nparis\tin\tfrance\nlyon\tin\tfrance\n"


def stored(known):
    """Triples of a graph, as a set and in stored order."""
    indptr, rows = np.asarray(known.indptr()), np.asarray(known.triples())
    heads = np.repeat(np.arange(known.num_entities), np.diff(indptr))
    return [(int(h), int(r), int(t)) for h, (r, t) in zip(heads, rows, strict=True)]


def named(known):
    return {(known.entity_name(h), known.relation_name(r), known.entity_name(t)) for h, r, t in stored(known)}


def test_tsv_with_literal_values(tmp_path):
    (tmp_path / "a.tsv").write_text(TSV)
    known = convert_kg(tmp_path / "a.tsv", tmp_path / "out").knowledge
    # Entities and relations are numbered by first occurrence; the repeated triple is there once.
    assert [known.entity_name(i) for i in range(3)] == ["paris", "france", "lyon"]
    assert stored(known) == [(0, 0, 1), (0, 1, 1), (2, 1, 1)]
    assert known.queries("train").tolist() == [[0, 0, 1], [2, 1, 1], [0, 1, 1], [2, 1, 1]]
    assert (known.entity_id("lyon"), known.relation_id("in")) == (2, 1)
    assert known.triples_table.num_rows == 64  # filled up to a block


def test_reverse_and_identity(tmp_path):
    (tmp_path / "a.tsv").write_text(TSV)
    options = KgOptions(reverse=True, identity=True)
    dataset = convert_kg(tmp_path / "a.tsv", tmp_path / "out", options=options)
    known = dataset.knowledge
    assert stored(known) == [
        (0, 0, 1),
        (0, 1, 1),
        (0, 4, 0),
        (1, 2, 0),
        (1, 3, 0),
        (1, 3, 2),
        (1, 4, 1),
        (2, 1, 1),
        (2, 4, 2),
    ]
    assert [known.relation_name(r) for r in range(5)] == ["capital_of", "in", "capital_of^-1", "in^-1", "identity"]
    assert (known.reverse_of(0), known.reverse_of(3)) == (2, 1)
    assert verify(dataset) == []
    assert gids.open(tmp_path / "out").id == dataset.id


def test_csv_quotes_header_and_columns(tmp_path):
    with gzip.open(tmp_path / "a.csv.gz", "wt") as file:
        file.write('tail,head,relation\n"x, ""y""",b,"r 1"\r\nc,b,r2')
    known = convert_kg(tmp_path / "a.csv.gz", tmp_path / "out", text=TextOptions(header=True, columns="thr")).knowledge
    assert named(known) == {("b", "r 1", 'x, "y"'), ("b", "r2", "c")}


def test_numeric_ids_keep_no_names(tmp_path):
    (tmp_path / "a.tsv").write_text("0\t1\t5\n3\t0\t0\n")
    known = convert_kg(tmp_path / "a.tsv", tmp_path / "out", text=TextOptions(numeric=True)).knowledge
    assert (known.num_entities, known.num_relations) == (6, 2)
    assert stored(known) == [(0, 1, 5), (3, 0, 0)]
    with pytest.raises(DatasetError, match="entity names must be stored to be looked up"):
        known.entity_id("x")


N_TRIPLES = """# a comment
<http://a> <http://p> <http://b> .
_:x <http://p> <http://a>. # another
<http://a> <http://label> "say \\"hi\\" . "@en .
<http://a> <http://age> "7"^^<http://int> .
"""


def test_n_triples(tmp_path):
    (tmp_path / "a.nt").write_text(N_TRIPLES)
    dataset = convert_kg(tmp_path / "a.nt", tmp_path / "out")
    assert named(dataset.knowledge) == {("http://a", "http://p", "http://b"), ("_:x", "http://p", "http://a")}
    assert dataset.attributes["skipped_literals"] == 2
    known = convert_kg(tmp_path / "a.nt", tmp_path / "all", text=TextOptions(literals=True)).knowledge
    assert ("http://a", "http://age", '"7"^^<http://int>') in named(known)
    assert ("http://a", "http://label", '"say \\"hi\\" . "@en') in named(known)


@pytest.mark.parametrize(
    ("name", "text", "rule"),
    [
        ("a.tsv", "a\tb\tc\na\tb\n", r"a\.tsv, line 2 must have 3 fields separated by tabs \(got 2: 'a\tb'\)"),
        ("a.tsv", "a\tb\t\n", "line 1 must have no empty field"),
        ("a.csv", 'a,b,c\na,"b,c\n', "line 2 must close the quoted field"),
        ("a.csv", 'a,"b"x,c\n', "line 1 must have a comma after a quoted field"),
        ("a.nt", "<a> <b> <c> .\n<a> <b> <c>\n", "line 2 must end with a dot"),
        ("a.nt", "<a> _:b <c> .\n", "line 1 must have an IRI as predicate"),
        ("a.nt", "<a> <b> <c> . <d>\n", "line 1 must hold one triple"),
        ("a.nt", '<a> <b> "c .\n', "line 1 must close the literal"),
    ],
)
def test_malformed_lines_name_file_and_line(tmp_path, name, text, rule):
    (tmp_path / name).write_text(text)
    with pytest.raises(DatasetError, match=rule):
        convert_kg(tmp_path / name, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_numbers_that_are_none(tmp_path):
    (tmp_path / "a.tsv").write_text("0\t1\t5\n3\t-1\t0\n")
    with pytest.raises(DatasetError, match=r"line 2 must have a relation id in \[0, 2\^31\) \(got '-1'\)"):
        convert_kg(tmp_path / "a.tsv", tmp_path / "out", text=TextOptions(numeric=True))


def test_unknown_names(tmp_path):
    (tmp_path / "a.tsv").write_text(TSV)
    known = convert_kg(tmp_path / "a.tsv", tmp_path / "out").knowledge
    with pytest.raises(ConfigError, match="entity must be a name of this graph \\(got 'rome', which it does not have"):
        known.entity_id("rome")
    with pytest.raises(ConfigError, match="relation must be a name of this graph"):
        known.relation_id("zzz")
    with pytest.raises(ConfigError, match=r"entity must be in \[0, 3\) \(got 3\)"):
        known.entity_name(3)
    with pytest.raises(ConfigError, match="split must be one of train"):
        known.queries("test")


def test_directory_with_splits_and_unseen_entities(tmp_path):
    source = tmp_path / "grail"
    source.mkdir()
    (source / "train.txt").write_text("a\tr\tb\n")
    (source / "valid.txt").write_text("b\tr\ta\n")
    (source / "train_ind.txt").write_text("x\tr\ty\n")
    (source / "test_ind.txt").write_text("y\tr\tx\n")
    dataset = convert_kg(source, tmp_path / "out")
    known = dataset.knowledge
    assert named(known) == {("a", "r", "b"), ("x", "r", "y")}
    assert {split: known.queries(split).tolist() for split in known.splits} == {
        "train": [[0, 0, 1]],
        "valid": [[1, 0, 0]],
        "test": [[3, 0, 2]],
    }
    assert dataset.split("train", "entity").tolist() == [0, 1]
    assert dataset.split("test", "entity").tolist() == [2, 3]


def test_held_out_triples_leave_the_graph(tmp_path):
    lines = [f"{i}\t{i % 7}\t{(i * 17) % 500}" for i in range(3000)]
    (tmp_path / "a.tsv").write_text("\n".join(lines))
    options = KgOptions(reverse=True, valid=0.1, test=0.2, train=0.5)
    known = convert_kg(tmp_path / "a.tsv", tmp_path / "out", options=options).knowledge
    sizes = {split: len(known.queries(split)) for split in known.splits}
    assert 220 < sizes["valid"] < 380
    assert 500 < sizes["test"] < 700
    graph = set(stored(known))
    everything = {tuple(query) for split in ("valid", "test") for query in known.queries(split).tolist()}
    assert not graph & everything
    assert not graph & {(t, r + 7, h) for h, r, t in everything}
    assert {tuple(query) for query in known.queries("train").tolist()} <= graph
    assert 0.4 < sizes["train"] / (len(graph) / 2) < 0.6


def test_ogb_layout(tmp_path):
    source = tmp_path / "ogbl_wikikg2"
    (source / "split" / "time").mkdir(parents=True)
    (source / "mapping").mkdir()
    with gzip.open(source / "mapping" / "nodeidx2entityid.csv.gz", "wt") as file:
        file.write("node idx,entity id\n0,Q7\n1,Q42\n2,Q1\n")
    with gzip.open(source / "mapping" / "reltype2relid.csv.gz", "wt") as file:
        file.write("reltype,rel id\n0,P31\n")
    for split, triples in (("train", [[0, 0, 1], [2, 0, 0]]), ("valid", [[1, 0, 0]]), ("test", [[0, 0, 2]])):
        columns = dict(zip(("head", "relation", "tail"), np.array(triples).T, strict=True))
        torch.save(columns | {"tail_neg": np.zeros((len(triples), 4), int)}, source / "split" / "time" / f"{split}.pt")
    known = convert_kg(source, tmp_path / "out").knowledge
    assert named(known) == {("Q7", "P31", "Q42"), ("Q1", "P31", "Q7")}
    assert known.queries("test").tolist() == [[0, 0, 2]]
    with gzip.open(source / "mapping" / "nodeidx2entityid.csv.gz", "wt") as file:
        file.write("node idx,entity id\n0,Q7\n2,Q42\n")
    with pytest.raises(DatasetError, match=r"line 3 must be '1,<name>'"):
        convert_kg(source, tmp_path / "again")


NOUN = """  1 This software and database is being provided to you
00001740 03 n 01 entity 0 001 ~ 00001930 n 0000 | that which is perceived
00001930 03 n 02 physical_entity 0 thing 0 002 @ 00001740 n 0000 + 00002000 a 0101 | an entity
"""
ADJ = "00002000 00 a 01 physical 0 001 \\ 00001930 n 0101 | of the body\n"


def test_wordnet(tmp_path):
    for part, text in (("noun", NOUN), ("verb", ""), ("adj", ADJ), ("adv", "")):
        (tmp_path / f"data.{part}").write_text(text)
    known = convert_kg(tmp_path, tmp_path / "out").knowledge
    thing, entity, physical = "physical_entity.noun.00001930", "entity.noun.00001740", "physical.adj.00002000"
    expected = {(thing, "hypernym", entity), (thing, "derivationally_related_form", physical)}
    expected.add((physical, "pertainym", thing))
    assert named(known) == expected
    everything = named(convert_kg(tmp_path, tmp_path / "all", inverses=True).knowledge)
    assert everything == expected | {(entity, "hyponym", thing)}
    (tmp_path / "data.adj").write_text(ADJ.replace("00001930", "00009999"))
    with pytest.raises(DatasetError, match=r"data\.adj, line 1 must be a synset with its pointers"):
        convert_kg(tmp_path, tmp_path / "bad")


@given(num_triples=st.integers(0, 400), hub=st.booleans(), reverse=st.booleans(), seed=st.integers(0, 99))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_graph_equals_the_sorted_set(tmp_path_factory, monkeypatch, num_triples, hub, reverse, seed):
    monkeypatch.setattr(module, "STEP_TRIPLES", 32)
    monkeypatch.setattr(module, "BUCKET_TRIPLES", 24)
    monkeypatch.setattr(module, "MAX_BUCKETS", 5)
    directory = tmp_path_factory.mktemp("any")
    generator = np.random.default_rng(seed)
    triples = np.column_stack([generator.integers(0, limit, num_triples) for limit in (40, 3, 40)])
    if hub:
        triples[::2, 0] = 7
    (directory / "a.tsv").write_text("".join(f"{h}\t{r}\t{t}\n" for h, r, t in triples))
    options = KgOptions(reverse=reverse, identity=True)
    known = convert_kg(
        directory / "a.tsv", directory / "out", options=options, text=TextOptions(numeric=True)
    ).knowledge
    base = known.base_relations
    expected = {tuple(triple) for triple in triples.tolist()}
    expected |= {(t, r + base, h) for h, r, t in expected} if reverse else set()
    expected |= {(e, known.num_relations - 1, e) for e in range(known.num_entities)}
    assert stored(known) == sorted(expected)


class _KilledError(Exception):
    pass


@pytest.mark.parametrize("step", ["reading triples", "triples sorting", "triples/triples", "triples/entity_names/text"])
def test_an_interrupted_conversion_continues(tmp_path, monkeypatch, step):
    monkeypatch.setattr(module, "STEP_TRIPLES", 64)
    lines = [f"e{i % 97}\tr{i % 5}\te{(i * 31) % 89}" for i in range(1000)]
    (tmp_path / "a.tsv").write_text("\n".join(lines))
    whole = convert_kg(tmp_path / "a.tsv", tmp_path / "whole", options=KgOptions(reverse=True))

    def killed(name, done, total):
        if name == step and done:
            raise _KilledError

    with pytest.raises(_KilledError):
        convert_kg(tmp_path / "a.tsv", tmp_path / "out", options=KgOptions(reverse=True, progress=killed))
    assert not (tmp_path / "out").exists()
    again = convert_kg(tmp_path / "a.tsv", tmp_path / "out", options=KgOptions(reverse=True))
    assert again.id == whole.id
    assert named(again.knowledge) == named(whole.knowledge)


def test_inductive_split_shares_no_entity(tmp_path):
    gids_kg = main(["generate", "kg", str(tmp_path / "kg"), "--entities", "2k", "--reverse", "--quiet", "--seed", "3"])
    assert gids_kg == 0
    dataset = convert_kg(tmp_path / "kg", tmp_path / "ind", inductive_share=0.3, options=KgOptions(reverse=True))
    sides = {name: set(dataset.split(name, "entity").tolist()) for name in ("train", "test")}
    assert len(sides["test"]) == 600
    assert len(sides["train"]) == 1400
    known = dataset.knowledge
    for head, _, tail in stored(known):
        assert (head in sides["test"]) == (tail in sides["test"])
    for split, side in (("train", "train"), ("valid", "train"), ("test", "test")):
        queries = known.queries(split)
        assert len(queries) > 50
        assert set(queries[:, 0].tolist()) | set(queries[:, 2].tolist()) <= sides[side]
    held = {tuple(query) for split in ("valid", "test") for query in known.queries(split).tolist()}
    assert not held & set(stored(known))


def test_commands(tmp_path, capsys):
    (tmp_path / "a.tsv").write_text(TSV)
    out = str(tmp_path / "out")
    assert main(["convert", "kg", str(tmp_path / "a.tsv"), out, "--reverse", "--quiet"]) == 0
    assert "4 relations with reverse" in capsys.readouterr().out
    assert main(["info", out, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)["knowledge"]
    assert (facts["num_triples"], facts["base_relations"], facts["queries"]) == (6, 2, {"train": 4})
    assert main(["verify", out, "--quiet"]) == 0
    assert main(["convert", "kg", str(tmp_path / "none.tsv"), out]) == 1
    assert "convert kg: " in capsys.readouterr().err


def test_verify_finds_damage(tmp_path):
    (tmp_path / "a.tsv").write_text(TSV)
    dataset = convert_kg(tmp_path / "a.tsv", tmp_path / "out")
    path = dataset.knowledge.triples_table.stripes[0].path
    data = bytearray(path.read_bytes())
    data[9] ^= 1
    path.write_bytes(data)
    (problem,) = verify(dataset)
    assert (problem.table, problem.first_row, problem.last_row) == ("triples/triples", 1, 1)


def test_generated_graph_is_skewed_and_repeatable(tmp_path):
    from gids import generate

    options = KgOptions(reverse=True, identity=True, train=0.1, seed=5)
    first = generate.knowledge(tmp_path / "a", num_entities=5000, num_relations=20, options=options)
    second = generate.knowledge(tmp_path / "b", num_entities=5000, num_relations=20, options=options)
    assert first.id == second.id
    known = first.knowledge
    assert 35_000 < (known.num_triples - 5000) / 2 <= 40_500
    triples = np.asarray(known.triples())
    base = triples[triples[:, 0] < 20]
    counts = np.bincount(base[:, 0], minlength=20)
    assert counts[0] > 5 * counts[10]  # few relations have most triples
    degrees = np.sort(np.bincount(base[:, 1], minlength=5000))[::-1]
    assert degrees[:50].sum() > 3 * 50 * degrees.mean()
    with pytest.raises(ConfigError, match=r"locality must be in \[0, 1\] \(got 2\)"):
        generate.knowledge(tmp_path / "c", num_entities=10, locality=2)
