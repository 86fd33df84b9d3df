"""The pipeline alone, over stores in memory: order, back-pressure, grouping, errors, and that it always ends."""

import gc
import signal
import threading
import time
import weakref

import pytest
import torch

from gids.errors import GidsError
from gids.ledger import Account, Stopped
from gids.runtime import Work
from gids.runtime.threads import Channel, Run
from gids.types import TableKey
from tests.resources import gids_threads, threads_left

from .conftest import FEAT, MemoryStore, groups_of, pipeline

pytestmark = pytest.mark.usefixtures("nothing_left")
TABLE = torch.arange(2000).reshape(1000, 2).float()


def work(seeds):
    return Work(payload=seeds, rows={FEAT: torch.tensor(seeds)}, size_bytes=8)


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
    with pipeline(store, window=window, group=group).run(seeds(), work) as run:
        got = list(run)
    assert [f.work.payload for f in got] == seeds()
    assert [f.work.index for f in got] == list(range(10))
    assert all(torch.equal(f.rows[FEAT], TABLE[f.work.payload]) for f in got)
    assert sum(store.groups) == 10
    assert max(store.groups) <= group
    assert max(store.lookaheads) <= window
    assert store.resets == 0, "a run that was gathered to its end leaves the stores as they are"


def test_the_first_batch_goes_alone_then_lookahead_is_the_whole_window_until_the_end():
    store = MemoryStore(TABLE)
    with pipeline(store, window=4, group=2).run(seeds(), work) as run:
        list(run)
    assert store.groups == [1, 2, 2, 2, 2, 1]
    assert store.lookaheads == [0, 4, 4, 3, 1, 0]


def test_a_long_window_opens_while_its_first_groups_are_read():
    store = MemoryStore(TABLE)
    with pipeline(store, window=200, group=10).run(seeds(330), work) as run:
        list(run)
    # 64 and 8 for each batch that was planned before; at the end what is left.
    assert store.lookaheads[:5] == [0, 64 + 8, 64 + 8 * 11, 200, 200]
    assert store.lookaheads[-3:] == [19, 9, 0]


def test_the_first_batch_waits_for_no_other_to_be_sampled():
    later = threading.Event()

    def sample(s):
        if s[0] > 2:  # two more are sampled ahead of planning, whatever it asks for
            assert later.wait(60)
        return work(s)

    with pipeline(MemoryStore(TABLE), window=8, group=4).run(seeds(), sample) as run:
        first = next(run).work.index
        later.set()
        assert [first, *(fetched.work.index for fetched in run)] == list(range(10))


def test_several_tables_and_batches_that_do_not_want_all():
    other = MemoryStore(-TABLE)
    a, b = TableKey("_N", "a"), TableKey("_N", "b")
    rows = [{a: torch.tensor([1])}, {a: torch.tensor([2]), b: torch.tensor([3, 4])}, {b: torch.tensor([5])}, {}]
    with pipeline({a: MemoryStore(TABLE), b: other}, group=4).run(rows, lambda r: Work(None, r)) as run:
        got = [{key.name: value.tolist() for key, value in fetched.rows.items()} for fetched in run]
    assert got == [{"a": [[2, 3]]}, {"a": [[4, 5]], "b": [[-6, -7], [-8, -9]]}, {"b": [[-10, -11]]}, {}]


def test_back_pressure_bounds_what_is_sampled_and_read():
    sampled = []
    store = MemoryStore(TABLE)

    def sample(s):
        sampled.append(s)
        return work(s)

    with pipeline(store, window=3, group=2, groups_in_flight=2, prefetch=1).run(seeds(100), sample) as run:
        for taken in range(1, 91):
            next(run)
            if taken == 3:
                wait_until(lambda: store.most_under_way == 2)
            # 1 in the channel; 2 groups of 2 at most; a group and a window waiting to be planned; 2 in the channel and
            # 1 in the sampler's hand.
            assert len(sampled) <= taken + 1 + 4 + 5 + 2 + 1
        assert store.most_under_way == 2
    assert store.resets == 1


@pytest.mark.parametrize(("group_bytes", "most"), [(1, 1), (2 * 2 * 16, 2), (3 * 2 * 16, 3)])
def test_bytes_bound_the_groups_in_flight(group_bytes, most):
    store = MemoryStore(TABLE, group_bytes=group_bytes, delay_s=0.002)
    with pipeline(store, window=1, group=2, groups_in_flight=5).run(seeds(40), work) as run:
        assert len(list(run)) == 40
    assert store.most_under_way == most


