"""Relabelled datasets: every table by hand, batches equal under the new ids, and runs that were killed go on."""

import numpy as np
import pytest
import torch

import gids
from gids import ConfigError, DatasetWriter
from gids.dataset import verify
from gids.dataset.rows import as_tensor, read_rows
from gids.dataset.table_writer import TableWriter
from gids.partition import degree_order, load, make, partition_order, reorder, visit_order
from gids.sampling import EdgeSeeds, Exclude, LadiesSampler, NeighborSampler, SampleKey, ShadowSampler, Topology

from .graphs import bipartite, blocks, cliques


def values(table):
    return as_tensor(table, read_rows(table)).numpy()


def toy(path):
    with DatasetWriter(path) as writer:
        writer.add_nodes(4)
        writer.add_features(np.arange(12, dtype=np.float32).reshape(4, 3))
        writer.add_csc([0, 1, 3, 3, 4], [1, 2, 3, 0])
        writer.add_labels([0, 1, -1, 2])
        writer.add_split("train", [3, 0])
    return gids.open(path)


def test_every_table_by_hand(tmp_path):
    made = reorder(toy(tmp_path / "g"), tmp_path / "h", order={"_N": [2, 0, 3, 1]}, edge_ids=True)
    assert made.original_ids().tolist() == [2, 0, 3, 1]  # so 0, 1, 2, 3 are now 1, 3, 0, 2
    assert values(made.feature_table())[:, 0].tolist() == [6, 0, 9, 3]
    assert np.array(made.indptr()).tolist() == [0, 0, 1, 2, 4]
    assert values(made.indices_table()).tolist() == [3, 1, 0, 2]  # 1 -> 0; 0 -> 3; 2, 3 -> 1
    assert values(made.edge_ids_table()).tolist() == [0, 3, 1, 2]
    assert made.labels().tolist() == [-1, 0, 2, 1]
    assert made.split("train").tolist() == [2, 1]
    assert verify(made) == []
    assert made.attributes["reordered"]["by"] == "order"
    again = reorder(made, tmp_path / "i", order={"_N": [1, 3, 0, 2]})
    assert again.original_ids().tolist() == [0, 1, 2, 3]  # of the first one, through both
    assert values(again.feature_table())[:, 0].tolist() == [0, 3, 6, 9]


def test_orders_by_hand(tmp_path):
    dataset = toy(tmp_path / "g")  # every node is the source of one edge
    assert degree_order(dataset)["_N"].tolist() == [0, 1, 2, 3]
    # Node 1 has two in-edges: with a fan-out of one, its sources 2 and 3 are sampled half as often as 0 and 1.
    assert visit_order(dataset, fanout=1)["_N"].tolist() == [0, 1, 2, 3]
    with DatasetWriter(tmp_path / "h") as writer:
        writer.add_nodes(3)
        writer.add_csc([0, 2, 4, 5], [2, 1, 2, 1, 1])
    dataset = gids.open(tmp_path / "h")
    assert degree_order(dataset)["_N"].tolist() == [1, 2, 0]
    assert visit_order(dataset, fanout=1)["_N"].tolist() == [1, 2, 0]
    partition = make(cliques(tmp_path / "c", count=2, size=4), 2, store=False)
    order = partition_order(partition)["_N"]
    assert sorted([order[:4].tolist(), order[4:].tolist()]) == [[0, 2, 4, 6], [1, 3, 5, 7]]


