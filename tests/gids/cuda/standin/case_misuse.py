"""Small programs that are wrong, each refused or found by the stand-in as a GPU would punish it (docs/standin.md)."""

import ctypes
import gc
import mmap
import os
import struct
import threading

import fake_torch
import numpy as np
import pytest
from cuda.bindings import driver
from threads import hold, on_a_thread

from gids.cuda import compile as nvrtc
from gids.cuda.array import DeviceArray
from gids.cuda.pages import RegisteredPages
from gids.cuda.passes import full
from gids.cuda.session import CudaSession, open_device
from gids.cuda.transfer import StagingBuffer
from gids.errors import DeviceError

PAGE = 4096


@pytest.fixture
def session():
    return CudaSession(open_device())


@pytest.fixture
def other():
    """Return a session on the second device."""
    return CudaSession(open_device(1))


@pytest.fixture
def recover():
    """Let the process go on after an error that a real context would keep."""
    yield
    ctypes.CDLL("libcuda.so.1").gids_standin_recover()


def pages(count):
    return np.frombuffer(mmap.mmap(-1, count * PAGE), np.uint8)


def status(answer):
    """The status of a call of the driver's."""
    return int(answer[0])


def test_nothing_goes_on_after_an_error_and_what_is_freed_is_free(session, recover, live):
    before, memory, values = live(), pages(1), np.zeros(8, np.int64)
    stream = session.stream.handle
    with session.current():
        pointer = fake_torch.checked(driver.cuMemAlloc(64))
        pooled = fake_torch.checked(driver.cuMemAllocAsync(64, stream))
        pinned = fake_torch.checked(driver.cuMemHostAlloc(64, 0))
        assert status(driver.cuMemHostRegister(memory.ctypes.data, PAGE, 3)) == 0
        event = fake_torch.checked(driver.cuEventCreate(0))
        session.launch("set_values", 8, np.int64(7), np.int64(8), DeviceArray(values.ctypes.data, (8,), np.int64, None))
        waits = [lambda: driver.cuStreamSynchronize(stream), lambda: driver.cuCtxSynchronize()]
        begins = [
            lambda: driver.cuMemAlloc(64),
            lambda: driver.cuMemAllocAsync(64, stream),
            lambda: driver.cuMemHostAlloc(64, 0),
            lambda: driver.cuMemHostRegister(memory.ctypes.data, PAGE, 3),
            lambda: driver.cuMemsetD8Async(pointer, 1, 64, stream),
            lambda: driver.cuMemcpyAsync(pinned, pointer, 64, stream),
            lambda: driver.cuEventCreate(0),
            lambda: driver.cuEventRecord(event, stream),
            lambda: driver.cuStreamWaitEvent(stream, event, 0),
            lambda: driver.cuStreamCreate(0),
        ]
        ends = [
            lambda: driver.cuMemFree(pointer),
            lambda: driver.cuMemFreeAsync(pooled, stream),
            lambda: driver.cuMemFreeHost(pinned),
            lambda: driver.cuMemHostUnregister(memory.ctypes.data),
        ]
        assert [status(call()) for call in [*waits, *begins, *ends]] == [700] * 16
        driver.cuEventDestroy(event)
    ctypes.CDLL("libcuda.so.1").gids_standin_recover()
    assert live() == before


def test_a_copy_that_was_queued_behind_an_error_does_not_happen(session, recover):
    values, taken = np.zeros(8, np.int64), StagingBuffer(session, 8)
    taken.bytes[:] = 5
    array = full(session, 1, 9)
    release = hold(session)
    session.launch("set_values", 8, np.int64(7), np.int64(8), DeviceArray(values.ctypes.data, (8,), np.int64, None))
    session.copy_bytes(taken.bytes.ctypes.data, array.pointer, 8)
    release.set()
    with pytest.raises(DeviceError, match="ILLEGAL_ADDRESS"):
        session.synchronize()
    assert taken.bytes.tolist() == [5] * 8
    ctypes.CDLL("libcuda.so.1").gids_standin_recover()
    taken.close()


