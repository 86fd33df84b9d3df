"""Each rule of the strict stand-in catches the mistake that it is for, and gids makes none of them (docs/standin.md)."""

import ctypes
import gc
import mmap
import threading
from concurrent.futures import ThreadPoolExecutor

import fake_torch
import numpy as np
import pytest
import torch
from cuda.bindings import driver
from threads import hold, on_a_thread

import gids
from gids.cuda.array import DeviceArray
from gids.cuda.arrivals import launch_host_function
from gids.cuda.nvme_queues import DeviceQueues
from gids.cuda.pages import RegisteredPages
from gids.cuda.passes import full
from gids.cuda.pinned import OWN_PAGES_BYTES, host_array
from gids.cuda.session import CudaSession, DeviceBudget, open_device
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


def test_the_device_is_not_integrated(session):
    assert not session.host_addressable
    with pytest.raises(BufferError, match="must be copied to reach the CPU"):
        full(session, 4, 1).__dlpack__(dl_device=(1, 0))


def set_values(session, array):
    session.launch("set_values", len(array), np.int64(7), np.int64(len(array)), array)
    session.synchronize()


def test_an_unregistered_pointer_in_a_kernel(session, recover, capfd):
    values = np.zeros(8, np.int64)
    with pytest.raises(DeviceError, match="ILLEGAL_ADDRESS"):
        set_values(session, DeviceArray(values.ctypes.data, (8,), np.int64, values))
    said = capfd.readouterr().err
    assert f"set_values: argument 2, {values.ctypes.data:#x}, is host memory that is not registered" in said


def test_a_freed_pointer_in_a_kernel(session, recover, capfd):
    array = session.empty(8, np.int64)
    stale = DeviceArray(array.pointer, (8,), np.int64, None)
    del array
    with pytest.raises(DeviceError, match="ILLEGAL_ADDRESS"):
        set_values(session, stale)
    assert "device memory that in stream order is not allocated, or freed" in capfd.readouterr().err


def test_memory_is_there_when_its_stream_got_to_it(session, other, recover, capfd):
    """An array is used by a second stream before the first has allocated it."""
    second, release = CudaSession(open_device()), hold(session)
    array = session.empty(8, np.int64)
    with pytest.raises(DeviceError, match="ILLEGAL_ADDRESS"):
        set_values(second, array)
    release.set()


def test_threads_share_a_stream(session, capfd):
    """What one frees the other is given at once, and its memory is not touched by the free that came before."""
    library, stream = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(session.stream_handle)

    def work(sizes):
        pointer = ctypes.c_uint64()
        for size in sizes:  # all of one class of the pool
            assert library.cuMemAllocAsync(ctypes.byref(pointer), ctypes.c_size_t(size), stream) == 0
            assert library.cuMemsetD8Async(pointer, ctypes.c_ubyte(1), ctypes.c_size_t(size), stream) == 0
            assert library.cuMemFreeAsync(pointer, stream) == 0

    with session.current(), ThreadPoolExecutor(2, initializer=session.enter) as pool:
        list(pool.map(work, [[8, 200] * 1500, [250, 16] * 1500]))
        session.synchronize()
    assert not capfd.readouterr().err


#: Calls whose documentation lists CUDA_ERROR_INVALID_CONTEXT and which work without one: those that choose devices and
#: contexts; and of others, what libraries rely on.
WITHOUT_CONTEXT = {
    "cuDeviceGet", "cuDeviceGetAttribute", "cuDeviceGetCount", "cuDeviceGetName", "cuDeviceTotalMem", "cuCtxCreate", "cuCtxDestroy",
    "cuCtxPopCurrent", "cuCtxPushCurrent", "cuCtxSetCurrent", "cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxRetain",
    "cuStreamDestroy", "cuEventDestroy",  # cuda.core destroys them wherever their last user ends
    "cuPointerGetAttribute", "cuPointerGetAttributes", "cuPointerSetAttribute",  # kvikio learns from them which context
}  # fmt: skip


@pytest.mark.no_context
def test_every_call_whose_documentation_says_so_needs_a_context(session):
    library, checked = ctypes.CDLL("libcuda.so.1"), set()
    for name in dir(driver):
        text = (getattr(driver, name).__doc__ or "").partition("Returns\n")[2].partition("See Also")[0]
        call = next((n for n in (f"{name}_v4", f"{name}_v2", name) if name[:2] == "cu" and hasattr(library, n)), None)
        if call is not None and "CUDA_ERROR_INVALID_CONTEXT" in text and name not in WITHOUT_CONTEXT:
            nothing = [ctypes.c_void_p(0)] * 8
            answer = on_a_thread(lambda call=call, nothing=nothing: getattr(library, call)(*nothing))
            assert answer == 201, name
            checked.add(name)
    assert len(checked) >= 40
    assert checked >= {"cuMemAlloc", "cuMemAllocAsync", "cuModuleUnload", "cuStreamGetFlags", "cuEventElapsedTime"}