def same_under(old, new, origins):
    """Compare two samples; the second one's ids lead back through ``origins``."""
    for ntype, nodes in old.input_nodes.items():
        assert np.array_equal(nodes.numpy(), origins[ntype][new.input_nodes[ntype].numpy()])
        assert torch.equal(old.seed_rows[ntype], new.seed_rows[ntype])
    for a, b in zip(old.blocks, new.blocks, strict=True):
        assert a.num_src == b.num_src
        assert a.num_dst == b.num_dst
        for etype in a.indptr:
            assert torch.equal(a.indptr[etype], b.indptr[etype])
            assert torch.equal(a.src[etype], b.src[etype])
            for name in ("edge_ids", "weights"):
                if getattr(a, name) is not None:
                    assert torch.equal(getattr(a, name)[etype], getattr(b, name)[etype])


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize(
    "sampler",
    [
        NeighborSampler([3, 4], edge_ids=True),
        NeighborSampler([2, 2], replace=True),
        LadiesSampler([40, 30]),
        ShadowSampler([2, 2]),
    ],
)
def test_batches_are_equal_under_the_new_ids(tmp_path, sampler, on_disk):
    dataset = blocks(tmp_path / "g")
    made = reorder(dataset, tmp_path / "h", by="visits", edge_ids=True)
    origins = {"_N": made.original_ids()}
    assert not np.array_equal(origins["_N"], np.arange(5000))
    with Topology.from_dataset(dataset) as before, Topology.from_dataset(made, on_disk=on_disk) as after:
        seeds, renamed = dataset.split("train"), made.split("train")
        for batch in range(3):
            key = SampleKey(7, 1, batch)
            chosen = slice(40 * batch, 40 * batch + 40)
            same_under(sampler.sample(before, seeds[chosen], key), sampler.sample(after, renamed[chosen], key), origins)


@pytest.mark.parametrize("weights", [False, True])
def test_several_types_edge_ids_and_features(tmp_path, weights):
    dataset = bipartite(tmp_path / "g")
    make(dataset, 8, imbalance=0.1)
    made = reorder(dataset, tmp_path / "h", by="partition")
    origins = {ntype: made.original_ids(ntype) for ntype in dataset.node_types}
    for ntype in dataset.node_types:
        assert np.array_equal(values(dataset.feature_table(ntype))[origins[ntype]], values(made.feature_table(ntype)))
    cites = ("paper", "cites", "paper")
    assert np.array_equal(
        values(dataset.edge_feature_table(cites, "kind")), values(made.edge_feature_table(cites, "kind"))
    )
    assert verify(made) == []
    # The partition came along: parts are consecutive now, and as good.
    partition, former = load(made), load(dataset)
    for ntype, parts in partition.parts.items():
        assert (np.diff(parts) >= 0).all()
        assert np.array_equal(parts, former.parts[ntype][origins[ntype]])
    assert partition.cut_edges == former.cut_edges
    fanouts = [{cites: 2}] if weights else [2, 3]
    sampler = NeighborSampler(fanouts, edge_ids=True)
    before, after = Topology.from_dataset(dataset), Topology.from_dataset(made)
    if weights:
        only = {ntype: dataset.num_nodes(ntype) for ntype in dataset.node_types}
        before = Topology(only, {cites: before.relations[cites]})
        after = Topology(only, {cites: after.relations[cites]}, origins=after.origins)
        sampler = NeighborSampler(fanouts, edge_ids=True, weights=True)
    old = sampler.sample(before, {"paper": dataset.split("train")}, SampleKey(1, 2, 3))
    new = sampler.sample(after, {"paper": made.split("train")}, SampleKey(1, 2, 3))
    same_under(old, new, origins)


def test_negatives_are_equal_too(tmp_path):
    dataset = blocks(tmp_path / "g")
    made = reorder(dataset, tmp_path / "h", by="degree")
    origins = {"_N": made.original_ids()}
    now = np.argsort(origins["_N"])
    before, after = Topology.from_dataset(dataset), Topology.from_dataset(made)
    src, dst = torch.arange(30), torch.arange(100, 130)
    asked = {"negatives": 4, "exclude": Exclude.SEEDS}
    renamed = EdgeSeeds(torch.from_numpy(now[src]), torch.from_numpy(now[dst]), **asked)
    sampler = NeighborSampler([5, 5])
    old = sampler.sample(before, EdgeSeeds(src, dst, **asked), SampleKey(3))
    same_under(old, sampler.sample(after, renamed, SampleKey(3)), origins)


