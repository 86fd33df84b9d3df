"""How the tests are dealt out to workers: a file stays together, and what takes long begins first."""

import pytest


def _group(item: pytest.Item) -> str:
    mark = item.get_closest_marker("xdist_group")
    return str(mark.args[0]) if mark else item.location[0]


def pytest_itemcollected(item: pytest.Item) -> None:
    """Group by file what has no group, so that a file's fixtures are made once."""
    if item.get_closest_marker("xdist_group") is None:
        item.add_marker(pytest.mark.xdist_group(_group(item)))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the groups that have slow tests, so that none is still at work when the others are done."""
    slow = {_group(item) for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: _group(item) not in slow)