def test_memory_that_another_context_registered_for_itself_is_pageable_here(session, other):
    """So a copy from there is staged; from PORTABLE memory it reads what is there when it runs."""
    for flags, expected in ((2, 1), (3, 2)):
        memory = pages(1)
        with session.current():
            assert status(driver.cuMemHostRegister(memory.ctypes.data, PAGE, flags)) == 0
        array = other.empty(8, np.uint8)
        other.synchronize()
        memory[:8] = 1
        second = CudaSession(open_device(1))  # whose stream the staged copy may wait for: then it is done before the 2
        release = hold(second) if flags & 1 else None
        with second.current():
            driver.cuMemcpyAsync(array.pointer, memory.ctypes.data, 8, second.stream.handle)
        memory[:8] = 2
        if release:
            release.set()
        assert second.download(array).tolist() == [expected] * 8
        with session.current():
            driver.cuMemHostUnregister(memory.ctypes.data)


def test_memory_of_a_pool_is_freed_by_either_call_and_given_out_once(session):
    """The driver takes accesses of a pool's memory to be over when ``cuMemFree`` gets it: no stream is waited for."""
    with session.current():
        stream = session.stream.handle
        pointer = fake_torch.checked(driver.cuMemAllocAsync(1000, stream))
        session.synchronize()
        elsewhere = CudaSession(open_device())
        release = hold(elsewhere)
        assert status(driver.cuMemFree(pointer)) == 0
        assert not release.is_set()
        release.set()
        again = [fake_torch.checked(driver.cuMemAllocAsync(1000, stream)), fake_torch.checked(driver.cuMemAlloc(1000))]
        assert abs(int(again[0]) - int(again[1])) >= 1000
        assert [status(driver.cuMemFreeAsync(one, stream)) for one in again] == [0, 0]
        assert [status(driver.cuMemFreeAsync(one, stream)) for one in again] == [1, 1]  # twice


def test_registered_twice_unregistered_twice_freed_twice(session):
    memory = pages(1)
    begin = memory.ctypes.data
    with session.current():
        assert [status(driver.cuMemHostRegister(begin, PAGE, 3)) for _ in range(2)] == [0, 712]
        assert [status(driver.cuMemHostUnregister(begin)) for _ in range(2)] == [0, 713]
        assert [status(driver.cuMemHostRegister(begin, size, flags)) for size, flags in ((0, 3), (PAGE, 16))] == [1, 1]
        assert status(driver.cuMemHostAlloc(PAGE, 8)) == 1
        pinned = fake_torch.checked(driver.cuMemHostAlloc(PAGE, 0))
        assert status(driver.cuMemHostRegister(int(pinned), PAGE, 3)) == 712
        assert [status(driver.cuMemFreeHost(pinned)) for _ in range(2)] == [0, 1]


def test_pages_without_the_flags_that_a_kernel_needs(session, other, recover, capfd):
    for flags, where, words in ((0, session, "without CU_MEMHOSTREGISTER_DEVICEMAP"), (2, other, "_PORTABLE")):
        memory = pages(1)
        with session.current():
            assert status(driver.cuMemHostRegister(memory.ctypes.data, PAGE, flags)) == 0
        array = DeviceArray(memory.ctypes.data, (8,), np.int64, memory)
        with pytest.raises(DeviceError, match="ILLEGAL_ADDRESS"):
            (where.launch("set_values", 8, np.int64(7), np.int64(8), array), where.synchronize())
        assert words in capfd.readouterr().err
        ctypes.CDLL("libcuda.so.1").gids_standin_recover()
        with session.current():
            assert status(driver.cuMemHostUnregister(memory.ctypes.data)) == 0


@pytest.fixture
def frees_at_once():
    """Let calls that free memory wait for nothing, as the driver may."""
    ctypes.CDLL(None).setenv(b"GIDS_STANDIN_SEED", b"1", 1)
    yield
    ctypes.CDLL(None).setenv(b"GIDS_STANDIN_SEED", os.environ.get("GIDS_STANDIN_SEED", "0").encode(), 1)


