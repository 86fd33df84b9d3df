"""OutputOptions(transform=...): the user's function on every batch before it is handed over."""

from dataclasses import replace

import pytest
import torch

import gids
from gids import ConfigError, OrderOptions, OutputOptions
from gids.generate import communities

OPTIONS = {"fanouts": [3, 2], "batch_size": 32, "order": OrderOptions(seed=3)}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return communities(tmp_path_factory.mktemp("graph") / "g", num_nodes=400, degree=5, dim=6, train=0.4)


def batches(dataset, transform=None):
    with gids.Loader(dataset, "train", output=OutputOptions(transform=transform), **OPTIONS) as loader:
        return list(loader)


def test_in_place_and_by_return_value(dataset):
    plain = batches(dataset)

    def in_place(batch):
        batch.x.mul_(2)

    for made in (batches(dataset, in_place), batches(dataset, lambda batch: replace(batch, x=batch.x * 2))):
        assert len(made) == len(plain) == 5
        for mine, theirs in zip(made, plain, strict=True):
            assert torch.equal(mine.x, theirs.x * 2)
            assert torch.equal(mine.seeds, theirs.seeds)


def test_what_is_not_a_batch_is_refused(dataset):
    with pytest.raises(ConfigError, match=r"transform must return None or a Batch \(got Tensor\)"):
        batches(dataset, lambda batch: batch.x)
    with pytest.raises(ConfigError, match=r"transform must be callable \(got int\)"):
        OutputOptions(transform=3)


def test_its_exception_reaches_next_and_the_loader_goes_on(dataset):
    calls = []

    def fail_once(batch):
        calls.append(batch.index)
        if len(calls) == 2:
            raise ArithmeticError("of the user")

    with gids.Loader(dataset, "train", output=OutputOptions(transform=fail_once), **OPTIONS) as loader:
        with pytest.raises(ArithmeticError, match="of the user"):
            list(loader)
        assert len(list(loader)) == 5
