"""Sizes for people: what parses, what does not, and that errors name the argument."""

import pytest

from gids.errors import ConfigError
from gids.units import format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("text", "expected"),
    [(0, 0), (4096, 4096), ("512", 512), ("512MiB", 2**29), ("2 GB", 2 * 10**9), ("1.5G", 3 * 2**29), ("1kb", 1000)],
)
def test_parse(text, expected):
    assert parse_bytes(text) == expected


@pytest.mark.parametrize("bad", ["", "MiB", "12 apples", "-3", -1, 1.5, True, None])
def test_parse_error_names_the_argument(bad):
    with pytest.raises(ConfigError, match="budget"):
        parse_bytes(bad, "budget")


@pytest.mark.parametrize(("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2**41, "2.0 TiB")])
def test_format(count, text):
    assert format_bytes(count) == text
