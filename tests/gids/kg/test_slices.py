"""Slices: every subgraph is a union of disjoint slices, whatever the sizes; they are used again, kept, and checked."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gids import ConfigError, DatasetError
from gids.cli import main
from gids.kg import Graph, Slices
from gids.kg import slices as module
from gids.kg.slices import verify_slices
from tests.resources import held

from .graphs import atoms, make, random_triples, subgraph


def rows_of(slices):
    data = np.fromfile(slices.path / "slices.bin", np.int32)[: slices.num_slices * slices.slice_words]
    return data.reshape(-1, slices.slice_words)


def read_row(row):
    """Return [(entity, part, triples)] of a slice."""
    count, part = row[:2].tolist()
    directory = row[2 : 2 + 2 * count].reshape(-1, 2).tolist()
    at, found = 2 + 2 * count, []
    for entity, size in directory:
        found.append((entity, part, [tuple(t) for t in row[at : at + 2 * size].reshape(-1, 2).tolist()]))
        at += 2 * size
    assert at <= len(row)
    assert not row[at:].any()
    return found


def check_union(slices, known, entities):
    """Every sliced subgraph must be the disjoint union of its slices, to the last triple."""
    rows, atom = rows_of(slices), atoms(known)
    for entity in entities:
        _, ids, (triples,) = slices.of(np.array([entity], np.int32))
        assert len(set(ids.tolist())) == len(ids)
        within = subgraph(atom, [entity], slices.hops - 1)[0]
        expected = sorted((head, *triple) for head in within for triple in atom[head])
        got = [(head, *t) for s in ids for head, _, part in read_row(rows[s]) for t in part]
        assert len(got) == triples
        assert sorted(got) == expected


@given(
    num_triples=st.integers(0, 400),
    hops=st.integers(1, 4),
    slice_bytes=st.sampled_from([512, 1024, 2048]),
    alpha=st.sampled_from([0.0, 0.5, 0.75, 1.0]),
    near=st.integers(1, 2),
    reuse=st.booleans(),
    hub=st.booleans(),
    seed=st.integers(0, 999),
)
@settings(max_examples=40, deadline=None)
def test_subgraphs_are_disjoint_unions(tmp_path_factory, num_triples, hops, slice_bytes, alpha, near, reuse, hub, seed):
    directory = tmp_path_factory.mktemp("any")
    triples = random_triples(
        50, 3, num_triples, seed, hub=(7, 2) if hub else None
    )  # the hub's atom is larger than a slice
    dataset = make(directory, triples, num_entities=50)
    entities = np.random.default_rng(seed).permutation(50)[:20].astype(np.int32)
    options = {"hops": hops, "slice_bytes": slice_bytes, "alpha": alpha, "near_hops": near, "reuse": reuse}
    with Graph(dataset, on_disk=True) as graph, Slices(graph, directory / "s", **options) as slices:
        for first in range(0, 20, 7):
            slices.ensure(entities[first : first + 7])
        check_union(slices, dataset.knowledge, entities)
        figures = slices.figures()
        largest = slice_bytes // 8 - 2
        assert all(sum(len(t) for _, _, t in read_row(row)) <= largest for row in rows_of(slices))
        assert figures.redundancy >= 1
        assert figures.redundancy >= figures.redundancy_bound - 1e-9
        assert figures.score >= figures.score_bound - 1e-9
        assert figures.utilization <= 1
        assert reuse or figures.matched == 0
    assert verify_slices(directory / "s") == []


def test_subgraphs_that_share_a_hub_share_its_slices(tmp_path):
    # Entities 1..60 around entity 0; each has two leaves of its own.
    triples = [(0, 0, i) for i in range(1, 61)] + [(i, 1, 100 + 2 * i + j) for i in range(1, 61) for j in range(2)]
    dataset = make(tmp_path, triples)
    with Graph(dataset) as graph, Slices(graph, hops=3, slice_bytes=512) as slices:
        slices.ensure(np.array([1], np.int32))
        first = slices.num_slices
        slices.ensure(np.arange(2, 61, dtype=np.int32))
        figures = slices.figures()
        assert figures.matched > 59 * (first - 2)
        assert figures.utilization < 0.2
        check_union(slices, dataset.knowledge, range(1, 61))


def test_atoms_larger_than_a_slice_are_cut_into_full_ones(tmp_path):
    dataset = make(tmp_path, [(0, 0, i) for i in range(1, 200)], identity=False)
    with Graph(dataset) as graph, Slices(graph, hops=1, slice_bytes=512) as slices:
        slices.ensure(np.array([0], np.int32))
        ids = slices.of(np.array([0], np.int32))[1]
        found = [read_row(row) for row in rows_of(slices)[ids]]
    # 199 triples: three slices of 62, and 13 that are left.
    assert [(part[0][1], len(part[0][2])) for part in found] == [(0, 62), (1, 62), (2, 62), (-1, 13)]


def test_same_slices_for_any_number_of_threads_and_source(tmp_path):
    dataset = make(tmp_path, random_triples(300, 4, 3000, 2, hub=(5, 4)))
    contents = []
    for i, choice in enumerate(({"threads": 1}, {"threads": 3}, {"on_disk": True, "atom_cache": "8KiB"})):
        with Graph(dataset, **choice) as graph, Slices(graph, tmp_path / str(i), hops=2, slice_bytes=1024) as slices:
            slices.ensure(np.arange(0, 300, 3, dtype=np.int32))
        contents.append([(tmp_path / str(i) / name).read_bytes() for name in ("slices.bin", "slices.log")])
    assert contents[0] == contents[1] == contents[2]


def test_slices_are_kept_and_continued(tmp_path):
    dataset = make(tmp_path, random_triples(300, 4, 3000, 2))
    whole, first = np.arange(60, dtype=np.int32), np.arange(30, dtype=np.int32)
    with Graph(dataset) as graph:
        with Slices(graph, tmp_path / "once", hops=2, slice_bytes=1024) as slices:
            assert [slices.ensure(first), slices.ensure(whole)] == [30, 30]
            expected = slices.figures()
        with Slices(graph, tmp_path / "twice", hops=2, slice_bytes=1024) as slices:
            slices.ensure(first)
        with Slices(graph, tmp_path / "twice", hops=2, slice_bytes=1024) as slices:
            assert slices.num_entities == 30
            assert slices.ensure(whole) == 30
            again = slices.figures()
            check_union(slices, dataset.knowledge, whole)
    assert (tmp_path / "once" / "slices.bin").read_bytes() == (tmp_path / "twice" / "slices.bin").read_bytes()
    assert (again.slices, again.used, again.score) == (expected.slices, expected.used, expected.score)


@pytest.mark.parametrize("cut", [1, 17, 200])
def test_a_killed_slicing_is_continued(tmp_path, monkeypatch, cut):
    monkeypatch.setattr(module, "CHUNK_QUERIES", 10)
    dataset = make(tmp_path, random_triples(300, 4, 3000, 2))
    with Graph(dataset) as graph:
        with Slices(graph, tmp_path / "s", hops=2, slice_bytes=1024) as slices:
            slices.ensure(np.arange(40, dtype=np.int32))
        expected = (tmp_path / "s" / "slices.bin").read_bytes()
        log = tmp_path / "s" / "slices.log"
        log.write_bytes(log.read_bytes()[:-cut])  # the kill came while the last record was written
        assert "bytes after its last whole record" in verify_slices(tmp_path / "s")[0]
        with Slices(graph, tmp_path / "s", hops=2, slice_bytes=1024) as slices:
            assert slices.num_entities == 30
            slices.ensure(np.arange(40, dtype=np.int32))
            check_union(slices, dataset.knowledge, range(40))
    assert (tmp_path / "s" / "slices.bin").read_bytes() == expected


def test_a_kill_before_the_first_slice_is_continued(tmp_path):
    """The log is made first, the manifest after it."""
    dataset = make(tmp_path, random_triples(50, 2, 200, 1))
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "slices.log").touch()
    with Graph(dataset) as graph, Slices(graph, tmp_path / "s", hops=2) as slices:
        slices.ensure(np.arange(50, dtype=np.int32))
        check_union(slices, dataset.knowledge, range(50))


def test_refusals(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one = make(tmp_path / "a", random_triples(50, 2, 200, 1))
    other = make(tmp_path / "b", random_triples(50, 2, 200, 2))
    with Graph(one) as graph, Graph(other) as stranger:
        with Slices(graph, tmp_path / "s", hops=2) as slices:
            slices.ensure(np.array([3], np.int32))
            with pytest.raises(ConfigError, match=r"entity must be in \[0, 50\) \(got 50\)"):
                slices.ensure(np.array([1, 50], np.int32))
            with pytest.raises(ConfigError, match=r"must be sliced before it is looked up \(got 4, which is not\)"):
                slices.of(np.array([3, 4], np.int32))
            before = held()
            with pytest.raises(DatasetError, match="being sliced by another process"):
                Slices(graph, tmp_path / "s", hops=2)
            assert not held() - before, "no file stays open"
        with pytest.raises(DatasetError, match=f"are of another dataset: {one.id}"):
            Slices(stranger, tmp_path / "s", hops=2)
        with pytest.raises(DatasetError, match=r"were made with hops 2 \(asked for 3\)"):
            Slices(graph, tmp_path / "s", hops=3)
        with pytest.raises(ConfigError, match=r"slice_bytes must be a multiple of 512 \(got 1000\)"):
            Slices(graph, tmp_path / "t", hops=3, slice_bytes=1000)
        with pytest.raises(ConfigError, match=r"alpha must be in \[0, 1\]"):
            Slices(graph, tmp_path / "t", hops=3, alpha=1.5)


def test_verify_names_the_damaged_slice(tmp_path, capsys):
    dataset = make(tmp_path, random_triples(100, 2, 800, 1))
    with Graph(dataset) as graph, Slices(graph, tmp_path / "s", hops=2, slice_bytes=512) as slices:
        slices.ensure(np.arange(5, dtype=np.int32))
    assert main(["verify", str(tmp_path / "s"), "--quiet"]) == 0
    path = tmp_path / "s" / "slices.bin"
    data = bytearray(path.read_bytes())
    data[512 * 3 + 40] ^= 4
    path.write_bytes(data)
    assert main(["verify", str(tmp_path / "s"), "--json"]) == 1
    printed = capsys.readouterr().out
    problems = json.loads(printed[printed.index("{") :])["problems"]
    assert [problem["message"] for problem in problems] == [f"slice 3 is damaged ({path}, offset 1536)"]


def test_slicing_goes_on_after_a_failure(tmp_path, monkeypatch):
    dataset = make(tmp_path, random_triples(60, 3, 500, 1, hub=(7, 4)), num_entities=60)
    entities = np.arange(60, dtype=np.int32)
    with Graph(dataset, on_disk=True) as graph, Slices(graph, tmp_path / "s", hops=2, slice_bytes=512) as slices:
        slices.ensure(entities[:20])
        before = slices.num_slices

        def full(self, record):
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr("gids.kg.slice_log.SliceLog.append", full)
            with pytest.raises(OSError, match="No space left"):
                slices.ensure(entities)
        assert slices.num_slices > before  # known, and in no log
        slices.ensure(entities)
        check_union(slices, dataset.knowledge, entities.tolist())
    assert verify_slices(tmp_path / "s") == []
