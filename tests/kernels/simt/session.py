"""A session whose device is the lane-by-lane machine: the stages' own Python code runs kernels on the CPU."""

from __future__ import annotations

import numpy as np
from runner import Simt

from gids.cuda.array import DeviceArray
from gids.cuda.arrivals import Arrived
from gids.cuda.session import grid_blocks

RED, RUBBISH, RED_BYTES = 0xA5, 0xCD, 64
ALIGN = 256  # of every allocation of CUDA's


class _Memory:
    """Bytes with red zones, checked when the last array over them is gone."""

    def __init__(self, count: int, damage: list[str]):
        self.raw = np.full(count + 2 * RED_BYTES + ALIGN, RED, np.uint8)
        start = -(self.raw.ctypes.data + RED_BYTES) % ALIGN
        self.bytes = self.raw[start + RED_BYTES : start + RED_BYTES + count]
        self.bytes[:] = RUBBISH
        self.zones = (self.raw[start : start + RED_BYTES], self.raw[start + RED_BYTES + count :])
        self.damage = damage

    def __del__(self):
        if any((zone != RED).any() for zone in self.zones):
            self.damage.append(f"a kernel wrote outside an array of {self.bytes.size} bytes")


class _Mapped:
    def __init__(self, values):
        self._values = np.ascontiguousarray(values)
        self.array = DeviceArray(self._values.ctypes.data, self._values.shape, self._values.dtype, self._values)

    def close(self):
        self._values = None


class SimtSession:
    """Implements gids.cuda.session.Session and pinned.MapsHost."""

    device_id = 0
    host_addressable = True

    def __init__(self, simt: Simt, block_threads: int = 64, seed: int = 0, max_blocks: int = 8):
        self._simt, self.block_threads, self._seed, self._max_blocks = simt, block_threads, seed * 1000003, max_blocks
        self._damage: list[str] = []
        self.scratch: dict[str, DeviceArray] = {}

    def empty(self, shape, dtype):
        shape = (shape,) if isinstance(shape, int) else shape
        memory = _Memory(max(int(np.prod(shape)) * np.dtype(dtype).itemsize, 8), self._damage)
        return DeviceArray(memory.bytes.ctypes.data, shape, dtype, memory, self)

    def reserve(self, count, align):
        assert ALIGN % align == 0
        return self.empty(count, np.uint8)

    def upload(self, values):
        array = self.empty(values.shape, values.dtype)
        self._bytes(array)[:] = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        return array

    def download(self, array):
        return self._bytes(array).copy().view(array.dtype).reshape(array.shape)

    def download_all(self, arrays):
        return [self.download(array) for array in arrays]

    def download_later(self, arrays):
        return Arrived(self.download_all(arrays))

    def copy(self, to, source):
        assert to.nbytes == source.nbytes
        self._bytes(to)[:] = self._bytes(source)

    def fill(self, array, byte):
        self._bytes(array)[:] = byte

    def map_host(self, values):
        return _Mapped(values)

    def synchronize(self):
        pass

    def launch(self, kernel, items, *arguments, lanes=1, blocks=None):
        blocks = blocks or grid_blocks(items, lanes, self.block_threads)
        values = [
            np.uint64(a.pointer if isinstance(a, DeviceArray) else 0) if a is None or isinstance(a, DeviceArray) else a
            for a in arguments
        ]
        self._seed += 1
        # Fewer blocks than would cover the items: entry points must loop.
        self._simt.launch(kernel, min(blocks, self._max_blocks), self.block_threads, *values, seed=self._seed)
        assert not self._damage, self._damage

    def _bytes(self, array):
        import ctypes

        if not array.nbytes:
            return np.empty(0, np.uint8)
        return np.ctypeslib.as_array((ctypes.c_uint8 * array.nbytes).from_address(array.pointer))