@pytest.mark.no_context
def test_calls_on_a_thread_without_a_context(session):
    pointer = full(session, 4, 1).pointer
    values = np.zeros(4, np.int64)
    calls = [
        lambda: driver.cuMemAlloc(64),
        lambda: driver.cuEventCreate(0),
        lambda: driver.cuMemHostAlloc(64, 0),
        lambda: driver.cuMemHostUnregister(values.ctypes.data),
        lambda: driver.cuMemcpyAsync(values.ctypes.data, pointer, 32, session.stream.handle),
        lambda: driver.cuStreamSynchronize(session.stream.handle),
    ]
    assert [int(on_a_thread(call)[0]) for call in calls] == [201] * len(calls)


def test_everything_of_a_session_works_on_a_thread_without_a_context(session):
    def work():
        array = full(session, 100, 5)
        session.copy(array[:50], array[50:])
        session.fill(array[:1], 0)
        event = session.record()
        session.wait_event(event)
        session.order_before(1)
        session.order_after(2)
        staging = StagingBuffer(session, 64)
        staging.close()
        return session.download(session.upload(session.download(array))).sum()

    assert on_a_thread(work) == 99 * 5
    assert on_a_thread(lambda: int(driver.cuCtxGetCurrent()[1])) == 0


def test_what_a_consumer_had_is_freed_on_any_thread(live):
    """Freed by a thread that has no context, after a consumer's stream: it leaked, and its budget with it."""
    budget = DeviceBudget(1 << 20)
    session, consumer, before = CudaSession(open_device(), budget), CudaSession(open_device()), live()["pieces"]
    held = [full(session, 64, 7), session.reserve(4096, 4096)]
    held[0].__dlpack__(stream=consumer.stream_handle)
    on_a_thread(held.clear)
    gc.collect()
    assert live()["pieces"] == before
    assert budget.used == 0


def test_the_users_device_stays(dataset):
    fake_torch.set_device(1)
    try:
        memory = gids.MemoryOptions(device_budget="48MiB")
        options = {"seeds": "train", "fanouts": [2], "batch_size": 64, "memory": memory}
        for device in ("cuda:0", "cuda:1"):
            with gids.Loader(dataset, device=device, **options) as loader:
                assert fake_torch.current_device() == 1
                for _ in loader:
                    assert fake_torch.current_device() == 1
            assert fake_torch.current_device() == 1
    finally:
        driver.cuCtxSetCurrent(driver.CUcontext(0))


def test_a_loader_on_the_second_device(dataset):
    options = {"seeds": "train", "fanouts": [3, 4], "batch_size": 48, "order": gids.OrderOptions(seed=5)}
    memory = gids.MemoryOptions(cache="8KiB", device_budget="48MiB")
    with gids.Loader(dataset, budget="256MiB", **options) as loader:
        expected = [batch.x for batch in loader]
    with gids.Loader(dataset, device="cuda:1", memory=memory, **options) as loader:
        for mine, theirs in zip(loader, expected, strict=True):
            assert (mine.x == theirs).all()


def test_devices_do_not_share(session, other, recover, capfd):
    array = full(session, 8, 1)
    session.synchronize()
    with pytest.raises(DeviceError, match="ILLEGAL_ADDRESS"):
        set_values(other, array)
    assert "is memory of device 0, and the kernel runs on device 1" in capfd.readouterr().err
    ctypes.CDLL("libcuda.so.1").gids_standin_recover()
    with other.current():
        event = fake_torch.checked(driver.cuEventCreate(0))
        assert int(driver.cuEventRecord(event, session.stream.handle)[0]) == 400
        assert int(driver.cuStreamWaitEvent(session.stream.handle, event, 0)[0]) == 0


def pages(count):
    return np.frombuffer(mmap.mmap(-1, count * PAGE), np.uint8)


