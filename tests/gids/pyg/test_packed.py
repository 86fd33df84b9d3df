"""PyG's doors over packed epochs: the mini-batches that the same loader samples online, to the bit, with nothing sampled."""

import pytest
import torch

import gids
import gids.dgl
from gids.errors import ConfigError
from gids.pyg import LinkNeighborLoader, NeighborLoader
from gids.pyg.packed import decode_hops, encode_hops

from .conftest import CITES

pytestmark = pytest.mark.usefixtures("nothing_left")

COMMON = {"batch_size": 40, "shuffle": True, "seed": 3, "budget": "32MiB"}


def equal(one, two):
    assert one.keys() == two.keys()
    for name, value in one.items():
        other = two[name]
        if isinstance(value, dict):
            equal(value, other)
        elif isinstance(value, torch.Tensor):
            assert value.dtype == other.dtype, name
            assert torch.equal(value, other), name
        else:
            assert value == other, name


def check(make, path, *, epochs=2, **settings):
    """Pack the epochs of what ``make()`` opens and compare them with what it samples."""
    with make() as online:
        packed = gids.pyg.pack(online, path, epochs=epochs, **settings)
        with make(packed=packed) as reading:
            assert len(online) == len(reading) > 1
            for _ in range(epochs):
                for one, two in zip(online, reading, strict=True):
                    equal(one.to_dict(), two.to_dict())
            with pytest.raises(ConfigError, match=f"epoch must be below {epochs}"):
                iter(reading)
            with pytest.raises(ConfigError, match=f"epoch must be below {epochs}"):
                reading.set_epoch(epochs)
    return packed


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"replace": True},
        {"disjoint": True},
        {"subgraph_type": "induced"},
        {"subgraph_type": "bidirectional"},
        {"drop_last": True, "shuffle": False, "transform": lambda data: data.coalesce()},
    ],
)
def test_neighbors(homogeneous, tmp_path, options):
    def make(**more):
        return NeighborLoader(homogeneous, [4, 3], "train", **(COMMON | options | more))

    packed = check(make, tmp_path / "packed", hot="2KiB")
    assert sum(packed.facts["disk_bytes"]) < sum(packed.facts["asked_bytes"]), "the hot rows are in memory"
    assert gids.Packed(packed.path).identity["door"] == "gids.pyg.NeighborLoader"


def test_several_types(heterogeneous, tmp_path):
    def make(**more):
        return NeighborLoader(heterogeneous, [4, 3], ("paper", "train"), **(COMMON | more))

    check(make, tmp_path / "packed")


@pytest.mark.parametrize("mode", ["binary", "triplet"])
def test_links(heterogeneous, tmp_path, mode):
    def make(**more):
        edges = (CITES, torch.randint(0, 500, (2, 130), generator=torch.Generator().manual_seed(1)))
        return LinkNeighborLoader(heterogeneous, [4, 3], edges, neg_sampling=mode, **(COMMON | more))

    check(make, tmp_path / "packed")


def test_ranks_and_epochs_that_are_used_again(homogeneous, tmp_path):
    def make(rank, **more):
        order = gids.OrderOptions(rank=rank, world_size=2)
        return NeighborLoader(homogeneous, [4, 3], "train", order=order, **(COMMON | more))

    with make(0) as online:
        packed = gids.pyg.pack(online, tmp_path / "packed", reuse=True)
    for rank in range(2):
        with make(rank) as online, make(rank, packed=packed) as reading:
            batches = [data.to_dict() for data in online]
            for _ in range(2):  # epoch 1 is epoch 0 again
                for one, two in zip(batches, reading, strict=True):
                    equal(one, two.to_dict())


def test_resumes_what_began_online(homogeneous, tmp_path):
    def make(**more):
        return NeighborLoader(homogeneous, [4, 3], "train", **(COMMON | more))

    with make() as online:
        packed = gids.pyg.pack(online, tmp_path / "packed")
        batches = iter(online)
        next(batches)
        state = online.state_dict()
        rest = [data.to_dict() for data in batches]
    with make(packed=packed.path) as reading:
        reading.load_state_dict(state)
        for one, two in zip(rest, reading, strict=True):
            equal(one, two.to_dict())


def test_goes_on_online(homogeneous, tmp_path):
    def make(**more):
        return NeighborLoader(homogeneous, [4, 3], "train", **(COMMON | more))

    with make() as online:
        packed = gids.pyg.pack(online, tmp_path / "packed")
        with make(packed=gids.Packed(packed.path, beyond="online")) as reading:
            budget = reading.options.memory
            for _ in range(2):
                for one, two in zip(online, reading, strict=True):
                    equal(one.to_dict(), two.to_dict())
            assert reading.options.memory != budget, "divided as for any online epoch"
            online.set_epoch(0)
            reading.set_epoch(0)
            for one, two in zip(online, reading, strict=True):
                equal(one.to_dict(), two.to_dict())
            assert reading.options.memory == budget


def test_refuses_what_was_not_packed(homogeneous, heterogeneous, tmp_path):
    def make(fanouts=(4, 3), **more):
        return NeighborLoader(homogeneous, list(fanouts), "train", **(COMMON | more))

    with make() as online:
        packed = gids.pyg.pack(online, tmp_path / "packed")
    with pytest.raises(ConfigError, match=r"num_neighbors must be '\[4, 3\]"):
        make((4, 4), packed=packed)
    with pytest.raises(ConfigError, match="batch_size must be 40, as it was packed"):
        make(batch_size=50, packed=packed)
    with pytest.raises(ConfigError, match="features must be"):
        make(features="feat", packed=packed)
    with pytest.raises(ConfigError, match="transform_sampler_output must be None"):
        make(transform_sampler_output=lambda out: out, packed=packed)
    with pytest.raises(ConfigError, match=r"packed must hold batches of gids\.pyg\.LinkNeighborLoader"):
        LinkNeighborLoader(homogeneous, [4, 3], packed=packed, **COMMON)
    with pytest.raises(ConfigError, match=r"packed must hold batches of gids\.Loader \(got .* of gids\.pyg\."):
        gids.Loader(homogeneous, packed=packed)
    ours = gids.pack(homogeneous, tmp_path / "ours", "train", fanouts=[3, 4], batch_size=40)
    with pytest.raises(ConfigError, match=r"packed must hold batches of gids\.pyg\.NeighborLoader"):
        make(packed=ours)
    with pytest.raises(ConfigError, match="packed must hold epochs of dataset"):
        NeighborLoader(heterogeneous, [4, 3], ("paper", "train"), packed=packed, **COMMON)
    with (
        make(packed=packed) as reading,
        pytest.raises(ConfigError, match=r"pack more epochs, .* or go on online with packed=gids\.Packed\("),
    ):
        reading.set_epoch(1)
    with make(packed=packed) as reading, pytest.raises(ConfigError, match="loader must be one that samples"):
        gids.pyg.pack(reading, tmp_path / "again")


def test_a_neighborhood_is_stored_whole(homogeneous):
    with NeighborLoader(homogeneous, [4, 3], "train", disjoint=True, **COMMON) as loader:
        sampled = loader._open().feed.sample(next(iter(loader._pieces([0])))).payload
    found, places = decode_hops(encode_hops(sampled.found, sampled.places))
    equal(vars(sampled.found), vars(found))
    equal(sampled.places, places)
