"""Neighbour lists in the one budget: more of them as long as they save more disk time than rows would."""

import pytest

from gids.budget import Allotment, Division, divide_with_lists
from gids.errors import ConfigError


def rows_in(budget, seconds_of):
    """Divide ``budget`` between lists and rows that take so many seconds in what is left."""

    def divide(lists):
        if lists > budget:
            raise ConfigError("budget must be larger")
        seconds = None if seconds_of is None else seconds_of(budget - lists)
        return Division(Allotment(budget, topology=lists, cache=100), {}, 1, 1, seconds=seconds)

    return divide


@pytest.mark.parametrize(
    ("rows", "lists", "expected"),
    [
        (lambda left: 1.0, lambda size: 2.0 - size / 1600, 1600),  # rows gain nothing
        (lambda left: 3.0 - left / 1000, lambda size: 2.0 - size / 1600, 0),  # rows gain more from every byte
        (lambda left: 3.0 - left / 3000, lambda size: max(2.0 - size / 200, 0.0), 400),  # lists up to a size
    ],
)
def test_the_part_that_saves_more_gets_the_memory(rows, lists, expected):
    division = divide_with_lists(rows_in(2000, rows), 1600, lists, lambda division: 0)
    assert division.list_bytes == division.allotment.topology == expected
    assert division.reasons[-1].startswith("neighbour lists")


def test_what_nobody_asked_for_is_tried_first():
    division = divide_with_lists(rows_in(90, lambda left: 1.0), 1600, lambda size: 2.0 - size / 1600, lambda d: 90)
    assert division.list_bytes == 90


def test_a_budget_that_refuses_more_ends_the_search():
    division = divide_with_lists(rows_in(300, lambda left: 1.0), 1600, lambda size: 2.0 - size / 1600, lambda d: 0)
    assert division.list_bytes == 200


@pytest.mark.parametrize(("left", "expected"), [(5000, 1600), (700, 700), (-3, 0)])
def test_without_a_profile_lists_get_what_is_left(left, expected):
    division = divide_with_lists(rows_in(2000, None), 1600, lambda size: 1.0, lambda division: left)
    assert division.list_bytes == expected
