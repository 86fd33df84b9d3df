"""What gids asks of torch.cuda when it hands arrays over: device, stream, order, lifetime (tests/standin/fake_torch.py)."""

import gc
import threading

import fake_torch
import numpy as np
import pytest
import torch
from threads import hold, on_a_thread

from gids.cuda.backend import default_device_budget
from gids.cuda.interop import pointer_ordinal, seeds_to_host, to_torch, torch_device, torch_ordinal
from gids.cuda.passes import full
from gids.cuda.session import CudaSession, open_device
from gids.errors import ConfigError

DEVICES = [torch.device("cuda", ordinal) for ordinal in range(2)]


@pytest.fixture(params=[0, 1])
def session(request):
    return CudaSession(open_device(request.param))


def test_torch_is_given_the_sessions_device(session, fake):
    ordinal = session.device_id
    array = full(session, 6, 3)
    tensor = to_torch(array, torch_device(session))
    assert tensor.tolist() == [3] * 6
    (handed,) = fake.handed
    assert (handed.device, handed.shape, handed.dtype) == (ordinal, (6,), torch.int64)
    assert handed.stream == 0  # torch's current stream; its from_dlpack names it 1
    assert fake_torch.current_device() == 0  # as before


def test_the_stream_is_the_one_current_on_the_arrays_device(session, fake):
    mine, elsewhere = (torch.cuda.Stream(ordinal) for ordinal in (session.device_id, 1 - session.device_id))
    release = hold(session)
    array = full(session, 6, 3)
    threading.Timer(0.05, release.set).start()
    with torch.cuda.stream(mine), torch.cuda.stream(elsewhere):
        assert to_torch(array, torch_device(session)).tolist() == [3] * 6  # copied on `mine`, which waited
        assert torch.cuda.current_stream(session.device_id) is mine
    assert [handed.stream for handed in fake.handed] == [mine.cuda_stream]


def test_memory_outlives_its_last_use_on_torchs_stream(session, fake):
    stream = torch.cuda.Stream(session.device_id)
    array = full(session, 64, 7)
    with torch.cuda.stream(stream):
        tensor = to_torch(array, torch_device(session))
        pointer = array.pointer
        del array
        other = CudaSession(open_device(session.device_id))
        copied = other.empty(64, np.int64)
        other.synchronize()  # memory exists for another stream only when the stream that allocated it is done
        release = hold(_AsSession(session, stream))
        with session.current():
            fake_torch.checked(fake_torch._driver().cuMemcpyAsync(copied.pointer, pointer, 512, stream.cuda_stream))
        del tensor
    again = full(session, 64, 9)  # waits for the stream, if it gets the same memory
    release.set()
    stream.synchronize()
    assert session.download(copied).tolist() == [7] * 64
    assert session.download(again).tolist() == [9] * 64
    assert fake.handed[0].released


class _AsSession:
    """A torch stream, as far as ``hold`` is concerned."""

    def __init__(self, session, stream):
        self.current, self.stream_handle = session.current, stream.cuda_stream


def test_tensors_are_made_and_dropped_on_threads_without_a_context(session, fake, live):
    before = live()["pieces"]
    arrays = [full(session, 5, 2)]
    held = [on_a_thread(lambda: to_torch(arrays.pop(), torch_device(session)))]
    assert held[0].tolist() == [2] * 5
    assert live()["pieces"] == before + 1
    on_a_thread(held.clear)
    gc.collect()
    assert live()["pieces"] == before
    assert fake.handed[0].thread != threading.get_ident()


def test_an_unused_capsule_is_dropped_on_a_thread_without_a_context(session, live):
    before = live()["pieces"]
    held = [full(session, 5, 2).__dlpack__(stream=1)]
    on_a_thread(held.clear)
    assert live()["pieces"] == before


def test_a_second_stream_is_made_to_wait_by_an_event(session, fake):
    """What docs/cuda.md says of tensors on another stream: it waits for the first, and the first for it before the end."""
    first, second = (torch.cuda.Stream(session.device_id) for _ in range(2))
    array = full(session, 64, 7)
    with torch.cuda.stream(first):
        tensor, pointer = to_torch(array, torch_device(session)), array.pointer
    del array
    copied = session.empty(64, np.int64)
    session.synchronize()
    second.wait_event(first.record_event())
    release = hold(_AsSession(session, second))
    with session.current():
        fake_torch.checked(fake_torch._driver().cuMemcpyAsync(copied.pointer, pointer, 512, second.cuda_stream))
    done = torch.cuda.Event()
    second.record_event(done)
    done.wait(first)
    assert not done.query()
    del tensor  # the memory is not used again before what `first` waits for
    again = full(session, 64, 9)
    release.set()
    done.synchronize()
    assert session.download(copied).tolist() == [7] * 64
    assert session.download(again).tolist() == [9] * 64


def test_the_default_budget_leaves_room_for_the_model(fake):
    device = open_device()
    free, _ = device.memory_bytes()
    assert default_device_budget(device) == int(0.6 * free)
    fake.reserved[0] = 1 << 20
    try:
        assert default_device_budget(device) == int(0.8 * free)
    finally:
        fake.reserved.clear()


def test_record_stream_does_nothing_for_memory_of_ours(session, fake):
    """torch skips memory that its allocator did not give: the documented way is to wait for the other stream."""
    tensor, second = to_torch(full(session, 4, 1), torch_device(session)), torch.cuda.Stream(session.device_id)
    tensor.record_stream(second)
    assert fake.recorded == [(tensor.data_ptr(), second.cuda_stream)]
    torch.cuda.current_stream(session.device_id).wait_stream(second)


def test_cuda_means_torchs_current_device():
    assert torch_ordinal(torch.device("cuda")) == 0
    with torch.cuda.device(1):
        assert torch_ordinal(torch.device("cuda")) == 1
        assert torch_ordinal(torch.device("cuda:0")) == 0
    assert torch_ordinal(torch.device("cuda")) == 0


def test_seeds_are_read_on_the_device_that_has_them(session):
    array = session.upload(np.arange(9, dtype=np.int32))
    assert pointer_ordinal(array.pointer) == session.device_id
    assert seeds_to_host(array).tolist() == list(range(9))

    class Foreign:
        def __init__(self, pointer, count):
            self.__cuda_array_interface__ = {"typestr": "<i8", "shape": (count,), "data": (pointer, False)}

    with pytest.raises(ConfigError, match=r"must be CUDA's \(got 0x1234560"):
        seeds_to_host(Foreign(0x1234560, 3))
    assert seeds_to_host(Foreign(0, 0)).tolist() == []