@pytest.mark.parametrize("rotation", [1, 2, 5])
def test_groups_that_share_reads_come_in_order_and_all_of_them(rotation):
    store = MemoryStore(TABLE, rotation=rotation)
    with pipeline(store, window=2, group=2, sweep_groups=rotation).run(seeds(30), work) as run:
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
        run = pipeline(Watched(TABLE), window=1, prefetch=3).run(seeds(40), work)
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
        return Work(s, {FEAT: torch.tensor(s)}, size_bytes=100)

    samples = Account("samples", 1)
    bounded = pipeline(MemoryStore(TABLE), window=30, group=1, groups_in_flight=1, prefetch=1, samples=samples)
    with bounded.run(seeds(50), sample) as run:
        for taken in range(1, 51):
            next(run)
            assert len(sampled) <= taken + 7, "one item at a time, however small the bound and however long the window"
        assert len(list(run)) == 0
    assert samples.used == 0
    assert samples.usage.peak >= 100 + 2 * 60, "the payload, and what a planner keeps of its two rows"


def test_out_of_order_delivers_what_is_ready():
    slow = threading.Event()

    def sample(s):
        if s[0] == 0:
            assert slow.wait(60)
        return work(s)

    unordered = pipeline(MemoryStore(TABLE), window=1, group=1, sample_workers=2, in_order=False)
    with unordered.run(seeds(4), sample) as run:
        first = [next(run).work.index for _ in range(2)]
        slow.set()
        rest = [fetched.work.index for fetched in run]
    assert 0 not in first
    assert sorted(first + rest) == [0, 1, 2, 3]


def test_several_workers_keep_the_order_and_stay_near_it():
    slow, taken = threading.Event(), []

    def sample(s):
        taken.append(s[0])
        if s[0] == 0:
            assert slow.wait(60)
        return work(s)

    ordered = pipeline(MemoryStore(TABLE), window=1, group=1, sample_workers=3)
    with ordered.run(seeds(20), sample) as run:
        wait_until(lambda: len(taken) == 5)  # three workers and two that wait, the first of them included
        assert sorted(taken) == [0, 1, 2, 3, 4]
        slow.set()
        assert [fetched.work.index for fetched in run] == list(range(20))


def test_a_piece_that_cannot_be_sampled_fails_in_its_turn():
    failed = threading.Event()

    def sample(s):
        if s[0] == 2:
            failed.set()
            raise KeyError("bad node")
        if s[0] == 1:
            assert failed.wait(60)
        return work(s)

    run = pipeline(MemoryStore(TABLE), window=0, group=1, sample_workers=3).run(seeds(8), sample)
    with run:
        assert [next(run).work.index for _ in range(2)] == [0, 1]
        with pytest.raises(KeyError, match="bad node"):
            next(run)


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
        return Work(s, {FEAT: torch.tensor(s)}) if where != "plan" or s[0] != 4 else Work(s, {FEAT: None})

    run = pipeline(store, window=1, group=2).run(order(), sample)
    got = []
    with pytest.raises((KeyError, OSError, TypeError, IndexError)):
        got.extend(fetched.work.index for fetched in iter(lambda: next(run), None))
    assert got == list(range(len(got)))
    assert len(got) <= 4
    assert threads_left() == []
    with pytest.raises(GidsError, match=r"this iteration has ended: .*Error"):
        next(run)


@pytest.mark.parametrize("taken", [0, 1, 5])
def test_leaving_early_cancels_and_resets(taken):
    store = MemoryStore(TABLE, delay_s=0.001)
    run = pipeline(store).run(seeds(1000), work)
    for _ in range(taken):
        next(run)
    wait_until(lambda: store.under_way > 0)
    begin = time.monotonic()
    run.close()
    assert time.monotonic() - begin < 30
    assert threads_left() == []
    assert store.resets == 1


def test_close_does_not_wait_for_a_slow_disk():
    store = MemoryStore(TABLE, delay_s=60)
    run = pipeline(store).run(seeds(1000), work)
    wait_until(lambda: store.under_way >= 1)  # and the disk does not answer
    begin = time.monotonic()
    run.close()
    assert time.monotonic() - begin < 30


def test_dropping_the_run_ends_it():
    run = pipeline(MemoryStore(TABLE)).run(seeds(1000), work)
    next(run)
    assert gids_threads() == ["gids-fetch", "gids-plan", "gids-sample"]
    del run
    assert threads_left() == []


def test_collected_on_one_of_its_own_threads():
    cycle, dropped = [], threading.Event()

    def sample(s):
        if s[0] == 30:
            assert dropped.wait(60)
            gc.collect()
        return work(s)

    gc.disable()
    try:
        run = pipeline(MemoryStore(TABLE), prefetch=60).run(seeds(1000), sample)
        cycle.extend([run, cycle])
        del run, cycle
        dropped.set()
        wait_until(lambda: gids_threads() == [])
    finally:
        gc.enable()


@pytest.mark.timeout(method="thread")
def test_closing_that_was_interrupted_waits_again_for_the_stage_that_still_runs():
    """CPython takes a thread for ended once a join() of it was interrupted: what it uses was freed under it."""
    entered, leave, closed = threading.Event(), threading.Event(), []

    def items():
        entered.set()
        assert leave.wait(60)
        yield 1

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        run = Run("gids-test")
        run.at_close(lambda: closed.append(leave.is_set()))
        run.ahead("stage", items(), depth=1)
        assert entered.wait(60)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            run.close()
        threading.Timer(0.2, leave.set).start()
        run.close()
        assert closed == [True]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        leave.set()


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


