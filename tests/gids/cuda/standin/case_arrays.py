"""Device arrays reach consumers by DLPack and by pointer, in order with the consumer's stream."""

import ctypes
import gc
import time

import numpy as np
import pytest
import torch
from threads import hold

from gids.cuda.array import DeviceArray
from gids.cuda.interop import to_torch, torch_device
from gids.cuda.passes import full
from gids.cuda.session import CudaSession, open_device
from gids.errors import ConfigError


@pytest.fixture
def session():
    return CudaSession(open_device())


@pytest.fixture(scope="module")
def consumer():
    """Return a stream that outlives what it is given, as a framework's streams do."""
    return CudaSession(open_device())


_callbacks = []  # queued work may call them after the test has ended


def delay(stream_handle, seconds):
    """Queue work on a stream that takes a while."""
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: time.sleep(seconds))
    library = ctypes.CDLL("libcuda.so.1")
    _callbacks.append(call)
    with open_device().current():
        assert library.cuLaunchHostFunc(ctypes.c_void_p(stream_handle), call, None) == 0


def test_a_consumers_stream_waits_for_the_producer(session, consumer):
    delay(session.stream_handle, 0.1)
    array = full(session, 64, 7)
    array.__dlpack__(stream=consumer.stream_handle)
    copied = consumer.download(array)  # queued on the consumer's stream only
    assert (copied == 7).all()


def test_only_the_event_of_the_array_is_waited_for(session, consumer):
    array = full(session, 64, 7)
    array.ready = session.record()
    release = hold(session)
    array.__dlpack__(stream=consumer.stream_handle)
    assert (consumer.download(array) == 7).all()
    assert not release.is_set()
    release.set()


def test_memory_is_not_reused_while_a_consumer_works_on_it(session, consumer):
    array = full(session, 64, 7)
    capsule = array.__dlpack__(stream=consumer.stream_handle)
    delay(consumer.stream_handle, 0.2)
    copied = consumer.empty(64, np.int64)
    consumer.copy(copied, array)
    del array, capsule
    gc.collect()
    again = full(session, 64, 9)
    assert (consumer.download(copied) == 7).all()
    assert (session.download(again) == 9).all()


def test_capsule_fields(session):
    array = session.empty((5, 3), np.float32)
    assert array.__dlpack_device__() == (2, 0)  # kDLCUDA
    capsule = array.__dlpack__(stream=-1)
    prototype = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    get = prototype(("PyCapsule_GetPointer", ctypes.pythonapi))
    raw = ctypes.string_at(get(capsule, b"dltensor"), 48)
    data, device_type, device_id, ndim = np.frombuffer(raw[:20], "<u8,<i4,<i4,<i4")[0]
    assert (data, device_type, device_id, ndim) == (array.pointer, 2, 0, 2)
    assert tuple(raw[20:24]) == (2, 32, 1, 0)  # kDLFloat, 32 bits, 1 lane
    with pytest.raises(BufferError, match="without a copy"):
        array.__dlpack__(copy=True)


def test_tensors_share_memory_and_keep_it_alive(session, live, fake):
    values = np.arange(12, dtype=np.float32).reshape(4, 3)
    array = session.upload(values)
    pieces = live()["pieces"]
    tensor = to_torch(array, torch_device(session))
    assert tensor.dtype == torch.float32
    assert [handed.pointer for handed in fake.handed] == [array.pointer]
    del array
    assert live()["pieces"] == pieces
    assert torch.equal(tensor, torch.from_numpy(values))
    del tensor
    assert live()["pieces"] == pieces - 1


def test_an_unused_capsule_lets_go(session, live):
    pieces = live()["pieces"]
    array = session.empty(4, np.int64)
    capsule = array.__dlpack__(stream=-1)
    del array, capsule
    assert live()["pieces"] == pieces


def test_bfloat16_is_handed_over_as_such(session):
    values = torch.tensor([1.5, -2.0], dtype=torch.bfloat16)
    array = session.upload(values.view(torch.int16).numpy().view(np.uint16))
    shared = to_torch(array.view((2,), np.uint16, 4), torch_device(session))
    assert shared.dtype == torch.bfloat16
    assert torch.equal(shared, values)


def test_cuda_array_interface(session):
    interface = full(session, 6, 4)[2:5].__cuda_array_interface__
    assert interface["shape"] == (3,)
    assert interface["typestr"] == "<i8"
    assert interface["version"] == 3


def test_slices_and_views_are_checked(session):
    array = session.empty((4, 2), np.int32)
    assert array[1:3].shape == (2, 2)
    assert array[1:3].pointer == array.pointer + 8
    with pytest.raises(ConfigError, match="step"):
        array[::2]
    with pytest.raises(ConfigError, match="must fit in 32 bytes"):
        array.view((5, 2), np.int32)
    with pytest.raises(ConfigError, match="cannot be handed over"):
        DeviceArray(0, (1,), np.int32, None).__dlpack_device__()


def test_copies_must_fit(session):
    with pytest.raises(ConfigError, match="equal size"):
        session.copy(session.empty(3, np.int32), session.empty(4, np.int32))
    with pytest.raises(ConfigError, match="must fit"):
        session.upload_async(session.empty(3, np.int32), np.zeros(40, np.int32))
