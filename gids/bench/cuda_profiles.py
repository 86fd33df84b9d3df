"""What calls and bytes cost on two machines with a GPU: every constant with its source. Nothing here was measured by us."""

from __future__ import annotations

from dataclasses import dataclass

SECTOR_BYTES = 32


@dataclass(frozen=True)
class Profile:
    """A machine. Times are in microseconds, rates in bytes per second."""

    name: str
    hbm_bytes_s: float
    link_bytes_s: float
    warp_instructions_s: float
    #: Atomic operations on one address: one for each clock of the L2 cache (NVIDIA, "Kepler GK110 whitepaper": "atomic
    #: operations to a common address ... one operation per clock"), whose clock is taken for that of the SMs.
    atomics_s: float
    drives: int
    drive_reads_s: float
    drive_bytes_s: float
    #: A launch from Python, on the host: 3.1 µs with sixteen arguments through cuda.bindings, half of it the driver's (RTX
    #: 4090; NVIDIA/cuda-python pull request 1959); cuda.core and what makes the arguments are taken as 4.4 µs more.
    launch_us: float = 7.5
    #: The shortest kernel with its gap to the next: 3.8 µs where launches overlap with execution (NVIDIA, "Getting
    #: Started with CUDA Graphs", developer.nvidia.com/blog/cuda-graphs).
    kernel_us: float = 3.8
    #: The host waits for a stream or an event: beyond what it waits for 10 to 20 µs are assumed, to wake the thread up and
    #: to be Python's turn again; a wait for what has passed takes 0.2 µs (cuda-python's pull request).
    wait_us: float = 15.0
    #: An event recorded, or waited for by a stream: 2.5 µs with timing, a tenth without (V100; NVIDIA/NVTX issue 3); with
    #: what Python adds to the latter taken as 2 µs.
    event_us: float = 2.0
    #: cuMemAllocAsync or cuMemFreeAsync served by the pool, from Python: assumed as an event plus the pool's lookup. Must
    #: not occur in steady state.
    pool_us: float = 4.0
    #: cuMemAlloc: 50 µs up to 512 KiB, more above (University of Virginia, "Memory Management Overhead",
    #: cs.virginia.edu/~mwb7w/cuda_support); 200 µs for some MiB is assumed. Must not occur in steady state.
    alloc_us: float = 200.0
    #: cuMemHostAlloc, and cuMemHostRegister as if it cost the same: 2.3 ms up to 1 MiB, 61 ms for 512 MiB (same page).
    pin_us: float = 2300.0
    pin_page_us: float = 0.45
    #: A copy or a fill: 5 to 7 µs (DualPath, arXiv 2602.21548, section 5.2), and what Python adds; taken as a launch.
    copy_us: float = 7.5
    #: The CPU copies pageable memory to the driver's staging buffer: one core, about 10 GB/s.
    staging_bytes_s: float = 10e9
    #: Of the HBM's bandwidth, what streams of sectors reach: STREAM-like kernels on A100 reach about 0.85 (BabelStream);
    #: scattered sectors reach less, and the counted sectors are mostly scattered.
    hbm_share: float = 0.7
    #: Of the link, what reads of single 32-byte sectors reach: 4.7 of 12.2 GB/s on PCIe 3 (EMOGI, VLDB 2020, figure 4).
    scattered_link_share: float = 0.39
    #: A function of the host's in a stream (cuLaunchHostFunc): about 100 µs (RTX 3080; facebookincubator/velox pull
    #: request 6096); until it has answered the stream stands still.
    host_function_us: float = 100.0
    #: One read of host memory that the next one waits for: a device's round trip to system memory over PCIe 3 takes 1 µs at
    #: least (Rota et al., JINST 11 P02007, 2016); for a GPU 1.2 µs is assumed.
    chained_read_us: float = 1.2


PROFILES = {
    # NVIDIA A100 80GB SXM datasheet: 2,039 GB/s; 108 SMs x 4 schedulers x 1.41 GHz. Link: PCIe 4.0 x16 carries 6.3 M rows
    # of 4 KiB a second (issue "The CUDA path as hardware wants it"). Drives: Samsung PM9A3 datasheet.
    "a100-pcie4": Profile(
        "A100 80 GB, PCIe 4 x16, four PCIe 4 drives",
        hbm_bytes_s=2.039e12,
        link_bytes_s=25.8e9,
        warp_instructions_s=108 * 4 * 1.41e9,
        atomics_s=1.41e9,
        drives=4,
        drive_reads_s=1.1e6,
        drive_bytes_s=6.9e9,
    ),
    # NVIDIA H100 SXM datasheet: 3,350 GB/s; 132 SMs x 4 schedulers x 1.98 GHz. Link: 12.7 M rows of 4 KiB a second, as
    # above. Drives: Samsung PM1743 datasheet.
    "h100-pcie5": Profile(
        "H100 SXM, PCIe 5 x16, four PCIe 5 drives",
        hbm_bytes_s=3.35e12,
        link_bytes_s=52.0e9,
        warp_instructions_s=132 * 4 * 1.98e9,
        atomics_s=1.98e9,
        drives=4,
        drive_reads_s=2.5e6,
        drive_bytes_s=14.0e9,
    ),
}