@pytest.mark.parametrize("kind", ["device", "pinned", "registered"])
def test_memory_that_is_freed_before_its_last_use(session, recover, frees_at_once, capfd, kind):
    memory, stream, array = pages(1), session.stream.handle, full(session, 64, 1)
    with session.current():
        if kind == "device":
            pointer, free = fake_torch.checked(driver.cuMemAlloc(64)), driver.cuMemFree
        elif kind == "pinned":
            pointer, free = fake_torch.checked(driver.cuMemHostAlloc(64, 0)), driver.cuMemFreeHost
        else:
            pointer, free = memory.ctypes.data, driver.cuMemHostUnregister
            assert status(driver.cuMemHostRegister(pointer, PAGE, 3)) == 0
        release = hold(session)
        assert status(driver.cuMemcpyAsync(int(pointer), array.pointer, 64, stream)) == 0
        assert status(free(pointer)) == 0
        assert not release.is_set()
        release.set()
        assert status(driver.cuStreamSynchronize(stream)) == 700
    said = capfd.readouterr().err
    assert "freed" in said
    ctypes.CDLL("libcuda.so.1").gids_standin_recover()


def test_reserved_memory_is_freed_after_its_last_use(session, frees_at_once):
    reserved, release = session.reserve(4096, 4096), hold(session)
    session.fill(reserved, 1)
    threading.Timer(0.05, release.set).start()
    del reserved
    assert release.is_set()
    session.synchronize()


def test_pages_are_unregistered_after_their_last_use(session, other, frees_at_once):
    """By kernels of either device, and a copy: the last user's call waits for both."""
    memory = pages(1)
    shown = [RegisteredPages(where.device, memory.ctypes.data, PAGE) for where in (session, other)]
    taken = other.empty(8, np.int64)
    releases = [hold(where) for where in (session, other)]
    array = DeviceArray(shown[0].pointer, (8,), np.int64, memory)
    session.launch("set_values", 8, np.int64(7), np.int64(8), array)
    other.copy_bytes(taken.pointer, memory.ctypes.data, 64)
    shown[0].close()
    assert not any(release.is_set() for release in releases)
    for release in releases:
        threading.Timer(0.05, release.set).start()
    shown[1].close()
    assert all(release.is_set() for release in releases)
    session.synchronize(), other.synchronize()
    assert memory.view(np.int64)[:8].tolist() == [7] * 8


def test_events_tell_their_time_when_they_have_passed(session):
    with session.current():
        begin, end = (fake_torch.checked(driver.cuEventCreate(0)) for _ in range(2))
        stream = session.stream.handle
        assert status(driver.cuEventElapsedTime(begin, end)) == 400  # never recorded
        driver.cuEventRecord(begin, stream)
        release = hold(session)
        driver.cuEventRecord(end, stream)
        assert status(driver.cuEventElapsedTime(begin, end)) == 600
        release.set()
        session.synchronize()
        found, milliseconds = driver.cuEventElapsedTime(begin, end)
        assert int(found) == 0
        assert milliseconds > 0
        assert [status(driver.cuEventDestroy(event)) for event in (begin, end, begin)] == [0, 0, 400]


def test_events_of_two_devices_or_without_timing_tell_no_time(session, other):
    events = []
    for where, flags in ((session, 0), (session, 0), (session, 2), (other, 0)):
        with where.current():
            events.append(fake_torch.checked(driver.cuEventCreate(flags)))
            assert status(driver.cuEventRecord(events[-1], where.stream.handle)) == 0
            where.synchronize()
    begin, end, untimed, elsewhere = events
    with session.current():
        assert [status(driver.cuEventElapsedTime(begin, event)) for event in (end, untimed, elsewhere)] == [0, 400, 400]
        assert [status(driver.cuEventCreate(flags)) for flags in (8, 4, 6)] == [1, 1, 0]  # interprocess: without timing


def copied(ordered):
    """One stream fills what another copies."""
    writer, reader = CudaSession(open_device()), CudaSession(open_device())
    source, taken = full(writer, 1, 0), reader.empty(1, np.int64)
    writer.synchronize()
    writer.fill(source, 1)
    if ordered:
        reader.wait_event(writer.record())
    reader.copy(taken, source)
    return int(reader.download(taken)[0]) != 0


