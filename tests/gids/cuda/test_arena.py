"""Slots of the arena: adjacent where asked and possible, each given once, all of them in the end."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gids.cuda.arena import SlotAllocator

NONE = np.empty(0, np.int64)


def ints(*values):
    return np.array(values, np.int64)


def test_runs_are_adjacent_and_the_rest_fills_what_is_left():
    slots = SlotAllocator(10)
    assert slots.take(5, ints(1), ints(3)).tolist() == [3, 0, 1, 2, 4]
    slots.give(ints(1, 2, 4))
    assert slots.num_free == 8
    # Free are 1, 2 and 4 to 9: the run of 4 goes first, to the wide gap; of two gaps of 2 the first one is taken.
    assert slots.take(7, ints(0, 3), ints(2, 4)).tolist() == [1, 2, 8, 4, 5, 6, 7]


def test_runs_begin_at_multiples_of_the_unit():
    slots = SlotAllocator(16)
    assert slots.take(1, NONE, NONE).tolist() == [0]
    assert slots.take(5, ints(1), ints(4), unit=4).tolist() == [1, 4, 5, 6, 7]
    # No two whole blocks would be left if single slots were taken from one: the broken one is used up first.
    assert slots.take(10, ints(2), ints(8), unit=4).tolist() == [2, 3, 8, 9, 10, 11, 12, 13, 14, 15]


def test_no_room_for_a_run_and_no_room_at_all():
    slots = SlotAllocator(6)
    slots.take(6, NONE, NONE)
    slots.give(ints(0, 2, 4))
    assert slots.take(4, ints(0), ints(2)).tolist() == [0, 2, 4, -1]
    slots.keep(4)
    assert slots.num_free == 2
    assert slots.take(3, NONE, NONE).tolist() == [4, 5, -1]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([1, 2, 4]))
def test_every_slot_is_given_once(seed, unit):
    rng = np.random.default_rng(seed)
    slots, taken = SlotAllocator(64), set()
    for _ in range(20):
        if taken and rng.random() < 0.5:
            back = rng.permutation(sorted(taken))[: rng.integers(1, len(taken) + 1)]
            slots.give(back)
            taken -= set(back.tolist())
        lengths = rng.integers(1, 4, rng.integers(0, 4)) * unit
        begins = np.cumsum(lengths + 1) - lengths
        count = int(lengths.sum() + len(lengths) + rng.integers(0, 5))
        got = slots.take(count, begins, lengths, unit)
        given_out = got[got >= 0].tolist()
        assert len(set(given_out)) == len(given_out) == min(count, 64 - len(taken))
        assert not set(given_out) & taken
        taken |= set(given_out)
        assert slots.num_free == 64 - len(taken)
