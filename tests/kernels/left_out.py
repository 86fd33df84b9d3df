"""Leaves out one entry point after another: a test that launches it must fail, or nothing compares what it writes.

Run by test_compared.py. Memory that no kernel wrote is zero here, so that what follows in a test finds places and sizes that
exist; still every run is a process of its own, forked when all is imported, because some end by reading elsewhere.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch  # noqa: F401 - before the forks, that all have it

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "simt"))
import session  # noqa: E402
from runner import ROOT, Simt, build  # noqa: E402

RECORD = ROOT / "build" / "evidence" / "compared.json"
#: Inner runs of other machines, and tests that launch kernels which are wrong on purpose.
LEFT_ASIDE = ("test_compared.py", "test_ptx.py", "test_tsan.py", "test_weak.py", "test_simt.py")
#: Tests that are tried for a kernel: the quickest first, and one of each function before another of the same.
MOST_TESTS = 8
#: Those tests take seconds, or a minute where reads end at their deadline; one that is ended is no evidence.
LIMIT_S = 120.0


class Watch:
    """Follows a run of pytest: which kernels a test launches, and whether it fails by an assertion of its own."""

    def __init__(self, left_out: str | None = None):
        self.left_out, self.test = left_out, ""
        self.launches: dict[str, dict[str, float]] = defaultdict(dict)  # kernel -> test -> seconds
        self.refuted = ""  # the test that an assertion ended
        self._now: set[str] = set()
        if left_out:
            session.RUBBISH = 0
        launch = Simt.launch

        def noted(machine: Simt, name: str, *arguments: Any, **more: Any) -> None:
            self._now.add(name)
            if name != self.left_out:
                launch(machine, name, *arguments, **more)

        Simt.launch = noted  # type: ignore[method-assign]

    def pytest_runtest_setup(self) -> None:
        """Begin a test."""
        self._now = set()

    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        """Note what it launched, or that it failed."""
        if call.when != "call":
            return
        if call.excinfo is None:
            for name in self._now:
                self.launches[name][item.nodeid] = call.duration
        elif call.excinfo.errisinstance(AssertionError):
            self.refuted = item.nodeid


def follow(watch: Watch, *what: str) -> Watch:
    """Run tests; return what was seen."""
    # The runner that the tests use is the one that is watched.
    sys.modules["runner"] = sys.modules["simt_runner"] = sys.modules[Simt.__module__]
    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not long", "--rootdir", str(ROOT)]
    pytest.main([*options, *what], plugins=[watch])
    return watch


def launches_by_kernel(out: Any) -> None:
    """Send which tests launch a kernel."""
    ignored = [f"--ignore={HERE / name}" for name in LEFT_ASIDE]
    out.send(dict(follow(Watch(), *ignored, str(HERE)).launches))


def refuted_without(kernel: str, test: str, out: Any) -> None:
    """Send whether a test fails when a kernel does nothing."""
    out.send(follow(Watch(kernel), str(ROOT / test)).refuted)


def answer(target: Any, *arguments: Any, limit_s: float | None = None) -> Any:
    """Return what a process sends, or None if it ends without a word, or not in time: what is not written may be a bound."""
    receiving, sending = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=target, args=(*arguments, sending))
    process.start()
    sending.close()
    try:
        return receiving.recv() if receiving.poll(limit_s) else process.kill()
    except EOFError:
        return None
    finally:
        process.join()


def in_turn(seconds: dict[str, float]) -> list[str]:
    """Return tests in the order in which they are tried."""
    by_function: dict[str, list[str]] = defaultdict(list)
    for test in sorted(seconds, key=lambda name: seconds[name]):
        by_function[test.partition("[")[0]].append(test)
    return [tests[n] for n in range(MOST_TESTS) for tests in by_function.values() if n < len(tests)][:MOST_TESTS]


def main() -> int:
    """Try every kernel; write the record, and print those whose absence no test sees."""
    names = {name for name in Simt(build()).names if not name.startswith("probe_")}
    launches = answer(launches_by_kernel)
    compared = {}
    for kernel in sorted(names):
        for test in in_turn(launches.get(kernel, {})):
            if answer(refuted_without, kernel, test, limit_s=LIMIT_S):
                compared[kernel] = test
                break
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    RECORD.write_text(json.dumps(compared, indent=1) + "\n")
    missing = sorted(names - compared.keys())
    print("not compared:", *missing)
    return 1 if missing else 0


if __name__ == "__main__":
    raise SystemExit(main())
