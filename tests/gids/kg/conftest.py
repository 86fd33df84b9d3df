"""What tests of knowledge graphs share."""

import pytest

from .far import FarMode


@pytest.fixture
def far():
    """Let tensors be made on the far device."""
    with FarMode():
        yield
