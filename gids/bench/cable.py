"""The network between hosts of :mod:`gids.bench.hosts`: passes packets on, later and slower as told. Standard library only.

    python cable.py DELAY_S BYTES_PER_S DEVICE ADDRESS [DEVICE ADDRESS ...]

Each device is a TUN interface that this process holds; whoever starts it moves the interface to a namespace. The kernel
of many machines has no ``netem``, so delay and rate are made here: a packet leaves its host's end at the given rate and
arrives the delay later. ``cut N`` on standard input takes host ``N`` off the network, an end of file ends the process.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import struct
import sys
import time
from collections import deque

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
#: One packet at a time, as long as TCP may make it: passing on costs by the packet.
MTU = 65000


def open_device(name: str) -> int:
    """Make a TUN interface; it lives as long as the descriptor."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TUN | IFF_NO_PI))
    return device


class Cable:
    """Packets on their way.

    Parameters
    ----------
    delay_s : float
        From one end to the other.
    bytes_per_s : float
        That a host can send; 0 is no limit.
    devices : dict of bytes to int
        Descriptor of each host's interface, by address.
    """

    def __init__(self, delay_s: float, bytes_per_s: float, devices: dict[bytes, int]):
        self.delay_s, self.bytes_per_s, self.devices = delay_s, bytes_per_s, devices
        self.ways: dict[int, deque[tuple[float, int, bytes]]] = {device: deque() for device in devices.values()}
        self.free_at = dict.fromkeys(devices.values(), 0.0)
        self.off: set[int] = set()

    def take(self, device: int) -> None:
        """Take what a host sends now."""
        way = self.ways[device]
        for _ in range(64):
            try:
                packet = os.read(device, MTU + 64)
            except BlockingIOError:
                return
            target = self.devices.get(packet[16:20])
            if packet[0] >> 4 != 4 or target is None or {device, target} & self.off:
                continue
            now = time.monotonic()
            if self.bytes_per_s:
                now = self.free_at[device] = max(now, self.free_at[device]) + len(packet) / self.bytes_per_s
            way.append((now + self.delay_s, target, packet))

    def give(self) -> float | None:
        """Deliver what is due; return when the next is, or None."""
        first: float | None = None
        for way in self.ways.values():
            while way and way[0][0] <= time.monotonic():
                _, target, packet = way.popleft()
                if target not in self.off:
                    try:
                        os.write(target, packet)
                    except BlockingIOError:
                        continue  # lost, as on any full line
            if way:
                first = way[0][0] if first is None else min(first, way[0][0])
        return first

    def run(self) -> None:
        """Pass packets on until standard input ends."""
        hosts = list(self.devices.values())
        while True:
            due = self.give()
            wait = None if due is None else max(0.0, due - time.monotonic())
            ready, _, _ = select.select([*hosts, 0], [], [], wait)
            for source in ready:
                if source:
                    self.take(source)
                    continue
                order = os.read(0, 64).decode().split()
                if not order:
                    return
                self.off.add(hosts[int(order[1])])


def main(delay_s: str, bytes_per_s: str, *ends: str) -> None:
    """Make the devices, say so, and pass packets on."""
    found = {socket.inet_aton(address): open_device(name) for name, address in zip(ends[::2], ends[1::2], strict=True)}
    print("ready", flush=True)
    Cable(float(delay_s), float(bytes_per_s), found).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
