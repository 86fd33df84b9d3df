"""What doctor says about drives, from a made-up /sys and /proc."""

import pytest

from gids.nvme import facts, give_steps, take_back_steps
from gids.nvme.facts import bar_bytes, gpu_dma_buf

DRIVE, NEIGHBOUR, GPU = "0000:01:00.0", "0000:01:00.1", "0000:3b:00.0"


def add_device(root, address, kind, resources, group=None, driver=None, vendor="0x144d"):
    device = root / "sys/bus/pci/devices" / address
    device.mkdir(parents=True)
    (device / "class").write_text(kind + "\n")
    (device / "vendor").write_text(vendor + "\n")
    (device / "resource").write_text("".join(f"0x{a:016x} 0x{b:016x} 0x{c:016x}\n" for a, b, c in resources))
    if group is not None:
        members = root / "sys/kernel/iommu_groups" / group / "devices"
        members.mkdir(parents=True, exist_ok=True)
        (members / address).symlink_to(device)
        (device / "iommu_group").symlink_to(root / "sys/kernel/iommu_groups" / group)
    if driver is not None:
        (root / "sys/bus/pci/drivers" / driver).mkdir(parents=True, exist_ok=True)
        (device / "driver").symlink_to(root / "sys/bus/pci/drivers" / driver)
    return device


@pytest.fixture
def root(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("HugePages_Total:   8\nHugePages_Free:    3\nHugepagesize:    2048 kB\n")
    (tmp_path / "proc/mounts").write_text("/dev/sda1 / ext4 rw 0 0\n")
    return tmp_path


def by_name(root):
    return {fact.name: fact for fact in facts(root)}


def test_an_empty_machine(root):
    found = by_name(root)
    assert not found["IOMMU groups"].ok
    assert found["IOMMU groups"].value == "none"
    assert "intel_iommu=on" in found["IOMMU groups"].hint
    assert found["vfio-pci"].hint == "modprobe vfio-pci"
    assert found["huge pages"].value == "3 free of 8 (2048 kB)"
    assert found["NVMe drives"].value == "none on the PCI bus"


def test_a_drive_of_the_kernels(root):
    device = add_device(root, DRIVE, "0x010802", [(0xA0000000, 0xA0003FFF, 0x140204)], group="17", driver="nvme")
    (device / "nvme/nvme0").mkdir(parents=True)
    (device / "nvme/nvme0/serial").write_text("S5GX 42  \n")
    fact = by_name(root)[f"NVMe {DRIVE}"]
    assert fact.value == "driver nvme, IOMMU group 17, serial S5GX 42, BAR 0 16 KiB"
    assert not fact.ok
    assert fact.hint == f"to give it to gids: gids nvme give {DRIVE}"
    assert 'chown "$SUDO_USER" /dev/vfio/17' in give_steps(DRIVE, root)


def test_a_mounted_drive_is_in_use_and_must_be_unmounted(root):
    device = add_device(root, DRIVE, "0x010802", [(0, 0x3FFF, 0)], group="17", driver="nvme")
    (device / "nvme/nvme0/nvme0n1").mkdir(parents=True)
    (root / "proc/mounts").write_text("/dev/nvme0n1p2 /data ext4 rw 0 0\n/dev/nvme0n10 /other ext4 rw 0 0\n")
    assert by_name(root)[f"NVMe {DRIVE}"].hint == "in use: mounted on /data"
    assert give_steps(DRIVE, root)[0] == "umount /data"


def test_a_shared_group_is_told(root):
    add_device(root, DRIVE, "0x010802", [(0, 0x3FFF, 0)], group="17", driver="vfio-pci")
    add_device(root, NEIGHBOUR, "0x020000", [(0, 0xFFF, 0)], group="17")
    fact = by_name(root)[f"NVMe {DRIVE}"]
    assert not fact.ok
    assert NEIGHBOUR in fact.hint


def test_a_drive_that_is_ready(root):
    add_device(root, DRIVE, "0x010802", [(0, 0x3FFF, 0)], group="17", driver="vfio-pci")
    found = by_name(root)
    assert found[f"NVMe {DRIVE}"].ok
    assert found["vfio-pci"].ok
    assert found["IOMMU groups"].value == "1"


def test_gpus_and_their_bars(root):
    device = add_device(root, GPU, "0x030200", [(0, 0xFFFFFF, 0), (0x38000000000, 0x38FFFFFFFFF, 0)], vendor="0x10de")
    assert bar_bytes(device, 1) == 64 << 30
    assert bar_bytes(device, 5) == 0
    found = by_name(root)
    assert found[f"GPU {GPU}"].ok
    assert "GPU memory as dma-buf" in found


def test_dma_buf_without_a_driver_gives_a_reason():
    works, reason = gpu_dma_buf("libcuda-that-is-not-there.so")
    assert not works
    assert "no CUDA driver" in reason


def test_steps_back_undo_the_steps_there():
    assert take_back_steps(DRIVE) == [
        f"echo > /sys/bus/pci/devices/{DRIVE}/driver_override",
        f"echo {DRIVE} > /sys/bus/pci/devices/{DRIVE}/driver/unbind",
        f"echo {DRIVE} > /sys/bus/pci/drivers_probe",
    ]
