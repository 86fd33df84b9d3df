"""What a batch asks of the driver in steady state: what ``gids bench cuda`` counts, on a graph that takes seconds."""

import ctypes

import pytest

import gids
from gids.bench.cuda_profiles import PROFILES
from gids.bench.cuda_time import Call, Clock, Scale
from gids.generate import communities

pytestmark = pytest.mark.pooled
GROUP = 2  # batches that are planned as one


def trace_text(library):
    size = library.gids_standin_trace_text
    size.restype = ctypes.c_size_t
    text = ctypes.create_string_buffer(size(None, ctypes.c_size_t(0)))
    size(text, ctypes.c_size_t(len(text)))
    return text.raw.decode()


@pytest.mark.parametrize("layers", [1, 3])
def test_a_batch_in_steady_state(tmp_path, layers):
    library = ctypes.CDLL("libcuda.so.1")
    dataset = communities(tmp_path / "g", num_nodes=700, degree=8, dim=16, train=0.4)
    with gids.Loader(
        dataset,
        "train",
        fanouts=[3] * layers,
        batch_size=20,
        seed=1,
        pipeline=gids.PipelineOptions(sweep_batches=GROUP),
        memory=gids.MemoryOptions(cache=35 * 64, host_buffer=0, device_budget="64MiB"),
        device="cuda:0",
    ) as loader:
        loader.prepare()
        for _ in range(2):  # until every size of block was met
            batches = len(list(loader))
        library.gids_standin_trace(1)
        assert len(list(loader)) == batches
        library.gids_standin_trace(0)
    calls = [Call.parse(line) for line in trace_text(library).splitlines()]
    counts = Clock(PROFILES["a100-pcie4"], {}, Scale()).play(calls).counts
    groups = sum(call.name == "place_misses" for call in calls)
    assert sum(count for name, count in counts.items() if "pageable" in name) == 0
    # One wait for the sizes of a batch, one for the rows that a group reads.
    assert counts["host waits"] <= batches + groups
    # Sizes differ from epoch to epoch: now and then a block is the first of its size.
    assert sum(count for name, count in counts.items() if name.startswith("allocations")) <= batches / 4
    # Five launches a layer, three for the seeds and one to pack; two to observe and to classify, two to gather and to
    # admit; for a group 17, and now and then two for a map that has become full. Row numbers of 32 bits add four.
    assert counts["launches"] <= batches * (4 + 5 * layers + 4) + (17 + 1) * groups
    if layers == 3:
        assert (counts["launches"] + 4 * groups) / batches <= 40
