"""RowTable: where a row lies, with one file and with several, and what it refuses."""

from pathlib import Path

import pytest

from gids import ConfigError, RowTable, Stripe


def table(**changes):
    fields = {
        "name": "t",
        "dtype": "float32",
        "dim": 25,
        "num_rows": 10,
        "row_stride": 100,
        "stripes": (Stripe(Path("a"), 128, 10),),
        "stripe_rows": 10,
    }
    return RowTable(**(fields | changes))


def test_one_file():
    assert table().row_bytes == 100
    assert table().locate(0) == (0, 128)
    assert table().locate(9) == (0, 128 + 900)


def test_two_stripes_take_turns():
    striped = table(stripes=(Stripe(Path("a"), 0, 6), Stripe(Path("b"), 7, 4)), stripe_rows=2)
    assert [striped.locate(row) for row in (0, 1, 2, 3, 4, 9)] == [
        (0, 0),
        (0, 100),
        (1, 7),
        (1, 107),
        (0, 200),
        (0, 500),
    ]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"dtype": "complex64"}, "dtype"),
        ({"dim": 0}, "dim"),
        ({"num_rows": -1}, "num_rows"),
        ({"row_stride": 99}, "row_stride"),
        ({"stripe_rows": 0}, "stripe_rows"),
        ({"num_rows": 11}, "num_rows"),
    ],
)
def test_refuses(change, word):
    with pytest.raises(ConfigError, match=word):
        table(**change)


@pytest.mark.parametrize("row", [-1, 10])
def test_locate_refuses(row):
    with pytest.raises(ConfigError, match=r"\[0, 10\)"):
        table().locate(row)


def test_where_the_rows_of_a_stripe_end():
    striped = table(row_stride=128, stripes=(Stripe(Path("a"), 0, 6), Stripe(Path("b"), 7, 4)), stripe_rows=2)
    assert (striped.begin_in(1, 0), striped.begin_in(1, 3), striped.begin_in(1, 4)) == (7, 391, 519)
    assert striped.locate(7) == (1, striped.begin_in(1, 3))
    assert [striped.file_bytes(number) for number in (0, 1)] == [740, 491]  # the last row has no padding
    assert table(num_rows=0, stripes=(Stripe(Path("a"), 128, 0),)).file_bytes(0) == 0
