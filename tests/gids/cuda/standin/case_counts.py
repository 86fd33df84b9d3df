"""What a batch asks of the driver in steady state: what ``gids bench cuda`` counts, on a graph that takes seconds."""

import ctypes
import gc
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import gids
from gids.bench.cuda_profiles import PROFILES
from gids.bench.cuda_time import FIXED_ITEMS, Call, Clock, Scale
from gids.bench.cuda_worker import MOST_EPOCHS, count_items, trace_text
from gids.cuda.session import CudaSession, open_device
from gids.dataset import DatasetWriter
from gids.generate import communities
from gids.sampling import NeighborSampler, ShadowSampler

pytestmark = pytest.mark.pooled
GROUP = 2  # batches that are planned as one
KERNEL_COUNTS = Path(__file__).resolve().parents[3] / "ptx" / "kernel_counts.json"

#: Estimated microseconds of a batch of a million rows, a tenth above what they were when this was written. (With 800 nodes
#: more edges lead to each row than in a graph that needs a disk.) The link needs 40,000 for a gigabyte of rows.
MOST_US = {"sample": 3700, "plan": 1100, "gather": 1600, "Python": 420}


def allocations(counts):
    return sum(count for name, count in counts.items() if name.startswith("allocations"))


def counted(dataset, loader_options, *, policy="window", batch_size=20, row_bytes=64):
    """Return what an epoch in steady state asks of the driver, its calls, and how many batches it has.

    Steady state is reached when an epoch finds room for everything in the memory of those before it: how many batches
    are under way at once depends on the threads.
    """
    library = ctypes.CDLL("libcuda.so.1")
    with gids.Loader(
        dataset,
        "train",
        batch_size=batch_size,
        order=gids.OrderOptions(seed=1),
        pipeline=gids.PipelineOptions(sweep_batches=GROUP),
        memory=gids.MemoryOptions(cache=35 * row_bytes, host_buffer=0, device_budget="64MiB", policy=policy),
        device="cuda:0",
        **loader_options,
    ) as loader:
        loader.prepare()
        batches = len(list(loader))
        for _ in range(MOST_EPOCHS):
            library.gids_standin_trace(1)
            assert len(list(loader)) == batches
            library.gids_standin_trace(0)
            calls = [Call.parse(line) for line in trace_text(library).splitlines()]
            counts = Clock(PROFILES["a100-pcie4"], {}, Scale()).play(calls).counts
            if not allocations(counts):
                break
    return counts, calls, batches


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return communities(tmp_path_factory.mktemp("counts") / "g", num_nodes=700, degree=8, dim=16, train=0.4)


def check(counts, batches):
    """One wait a batch, for the sizes of what is handed over; no memory is asked for, and none of it is pageable."""
    assert counts["host waits"] == batches
    assert sum(count for name, count in counts.items() if "pageable" in name) == 0
    assert allocations(counts) == 0


@pytest.mark.parametrize("layers", [1, 3])
def test_a_batch_in_steady_state(dataset, layers):
    counts, calls, batches = counted(dataset, {"fanouts": [3] * layers})
    check(counts, batches)
    groups = sum(call.name == "place_misses" for call in calls)
    # Rows to read reach the host by a function of the planner's stream; so does the end of each chunk's copy.
    assert counts["host functions"] <= 2 * groups
    # Five launches a layer, three for the seeds and one to pack; two to observe and to classify, two to gather and to
    # admit; for a group 17, and now and then two for a map that has become full. Row numbers of 32 bits add four.
    assert counts["launches"] <= batches * (4 + 5 * layers + 4) + (17 + 1) * groups
    if layers == 3:
        assert (counts["launches"] + 4 * groups) / batches <= 40


