"""gids.Loader with device="cuda" gives the batches of the CPU backend, whatever is asked of it."""

import importlib.util
import threading

import numpy as np
import pytest
import torch
from threads import hold

import gids
from gids.cuda.session import CudaSession, open_device
from gids.dataset import DatasetWriter
from gids.errors import ConfigError
from gids.runtime.opening import TierOpener
from gids.sampling import EdgeSeeds, Exclude, LadiesSampler, NeighborSampler, Relation, ShadowSampler, Topology
from gids.sampling.topology import load_table
from gids.storage import StorageOptions
from gids.types import EDGE
from tests.loading import load

pytestmark = pytest.mark.pooled
LONG = pytest.mark.long  # plans of every policy are compared in tests/kernels too, and pread stages as uring does
OPTIONS = {"fanouts": [3, 4], "batch_size": 48, "seed": 5, "sweep_batches": 3, "window": 4}


def flat(value):
    """Every tensor of a batch with its place, as plain arrays."""
    found = {}

    def walk(item, place):
        if isinstance(item, torch.Tensor):
            found[place] = item
        elif isinstance(item, dict):
            for key in item:
                walk(item[key], (*place, key))
        elif isinstance(item, list):
            for number, part in enumerate(item):
                walk(part, (*place, number))
        elif hasattr(item, "__dataclass_fields__"):
            for name in item.__dataclass_fields__:
                walk(getattr(item, name), (*place, name))

    walk(value, ())
    return found


def assert_same(cpu, device):
    assert len(cpu) == len(device) > 0
    for expected, got in zip(cpu, device, strict=True):
        expected, got = flat(expected), flat(got)
        assert expected.keys() == got.keys()
        for place, tensor in expected.items():
            assert tensor.dtype == got[place].dtype, place
            assert torch.equal(tensor, got[place]), place


def both(dataset, epochs=2, device_options=None, **options):
    options = OPTIONS | options
    with load(dataset, budget="256MiB", **options) as loader:
        cpu = [batch for _ in range(epochs) for batch in loader]
    with load(dataset, device="cuda", device_budget="48MiB", **options, **(device_options or {})) as loader:
        device = [batch for _ in range(epochs) for batch in loader]
        notes, stats = loader.notes, loader.stats()
        assert {name: usage for name, usage in stats.usage.items() if usage.peak > usage.allotted} == {}
    assert_same(cpu, device)
    return notes, stats


@pytest.mark.parametrize(
    "policy", ["window", "belady", "sieve", *(pytest.param(name, marks=LONG) for name in ("gids(4)", "lru", "random"))]
)
def test_every_policy(dataset, policy):
    _, stats = both(dataset, seeds="train", policy=policy, cache="8KiB", host_buffer=0)
    table = stats.tables["_N/feat"]
    assert table.requests == table.cache + table.host + table.disk + table.duplicates
    assert table.cache > 0


@pytest.mark.parametrize("engine", ["gds", "uring", "auto", pytest.param("pread", marks=LONG)])
def test_every_engine(dataset, engine):
    if importlib.util.find_spec("kvikio") is None:  # found, not imported: libcufile must be loaded before it
        pytest.skip("kvikio is not installed (make test installs it)")
    storage = {"storage": StorageOptions(engine=engine)}
    notes, stats = both(dataset, 1, seeds="train", cache="4KiB", device_options=storage)
    assert stats.tables["_N/feat"].reads > 0
    if engine == "gds":
        assert "compatibility mode" in notes["_N/feat"]
    if engine == "auto":
        assert "gds cannot be used" in notes["_N/feat"]
        assert "pinned staging" in notes["_N/feat"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, pytest.param(torch.float64, marks=LONG)])
def test_conversion_on_the_way(dataset, dtype):
    both(dataset, 1, seeds="train", dtype=dtype, cache="0B")


@pytest.mark.parametrize(
    "options",
    [{"fanouts": [-1, 2]}, {"cache": "64KiB", "groups_in_flight": 1}, {"prefetch": 1}, {"host_buffer": "16KiB"}],
)
def test_other_shapes(dataset, options):
    both(dataset, 1, seeds="train", **options)


def test_a_sampler_without_kernels_runs_on_the_cpu_and_says_so(dataset):
    class Own:
        def __init__(self):
            self.inner = NeighborSampler([2, 2])

        def sample(self, topology, seeds, key, pool=None):
            return self.inner.sample(topology, seeds, key, pool)

    notes, _ = both(dataset, 1, seeds="train", fanouts=None, sampler=Own())
    assert notes["sampling"] == "on the CPU: Own has no kernels"


@pytest.mark.parametrize("sampler", [LadiesSampler([60, 40]), ShadowSampler([2, 3], edge_ids=True)])
def test_other_samplers(dataset, sampler):
    notes, _ = both(dataset, 1, seeds="train", fanouts=None, sampler=sampler)
    assert "sampling" not in notes