def test_registration_is_by_pages(session, other):
    memory = pages(3)
    begin = memory.ctypes.data
    with session.current():
        assert int(driver.cuMemHostRegister(begin + 100, 50, 3)[0]) == 0
        assert int(driver.cuMemHostRegister(begin + 4000, 200, 3)[0]) == 712  # the first page is
        assert int(driver.cuMemHostRegister(begin + PAGE, 200, 2)[0]) == 0
        assert int(driver.cuMemHostUnregister(begin)[0]) == 713  # not the pointer that was registered
        assert int(driver.cuMemHostGetDevicePointer(begin + 2 * PAGE, 0)[0]) == 1
    with other.current():
        assert int(driver.cuMemHostGetDevicePointer(begin + 100, 0)[0]) == 0
        assert int(driver.cuMemHostGetDevicePointer(begin + PAGE, 0)[0]) == 1  # not portable
    with session.current():
        assert [int(driver.cuMemHostUnregister(begin + at)[0]) for at in (100, PAGE)] == [0, 0]
        assert int(driver.cuMemHostRegister(1 << 30, PAGE, 3)[0]) == 1  # nothing is there


def test_read_only_pages_are_registered_as_such(session, tmp_path):
    values = np.arange(50000)
    values.tofile(tmp_path / "values")
    mapped = np.memmap(tmp_path / "values", np.int64, "r")
    with session.current():
        assert int(driver.cuMemHostRegister(mapped.ctypes.data, mapped.nbytes, 3)[0]) == 1
    shown = host_array(session, mapped, "values")
    assert shown.array.pointer == mapped.ctypes.data
    taken = session.empty(3, np.int64)
    session.launch("take_values", 3, shown.array, session.upload(np.array([7, 0, 49999])), None, np.int64(3), taken)
    assert session.download(taken).tolist() == [7, 0, 49999]
    shown.close()


def test_read_only_pages_are_copied_where_a_device_does_not_take_them(session, tmp_path):
    np.arange(50000).tofile(tmp_path / "values")
    mapped = np.memmap(tmp_path / "values", np.int64, "r")
    set_environment = ctypes.CDLL(None).setenv
    set_environment(b"GIDS_STANDIN_READ_ONLY", b"0", 1)
    try:
        with session.current():
            assert int(driver.cuMemHostRegister(mapped.ctypes.data, mapped.nbytes, 11)[0]) == 801
        shown = host_array(session, mapped, "values")
    finally:
        set_environment(b"GIDS_STANDIN_READ_ONLY", b"1", 1)
    assert shown.array.pointer != mapped.ctypes.data
    taken = session.empty(2, np.int64)
    session.launch("take_values", 2, shown.array, session.upload(np.array([7, 49999])), None, np.int64(2), taken)
    assert session.download(taken).tolist() == [7, 49999]
    shown.close()


def test_arrays_that_share_a_page_are_shown_each_for_itself(session, live):
    before, both = live()["mapped"], np.arange(40)
    first, second = host_array(session, both[:20], "first"), host_array(session, both[20:], "second")
    assert live()["mapped"] == before + 2
    first.close()
    taken = session.empty(2, np.int64)
    session.launch("take_values", 2, second.array, session.upload(np.array([1, 19])), None, np.int64(2), taken)
    assert session.download(taken).tolist() == [21, 39]
    second.close()
    assert live()["mapped"] == before


def test_a_piece_of_the_heap_is_copied_and_what_lies_beside_it_stays_pageable(session):
    """An array of 200 KiB in the middle of a page, as malloc gives it once its threshold has grown."""
    heap = pages(60)
    heap[:] = np.arange(60 * PAGE) % 251
    values = torch.frombuffer(bytearray(heap.tobytes()), dtype=torch.uint8).numpy()[100 : 100 + (200 << 10)]
    shown = host_array(session, values, "a piece of the heap")
    assert shown.array.pointer != values.ctypes.data
    beside = DeviceArray(values.ctypes.data - 64, (64,), np.uint8, values)
    copied = session.empty(64 + 4096, np.uint8)
    session.copy_bytes(copied.pointer, beside.pointer, 64 + 4096)  # begins beside it, and ends in it: nothing is pinned
    assert (session.download(copied)[64:] == values[:4096]).all()
    shown.close()


def test_pages_that_are_an_arrays_own_are_registered_where_they_are(session):
    large = np.zeros(OWN_PAGES_BYTES, np.uint8)  # malloc maps it by itself, whatever its threshold
    part = np.frombuffer(mmap.mmap(-1, 2 * PAGE), np.int64)[10:700]
    for values in (large, part):
        shown = host_array(session, values, "own pages")
        assert shown.array.pointer == values.ctypes.data
        shown.close()


