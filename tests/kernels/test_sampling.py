"""Neighbour sampling and numbering, lane by lane, bit for bit against the CPU backend."""

import numpy as np
import pytest
import torch

from gids.cuda.sampling import (
    CudaLaborSampler,
    CudaNeighborSampler,
    NodeNumbers,
    PinnedTopology,
    as_numpy,
    device_sampler,
)
from gids.cuda.sampling.counts import Counts
from gids.cuda.sampling.topology import lists_bytes_of
from gids.errors import ConfigError
from gids.sampling import (
    EdgeSeeds,
    Exclude,
    LaborSampler,
    LadiesSampler,
    NeighborSampler,
    Relation,
    SampleKey,
    ShadowSampler,
    Topology,
)


def random_topology(seed, nodes=300, index_dtype=np.int32, hub=True):
    rng = np.random.default_rng(seed)
    degrees = rng.integers(0, 12, nodes)
    if hub:
        degrees[:3] = [70, 0, 33]
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    indices = rng.integers(0, nodes, indptr[-1]).astype(index_dtype)
    return Topology({"_N": nodes}, {("_N", "_E", "_N"): Relation(indptr, indices)})


def hetero_topology(seed):
    rng = np.random.default_rng(seed)
    sizes = {"paper": 120, "author": 80}
    relations = {}
    for i, (src, dst) in enumerate([("author", "paper"), ("paper", "author"), ("paper", "paper")]):
        indptr = np.concatenate([[0], np.cumsum(rng.integers(0, 9, sizes[dst]))])
        ids = rng.permutation(indptr[-1]) if i == 1 else None
        weights = (rng.random(indptr[-1]) * rng.integers(0, 3, indptr[-1])).astype(np.float32)
        relations[(src, f"r{i}", dst)] = Relation(indptr, rng.integers(0, sizes[src], indptr[-1]), ids, weights)
    return Topology(sizes, relations)


def assert_same(session, device, cpu):
    got = as_numpy(session, device)
    for name in ("seeds", "input_nodes", "seed_rows"):
        for ntype, expected in getattr(cpu, name).items():
            assert np.array_equal(got[name][ntype], expected.numpy()), (name, ntype)
    assert (got["edges"] is None) == (cpu.edges is None)
    for field, expected in ({} if cpu.edges is None else vars(cpu.edges)).items():
        assert got["edges"][field].dtype == expected.numpy().dtype
        assert np.array_equal(got["edges"][field], expected.numpy()), field
    assert len(got["blocks"]) == len(cpu.blocks)
    for mine, theirs in zip(got["blocks"], cpu.blocks, strict=True):
        assert mine["num_src"] == theirs.num_src
        assert mine["num_dst"] == theirs.num_dst
        for field in ("indptr", "src", "edge_ids", "weights"):
            if getattr(theirs, field) is None:
                assert mine[field] is None
                continue
            for etype, expected in getattr(theirs, field).items():
                assert np.array_equal(mine[field][etype], expected.numpy()), (field, etype)


@pytest.mark.parametrize("lanes", [None, 1, 8, 32])
@pytest.mark.parametrize(
    ("fanouts", "replace", "edge_ids"), [([3, 4], False, True), ([5, 2], True, False), ([-1, 40], False, False)]
)
def test_homogeneous(session, lanes, fanouts, replace, edge_ids):
    topology = random_topology(3, index_dtype=np.int64 if replace else np.int32)
    sampler = NeighborSampler(fanouts, replace=replace, edge_ids=edge_ids)
    seeds = np.array([0, 7, 2, 7, 1, 250, 33], np.int64)
    key = SampleKey(11, 2, 5)
    device = CudaNeighborSampler(sampler, lanes).sample(
        session, PinnedTopology(topology, session), {"_N": session.upload(seeds)}, key
    )
    assert_same(session, device, sampler.sample(topology, torch.from_numpy(seeds), key))


def test_heterogeneous_with_edge_ids(session):
    topology = hetero_topology(5)
    sampler = NeighborSampler([3, {("author", "r0", "paper"): 4, ("paper", "r2", "paper"): 0}], edge_ids=True)
    seeds = {"paper": np.arange(20)}
    key = SampleKey(2**40 + 1, 3, 2**33)
    device = CudaNeighborSampler(sampler).sample(
        session,
        PinnedTopology(topology, session),
        {ntype: session.upload(ids) for ntype, ids in seeds.items()},
        key,
    )
    assert_same(session, device, sampler.sample(topology, {k: torch.from_numpy(v) for k, v in seeds.items()}, key))


