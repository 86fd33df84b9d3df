"""A pytest plugin (``-p tests.storm``): a signal reaches the process every millisecond, and changes nothing."""

import signal

import pytest

PERIOD_S = 0.001


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Send the signals while a test runs; one that has use for the timer itself keeps it."""
    handler = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, PERIOD_S, PERIOD_S)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
