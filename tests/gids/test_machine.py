"""Memory that a process may take, on machines that are described in a directory: cgroup v1, v2, both, none."""

import pytest

from gids.machine import available_bytes, memory_limit_bytes

MIB = 1 << 20


def described(root, files):
    """Write files under a root; ``{"proc/self/cgroup": "0::/a"}``."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


FREE = {"proc/meminfo": f"MemTotal: {9 * 1024} kB\nMemAvailable: {8 * 1024} kB\n"}
V1, V2 = "sys/fs/cgroup/memory", "sys/fs/cgroup"


@pytest.mark.parametrize(
    ("files", "limit", "available"),
    [
        ({}, None, 8 * MIB),
        ({"proc/self/cgroup": "0::/\n"}, None, 8 * MIB),
        ({"proc/self/cgroup": "0::/\n", f"{V2}/memory.max": "max\n"}, None, 8 * MIB),
        (
            {"proc/self/cgroup": "0::/a/b\n", f"{V2}/a/b/memory.max": f"{4 * MIB}\n", f"{V2}/a/b/memory.stat": f"anon {MIB}\n"},
            4 * MIB,
            3 * MIB,
        ),
        ({"proc/self/cgroup": "0::/a/b\n", f"{V2}/a/b/memory.max": "max", f"{V2}/a/memory.max": str(2 * MIB)}, 2 * MIB, 2 * MIB),
        ({"proc/self/cgroup": "0::/of/the/host\n", f"{V2}/memory.max": str(5 * MIB)}, 5 * MIB, 5 * MIB),
        (
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/x\n2:memory:/x\n0::/\n",
                f"{V1}/x/memory.limit_in_bytes": str(3 * MIB),
                f"{V1}/x/memory.stat": f"cache 5\ntotal_rss {2 * MIB}\n",
                f"{V1}/memory.limit_in_bytes": "9223372036854771712",
            },
            3 * MIB,
            MIB,
        ),
        ({"proc/self/cgroup": "2:hugetlb,memory:/x\n", f"{V1}/x/memory.limit_in_bytes": str(3 * MIB)}, 3 * MIB, 3 * MIB),
        ({"proc/self/cgroup": "0::/x\n", f"{V2}/x/memory.max": "nonsense"}, None, 8 * MIB),
        (
            {"proc/self/cgroup": "0::/x\n", f"{V2}/x/memory.max": str(MIB), f"{V2}/x/memory.stat": f"anon {2 * MIB}\n"},
            MIB,
            0,
        ),
    ],
    ids=["no cgroups", "v2, root", "v2, no limit", "v2", "v2, parent", "v2, in a container", "v1", "v1, shared", "odd", "used up"],
)  # fmt: skip
def test_limits(tmp_path, files, limit, available):
    root = described(tmp_path, FREE | files)
    assert memory_limit_bytes(root) == limit
    assert available_bytes(root) == available


@pytest.mark.parametrize("text", [None, "", "MemAvailable:\n", "MemTotal: 5 kB\n", "garbage"])
def test_without_meminfo(tmp_path, text):
    described(tmp_path, {} if text is None else {"proc/meminfo": text})
    assert available_bytes(tmp_path) > MIB


def test_here():
    assert 1 << 20 < available_bytes() < 1 << 50