@pytest.mark.parametrize(
    ("share", "index_dtype", "sampler"),
    [
        (0.4, np.int32, NeighborSampler([3, 4])),
        (0.4, np.int64, NeighborSampler([3, -1])),
        (0.4, np.int32, LaborSampler([3, 4])),
        (1.0, np.int32, NeighborSampler([3, 4])),
    ],
)
def test_lists_that_the_device_holds_are_read_there(session, share, index_dtype, sampler):
    topology = random_topology(3, index_dtype=index_dtype)
    ((etype, relation),) = topology.relations.items()
    pinned, everything = PinnedTopology(topology, session), lists_bytes_of(topology)
    read = pinned.held_by(session, int(share * everything))
    seeds, key = np.arange(100, 160), SampleKey(11, 2, 5)
    expected = sampler.sample(topology, torch.from_numpy(seeds), key)
    held, per_piece = read.relations[etype].held, 64 // np.dtype(index_dtype).itemsize
    if share == 1:
        assert held is None
        relation.indices[:] = 0  # the device has all of it
    else:
        assert everything / 8 < held.values.nbytes + held.pieces.nbytes <= share * everything
        for piece in held_pieces(session.download(held.pieces)):
            relation.indices[piece * per_piece : (piece + 1) * per_piece] = 0
    device = device_sampler(sampler).sample(session, read, {"_N": session.upload(seeds)}, key)
    assert_same(session, device, expected)


def held_pieces(words):
    bits, before = words.reshape(-1, 2).T
    flags = np.unpackbits(np.ascontiguousarray(bits).view(np.uint8), bitorder="little").reshape(-1, 64)
    assert (before == np.concatenate([[0], np.cumsum(flags.sum(axis=1))])[:-1]).all()
    return np.flatnonzero(flags)


@pytest.mark.parametrize(
    "sampler",
    [
        NeighborSampler([3, 4], weights=True, edge_ids=True),
        NeighborSampler([5, -1], weights=True),
        NeighborSampler([3, 4], weights=True, replace=True),
        ShadowSampler([3, 2], edge_ids=True),
        ShadowSampler([2, 2], weights=True),
        LaborSampler([3, 4], edge_ids=True),
        LaborSampler([3, 2], weights=True, layer_dependency=True, batch_dependency=3),
        LadiesSampler([30, 20], edge_ids=True),
        LadiesSampler([500, 1], weights=True),
        LadiesSampler([25, 10, 5], weights=True, edge_ids=True),
    ],
    ids=lambda sampler: f"{type(sampler).__name__}-{'weighted' if sampler.weights else 'plain'}",
)
def test_other_samplers(session, sampler):
    topology = hetero_topology(session.block_threads)
    seeds = {"paper": np.array([5, 3, 5, 119, 40]), "author": np.arange(7)}
    key = SampleKey(9, 1, 4)
    device = device_sampler(sampler).sample(
        session, PinnedTopology(topology, session), {n: session.upload(ids) for n, ids in seeds.items()}, key
    )
    assert_same(session, device, sampler.sample(topology, {n: torch.from_numpy(ids) for n, ids in seeds.items()}, key))


def test_labor_over_narrow_ids_and_hubs(session):
    topology, seeds, key = random_topology(4), np.array([0, 7, 2, 250]), SampleKey(1, 2, 5)
    sampler = LaborSampler([5, 40], edge_ids=True, batch_dependency=4)
    device = device_sampler(sampler).sample(
        session, PinnedTopology(topology, session), {"_N": session.upload(seeds)}, key
    )
    assert_same(session, device, sampler.sample(topology, torch.from_numpy(seeds), key))
    with pytest.raises(ConfigError, match=r"importance must be 0 on a device \(got 1\)"):
        CudaLaborSampler(LaborSampler([2], importance=1))
    assert device_sampler(LaborSampler([2], importance=1)) is None, "a loader samples it on the CPU"
    assert device_sampler(NeighborSampler([2], disjoint=True)) is None


def edge_cases():
    """Pairs that are edges (a node's first in-edge) and some that are not: one type, and two with a reverse type."""
    rng = np.random.default_rng(8)
    homogeneous = (random_topology(8), ("_N", "_E", "_N"), None)
    bipartite = (hetero_topology(8), ("author", "r0", "paper"), ("paper", "r1", "author"))
    for topology, etype, reverse in (homogeneous, bipartite):
        relation = topology.relations[etype]
        dst = np.flatnonzero(np.diff(relation.indptr))[::3]
        src = relation.indices[relation.indptr[dst]].astype(np.int64)
        src[::5] = rng.integers(0, topology.num_nodes[etype[0]], len(src[::5]))
        for negatives, exclude in ((0, Exclude.SEEDS), (3, Exclude.NOTHING), (2, Exclude.SEEDS_AND_REVERSE)):
            yield topology, EdgeSeeds(torch.from_numpy(src), torch.from_numpy(dst), etype, negatives, exclude, reverse)