@pytest.mark.parametrize("sampler", [NeighborSampler([3, 4], edge_ids=True), LadiesSampler([60, 40], edge_ids=True)])
def test_edge_features_are_numbered_on_the_device(tmp_path, sampler):
    rng = np.random.default_rng(4)
    indptr = np.concatenate([[0], np.cumsum(rng.integers(0, 9, 300))])
    with DatasetWriter(tmp_path / "e") as writer:
        writer.add_nodes(300)
        writer.add_features(rng.standard_normal((300, 6)).astype(np.float32))
        writer.add_csc(indptr, rng.integers(0, 300, indptr[-1]), edge_ids=rng.permutation(indptr[-1]))
        writer.add_edge_features(rng.standard_normal((indptr[-1], 5)).astype(np.float32), name="w")
        writer.add_split("train", torch.arange(0, 300, 2))
        writer.finish()
    dataset = gids.open(tmp_path / "e")
    notes, stats = both(
        dataset,
        seeds="train",
        labels=False,
        features={gids.NODE: "feat", gids.EDGE: "w"},
        fanouts=None,
        sampler=sampler,
    )
    assert "sampling" not in notes
    assert sum(table.requests > 0 for table in stats.tables.values()) == 2
    with pytest.raises(ConfigError, match="features of edges need a sampler that returns edge ids"):
        both(
            dataset,
            seeds="train",
            labels=False,
            features={gids.NODE: "feat", gids.EDGE: "w"},
            fanouts=None,
            sampler=NeighborSampler([2]),
        )


@pytest.mark.parametrize("topology", ["memory", "disk"])
@pytest.mark.parametrize("sampler", [NeighborSampler([3, 4]), LadiesSampler([60, 40])])
def test_edges_as_seeds(dataset, sampler, topology):
    indptr, count = dataset.indptr(EDGE), 200
    dst = np.flatnonzero(np.diff(indptr))[:count]
    src = load_table(dataset.indices_table(EDGE))[indptr[dst]].astype(np.int64)
    seeds = EdgeSeeds(torch.from_numpy(src), torch.from_numpy(dst), negatives=2, exclude=Exclude.SEEDS_AND_REVERSE)
    notes, _ = both(dataset, 1, seeds=seeds, fanouts=None, sampler=sampler, topology=topology)
    assert notes.get("sampling") == (None if topology == "memory" else "on the CPU: neighbours are read from disk")


def test_seeds_with_a_cuda_array_interface(dataset):
    ids = np.arange(0, 200, 3, dtype=np.int32)
    session = CudaSession(open_device())

    # What arrays of CuPy and Numba look like with a stream named; CuPy's own are in case_cupy.py.
    class Foreign:
        def __init__(self, array, **more):
            self.array = array
            self.__cuda_array_interface__ = array.__cuda_array_interface__ | more

    options = OPTIONS | {"device": "cuda", "device_budget": "48MiB"}
    with load(dataset, seeds=torch.from_numpy(ids.astype(np.int64)), **options) as loader:
        expected = list(loader)
    for more in ({"stream": session.stream_handle}, {"stream": 1, "strides": (4,), "version": 3}, {"stream": None}):
        session.synchronize()
        with load(dataset, seeds=Foreign(session.upload(ids), **more), **options) as loader:
            assert_same(expected, list(loader))
    with pytest.raises(ConfigError, match=r"seeds must be contiguous \(got strides \(8,\)\)"):
        load(dataset, seeds=Foreign(session.upload(ids), strides=(8,)), **options)
    with pytest.raises(ConfigError, match="seeds must be integers of one dimension"):
        load(dataset, seeds=Foreign(session.upload(ids.astype(np.float32))), **options)


@pytest.mark.parametrize("engine", ["pread", "gds"])
def test_a_heterograph_in_stripes_with_padded_rows(tmp_path, engine):
    rng = np.random.default_rng(3)
    sizes = {"paper": 300, "author": 150}
    with DatasetWriter(tmp_path / "h") as writer:
        for ntype, count in sizes.items():
            writer.add_nodes(count, ntype)
        writer.add_features(rng.standard_normal((300, 7)).astype(np.float16), "paper", stripes=2, stripe_rows=16)
        writer.add_features(rng.standard_normal((150, 3)).astype(np.float32), "author", row_stride=64)
        for src, dst in (("author", "paper"), ("paper", "author")):
            indptr = np.concatenate([[0], np.cumsum(rng.integers(0, 7, sizes[dst]))])
            writer.add_csc(indptr, rng.integers(0, sizes[src], indptr[-1]), (src, "writes", dst))
        writer.add_split("train", torch.arange(0, 300, 4), "paper")
        writer.finish()
    storage = {"storage": StorageOptions(engine=engine)}
    both(gids.open(tmp_path / "h"), 1, storage, seeds="train", labels=False, fanouts=[3, 3])


