"""The test machine's socket under signals: an interrupted call is made again, and signals do not put off its end."""

import errno
import os
import signal
import socket
import threading

import pytest

from gids import StorageError, _native

SIGNALS = 50


@pytest.fixture
def storm():
    """A descriptor that gets a byte for every signal, which arrive every millisecond while the fixture lives."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    handler = signal.signal(signal.SIGALRM, lambda *_: None)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    yield reader
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.set_wakeup_fd(before)
    signal.signal(signal.SIGALRM, handler)
    os.close(reader)
    os.close(writer)


@pytest.fixture
def listener(tmp_path):
    (tmp_path / "ram").write_bytes(bytes(4096))
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "qtest"))
        server.listen(1)
        yield server


def test_an_interrupted_answer_is_waited_for(tmp_path, listener, storm):
    def serve():
        connection, _ = listener.accept()
        with connection:
            while connection.recv(4096):
                left = SIGNALS  # the caller waits for its answer while this many signals reach it
                while left > 0:
                    left -= len(os.read(storm, left))
                connection.sendall(b"OK 0x7\n")

    server = threading.Thread(target=serve)
    server.start()
    machine = _native.NvmeTestMachine(str(tmp_path / "qtest"), str(tmp_path / "ram"))
    assert [machine.command("readl 0x0") for _ in range(5)] == [7] * 5
    del machine
    server.join(timeout=60)
    assert not server.is_alive()


def test_a_machine_that_ends_is_an_error_under_signals_too(tmp_path, listener, storm):
    def serve():
        connection, _ = listener.accept()
        with connection:
            connection.recv(4096)
            os.read(storm, SIGNALS)

    server = threading.Thread(target=serve)
    server.start()
    machine = _native.NvmeTestMachine(str(tmp_path / "qtest"), str(tmp_path / "ram"))
    with pytest.raises(StorageError, match="does not answer any more") as caught:
        machine.command("readl 0x0")
    assert caught.value.errno == errno.EPIPE
    server.join(timeout=60)
    assert not server.is_alive()
