"""The tests' own file system under other tests' files: ``with mounted(directory) as faults: faults.set(...)``."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

_SERVER = Path(__file__).with_name("server.py")


class Mounted:
    """A directory shown through the file system: ``path`` is where, ``set`` says what goes wrong from now on."""

    def __init__(self, path: Path, rules: Path):
        self.path, self._rules = path, rules

    def set(self, *rules: dict[str, object]) -> None:
        """Replace all rules (see server.py); none of them makes everything right again."""
        fresh = self._rules.with_suffix(".new")
        fresh.write_text(json.dumps(list(rules)))
        fresh.replace(self._rules)


class CannotMount(Exception):
    """No file system can be mounted here."""


@contextlib.contextmanager
def mounted(directory: Path, cached: bool = False) -> Iterator[Mounted]:
    """Show ``directory`` through the file system that fails on demand; skip the test where nothing can be mounted."""
    with contextlib.ExitStack() as stack:
        try:
            shown = stack.enter_context(mount(directory, cached))
        except CannotMount as reason:
            pytest.skip(f"{reason}: NOTHING is tested below the file system")
        yield shown


@contextlib.contextmanager
def mount(directory: Path, cached: bool = False) -> Iterator[Mounted]:
    """Show ``directory`` through the file system that fails on demand; raise CannotMount where that cannot be."""
    if not Path("/dev/fuse").exists():
        raise CannotMount("there is no /dev/fuse here")
    with tempfile.TemporaryDirectory(prefix="gids-faultfs-") as place:
        mountpoint, rules = Path(place) / "mnt", Path(place) / "rules.json"
        mountpoint.mkdir()
        rules.write_text("[]")
        command = [sys.executable, "-S", str(_SERVER), str(mountpoint), str(directory), str(rules)]
        environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
        server = subprocess.Popen(command + ["--cached"] * cached, stdout=subprocess.PIPE, text=True, env=environment)
        try:
            assert server.stdout is not None
            said = server.stdout.readline().strip()
            if said != "mounted":
                raise CannotMount(f"a file system cannot be mounted here ({said})")
            yield Mounted(mountpoint, rules)
        finally:
            rules.write_text("[]")
            server.kill()  # ends whatever hangs in it
            server.wait()
            assert server.stdout is not None
            server.stdout.close()
            subprocess.run(["umount", "--lazy", str(mountpoint)], check=False, capture_output=True)