def test_registered_pages_are_counted(session, other, live):
    memory, before = pages(4), live()["mapped"]
    begin = memory.ctypes.data
    first = RegisteredPages(session.device, begin, 4 * PAGE)
    second = RegisteredPages(other.device, begin + PAGE, 10)
    assert live()["mapped"] == before + 1
    on_a_thread(first.close)
    first.close()
    assert live()["mapped"] == before + 1
    second.close()
    assert live()["mapped"] == before


def test_registers_need_a_privilege(session, monkeypatch):
    class Native:
        def regions(self):
            return [(pages(1).ctypes.data, PAGE, True)]

    set_environment = ctypes.CDLL(None).setenv
    queues = object.__new__(DeviceQueues)
    queues.native, queues._registered = Native(), []
    set_environment(b"GIDS_STANDIN_PRIVILEGED", b"0", 1)
    try:
        with pytest.raises(DeviceError, match=r"NOT_PERMITTED.*root.*PeerMappingOverride=1"):
            queues._register(session)
    finally:
        set_environment(b"GIDS_STANDIN_PRIVILEGED", b"1", 1)


def test_a_pool_gives_the_latest_block_again_in_stream_order(session):
    second, release = CudaSession(open_device()), hold(session)
    arrays = [session.empty(777, np.int64) for _ in range(2)]
    pointers = [array.pointer for array in arrays]
    del arrays[0], arrays[0]
    elsewhere = second.empty(777, np.int64)
    assert elsewhere.pointer not in pointers  # the stream of those has not got to the free
    again = [session.empty(777, np.int64) for _ in range(2)]
    assert [array.pointer for array in again] == pointers[::-1]
    release.set()
    session.synchronize()


def test_memory_begins_at_a_multiple_of_256_and_of_no_more(session):
    with session.current():
        stream = session.stream.handle
        pointers = [
            fake_torch.checked(call(1000)) for call in (driver.cuMemAlloc, lambda n: driver.cuMemAllocAsync(n, stream))
        ]
        assert [int(pointer) % 512 for pointer in pointers] == [256, 256]
        assert [int(driver.cuMemFree(pointer)[0]) for pointer in pointers] == [0, 0]


def test_a_context_waits_for_its_own_streams(session, other):
    release = hold(other)
    array = session.empty(4, np.int64)
    session.fill(array, 1)
    with session.current():
        pointer = fake_torch.checked(driver.cuMemAlloc(64))
        assert [int(call[0]) for call in (driver.cuCtxSynchronize(), driver.cuMemFree(pointer))] == [0, 0]
    assert not release.is_set()
    release.set()
    with session.current():  # and for streams that are destroyed, and a thread's own
        destroyed, release = fake_torch.checked(driver.cuStreamCreate(1)), hold(session)
        event = session.record()
        driver.cuStreamWaitEvent(destroyed, event.handle, 0)
        driver.cuMemsetD8Async(array.pointer, 7, 1, destroyed)
        driver.cuStreamDestroy(destroyed)
        threading.Timer(0.05, release.set).start()
        driver.cuCtxSynchronize()
        taken = np.zeros(1, np.uint8)
        driver.cuMemcpyDtoH(taken.ctypes.data, array.pointer, 1)
    assert taken[0] == 7


def test_copies_of_pageable_memory(session):
    array, values = session.empty(4, np.int64), np.arange(4)
    with session.current():
        driver.cuMemcpyAsync(array.pointer, values.ctypes.data, 32, session.stream.handle)
        values[:] = -1  # it was staged
        back = np.zeros(4, np.int64)
        driver.cuMemcpyAsync(back.ctypes.data, array.pointer, 32, session.stream.handle)
    assert back.tolist() == [0, 1, 2, 3]  # the call returned when it was done


def test_copies_of_pinned_memory_are_not_waited_for(session):
    staging, release = StagingBuffer(session, 32), hold(session)
    array, values = session.empty(4, np.int64), staging.bytes.view(np.int64)
    values[:] = 1
    session.upload_async(array, staging.bytes)
    values[:] = 2  # a mistake: the copy has not begun
    release.set()
    assert session.download(array).tolist() == [2, 2, 2, 2]
    staging.close()


def test_a_copy_that_leaves_a_registered_range(session):
    memory = pages(2)
    with session.current():
        assert int(driver.cuMemHostRegister(memory.ctypes.data, PAGE, 3)[0]) == 0
        array = session.empty(2 * PAGE, np.uint8)
        status = driver.cuMemcpyAsync(array.pointer, memory.ctypes.data, 2 * PAGE, session.stream.handle)
        assert int(status[0]) == 1
        driver.cuMemHostUnregister(memory.ctypes.data)


