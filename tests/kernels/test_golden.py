"""The golden batches of the CPU backend, sampled lane by lane."""

import importlib.util
from pathlib import Path

import pytest

from gids.cuda.sampling import CudaNeighborSampler, PinnedTopology, as_numpy

_path = Path(__file__).parents[1] / "gids" / "sampling" / "golden" / "cases.py"
_spec = importlib.util.spec_from_file_location("golden_cases", _path)
golden = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(golden)


@pytest.mark.parametrize("lanes", [1, 32])
@pytest.mark.parametrize("name", ["neighbor", "all", "replace", "heterogeneous"])
def test_golden_batch(session, name, lanes):
    make, sampler, seeds = golden.CASES[name]
    topology = make()
    by_type = seeds if isinstance(seeds, dict) else {"_N": seeds}
    device = CudaNeighborSampler(sampler, lanes).sample(
        session,
        PinnedTopology(topology, session),
        {ntype: session.upload(ids.numpy()) for ntype, ids in by_type.items()},
        golden.KEY,
    )
    got, expected = as_numpy(session, device), golden.load(name)
    for field in ("input_nodes", "seed_rows"):
        assert {ntype: values.tolist() for ntype, values in got[field].items()} == expected[field]
    for mine, theirs in zip(got["blocks"], expected["blocks"], strict=True):
        for field in ("indptr", "src", "edge_ids"):
            assert {"/".join(etype): values.tolist() for etype, values in mine[field].items()} == theirs[field]
