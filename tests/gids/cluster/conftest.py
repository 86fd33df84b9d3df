"""The small graph of the loader's tests, its parts, and ranks as processes."""

import pytest

from gids.dataset.part import write_part
from tests.gids.loader.conftest import graph  # noqa: F401


@pytest.fixture(scope="session")
def parts(graph, tmp_path_factory):  # noqa: F811
    """Return a function: the directory that has the part of each of so many nodes under its number."""
    made = {}

    def of(nodes):
        if nodes not in made:
            made[nodes] = tmp_path_factory.mktemp("parts")
            for node in range(nodes):
                write_part(graph, made[nodes] / str(node), node=node, nodes=nodes)
        return made[nodes]

    return of
