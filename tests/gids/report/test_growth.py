"""The meter of a process's memory sees what it took, also where that is gone again at the end."""

import mmap
import subprocess
import sys
from pathlib import Path

from gids.report import growth
from tests.resources import DEADLINE_S

METERED = """
import mmap, sys, time
sys.path.insert(0, sys.argv[1])
from growth import MemoryMeter
parts = [bytearray(b"x") * (100 << 10) for _ in range(1000)]
above = bytearray(b"x") * (100 << 10)  # so that the C library cannot give the parts back by itself
del parts
with MemoryMeter() as meter:
    block = bytearray(b"x") * (64 << 20)  # fits where the parts were
print(meter.growth_bytes)
with MemoryMeter() as meter:
    passing = mmap.mmap(-1, 64 << 20)
    passing.write(b"x" * len(passing))
    deadline = time.monotonic() + 120  # on a busy machine the meter's thread may wait long for its turn
    while meter.growth_bytes < 60 << 20 and time.monotonic() < deadline:
        time.sleep(0.01)
    passing.close()
print(meter.growth_bytes)
"""


def test_the_memory_meter_sees_growth_into_free_memory_and_a_peak_that_is_gone_at_the_end() -> None:
    # In a process of its own: what other tests left may free memory while this one measures.
    command = [sys.executable, "-c", METERED, str(Path(growth.__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=True)
    into_free, passing = map(int, done.stdout.split())
    assert 60 << 20 < into_free < 70 << 20
    assert 60 << 20 < passing < 140 << 20


PEAKS = """
import resource, sys
sys.path.insert(0, sys.argv[1])
from growth import peak_resident_bytes
print(peak_resident_bytes(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


def test_the_peak_of_a_process_is_its_own_and_not_that_of_the_large_process_which_started_it() -> None:
    ballast = 640 << 20
    with mmap.mmap(-1, ballast, flags=mmap.MAP_PRIVATE | mmap.MAP_POPULATE):
        command = [sys.executable, "-c", PEAKS, str(Path(growth.__file__).parent)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=True)
    peak, as_getrusage_says = map(int, done.stdout.split())
    assert as_getrusage_says >= ballast  # why /proc is read
    assert 4 << 20 < peak < ballast
    assert growth.peak_resident_bytes() >= ballast
