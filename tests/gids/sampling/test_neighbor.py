"""NeighborSampler against an independent sampler in plain Python, and against its own promises."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from gids import ConfigError, DatasetError
from gids._native import ThreadPool
from gids.sampling import NeighborSampler, Relation, SampleKey, Topology

E = ("_N", "_E", "_N")


def hetero_topology(heterogeneous):
    num_nodes, graph = heterogeneous
    return Topology(num_nodes, {etype: Relation(*arrays) for etype, arrays in graph.items()})


def equal(a, b):
    assert a.seeds.keys() == b.seeds.keys()
    for ntype in a.seeds:
        assert torch.equal(a.seeds[ntype], b.seeds[ntype])
        assert torch.equal(a.input_nodes[ntype], b.input_nodes[ntype])
    for left, right in zip(a.blocks, b.blocks, strict=True):
        assert left.num_src == right.num_src
        assert left.num_dst == right.num_dst
        for etype in left.edge_types:
            assert torch.equal(left.indptr[etype], right.indptr[etype])
            assert torch.equal(left.src[etype], right.src[etype])
            if left.edge_ids is not None:
                assert torch.equal(left.edge_ids[etype], right.edge_ids[etype])
    return True


def agrees(sample, nodes, blocks):
    for ntype, expected in nodes.items():
        assert sample.input_nodes[ntype].tolist() == expected
    for block, expected_block in zip(sample.blocks, blocks, strict=True):
        for etype, (indptr, src, positions) in expected_block.items():
            assert block.indptr[etype].tolist() == indptr
            assert block.src[etype].tolist() == src
            assert block.edge_ids[etype].tolist() == positions


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("fanouts", [[4, 3], [10, -1], [0, 5], [70, 40, 2]], ids=str)
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_agrees_with_oracle(oracle, homogeneous, fanouts, replace, dtype):
    indptr, indices = homogeneous
    topology = Topology.from_arrays(indptr, indices.astype(dtype))
    key = SampleKey(seed=2**63 + 11, epoch=2**32 - 1, batch=2**40 + 3)
    sample = NeighborSampler(fanouts, replace=replace, edge_ids=True).sample(topology, torch.arange(17, 5, -1), key)
    expected = oracle.sample(
        {E: homogeneous}, {"_N": range(17, 5, -1)}, fanouts, (key.seed, key.epoch, key.batch), replace
    )
    agrees(sample, *expected)
    assert sample.seeds["_N"].tolist() == list(range(17, 5, -1))


def test_agrees_with_oracle_on_heterographs(oracle, heterogeneous):
    fanouts = [{("author", "writes", "paper"): 3, ("paper", "cites", "paper"): -1, ("paper", "by", "author"): 2}, 4]
    seeds = {"paper": torch.tensor([7, 3, 7, 199]), "author": torch.tensor([0])}
    sample = NeighborSampler(fanouts, edge_ids=True).sample(
        hetero_topology(heterogeneous), seeds, SampleKey(seed=1, epoch=2, batch=3)
    )
    agrees(sample, *oracle.sample(heterogeneous[1], seeds, fanouts, (1, 2, 3)))
    assert sample.seeds["paper"].tolist() == [7, 3, 199]
    assert sample.seed_rows["paper"].tolist() == [0, 1, 0, 2]
    with pytest.raises(ConfigError, match="edge type must be given"):
        sample.blocks[0].edge_index()


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_threads_do_not_change_the_sample(threads):
    rng = np.random.default_rng(0)
    indptr = np.concatenate([[0], np.cumsum(rng.integers(0, 40, 20_000))])
    topology = Topology.from_arrays(indptr, rng.integers(0, 20_000, indptr[-1]))
    sampler = NeighborSampler([10, 8, 5], edge_ids=True)
    pool = ThreadPool(threads)
    for batch in range(3):
        seeds = torch.arange(batch * 500, batch * 500 + 500)
        alone = sampler.sample(topology, seeds, SampleKey(batch=batch))
        assert alone.num_edges > 3 * 4096  # several pieces, or the test says nothing
        assert equal(alone, sampler.sample(topology, seeds, SampleKey(batch=batch), pool))


def test_many_samples_at_once_are_the_ones_taken_alone(homogeneous):
    topology = Topology.from_arrays(*homogeneous)
    sampler = NeighborSampler([5, 5])
    alone = [sampler.sample(topology, [node], SampleKey(batch=node)) for node in range(300)]
    with ThreadPoolExecutor(8) as threads:
        together = list(threads.map(lambda node: sampler.sample(topology, [node], SampleKey(batch=node)), range(300)))
    assert all(equal(a, b) for a, b in zip(alone, together, strict=True))


def test_structure(homogeneous):
    indptr, indices = homogeneous
    sample = NeighborSampler([3, 3, 3], edge_ids=True).sample(
        Topology.from_arrays(indptr, indices), np.arange(50), SampleKey()
    )
    nodes = sample.input_nodes["_N"].numpy()
    assert len(set(nodes.tolist())) == len(nodes)
    inner = sample.seeds["_N"]
    for block in reversed(sample.blocks):
        assert block.num_dst["_N"] == len(inner)
        sources, destinations = block.edge_index().numpy()
        positions = block.edge_ids[E].numpy()
        assert (indices[positions] == nodes[sources]).all()
        assert (indptr[nodes[destinations]] <= positions).all()
        assert (positions < indptr[nodes[destinations] + 1]).all()
        assert len(set(positions.tolist())) == len(positions)
        degrees = np.diff(indptr)[nodes[: block.num_dst["_N"]]]
        assert (np.diff(block.indptr[E].numpy()) == np.minimum(degrees, 3)).all()
        inner = sample.input_nodes["_N"][: block.num_src["_N"]]
    assert len(inner) == len(nodes)


def test_stored_edge_ids_are_returned(homogeneous):
    indptr, indices = homogeneous
    ids = np.random.default_rng(1).permutation(len(indices))
    plain = NeighborSampler([4], edge_ids=True).sample(Topology.from_arrays(indptr, indices), [1, 2, 3], SampleKey())
    named = NeighborSampler([4], edge_ids=True).sample(
        Topology.from_arrays(indptr, indices, edge_ids=ids), [1, 2, 3], SampleKey()
    )
    assert named.blocks[0].edge_ids[E].tolist() == ids[plain.blocks[0].edge_ids[E].numpy()].tolist()
    assert (
        NeighborSampler([4]).sample(Topology.from_arrays(indptr, indices), [1], SampleKey()).blocks[0].edge_ids is None
    )


class TestBadInput:
    @pytest.fixture
    def topology(self, homogeneous):
        return Topology.from_arrays(*homogeneous)

    @pytest.mark.parametrize("seed", [-1, 300, 2**40])
    def test_seed_out_of_range(self, topology, seed):
        with pytest.raises(ConfigError, match=rf"seeds of _N must be in \[0, 300\) \(got {seed}\)"):
            NeighborSampler([2]).sample(topology, [0, seed], SampleKey())

    @pytest.mark.parametrize("seeds", [torch.tensor([0.5]), torch.tensor([[1]])])
    def test_seeds_of_wrong_kind(self, topology, seeds):
        with pytest.raises(ConfigError, match="seeds must"):
            NeighborSampler([2]).sample(topology, seeds, SampleKey())

    def test_seed_of_unknown_type(self, topology):
        with pytest.raises(ConfigError, match="node types of seeds"):
            NeighborSampler([2]).sample(topology, {"x": torch.tensor([0])}, SampleKey())

    def test_seeds_without_type_on_heterograph(self, heterogeneous):
        with pytest.raises(ConfigError, match="by node type"):
            NeighborSampler([2]).sample(hetero_topology(heterogeneous), [0], SampleKey())

    def test_no_seeds(self, topology):
        sample = NeighborSampler([2, 2]).sample(topology, [], SampleKey())
        assert len(sample.input_nodes["_N"]) == 0
        assert sample.num_edges == 0
        assert sample.blocks[0].indptr[E].tolist() == [0]

    def test_isolated_node(self, homogeneous, topology):
        node = int(np.flatnonzero(np.diff(homogeneous[0]) == 0)[0])
        for replace in (False, True):
            sample = NeighborSampler([2, -1], replace=replace).sample(topology, [node], SampleKey())
            assert sample.input_nodes["_N"].tolist() == [node]
            assert sample.num_edges == 0

    def test_self_loops_and_multi_edges(self):
        topology = Topology.from_arrays([0, 3, 3], [0, 1, 1])
        sample = NeighborSampler([-1]).sample(topology, [0], SampleKey())
        assert sample.input_nodes["_N"].tolist() == [0, 1]
        assert sample.blocks[0].edge_index().tolist() == [[0, 1, 1], [0, 0, 0]]

    def test_no_edges(self):
        sample = NeighborSampler([3, 3]).sample(
            Topology.from_arrays([0, 0, 0], np.empty(0, np.int32)), [1, 0], SampleKey()
        )
        assert sample.input_nodes["_N"].tolist() == [1, 0]
        assert sample.blocks[0].edge_index().shape == (2, 0)

    def test_fanout_zero(self, topology):
        sample = NeighborSampler([0]).sample(topology, [3, 4], SampleKey())
        assert sample.num_edges == 0
        assert sample.input_nodes["_N"].tolist() == [3, 4]

    @pytest.mark.parametrize("fanouts", [[], [-2], [2.5], [2**31], [{E: -3}]])
    def test_fanouts(self, fanouts):
        with pytest.raises(ConfigError, match="fanout"):
            NeighborSampler(fanouts)

    def test_fanout_of_unknown_edge_type(self, topology):
        with pytest.raises(ConfigError, match="edge types of fanouts"):
            NeighborSampler([{("a", "b", "c"): 1}]).sample(topology, [0], SampleKey())

    @pytest.mark.parametrize("key", [{"seed": -1}, {"epoch": 2**32}, {"batch": 2**64}])
    def test_key(self, key):
        with pytest.raises(ConfigError, match="must be in"):
            SampleKey(**key)

    @pytest.mark.parametrize(
        ("indptr", "indices", "match"),
        [
            ([0, 2, 1], [0], "never decrease"),
            ([1, 1, 1], [0], "begin at 0"),
            ([0, 1, 2], [0], "must have indptr"),
            ([0, 1, 2], [0, 2], r"must be in \[0, 2\) \(got 0 to 2\)"),
            ([0, 1, 2], [-1, 0], r"must be in \[0, 2\)"),
        ],
    )
    def test_damaged_graph(self, indptr, indices, match):
        with pytest.raises(DatasetError, match=match):
            Topology.from_arrays(indptr, indices)

    def test_damaged_neighbour_is_found_while_sampling(self):
        topology = Topology.from_arrays([0, 1, 2], [1, 7], validate=False)
        with pytest.raises(DatasetError, match=r"indices of _E must be in \[0, 2\)"):
            NeighborSampler([1]).sample(topology, [1], SampleKey())


def test_more_than_2_31_edges():
    """Offsets beyond 2**31 and 2**32, with a reader that knows neighbours without storing them."""
    indptr = np.array([0, 5, 3 * 2**31, 3 * 2**31 + 4, 2**40], np.int64)
    asked = []

    def read(positions, out):
        asked.extend(positions.tolist())
        out[:] = positions % 4

    topology = Topology({"_N": 4}, {E: Relation(indptr, read)})
    sample = NeighborSampler([6, 6], edge_ids=True).sample(topology, [3, 1, 2], SampleKey(seed=9))
    for block in sample.blocks:
        sources, destinations = block.edge_index().numpy()
        nodes = sample.input_nodes["_N"].numpy()
        positions = block.edge_ids[E].numpy()
        assert (positions % 4 == nodes[sources]).all()
        assert (indptr[nodes[destinations]] <= positions).all()
        assert (positions < indptr[nodes[destinations] + 1]).all()
    assert max(asked) > 2**39
    assert topology.num_edges() == 2**40


def test_node_ids_beyond_32_bits():
    huge = 2**33
    topology = Topology(
        {"item": huge, "user": 2},
        {
            ("item", "bought", "user"): Relation(
                np.array([0, 4, 6]), np.array([5, 5 + 2**32, 5, huge - 1, 5 + 2**32, 1])
            )
        },
    )
    sample = NeighborSampler([-1]).sample(topology, {"user": torch.tensor([1, 0])}, SampleKey())
    assert sample.input_nodes["item"].tolist() == [5 + 2**32, 1, 5, huge - 1]
    assert sample.blocks[0].src[("item", "bought", "user")].tolist() == [0, 1, 2, 0, 2, 3]
