"""Streams that stop until they are told to go on, and threads that have no current context."""

import ctypes
import gc
import threading

_kept = []  # queued work may call them after the test has ended


def hold(session):
    """Stop a stream until the returned event is set, as it also is when a minute has passed: nobody set it in time."""
    gc.collect()  # a session of an earlier test that ended now would free pinned memory, which waits for every stream
    release = threading.Event()
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: release.wait(60) or release.set())
    _kept.append(call)
    with session.current():
        assert ctypes.CDLL("libcuda.so.1").cuLaunchHostFunc(ctypes.c_void_p(session.stream_handle), call, None) == 0
    return release


def on_a_thread(call):
    """Run on a thread that has no current context; give the result."""
    found = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join()
    return found[0]