def test_loaders_give_the_same_rows_and_labels(tmp_path):
    dataset = blocks(tmp_path / "g")
    made = reorder(dataset, tmp_path / "h", by="degree")
    origins = torch.from_numpy(made.original_ids())
    asked = {"seeds": "train", "fanouts": [3, 3], "batch_size": 300, "budget": "64MiB"}
    with gids.Loader(dataset, **asked) as first, gids.Loader(made, **asked) as second:
        count = 0
        for old, new in zip(first, second, strict=True):
            assert torch.equal(old.x, new.x)
            assert torch.equal(old.y, new.y)
            assert torch.equal(old.input_nodes, origins[new.input_nodes])
            count += 1
        assert count == 4


def test_a_killed_run_goes_on(tmp_path, monkeypatch):
    dataset = blocks(tmp_path / "g", num_nodes=4000, dim=40)
    expected = reorder(dataset, tmp_path / "whole", by="degree", edge_ids=True)
    monkeypatch.setattr("gids.dataset.table_writer.CHECKPOINT_BYTES", 40_000)
    monkeypatch.setattr("gids.partition.relabel.PIECE_BYTES", 16_000)
    monkeypatch.setattr("gids.partition.relabel.PIECE_EDGES", 1000)
    append, calls = TableWriter.append, []

    class Killed(BaseException):
        pass

    for stop in (7, 30, 40, 40):
        left = [stop]

        def limited(self, rows, left=left):
            left[0] -= 1
            calls.append(self.table.name)
            if left[0] == 0:
                raise Killed
            append(self, rows)

        monkeypatch.setattr(TableWriter, "append", limited)
        with pytest.raises(Killed):
            reorder(dataset, tmp_path / "h", by="degree", edge_ids=True)
        assert not (tmp_path / "h").exists()
    monkeypatch.setattr(TableWriter, "append", append)
    made = reorder(dataset, tmp_path / "h", by="degree", edge_ids=True)
    assert made.id == expected.id
    assert {"_N/original_ids", "_N/feat", "_N:_E:_N/indices"} <= set(calls)


@pytest.mark.parametrize(
    ("wrong", "rule"),
    [
        ({}, "by or order must be given"),
        ({"by": "degree", "order": {}}, "by or order must be given"),
        ({"by": "degree", "partition": "6"}, "partition is an option of by='partition'"),
        ({"by": "partition"}, "make one with `gids partition`"),
        ({"order": {"x": [0]}}, "node types of order must be among"),
        ({"order": {"_N": [0, 1, 2]}}, "must have 4 ids"),
        ({"order": {"_N": [0, 1, 2, 2]}}, r"must have each id of \[0, 4\) once"),
        ({"order": {"_N": [0, 1, 2, 4]}}, r"must have each id of \[0, 4\) once"),
    ],
)
def test_wrong_arguments(tmp_path, wrong, rule):
    with pytest.raises(ConfigError, match=rule):
        reorder(toy(tmp_path / "g"), tmp_path / "h", **wrong)
    assert not (tmp_path / "h").exists()


def test_visits_do_not_depend_on_the_pieces_they_are_counted_in(tmp_path, monkeypatch):
    dataset = blocks(tmp_path / "g", num_nodes=300, blocks=5)
    degrees = np.diff(np.array(dataset.indptr()))
    chances = np.repeat(np.minimum(1, 2 / np.maximum(degrees, 1)), degrees)
    visits = np.bincount(values(dataset.indices_table()), chances, minlength=300)
    monkeypatch.setattr("gids.dataset.rows.BLOCK_BYTES", 4 * 17)
    found = visit_order(dataset, fanout=2)["_N"]
    assert np.allclose(visits[found], np.sort(visits)[::-1])
