"""What goes wrong on a device comes out as one error that says so, and leaves the process usable."""

import pytest

from gids.cuda.session import CudaSession, DeviceBudget, open_device
from gids.errors import ConfigError, DeviceError, StorageError
from tests.loading import load

OPTIONS = {"seeds": "train", "fanouts": [3, 4], "batch_size": 48, "sweep_batches": 3, "device": "cuda"}


def run(dataset, **options):
    with load(dataset, **(OPTIONS | {"device_budget": "48MiB"} | options)) as loader:
        return list(loader)


def test_budget_too_small_names_the_least(dataset):
    with pytest.raises(ConfigError, match=r"device_budget must be at least .* sampling and planning"):
        run(dataset, device_budget="1MiB")
    with pytest.raises(ConfigError, match=r"budget must be at least .* topology"):
        run(dataset, budget="1MiB")


def test_a_session_keeps_to_its_budget():
    session = CudaSession(open_device(), DeviceBudget(1000, "device_budget"))
    first = session.empty(100, "int64")
    with pytest.raises(DeviceError, match=r"device_budget must have room for 320 B more \(800 B of 1000 B"):
        session.empty(40, "int64")
    del first
    session.empty(125, "int64")


@pytest.mark.parametrize("count", [1, 20, 200])
def test_out_of_device_memory(dataset, fault, live, count):
    fault("cuMemAllocFromPoolAsync", count, 2)
    with pytest.raises(DeviceError, match=r"device memory of gids stand-in .* must have .* free .*OUT_OF_MEMORY"):
        run(dataset)
    assert live()["pinned"] == live()["mapped"] == 0
    fault("cuInit", 9999, 1)
    assert len(run(dataset)) == 5


def test_memlock(dataset, fault, live):
    fault("cuMemHostRegister", 0, 2)
    with pytest.raises(DeviceError, match=r"must be pinned: .* RLIMIT_MEMLOCK is .* `ulimit -l unlimited`"):
        run(dataset)
    assert live()["mapped"] == 0


def test_no_pinned_staging(dataset, fault):
    fault("cuMemHostAlloc", 0, 2)
    with pytest.raises(DeviceError, match=r"pinned memory: cuMemHostAlloc failed \(CUDA_ERROR_OUT_OF_MEMORY"):
        run(dataset, storage="pread")


@pytest.mark.parametrize("count", [1, 5, 40, 90])
def test_a_launch_that_fails(dataset, fault, count):
    fault("cuLaunchKernel", count, 719)
    with pytest.raises(DeviceError, match=r"kernel \w+ must launch on gids stand-in .*LAUNCH_FAILED"):
        run(dataset)
    fault("cuInit", 9999, 1)
    assert len(run(dataset)) == 5


def test_an_error_that_shows_later(dataset, fault):
    fault("cuEventSynchronize", 3, 719)
    with pytest.raises(DeviceError, match="LAUNCH_FAILED"):
        run(dataset)


@pytest.mark.parametrize("engine", ["uring", "gds"])
def test_a_truncated_file(tmp_path, engine):
    from gids.generate import communities

    dataset = communities(tmp_path / "g", num_nodes=600, degree=6, dim=16, train=0.3)
    path = dataset.feature_table("_N").stripes[0].path
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)
    with pytest.raises(StorageError) as caught:
        run(dataset, storage=engine)
    assert caught.value.path == str(path)
    assert caught.value.length > 0


def test_an_unknown_kernel_and_a_wrong_argument():
    session = CudaSession(open_device())
    with pytest.raises(DeviceError, match="must be an entry point"):
        session.launch("nothing", 1)
    with pytest.raises(ConfigError, match="argument 0 of set_values must be"):
        session.launch("set_values", 1, 3)


def test_a_third_device_does_not_exist(dataset):
    with pytest.raises(DeviceError, match=r"device='cuda:2' needs a GPU"):
        run(dataset, device="cuda:2")