def test_a_table_that_was_not_opened_is_refused():
    def sample(s):
        return Work(s, {TableKey("_N", "other"): torch.tensor(s)})

    with pipeline(MemoryStore(TABLE)).run(seeds(), sample) as run, pytest.raises(GidsError, match="_N/other"):
        next(run)


def test_tiers_are_replaced_between_groups_and_no_two_are_open_at_once():
    old, new = MemoryStore(TABLE), MemoryStore(-TABLE)
    machine = pipeline(old, window=2, group=2)
    replaced = []

    def replace(tiers):
        assert old.under_way == 0, "no group of the old ones is under way"
        tiers.close()
        replaced.append(sum(old.groups))
        return type(tiers)({FEAT: new}, groups_of(3), window=2, group_batches=3)

    with machine.run(seeds(100), work) as run:
        got = [next(run) for _ in range(5)]
        helper = threading.Thread(target=machine.replace, args=(replace,))
        helper.start()
        got += list(run)
        helper.join(60)
    assert old.closed == 1
    assert machine.tiers.stores[FEAT] is new
    assert [fetched.work.index for fetched in got] == list(range(100))
    before = replaced[0]
    assert 5 <= before < 100
    assert all(torch.equal(f.rows[FEAT], (TABLE if i < before else -TABLE)[f.work.payload]) for i, f in enumerate(got))
    assert sum(old.groups) == before
    assert sum(new.groups) == 100 - before


def test_tiers_are_replaced_at_once_where_nothing_runs_and_never_once_closed():
    old, new = MemoryStore(TABLE), MemoryStore(TABLE)
    machine = pipeline(old)
    machine.replace(lambda tiers: (tiers.close(), type(tiers)({FEAT: new}, groups_of(1)))[1])
    assert machine.tiers.stores[FEAT] is new
    machine.close()
    assert (old.closed, new.closed) == (1, 1)
    with pytest.raises(Stopped):
        machine.replace(lambda tiers: tiers)


def test_a_replacement_that_fails_is_raised_to_the_consumer():
    def fail(tiers):
        raise OSError("the new stores cannot be opened")

    machine = pipeline(MemoryStore(TABLE), window=1, group=1)
    failures = []

    def replace():
        try:
            machine.replace(fail)
        except OSError as error:
            failures.append(error)

    with machine.run(seeds(500), work) as run:
        next(run)
        helper = threading.Thread(target=replace)
        helper.start()
        with pytest.raises(OSError, match="the new stores cannot be opened"):
            list(run)
        helper.join(60)
    assert not helper.is_alive()


def test_tiers_are_added_to_while_groups_are_under_way():
    store, asked = MemoryStore(TABLE), []
    machine = pipeline(store, window=1, group=1)
    with machine.run(seeds(60), work) as run:
        next(run)
        helper = threading.Thread(target=machine.add_to, args=(lambda tiers: asked.append(store.under_way),))
        helper.start()
        got = list(run)
        helper.join(60)
    assert len(got) == 59
    assert len(asked) == 1
    assert store.closed == 0
    machine.add_to(lambda tiers: asked.append(tiers))
    assert asked[1] is machine.tiers, "at once where nothing runs"


def test_planning_waits_for_a_change_that_is_expected_once_the_first_batch_is_read():
    old, new = MemoryStore(TABLE), MemoryStore(-TABLE)
    machine = pipeline(old, window=2, group=2)
    machine.expect_change(3600.0)

    def replace(tiers):
        tiers.close()
        return type(tiers)({FEAT: new}, groups_of(2), window=2, group_batches=2)

    with machine.run(seeds(20), work) as run:
        first = next(run)
        assert torch.equal(first.rows[FEAT], TABLE[first.work.payload])
        assert old.groups == [1], "the first batch waits for nothing, and those after it for what is expected"
        machine.replace(replace)
        rest = list(run)
    assert old.groups == [1]
    assert len(rest) == 19
    assert all(torch.equal(fetched.rows[FEAT], -TABLE[fetched.work.payload]) for fetched in rest)


@pytest.mark.parametrize("how", ["none comes", "it takes too long", "the run ends"])
def test_a_change_that_does_not_come_is_not_waited_for(how):
    store = MemoryStore(TABLE)
    machine = pipeline(store, window=2, group=2)
    machine.expect_change(0.01 if how == "it takes too long" else 3600.0)
    with machine.run(seeds(20), work) as run:
        next(run)
        if how == "the run ends":
            return
        if how == "none comes":
            machine.expect_no_change()
        assert len(list(run)) == 19
    with machine.run(seeds(20), work) as run:
        assert len(list(run)) == 20, "and never again"