@pytest.mark.parametrize("case", range(6))
def test_edges_as_seeds(session, case):
    topology, seeds = list(edge_cases())[case]
    key, weighted = SampleKey(7, 1, case), all(r.weights is not None for r in topology.relations.values())
    pinned = PinnedTopology(topology, session)
    shadow, ladies = ShadowSampler([2, 2]), LadiesSampler([30, 20], weights=weighted)
    for sampler in (NeighborSampler([3, 4], edge_ids=True), shadow, ladies):
        cpu = sampler.sample(topology, seeds, key)
        assert_same(session, device_sampler(sampler).sample(session, pinned, seeds, key), cpu)
    if seeds.exclude is not Exclude.NOTHING:  # something must have been left out
        plain = EdgeSeeds(seeds.src, seeds.dst, seeds.etype, seeds.negatives)
        assert shadow.sample(topology, seeds, key).num_edges < shadow.sample(topology, plain, key).num_edges


def test_edges_as_seeds_none_and_out_of_range(session):
    topology, sampler = random_topology(1), NeighborSampler([2])
    pinned = PinnedTopology(topology, session)
    none = EdgeSeeds(torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64), negatives=4)
    device = CudaNeighborSampler(sampler).sample(session, pinned, none, SampleKey())
    assert_same(session, device, sampler.sample(topology, none, SampleKey()))
    with pytest.raises(ConfigError, match=r"seeds of _N must be in \[0, 300\)"):
        CudaNeighborSampler(sampler).sample(
            session, pinned, EdgeSeeds(torch.tensor([300]), torch.tensor([0])), SampleKey()
        )


def test_numbering_grows_and_keeps_earlier_numbers(session):
    rng = np.random.default_rng(1)
    counts = Counts(session)
    numbers, expected = NodeNumbers(session, counts), {}
    for count in (3, 40, 0, 500):
        ids = rng.integers(0, 200, count) + 2**40
        got = session.download(numbers.add(session.upload(ids), Counts(session, [count]).given[0]))
        assert list(got) == [expected.setdefault(int(node), len(expected)) for node in ids]
    assert list(session.download(numbers.nodes[: numbers.size])) == list(expected)


def test_seeds_out_of_range_and_topology_on_disk_are_refused(session):
    topology = random_topology(1)
    with pytest.raises(ConfigError, match=r"seeds of _N must be in \[0, 300\)"):
        CudaNeighborSampler(NeighborSampler([2])).sample(
            session, PinnedTopology(topology, session), {"_N": session.upload(np.array([3, 300]))}, SampleKey()
        )
    on_disk = Topology({"_N": 2}, {("_N", "_E", "_N"): Relation(np.array([0, 1, 2]), lambda positions, out: None)})
    with pytest.raises(ConfigError, match="must be in memory"):
        PinnedTopology(on_disk, session)


@pytest.mark.parametrize(
    "sampler", [NeighborSampler([3, 4], edge_ids=True), NeighborSampler([3, 2], weights=True), LadiesSampler([25, 10])]
)
def test_relabelled_nodes_draw_by_their_former_ids(session, sampler):
    plain = hetero_topology(4)
    rng = np.random.default_rng(9)
    origins = {ntype: rng.permutation(count) for ntype, count in plain.num_nodes.items()}
    topology = Topology(plain.num_nodes, plain.relations, origins=origins)
    key, pinned = SampleKey(4, 1, 9), PinnedTopology(topology, session)
    seeds = {"paper": np.arange(30), "author": np.array([], np.int64)}
    device = device_sampler(sampler).sample(
        session, pinned, {ntype: session.upload(ids) for ntype, ids in seeds.items()}, key
    )
    cpu = sampler.sample(topology, {ntype: torch.from_numpy(ids) for ntype, ids in seeds.items()}, key)
    assert_same(session, device, cpu)
    as_before = sampler.sample(plain, {ntype: torch.from_numpy(ids) for ntype, ids in seeds.items()}, key)
    assert not torch.equal(cpu.input_nodes["paper"], as_before.input_nodes["paper"])
    edges = EdgeSeeds(torch.arange(9), torch.arange(9), ("paper", "r2", "paper"), negatives=3)
    assert_same(
        session, device_sampler(sampler).sample(session, pinned, edges, key), sampler.sample(topology, edges, key)
    )
