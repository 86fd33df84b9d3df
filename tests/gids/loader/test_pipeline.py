"""The pipeline alone, over stores in memory: order, back-pressure, grouping, errors, and that it always ends."""

import gc
import threading
import time
import weakref

import pytest
import torch

from gids.errors import ConfigError
from gids.loader import FixedGroups, Pipeline, PipelineOptions, Work
from gids.loader.stages import Channel, Run, Stopped

from .conftest import MemoryStore, gids_threads

pytestmark = pytest.mark.usefixtures("nothing_left")
TABLE = torch.arange(2000).reshape(1000, 2).float()


def work(seeds):
    return Work(payload=seeds, rows={"feat": torch.tensor(seeds)}, size_bytes=8)


def seeds(count=10):
    return [[i, (i * 7 + 3) % 1000] for i in range(count)]


def wait_until(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.002)


@pytest.mark.parametrize("window", [0, 1, 5, 50])
@pytest.mark.parametrize("group", [1, 3, 50])
def test_batches_come_in_order_with_their_rows(window, group):
    store = MemoryStore(TABLE)
    options = PipelineOptions(window=window, max_group=group)
    with Pipeline({"feat": store}, options, FixedGroups(group)).run(seeds(), work) as run:
        got = list(run)
    assert [f.work.payload for f in got] == seeds()
    assert [f.work.index for f in got] == list(range(10))
    assert all(torch.equal(f.rows["feat"], TABLE[f.work.payload]) for f in got)
    assert sum(store.groups) == 10
    assert max(store.groups) <= group
    assert max(store.lookaheads) <= window
    assert store.resets == 0, "a run that was gathered to its end leaves the stores as they are"


def test_lookahead_is_the_whole_window_until_the_end():
    store = MemoryStore(TABLE)
    with Pipeline({"feat": store}, PipelineOptions(window=4, max_group=2), FixedGroups(2)).run(seeds(), work) as run:
        list(run)
    assert store.groups == [2, 2, 2, 2, 2]
    assert store.lookaheads == [4, 4, 4, 2, 0]


def test_several_tables_and_batches_that_do_not_want_all():
    other = MemoryStore(-TABLE)
    rows = [{"a": torch.tensor([1])}, {"a": torch.tensor([2]), "b": torch.tensor([3, 4])}, {"b": torch.tensor([5])}, {}]
    with Pipeline({"a": MemoryStore(TABLE), "b": other}, grouping=FixedGroups(4)).run(
        rows, lambda r: Work(None, r)
    ) as run:
        got = [{key: value.tolist() for key, value in fetched.rows.items()} for fetched in run]
    assert got == [{"a": [[2, 3]]}, {"a": [[4, 5]], "b": [[-6, -7], [-8, -9]]}, {"b": [[-10, -11]]}, {}]


def test_back_pressure_bounds_what_is_sampled_and_read():
    sampled = []
    store = MemoryStore(TABLE)

    def sample(s):
        sampled.append(s)
        return work(s)

    options = PipelineOptions(window=3, max_group=2, groups_in_flight=2, prefetch=1)
    with Pipeline({"feat": store}, options, FixedGroups(2)).run(seeds(100), sample) as run:
        next(run)
        time.sleep(0.2)
        # 1 taken; 1 in the channel; 2 groups of 2 at most; a group and a window waiting to be
        # planned; 2 in the channel and 1 in the sampler's hand.
        assert len(sampled) <= 1 + 1 + 4 + 5 + 2 + 1
        assert store.most_under_way == 2
    assert store.resets == 1


@pytest.mark.parametrize(("group_bytes", "most"), [(1, 1), (2 * 2 * 16, 2), (3 * 2 * 16, 3)])
def test_bytes_bound_the_groups_in_flight(group_bytes, most):
    store = MemoryStore(TABLE, group_bytes=group_bytes, delay_s=0.002)
    options = PipelineOptions(window=1, max_group=2, groups_in_flight=5)
    with Pipeline({"feat": store}, options, FixedGroups(2)).run(seeds(40), work) as run:
        assert len(list(run)) == 40
    assert store.most_under_way == most


@pytest.mark.parametrize("rotation", [1, 2, 5])
def test_groups_that_share_reads_come_in_order_and_all_of_them(rotation):
    store = MemoryStore(TABLE, rotation=rotation)
    options = PipelineOptions(window=2, max_group=2, rotation=rotation)
    with Pipeline({"feat": store}, options, FixedGroups(2)).run(seeds(30), work) as run:
        assert [fetched.work.index for fetched in run] == list(range(30))
    assert store.most_at_once == rotation
    assert store.under_way == 0
    assert store.resets == 0


@pytest.mark.parametrize("taken", [0, 1, 7])
def test_a_run_that_is_left_keeps_no_batch_alive(taken):
    """Not even in a traceback, for the garbage collector to find: a batch may be a tenth of the memory there is."""
    made = []

    class Watched(MemoryStore):
        def gather(self, pending, batch):
            rows = super().gather(pending, batch)
            made.append(weakref.ref(rows))
            return rows

    gc.collect()
    gc.disable()
    try:
        run = Pipeline({"feat": Watched(TABLE)}, PipelineOptions(window=1, prefetch=3)).run(seeds(40), work)
        for _ in range(taken):
            next(run)
        while len(made) < taken + 3:
            time.sleep(0.001)
        run.close()
        assert [rows() for rows in made if rows() is not None] == []
    finally:
        gc.enable()


