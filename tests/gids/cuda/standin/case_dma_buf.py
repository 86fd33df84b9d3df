"""How far GPU memory gets on its way to a drive: exported through the stand-in, then refused step by step."""

import errno
import os
from pathlib import Path

import pytest

from gids.cuda import dma_buf
from gids.cuda.dma_buf import probe_dma_buf
from gids.cuda.session import CudaSession, open_device


@pytest.fixture
def session():
    return CudaSession(open_device())


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_this_kernel(session, live):
    before, files = live(), descriptors()
    probe = probe_dma_buf(session)
    assert (probe.step, probe.works) != ("export", False), probe  # the stand-in exports
    if not dma_buf.IOMMU.exists():
        assert probe.step == "iommufd"
        assert "/dev/iommu cannot be opened (No such file or directory)" in probe.reason
        assert "CONFIG_IOMMUFD" in probe.reason
    assert (live(), descriptors()) == (before, files)


def test_a_driver_that_does_not_export(session, fault, live):
    before = live()
    fault("cuMemGetHandleForAddressRange", 1, 801)
    probe = probe_dma_buf(session)
    assert (probe.step, probe.works) == ("export", False)
    assert "cuMemGetHandleForAddressRange failed (CUDA_ERROR_NOT_SUPPORTED)" in probe.reason
    assert live() == before


def test_a_file_that_is_no_iommu(session, tmp_path):
    (tmp_path / "iommu").touch()
    probe = probe_dma_buf(session, tmp_path / "iommu")
    assert (probe.step, probe.works) == ("address space", False)
    assert "IOMMU_IOAS_ALLOC failed" in probe.reason


@pytest.mark.parametrize(
    ("refusal", "words"),
    [(None, "bus address 0x1000"), (errno.EINVAL, "but not a GPU's"), (errno.ENOTTY, "older than 6.13")],
)
def test_what_the_kernel_is_asked(session, tmp_path, monkeypatch, refusal, words):
    """An IOMMU made of a function, as no kernel here has one: what it is asked, and what becomes of its answers."""
    asked = []

    def ioctl(_file, number, request):
        asked.append((number & 0xFF, number >> 8))
        assert request.size == len(bytes(request))
        if number & 0xFF == 0x81:
            request.out_ioas_id = 7
        elif number & 0xFF == 0x8F:
            assert (request.ioas_id, request.length, os.fstat(request.fd).st_size) == (7, 65536, 65536)
            if refusal is not None:
                raise OSError(refusal, os.strerror(refusal))
            request.iova = 0x1000
        else:
            assert request.id == 7

    (tmp_path / "iommu").touch()
    monkeypatch.setattr(dma_buf, "ioctl", ioctl)
    probe = probe_dma_buf(session, tmp_path / "iommu")
    assert (probe.step, probe.works) == ("map", refusal is None)
    assert words in probe.reason
    assert asked == [(0x81, ord(";")), (0x8F, ord(";")), (0x80, ord(";"))]
