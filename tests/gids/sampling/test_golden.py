"""Golden batches: what was sampled once is sampled for ever, with any number of threads."""

import importlib.util
from pathlib import Path

import pytest

from gids._native import ThreadPool

_spec = importlib.util.spec_from_file_location("golden_cases", Path(__file__).parent / "golden" / "cases.py")
golden = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(golden)


@pytest.mark.parametrize("threads", [None, 1, 2, 7])
@pytest.mark.parametrize("name", golden.CASES)
def test_golden_batch(name, threads):
    topology, sampler, seeds = golden.CASES[name]
    pool = None if threads is None else ThreadPool(threads)
    assert golden.as_json(sampler.sample(topology(), seeds, golden.KEY, pool)) == golden.load(name)


def test_golden_batches_are_worth_comparing():
    for name in golden.CASES:
        edges = sum(len(src) for block in golden.load(name)["blocks"] for src in block["src"].values())
        assert edges > 30, name