def test_a_forgotten_event_between_streams_is_found():
    """Streams are held back at random, by seed and number: in some of these tries the reader is first."""
    assert all(copied(ordered=True) for _ in range(100))
    assert not all(copied(ordered=False) for _ in range(1000))


def test_destructors_on_a_thread_of_another_device(session, other, live):
    """What belongs to one device is freed by a thread on which the other's context is current, which stays so."""
    before = live()
    memory = pages(1)
    held = [full(session, 64, 7), session.reserve(4096, 4096), StagingBuffer(session, 64)]
    held += [RegisteredPages(session.device, memory.ctypes.data, PAGE), session.record()]
    consumer = CudaSession(open_device())
    held[0].__dlpack__(stream=consumer.stream_handle)

    def work():
        with other.current():
            mine = int(driver.cuCtxGetCurrent()[1])
            held[2].close(), held[3].close()
            held.clear()
            gc.collect()
            return int(driver.cuCtxGetCurrent()[1]) == mine

    assert on_a_thread(work)
    del consumer
    assert live() == before


def sections(code):
    """Names of a cubin's sections, with the place of the header and of the bytes of each."""
    (begin,) = struct.unpack_from("<Q", code, 40)
    size, count, names = struct.unpack_from("<HHH", code, 58)
    headers = {begin + size * i: struct.unpack_from("<IIQQQQII", code, begin + size * i) for i in range(count)}
    text = headers[begin + size * names][4]
    return {
        code[text + fields[0] : code.index(b"\0", text + fields[0])].decode(): (at, fields[4], fields[5])
        for at, fields in headers.items()
    }


def changed(code, *, parameter_bytes=None, registers=None):
    """The cubin, as if ``set_values`` took larger parameters, or more registers and blocks of any size."""
    code, found = bytearray(code), sections(code)
    _, at, size = found[".nv.info.set_values"]
    end, seen = at + size, 0
    while at < end:
        form, attribute, value = struct.unpack_from("<BBH", code, at)
        if (
            attribute == 0x19 and parameter_bytes is not None
        ):  # EIATTR_PARAM_CBANK's size stands in an attribute of its own
            struct.pack_into("<H", code, at + 2, parameter_bytes)
            seen += 1
        if attribute == 0x05 and registers is not None:  # EIATTR_MAX_THREADS
            struct.pack_into("<III", code, at + 4, 1024, 1, 1)
            seen += 1
        at += 4 + (value if form == 4 else 0)
    if registers is not None:
        header, *_ = found[".text.set_values"]
        (info,) = struct.unpack_from("<I", code, header + 44)
        struct.pack_into("<I", code, header + 44, info & 0xFFFFFF | registers << 24)
    assert seen == 1
    return bytes(code)


@pytest.mark.parametrize(
    ("change", "threads", "expected"),
    [
        ({}, 32, 0),
        ({"parameter_bytes": 4096}, 32, 0),
        ({"parameter_bytes": 4097}, 32, 1),
        ({"registers": 64}, 1024, 0),
        ({"registers": 65}, 1024, 701),
        ({"registers": 255}, 256, 0),
    ],
)
def test_limits_of_parameters_and_registers(session, change, threads, expected):
    code = nvrtc.compile_kernels(session.device.arch).code
    with session.current():
        image = changed(code, **change) if change else code
        library = fake_torch.checked(driver.cuLibraryLoadData(image, [], [], 0, [], [], 0))
        kernel = fake_torch.checked(driver.cuLibraryGetKernel(library, b"set_values"))
        function = fake_torch.checked(driver.cuKernelGetFunction(kernel))
        array = session.empty(8, np.int64)
        values = ((7, 8, array.pointer), (ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p))
        answer = driver.cuLaunchKernel(function, 1, 1, 1, threads, 1, 1, 0, session.stream.handle, values, 0)
        assert status(answer) == expected
        if expected == 0:
            assert session.download(array).tolist() == [7] * 8
        assert status(driver.cuLibraryUnload(library)) == 0