def test_the_estimated_time_of_a_batch(tmp_path, monkeypatch):
    """Of a million rows of 1 KiB on an A100: what its kernels and its calls would take, counted here, costed by a table."""
    monkeypatch.setattr(CudaSession, "launch", CudaSession.launch)  # as it was, afterwards
    count_items(ctypes.CDLL("libcuda.so.1"))
    dataset = communities(tmp_path / "g", num_nodes=800, degree=8, dim=256, train=0.5)
    counts, calls, batches = counted(dataset, {"fanouts": [3] * 3}, batch_size=100, row_bytes=1024)
    check(counts, batches)
    gathered = [call.size for call in calls if call.name.startswith("gather_rows")]
    assert len(gathered) == batches
    assert min(gathered) > FIXED_ITEMS  # else its work would not be taken to grow
    scale = Scale(1_000_000 / (sum(gathered) / batches), 1024)
    timeline = Clock(PROFILES["a100-pcie4"], json.loads(KERNEL_COUNTS.read_text())["kernels"], scale).play(calls)
    device = {stage: timeline.device_us[stage] / batches for stage in ("sample", "plan", "gather")}
    assert all(us <= MOST_US[stage] for stage, us in device.items()), device
    assert sum(timeline.host_us.values()) / batches <= MOST_US["Python"], timeline.host_us


@pytest.mark.parametrize("policy", ["lru", "belady"])
def test_every_policy_waits_once(dataset, policy):
    counts, _, batches = counted(dataset, {"fanouts": [3, 3]}, policy=policy)
    check(counts, batches)


def test_a_closed_session_that_is_collected_waits_for_nothing():
    """Those of a closed loader are, at any time: three waits of theirs were once counted among the next loader's."""
    library, session = ctypes.CDLL("libcuda.so.1"), CudaSession(open_device())
    array = session.upload(np.arange(5))
    session.close()
    library.gids_standin_trace(1)
    del array, session
    gc.collect()
    library.gids_standin_trace(0)
    kinds = [line.split("|")[0] for line in trace_text(library).splitlines()]
    assert kinds == ["pool free"]


def test_a_layer_without_a_fanout_waits_for_nothing_more(dataset):
    counts, _, batches = counted(dataset, {"fanouts": [2, -1]})
    check(counts, batches)


def test_shadow_waits_for_nothing_more(dataset):
    counts, _, batches = counted(dataset, {"sampler": ShadowSampler([2, 2])})
    check(counts, batches)


def hetero(path, relations):
    rng = np.random.default_rng(3)
    with DatasetWriter(path) as writer:
        for ntype in ("paper", "author"):
            writer.add_nodes(400, ntype)
            writer.add_features(rng.standard_normal((400, 16)).astype(np.float32), ntype)
        for number in range(relations):
            indptr = np.concatenate([[0], np.cumsum(rng.integers(1, 7, 400))])
            ends = ("author", "paper") if number % 2 else ("paper", "author")
            writer.add_csc(indptr, rng.integers(0, 400, indptr[-1]), (ends[0], f"r{number}", ends[1]))
            writer.add_edge_features(
                rng.standard_normal((indptr[-1], 4)).astype(np.float32), (ends[0], f"r{number}", ends[1]), name="w"
            )
        writer.add_split("train", torch.arange(0, 400, 2), "paper")
        writer.finish()
    return gids.open(path)


def test_launches_of_a_heterograph_are_linear_in_its_relations(tmp_path):
    options = {"fanouts": [2, 2], "output": gids.OutputOptions(labels=False)}
    launches = []
    for relations in (2, 4, 6):
        counts, _, batches = counted(hetero(tmp_path / f"h{relations}", relations), options)
        check(counts, batches)
        launches.append(counts["launches"] / batches)
    # Five for each relation and layer, of which there are two.
    assert launches[1] - launches[0] <= 2 * 5 * 2
    assert launches[2] - launches[0] <= 4 * 5 * 2


def test_edge_features_wait_for_nothing_more(tmp_path):
    sampler = NeighborSampler([2, 2], edge_ids=True)
    features = dict.fromkeys(("paper", "author"), "feat")
    features |= dict.fromkeys((("paper", "r0", "author"), ("author", "r1", "paper")), "w")
    counts, _, batches = counted(
        hetero(tmp_path / "e", 2),
        {"sampler": sampler, "output": gids.OutputOptions(labels=False), "features": features},
    )
    check(counts, batches)