def test_bytes_bound_the_samples_that_wait():
    sampled = []

    def sample(s):
        sampled.append(s)
        return Work(s, {"feat": torch.tensor(s)}, size_bytes=100)

    options = PipelineOptions(window=0, max_group=1, groups_in_flight=1, prefetch=1, sample_bytes=1)
    with Pipeline({"feat": MemoryStore(TABLE)}, options, FixedGroups(1)).run(seeds(50), sample) as run:
        next(run)
        time.sleep(0.1)
        assert len(sampled) <= 8, "one item at a time, however small the bound"
        assert len(list(run)) == 49


def test_out_of_order_delivers_what_is_ready():
    slow = threading.Event()

    def sample(s):
        if s[0] == 0:
            assert slow.wait(60)
        return work(s)

    options = PipelineOptions(in_order=False, sample_workers=2, window=1, max_group=1)
    with Pipeline({"feat": MemoryStore(TABLE)}, options, FixedGroups(1)).run(seeds(4), sample) as run:
        first = [next(run).work.index for _ in range(2)]
        slow.set()
        rest = [fetched.work.index for fetched in run]
    assert 0 not in first
    assert sorted(first + rest) == [0, 1, 2, 3]


@pytest.mark.parametrize("where", ["sample", "order", "gather", "plan"])
def test_an_error_reaches_next_and_ends_the_run(where):
    store = MemoryStore(TABLE, fail_at_group=1 if where == "gather" else -1)

    def order():
        for number, s in enumerate(seeds()):
            if where == "order" and number == 4:
                raise KeyError("no such split")
            yield s

    def sample(s):
        if where == "sample" and s[0] == 4:
            raise KeyError("bad node")
        return Work(s, {"feat": torch.tensor(s)}) if where != "plan" or s[0] != 4 else Work(s, {"feat": None})

    run = Pipeline({"feat": store}, PipelineOptions(window=1, max_group=2), FixedGroups(2)).run(order(), sample)
    got = []
    with pytest.raises((KeyError, OSError, TypeError, IndexError)):
        got.extend(fetched.work.index for fetched in iter(lambda: next(run), None))
    assert got == list(range(len(got)))
    assert len(got) <= 4
    assert gids_threads() == []
    with pytest.raises(StopIteration):
        next(run)


@pytest.mark.parametrize("taken", [0, 1, 5])
def test_leaving_early_cancels_and_resets(taken):
    store = MemoryStore(TABLE, delay_s=0.001)
    run = Pipeline({"feat": store}).run(seeds(1000), work)
    for _ in range(taken):
        next(run)
    wait_until(lambda: store.under_way > 0)
    begin = time.monotonic()
    run.close()
    assert time.monotonic() - begin < 1
    assert gids_threads() == []
    assert store.resets == 1


def test_close_does_not_wait_for_a_slow_disk():
    store = MemoryStore(TABLE, delay_s=60)
    run = Pipeline({"feat": store}).run(seeds(1000), work)
    wait_until(lambda: store.under_way == 2)
    begin = time.monotonic()
    run.close()
    assert time.monotonic() - begin < 1


def test_dropping_the_run_ends_it():
    run = Pipeline({"feat": MemoryStore(TABLE)}).run(seeds(1000), work)
    next(run)
    assert gids_threads() == ["gids-fetch", "gids-plan", "gids-sample"]
    del run
    assert gids_threads() == []


def test_collected_on_one_of_its_own_threads():
    cycle, dropped = [], threading.Event()

    def sample(s):
        if s[0] == 30:
            assert dropped.wait(60)
            gc.collect()
        return work(s)

    gc.disable()
    try:
        run = Pipeline({"feat": MemoryStore(TABLE)}, PipelineOptions(prefetch=60)).run(seeds(1000), sample)
        cycle.extend([run, cycle])
        del run, cycle
        dropped.set()
        wait_until(lambda: gids_threads() == [])
    finally:
        gc.enable()


def test_channel_stop_wakes_both_ends():
    channel = Channel("test", 1)
    channel.put(1)
    outcomes = []

    def blocked():
        try:
            channel.put(2)
        except Stopped:
            outcomes.append("stopped")

    thread = threading.Thread(target=blocked)
    thread.start()
    time.sleep(0.02)
    channel.stop()
    thread.join(60)
    assert outcomes == ["stopped"]
    with pytest.raises(Stopped):
        channel.get()


def test_a_worker_that_ends_well_does_not_hide_the_error_of_another():
    turn = iter([1, 2, 3])
    lock = threading.Lock()

    class Items:
        def __iter__(self):
            return self

        def __next__(self):
            with lock:
                value = next(turn)
            if value == 2:
                raise ValueError("second")
            return value

    with Run("gids-test") as run, pytest.raises(ValueError, match="second"):
        list(run.ahead("x", Items(), depth=1, workers=2))


@pytest.mark.parametrize(
    "bad", [{"window": -1}, {"max_group": 0}, {"prefetch": 0}, {"groups_in_flight": 0}, {"sample_workers": 2}]
)
def test_bad_options(bad):
    with pytest.raises(ConfigError, match=next(iter(bad))):
        PipelineOptions(**bad)
