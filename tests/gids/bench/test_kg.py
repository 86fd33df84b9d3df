"""gids bench kg --quick: every contender gives the same subgraphs, and every promise has a figure."""

import json

import numpy as np
import pytest

from gids import OrderOptions
from gids.bench.kg_contenders import EqualSlices, equal_loader, hit_ratios
from gids.cli import main
from gids.convert.kg import KgOptions
from gids.generate import knowledge
from gids.kg import Graph, Loader, Slices


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    options = KgOptions(reverse=True, identity=True, train=0.1)
    return knowledge(tmp_path_factory.mktemp("bench") / "kg", num_entities=2000, degree=5, options=options)


def test_contenders_give_the_same_subgraphs(dataset, tmp_path):
    queries = dataset.knowledge.queries("train")[:48]
    heads = np.ascontiguousarray(queries[:, 0])
    options = {"batch_size": 16, "order": OrderOptions(shuffle=False), "budget": "64MiB"}
    with Graph(dataset, on_disk=True) as graph, Slices(graph, tmp_path / "s", hops=2, slice_bytes=1024) as slices:
        equal = EqualSlices(graph, tmp_path / "equal", 2, 128)
        equal.prepare(heads)
        with Loader(graph, queries, hops=2, through="graph", **options) as loader:
            expected = list(loader)
        for contender in (
            equal_loader(equal, queries, **options),
            Loader(graph, queries, hops=2, slices=slices, **options),
        ):
            with contender:
                for found, wanted in zip(contender, expected, strict=True):
                    pairs = zip(found.subgraphs.tensors(), wanted.subgraphs.tensors(), strict=True)
                    assert all((a == b).all() for a, b in pairs)
                    assert (found.tail_positions == wanted.tail_positions).all()
        assert equal.disk_bytes >= 12 * slices.figures().triples
        batches = [heads[i : i + 16] for i in range(0, 48, 16)]
        ratios = hit_ratios(slices, batches, 64 << 10, ("belady", "lru"))
        assert ratios["belady"] >= ratios["lru"]


def test_quick_run(capsys):
    assert main(["bench", "kg", "--quick", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [bar["name"] for bar in report["bars"]] == [
        "extraction: slices / basic",
        "extraction: slices / equal slices",
        "slicing time: slices / equal slices",
        "disk space: slices / triples of every subgraph",
    ]
    assert report["results"]["same_subgraphs"]
    assert report["results"]["hit_ratio"]["belady"] >= report["results"]["hit_ratio"]["lru"]
    assert report["results"]["slices"]["redundancy"] >= 1
