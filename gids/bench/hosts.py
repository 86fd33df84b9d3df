"""Hosts on one machine: network namespaces with addresses of their own, on a network of a given delay and rate.

Needs root, ``ip`` of iproute2 and ``/dev/net/tun``. What runs in a host sees its own interfaces only, so ranks that talk
to each other really go through a socket, a link and its delay; processors, memory and drives are shared.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from gids.bench import cable
from gids.errors import ConfigError

#: Interface of every host, for GLOO_SOCKET_IFNAME.
INTERFACE = "eth0"


def refusal() -> str:
    """Return why hosts cannot be made here; empty where they can."""
    if shutil.which("ip") is None:
        return "ip of iproute2 must be installed"
    if os.geteuid() != 0:
        return "network namespaces need root"
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "/dev/net/tun must be there"
    name = f"gids-{uuid.uuid4().hex[:6]}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"network namespaces are not allowed here: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
    return ""


class Hosts:
    """Hosts that reach each other; removed at the end of a ``with``.

    Parameters
    ----------
    count : int
        Hosts.
    delay_s : float
        Of every packet.
    bytes_per_s : float
        That a host can send; 0 is no limit.
    """

    def __init__(self, count: int, delay_s: float = 0.0, bytes_per_s: float = 0.0):
        if reason := refusal():
            raise ConfigError(reason)
        tag = uuid.uuid4().hex[:5]
        self.names = [f"gids-{tag}-{number}" for number in range(count)]
        self.addresses = [f"10.77.0.{number + 1}" for number in range(count)]
        ends = [part for pair in zip(self.names, self.addresses, strict=True) for part in pair]
        self._cable = subprocess.Popen(
            [sys.executable, "-I", str(Path(cable.__file__)), str(delay_s), str(bytes_per_s), *ends],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert self._cable.stdout is not None
            if self._cable.stdout.readline() != "ready\n":
                raise ConfigError("TUN interfaces must be allowed here (got none)")
            for name, address in zip(self.names, self.addresses, strict=True):
                _ip("netns", "add", name)
                _ip("link", "set", name, "netns", name, "name", INTERFACE)
                _ip("-n", name, "link", "set", "lo", "up")
                _ip("-n", name, "link", "set", INTERFACE, "mtu", str(cable.MTU), "txqueuelen", "5000", "up")
                _ip("-n", name, "address", "add", f"{address}/24", "dev", INTERFACE)
        except BaseException:
            self.close()
            raise

    def popen(self, host: int, command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        """Start a command in a host, with gloo told which interface to use."""
        environment = dict(options.pop("env", os.environ)) | {"GLOO_SOCKET_IFNAME": INTERFACE}
        return subprocess.Popen(
            ["ip", "netns", "exec", self.names[host], *command], env=environment, text=True, **options
        )

    def cut(self, host: int) -> None:
        """Take a host off the network: nobody hears of it any more, and no connection is closed."""
        assert self._cable.stdin is not None
        self._cable.stdin.write(f"cut {host}\n")
        self._cable.stdin.flush()

    def close(self) -> None:
        """Remove the hosts; what runs there must have ended."""
        self._cable.communicate()
        for name in self.names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)

    def __enter__(self) -> Hosts:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError(f"ip {' '.join(arguments)} must work here (got: {done.stderr.strip()})")
