"""Packed batches are those of the online loader to the bit: every sampler, any disk limit, hot rows or none."""

import pytest

import gids
from gids.sampling import EdgeSeeds, Exclude, LaborSampler

from .conftest import NODES, equal

pytestmark = pytest.mark.usefixtures("nothing_left")

ORDER = gids.OrderOptions(seed=3)

SAMPLERS = {
    "neighbour": {"fanouts": [4, 4]},
    "ladies": {"sampler": gids.LadiesSampler([60, 40])},
    "shadow": {"sampler": gids.ShadowSampler([4, 3])},
    "labor": {"sampler": LaborSampler([4, 4], importance=1)},
    "edge features": {"fanouts": [3, 3], "features": {gids.NODE: ["feat", "year"], gids.EDGE: "feat"}},
}


def both(graph, path, arguments, epochs=2, **packing):
    """Pack, and compare every batch of every epoch."""
    packed = gids.pack(graph, path, "train", batch_size=64, order=ORDER, epochs=epochs, **arguments, **packing)
    with (
        gids.Loader(graph, "train", batch_size=64, order=ORDER, budget="64MiB", **arguments) as online,
        gids.Loader(graph, packed=path, budget="64MiB") as offline,
    ):
        assert len(online) == len(offline)
        for _ in range(epochs):
            count = 0
            for one, two in zip(online, offline, strict=True):
                assert equal(one, two)
                count += 1
            assert count == len(online)
    return packed


@pytest.mark.parametrize("name", SAMPLERS)
def test_samplers(graph, tmp_path, name):
    packed = both(graph, tmp_path / "packed", SAMPLERS[name], hot="4KiB")
    assert packed.epochs == 2
    assert packed.segment_batches == 1


def test_link_prediction(graph, tmp_path):
    import torch

    generator = torch.Generator().manual_seed(0)
    pairs = torch.randint(0, NODES, (2, 300), generator=generator)
    seeds = EdgeSeeds(pairs[0], pairs[1], negatives=2, exclude=Exclude.SEEDS)
    gids.pack(graph, tmp_path / "packed", seeds, fanouts=[3, 3], batch_size=50, hot=0)
    with (
        gids.Loader(graph, seeds, fanouts=[3, 3], batch_size=50, budget="64MiB") as online,
        gids.Loader(graph, packed=tmp_path / "packed", budget="64MiB") as offline,
    ):
        assert all(equal(one, two) for one, two in zip(online, offline, strict=True))


def test_hetero(papers, tmp_path):
    packed = both(papers, tmp_path / "packed", {"fanouts": [2, 2]}, hot="8KiB")
    assert [str(key) for key in packed.tables] == ["paper/feat", "author/feat"]


@pytest.mark.parametrize("share", [1.0, 0.8])
@pytest.mark.parametrize("hot", [0, "16KiB"])
def test_segments(graph, tmp_path, share, hot):
    """A disk limit makes segments that share rows; the batches stay the same, and the limit holds."""
    whole = gids.pack(graph, tmp_path / "whole", "train", batch_size=64, order=ORDER, epochs=2, fanouts=[6, 6], hot=hot)
    limit = int(whole.size_bytes * share)
    packed = both(graph, tmp_path / "packed", {"fanouts": [6, 6]}, disk=limit, hot=hot)
    assert whole.segment_batches == 1 < packed.segment_batches
    assert packed.size_bytes <= packed.facts["disk_limit_bytes"] == limit
    assert packed.facts["read_amplification"][0] >= whole.facts["read_amplification"][0] >= 1


def test_ranks(graph, tmp_path):
    """All ranks are packed; each reads its own batches, padding included."""
    order = gids.OrderOptions(rank=0, world_size=3)
    gids.pack(graph, tmp_path / "packed", "train", fanouts=[3], batch_size=33, order=order, hot=0)
    for rank in range(3):
        mine = gids.OrderOptions(rank=rank, world_size=3)
        with (
            gids.Loader(graph, "train", fanouts=[3], batch_size=33, order=mine, budget="64MiB") as online,
            gids.Loader(graph, packed=tmp_path / "packed", order=mine, budget="64MiB") as offline,
        ):
            assert all(equal(one, two) for one, two in zip(online, offline, strict=True))