def test_pinning_is_shared_and_undone(dataset, live):
    from gids.cuda.sampling import pin_topology, unpin_topology

    session = CudaSession(open_device())
    before = live()["mapped"]
    topology = Topology({"_N": 2}, {("_N", "_E", "_N"): Relation(np.array([0, 1, 2]), np.array([1, 0]))})
    first, second = pin_topology(topology, session), pin_topology(topology, session)
    assert first is second
    assert live()["mapped"] == before + 2
    unpin_topology(first)
    assert live()["mapped"] == before + 2
    unpin_topology(second)
    assert live()["mapped"] == before


def test_two_loaders_of_a_dataset_pin_its_topology_once(dataset, live):
    options = {"device": "cuda", "device_budget": "48MiB", "host_buffer": 0, "cache": 0, **OPTIONS}
    before = live()["mapped"]
    with load(dataset, seeds="train", **options) as first:
        alone = [next(iter(first)) for _ in range(1)]
        pinned = live()["mapped"]
        assert pinned > before
        with load(gids.open(dataset.path), seeds="val", **options) as second:
            next(iter(second))
            assert live()["mapped"] == pinned
        assert live()["mapped"] == pinned  # the first still reads it
        first.set_epoch(0)
        assert_same(alone, [next(iter(first))])
    assert live()["mapped"] == before


def test_nothing_is_left_behind(dataset, live):
    def epoch_and_a_half():
        with load(dataset, seeds="train", device="cuda", device_budget="48MiB", **OPTIONS) as loader:
            list(loader)
            next(iter(loader))

    before = live()  # kvikio keeps pinned buffers of its own
    epoch_and_a_half()
    assert live() == before
    assert before["pieces"] == before["mapped"] == 0


def test_popularity_beyond_the_window(dataset):
    """Its bytes are in the device's budget, which ``both`` checks, and the same rows stay as on the CPU."""
    rows = dataset.num_nodes()
    options = {
        "seeds": "train",
        "cache": 17 * rows,
        "sweep_batches": 1,
        "window": 1,
        "host_buffer": 0,
        "groups": "64KiB",
    }
    _, ranked = both(dataset, **options)
    _, plain = both(dataset, popularity=False, **options)
    assert any("popularity of rows beyond the window is known" in reason for reason in ranked.reasons)
    assert not any("popularity" in reason for reason in plain.reasons)
    assert ranked.tables["_N/feat"].cache != plain.tables["_N/feat"].cache


@pytest.mark.pooled(always=True)
def test_training_that_lags_holds_up_neither_storage_nor_the_batches_after_it(dataset, fake):
    """The stream that trains stands still; batches are sampled, read and gathered nevertheless, and freed without it."""
    with load(dataset, seeds="train", device="cuda", device_budget="48MiB", **OPTIONS) as loader:
        loader.prepare()  # stores are replaced before, and in the next test
        check_that_no_batch_waits_for_training(loader, dataset, fake)


@pytest.mark.pooled(always=True)
def test_training_that_lags_does_not_keep_stores_from_being_replaced(dataset, fake, monkeypatch):
    """They are, with a cache by expected visits and then with a host buffer: what was pinned is freed at the end."""
    held, replaced, real = threading.Event(), [], TierOpener.replace

    def replace_behind_training(*arguments):
        assert held.wait(60)
        replaced.append(real(*arguments))
        return replaced[-1]

    monkeypatch.setattr(TierOpener, "replace", replace_behind_training)
    options = OPTIONS | {"cache": 17 * dataset.num_nodes(), "window": 1, "sweep_batches": 1, "host_buffer": "16KiB"}
    with load(dataset, seeds="train", device="cuda", device_budget="48MiB", **options) as loader:
        check_that_no_batch_waits_for_training(loader, dataset, fake, held)
    assert len(replaced) == 2


def check_that_no_batch_waits_for_training(loader, dataset, fake, held=None):
    """Stop the training stream behind the first batch, and finish the epoch; ``held`` is set when it has stopped."""
    fake.copies = False  # what is copied on that stream would wait for it
    stream = torch.cuda.Stream(0)
    try:
        with torch.cuda.stream(stream):
            batches = iter(loader)
            rows = [next(batches).x.shape[0]]
            release = hold(Held(stream))
            if held is not None:
                held.set()
            rows += [batch.x.shape[0] for batch in batches]  # each is dropped while `stream` has not got to it
            if held is not None:
                loader.prepare()
            (store,) = loader.stores.values()
            store.fetch.synchronize()  # gathers and their admissions are done
            assert not release.is_set()
            release.set()
            stream.synchronize()
    finally:
        fake.copies = True
    with load(dataset, seeds="train", budget="256MiB", **OPTIONS) as plain:
        assert rows == [batch.x.shape[0] for batch in plain]


class Held:
    """A torch stream, as far as ``hold`` is concerned."""

    def __init__(self, stream):
        self.stream_handle = stream.cuda_stream

    def current(self):
        return torch.cuda.device(0)
