"""Samples have the distribution they promise: chi-square tests with fixed keys, and DGL as a second opinion."""

import itertools

import numpy as np
import pytest
import torch
from scipy import stats

from gids.sampling import LadiesSampler, NeighborSampler, SampleKey, Topology
from tests.packages import NO_DGL

E = ("_N", "_E", "_N")
# Keys are fixed, so a test passes or fails for ever; this bound would reject one good generator in ten thousand.
SMALLEST_P = 1e-4


def offsets_chosen(degree, fanout, count, weights=None, **options):
    """Offsets within the neighbour list that `count` nodes of equal degree and weights chose: [count, fanout]."""
    indptr = np.arange(count + 1) * degree
    indices = np.zeros(count * degree, np.int32)
    tiled = None if weights is None else np.tile(np.asarray(weights, np.float32), count)
    topology = Topology.from_arrays(indptr, indices, weights=tiled)
    sampler = NeighborSampler([fanout], edge_ids=True, weights=weights is not None, **options)
    block = sampler.sample(topology, np.arange(count), SampleKey(seed=20)).blocks[0]
    positions = block.edge_ids[E].numpy().reshape(count, fanout)
    return positions - indptr[:-1, None]


def assert_matches(observed, probabilities):
    observed, probabilities = np.asarray(observed), np.asarray(probabilities)
    assert (observed[probabilities == 0] == 0).all()
    possible = probabilities > 0
    expected = probabilities[possible] / probabilities[possible].sum() * observed.sum()
    assert stats.chisquare(observed[possible], expected).pvalue > SMALLEST_P


def subsets(chosen, degree, fanout):
    combinations = {c: i for i, c in enumerate(itertools.combinations(range(degree), fanout))}
    counts = np.zeros(len(combinations))
    for row in np.sort(chosen, axis=1):
        counts[combinations[tuple(row)]] += 1
    return counts


@pytest.mark.parametrize(("degree", "fanout"), [(6, 3), (8, 1), (7, 6), (40, 2)])
def test_every_subset_is_equally_likely(degree, fanout):
    counts = subsets(offsets_chosen(degree, fanout, 30_000), degree, fanout)
    assert_matches(counts, np.ones(len(counts)))


def test_large_fanout_has_no_favourites():
    chosen = offsets_chosen(300, 200, 600)
    assert all(len(set(row)) == 200 for row in chosen)
    # Within a row the choices are not independent; their counts vary less than chi-square expects, never more.
    counts = np.bincount(chosen.ravel(), minlength=300)
    assert np.abs(counts - 400).max() < 6 * np.sqrt(600 * (2 / 3) * (1 / 3))


def test_replacement_is_independent():
    chosen = offsets_chosen(5, 2, 40_000, replace=True)
    assert_matches(np.bincount(chosen[:, 0] * 5 + chosen[:, 1], minlength=25), np.ones(25))


def test_weights_with_replacement():
    weights = [1.0, 0.0, 2.5, 0.5, 6.0]
    chosen = offsets_chosen(5, 4, 10_000, weights, replace=True)
    for draw in chosen.T:
        assert_matches(np.bincount(draw, minlength=5), weights)


def test_weights_without_replacement():
    """The chance of an ordered pair is that of drawing one, then another from the rest."""
    weights = np.array([1.0, 2.5, 0.0, 0.5, 6.0])
    chosen = offsets_chosen(5, 2, 40_000, weights)
    total = weights.sum()
    expected = [
        weights[a] / total * weights[b] / (total - weights[a]) if a != b else 0.0 for a in range(5) for b in range(5)
    ]
    assert_matches(np.bincount(chosen[:, 0] * 5 + chosen[:, 1], minlength=25), expected)


def test_batches_are_independent():
    """Pairs of choices of the same node in consecutive batches, epochs, layers and seeds fill their table evenly."""
    topology = Topology.from_arrays([0, 6, 6, 6, 6, 6, 6], np.arange(6))

    def choice(**key):
        block = NeighborSampler([1], edge_ids=True).sample(topology, [0], SampleKey(**key)).blocks[0]
        return int(block.edge_ids[E][0])

    for name in ("seed", "epoch", "batch"):
        drawn = np.array([choice(**{name: i}) for i in range(4000)])
        assert_matches(np.bincount(drawn[::2] * 6 + drawn[1::2], minlength=36), np.ones(36))


def test_ladies_prefers_sources_by_squared_shares():
    """Three sources whose masses are 1/4 + 1/9, 1/4 and 2/9: the first chosen one follows them."""
    # destinations 0 and 1; node 0 has sources {2, 3}, node 1 has sources {2, 4, 5}
    topology = Topology.from_arrays([0, 2, 5, 5, 5, 5, 5], [2, 3, 2, 4, 5])
    counts = np.zeros(6)
    for batch in range(6000):
        sample = LadiesSampler([1]).sample(topology, [0, 1], SampleKey(batch=batch))
        counts[sample.input_nodes["_N"][2:].numpy()] += 1
    assert_matches(counts, [0, 0, 1 / 4 + 1 / 9, 1 / 4, 1 / 9, 1 / 9])


def source_counts(topology, seeds, batches, **options):
    """Distinct source nodes of each layer, for `batches` samples of the same seeds: [batches, layers]."""
    sampler = NeighborSampler([4, 6, 8], **options)
    samples = (sampler.sample(topology, seeds, SampleKey(batch=batch)) for batch in range(batches))
    return np.array([[block.num_src["_N"] for block in sample.blocks] for sample in samples])


@pytest.mark.slow
def test_unique_counts_have_the_distribution_of_dgl():
    """Given the seeds, the numbers of distinct nodes per layer are drawn as DGL draws them (Kolmogorov-Smirnov)."""
    dgl = pytest.importorskip("dgl", reason=NO_DGL)
    rng = np.random.default_rng(3)
    nodes, batches = 20_000, 250
    degrees = np.minimum(1 + (rng.pareto(1.5, nodes) * 6).astype(np.int64), 500)
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    indices = (nodes * rng.random(indptr[-1]) ** 2).astype(np.int64)
    graph = dgl.graph(
        ("csc", (torch.from_numpy(indptr), torch.from_numpy(indices), torch.tensor([], dtype=torch.int64)))
    )
    topology = Topology.from_arrays(indptr, indices)
    seeds = torch.from_numpy(rng.choice(nodes, 100, replace=False))
    dgl.seed(0)
    theirs_sampler = dgl.dataloading.NeighborSampler([4, 6, 8])
    theirs = np.array(
        [[block.num_src_nodes() for block in theirs_sampler.sample_blocks(graph, seeds)[2]] for _ in range(batches)]
    )
    ours, replaced = source_counts(topology, seeds, batches), source_counts(topology, seeds, batches, replace=True)
    for layer in range(3):
        assert len(np.unique(ours[:, layer])) > 10  # a distribution, not a number
        assert stats.ks_2samp(ours[:, layer], theirs[:, layer]).pvalue > SMALLEST_P
        assert stats.ks_2samp(replaced[:, layer], theirs[:, layer]).pvalue < SMALLEST_P  # what it looks like otherwise
