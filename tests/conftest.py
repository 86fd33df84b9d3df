"""What takes long begins first, so that no worker is left alone with it at the end (`make test` deals out whole files)."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Move files with slow tests to the front."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
