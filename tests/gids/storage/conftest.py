"""Lets the tests of this folder share storage_tables.py, and runs them over every engine that works here."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from storage_tables import ENGINES


@pytest.fixture(params=ENGINES)
def engine(request):
    return request.param
