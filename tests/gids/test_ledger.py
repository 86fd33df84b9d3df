"""The ledger: nobody gets more than the limit, one who waits is woken, and what is drawn and given back comes to nothing."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gids.errors import ConfigError
from gids.ledger import Account, Ledger, Stopped, Usage


def test_usage_is_what_is_in_use_and_peak_the_most_at_once():
    account = Account("cache", 100)
    account.draw(60)
    account.draw(40)
    account.give(70)
    account.draw(20)
    assert account.usage == Usage(allotted=100, used=50, peak=100)


def test_drawing_waits_until_it_fits():
    account, drawn = Account("groups", 100), threading.Event()
    account.draw(80)
    thread = threading.Thread(target=lambda: (account.draw(30), drawn.set()))
    thread.start()
    assert not drawn.wait(0.02)
    account.give(5)
    assert not drawn.wait(0.02)
    account.give(5)
    assert drawn.wait(60)
    thread.join()
    assert account.usage == Usage(100, 100, 100)


def test_a_first_draw_may_be_larger_than_the_limit_so_that_nothing_blocks_for_ever():
    account = Account("groups", 10)
    assert account.has_room(50)
    account.draw(50)
    assert not account.has_room(0 + 1)
    account.give(50)
    assert account.usage == Usage(10, 0, 50)


def test_reserving_refuses_what_does_not_fit():
    account = Account("cache", 4096)
    account.reserve(4000)
    with pytest.raises(ConfigError, match=r"cache must fit in 4\.0 KiB \(got 100 B beside 3\.9 KiB in use\)"):
        account.reserve(100)
    account.reserve(96)


def test_stopping_wakes_who_waits_and_refuses_who_comes_until_it_resumes():
    account, outcomes = Account("groups", 10), []
    account.draw(10)

    def draw():
        try:
            account.draw(1)
        except Stopped:
            outcomes.append("stopped")

    threads = [threading.Thread(target=draw) for _ in range(3)]
    for thread in threads:
        thread.start()
    account.stop()
    for thread in threads:
        thread.join(60)
    draw()
    assert outcomes == ["stopped"] * 4
    account.resume()
    account.give(10)
    account.draw(1)
    assert account.used == 1


def test_a_limit_that_is_raised_takes_effect():
    ledger = Ledger(1000)
    account = ledger.account("groups", 10)
    account.draw(10)
    assert ledger.account("groups", 30) is account
    account.draw(20)
    assert ledger.usage() == {"groups": Usage(30, 30, 30)}


def test_a_ledger_stops_and_resumes_every_account():
    ledger = Ledger(1000)
    for name in ("a", "b"):
        ledger.account(name, 10)
    ledger.stop()
    for name in ("a", "b"):
        with pytest.raises(Stopped):
            ledger.account(name).draw(1)
    ledger.resume()
    ledger.account("a").draw(1)


@given(st.lists(st.integers(1, 40), max_size=60), st.integers(1, 100))
def test_no_draw_exceeds_the_limit_but_one_that_is_alone(sizes, limit):
    account, held = Account("x", limit), []
    for size in sizes:
        while held and not account.has_room(size):
            account.give(held.pop(0))
        account.draw(size)
        held.append(size)
        assert account.used == sum(held)
        assert account.used <= limit or len(held) == 1
    for size in held:
        account.give(size)
    assert account.used == 0


def test_many_threads_never_hold_more_than_the_limit():
    account, wrong = Account("x", 10), []

    def work(seed):
        for turn in range(300):
            size = 1 + (seed * 7 + turn * 3) % 5
            account.draw(size)
            if account.used > 10:
                wrong.append(account.used)
            account.give(size)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []
    assert account.usage.used == 0
    assert account.usage.peak <= 10