def launch(session, grid=(1, 1, 1), block=(32, 1, 1), shared=0):
    array, kernel = session.empty(8, np.int64), session.device.kernel("set_values")
    values = ((np.int64(1), np.int64(1), array.pointer), (ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p))
    with session.current():
        function = fake_torch.checked(driver.cuKernelGetFunction(driver.CUkernel(int(kernel.handle))))
        return int(driver.cuLaunchKernel(function, *grid, *block, shared, session.stream.handle, values, 0)[0])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, 0),
        ({"grid": (1, 65536, 1)}, 1),
        ({"grid": (0, 1, 1)}, 1),
        ({"block": (1, 1, 65)}, 1),
        ({"block": (2048, 1, 1)}, 1),
        ({"block": (257, 1, 1)}, 1),  # compiled for 256
        ({"shared": (48 << 10) + 1}, 1),
    ],
)
def test_limits_of_a_launch(session, options, expected):
    assert launch(session, **options) == expected


def test_the_legacy_default_stream_waits_for_blocking_streams_only(session):
    with session.current():
        blocking = fake_torch.checked(driver.cuStreamCreate(0))
        array = session.empty(1, np.uint8)
        session.synchronize()
        release = hold(session)  # non-blocking
        assert int(driver.cuStreamSynchronize(0)[0]) == 0  # and so this does not wait
        assert not release.is_set()
        release.set()
        driver.cuMemsetD8Async(array.pointer, 5, 1, blocking)
        driver.cuMemsetD8Async(array.pointer, 6, 1, 0)
        driver.cuMemsetD8Async(array.pointer, 7, 1, blocking)
        driver.cuStreamSynchronize(blocking)
    assert session.download(array).tolist() == [7]


def call_later(session, function):
    """Queue a function of the host's; give its answers once it has run."""
    answers, done = [], threading.Event()
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: (answers.append(function()), done.set()))
    session.kept = call
    with session.current():
        assert launch_host_function()(session.stream_handle, ctypes.cast(call, ctypes.c_void_p), None) == 0
    return answers, done


def test_a_function_of_the_host_must_not_call_the_driver(session, capfd):
    answers, done = call_later(session, lambda: int(driver.cuMemAlloc(64)[0]))
    assert done.wait(60)
    assert answers == [800]
    assert "cuMemAlloc in a function of cuLaunchHostFunc, which must not call the driver" in capfd.readouterr().err


def test_a_function_of_the_host_is_not_called_after_an_error_and_who_waits_for_it_is_told(session, recover):
    values = np.zeros(8, np.int64)
    array = session.empty(4, np.int64)
    release = hold(session)  # until everything is queued: what comes after the error is refused at once
    session.launch("set_values", 8, np.int64(7), np.int64(8), DeviceArray(values.ctypes.data, (8,), np.int64, values))
    _, done = call_later(session, lambda: 0)
    arrival = session.download_later([array])
    release.set()
    with pytest.raises(DeviceError, match="ILLEGAL_ADDRESS"):
        arrival.wait()
    assert not done.is_set()


def test_values_arrive_without_a_wait_of_the_drivers(session):
    arrays = [full(session, 5, 3), full(session, 2, 9)]
    release = hold(session)
    arrival = session.download_later(arrays)
    later = session.download_later([full(session, 1, 4)])
    release.set()
    assert [values.tolist() for values in arrival.wait()] == [[3] * 5, [9] * 2]
    assert arrival.wait()[1].tolist() == [9, 9]  # may be asked again
    assert later.wait()[0].tolist() == [4]
    assert session.download_later([]).wait() == []


def test_pinned_memory_that_grows_waits_for_no_other_stream(session, live):
    """What it outgrew is freed with the session: the driver frees pinned memory when all streams have stopped."""
    before, small, large = live()["pinned"], full(session, 5, 3), full(session, 50_000, 4)
    assert session.download(small).tolist() == session.download_later([small]).wait()[0].tolist() == [3] * 5
    second = CudaSession(open_device())
    release = hold(second)
    assert (session.download(large) == 4).all()
    assert (session.download_later([large]).wait()[0] == 4).all()
    assert not release.is_set()
    release.set()
    session.close()
    assert live()["pinned"] == before


def test_gathers_run_at_the_greatest_priority():
    device = open_device()
    sessions = [CudaSession(device), CudaSession(device, urgent=True)]
    with device.current():
        _, least, greatest = driver.cuCtxGetStreamPriorityRange()
        found = [int(driver.cuStreamGetPriority(session.stream.handle)[1]) for session in sessions]
    assert found == [least, greatest]
    assert greatest < least
