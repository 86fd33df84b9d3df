"""Calls that Python leaves to us: an interrupt is no answer, any other error is, and a handler that raises ends it."""

import errno

import pytest

from gids.storage.system import retry_on_eintr


def answers(*values):
    left = list(values)

    def call():
        value = left.pop(0)
        if isinstance(value, BaseException):
            raise value
        return value

    return call, left


def test_called_until_not_interrupted():
    call, left = answers(InterruptedError(), OSError(errno.EINTR, "interrupted"), 7, 8)
    assert retry_on_eintr(call) == 7
    assert left == [8]


@pytest.mark.parametrize("error", [OSError(errno.EIO, "bad"), KeyboardInterrupt(), ValueError("no")])
def test_other_ends_are_kept(error):
    call, left = answers(InterruptedError(), error, 8)
    with pytest.raises(type(error)):
        retry_on_eintr(call)
    assert left == [8]
