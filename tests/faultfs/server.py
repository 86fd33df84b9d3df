"""A read-only file system that fails on demand: FUSE's protocol over /dev/fuse, with nothing but the standard library.

    python server.py MOUNTPOINT DIRECTORY FAULTS [--cached]

shows DIRECTORY at MOUNTPOINT. FAULTS is a JSON file with a list of rules, looked at before every request:

    {"name": "feat.bin", "begin": 0, "end": 4096, "do": "error", "errno": 5}

``name`` is the end of a path. ``do`` is ``error``; ``short`` (half of what was asked for, torn in the middle of a block);
``delay`` (``seconds``); or ``hang`` (until the rule is gone). With ``"every": true`` the rule is for looking up and opening
files too. Reads are not cached by the kernel, unless ``--cached`` is given, which maps need.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import struct
import sys
import threading
import time
from pathlib import Path

LOOKUP, FORGET, GETATTR, OPEN, READ, STATFS, RELEASE = 1, 2, 3, 14, 15, 17, 18
FLUSH, INIT, OPENDIR, READDIR, RELEASEDIR, ACCESS, INTERRUPT, DESTROY, BATCH_FORGET = 25, 26, 27, 28, 29, 34, 36, 38, 42
ASYNC_READ, ASYNC_DIO, MAX_PAGES = 1 << 0, 1 << 15, 1 << 22
DIRECT_IO = 1
BUFFER_BYTES = (1 << 20) + 8192
IN, OUT = struct.Struct("<IIQQIIIHH"), struct.Struct("<IiQ")


class FaultFs:
    """The server. Nodes are numbered by path as they are looked up; every read is answered on a thread of its own."""

    def __init__(self, root: Path, faults: Path, cached: bool):
        self.root, self.faults, self.cached = root, faults, cached
        self.paths = {1: root}
        self.numbers = {root: 1}
        self.lock = threading.Lock()
        self.device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)

    def rules(self, path: Path, begin: int | None = None, end: int = 0) -> list[dict]:
        """Return the rules for a range of a file, or for any other request about it."""
        try:
            every = json.loads(self.faults.read_text())
        except (OSError, ValueError):  # being written
            return []
        return [
            rule
            for rule in every
            if str(path).endswith(rule["name"])
            and (rule.get("every") or begin is not None)
            and (begin is None or (begin < rule.get("end", 1 << 62) and end > rule.get("begin", 0)))
        ]

    def suffer(self, path: Path, begin: int | None = None, end: int = 0) -> int:
        """Do what the rules say; return the bytes to answer with, at most."""
        most = end - (begin or 0)
        for rule in self.rules(path, begin, end):
            if rule["do"] == "error":
                raise OSError(rule.get("errno", errno.EIO), "asked for")
            if rule["do"] == "short":
                most = min(most, max(most // 2, 512) | 1)  # torn: it ends in the middle of a block
            if rule["do"] == "delay":
                time.sleep(rule["seconds"])
            while rule["do"] == "hang" and rule in self.rules(path, begin, end):
                time.sleep(0.02)
        return most

    def serve(self) -> None:
        """Answer until the file system is unmounted."""
        while True:
            try:
                data = os.read(self.device, BUFFER_BYTES)
            except OSError as error:
                if error.errno == errno.ENODEV:
                    return
                if error.errno in (errno.EINTR, errno.EAGAIN, errno.ENOENT):
                    continue
                raise
            _, opcode, unique, node, *_ = IN.unpack_from(data)
            if opcode in (FORGET, BATCH_FORGET, INTERRUPT, DESTROY):
                continue  # hung servers do not care for interrupts either
            if opcode == INIT:
                self.answer(opcode, unique, node, data[IN.size :])
            else:
                work = (opcode, unique, node, data[IN.size :])
                threading.Thread(target=self.answer, args=work, daemon=True).start()

    def answer(self, opcode: int, unique: int, node: int, body: bytes) -> None:
        """Answer one request."""
        try:
            payload = self.handle(opcode, node, body)
            header = OUT.pack(OUT.size + len(payload), 0, unique)
        except OSError as error:
            payload, header = b"", OUT.pack(OUT.size, -(error.errno or errno.EIO), unique)
        try:
            os.write(self.device, header + payload)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV, errno.EINVAL):  # who asked is gone
                raise

    def handle(self, opcode: int, node: int, body: bytes) -> bytes:
        """Return the answer to one request, or raise what it fails with."""
        if opcode == INIT:
            flags = struct.unpack_from("<IIII", body)[3] & (ASYNC_READ | ASYNC_DIO | MAX_PAGES)
            return struct.pack("<IIIIHHIIHHI28x", 7, 31, 1 << 17, flags, 64, 48, 1 << 17, 1, 256, 0, 0)
        path = self.paths[node]
        if opcode == LOOKUP:
            child = path / os.fsdecode(body.split(b"\0", 1)[0])
            self.suffer(child)
            return struct.pack("<QQQQII", self.number(child), 0, 0, 0, 0, 0) + attributes(child)
        if opcode == GETATTR:
            self.suffer(path)
            return struct.pack("<QII", 0, 0, 0) + attributes(path)
        if opcode in (OPEN, OPENDIR):
            self.suffer(path)
            return struct.pack("<QII", 0, 0 if self.cached or opcode == OPENDIR else DIRECT_IO, 0)
        if opcode == READ:
            _, offset, size = struct.unpack_from("<QQI", body)
            most = self.suffer(path, offset, offset + size)
            with path.open("rb") as file:
                return os.pread(file.fileno(), min(size, most), offset)
        if opcode == READDIR:
            offset, size = struct.unpack_from("<QI", body, 8)
            return entries(path, offset, size)
        if opcode == STATFS:
            return struct.pack("<QQQQQIIII24x", 1 << 20, 1 << 19, 1 << 19, 1 << 10, 1 << 9, 4096, 255, 4096, 0)
        if opcode in (RELEASE, RELEASEDIR, FLUSH, ACCESS):
            return b""
        raise OSError(errno.ENOSYS, "not needed")

    def number(self, path: Path) -> int:
        """Return the number of a path that exists."""
        path.lstat()
        with self.lock:
            number = self.numbers.setdefault(path, len(self.numbers) + 1)
            self.paths[number] = path
            return number


def attributes(path: Path) -> bytes:
    """Pack what is known about a file; nobody may write."""
    info = path.lstat()
    seconds = (int(info.st_atime), int(info.st_mtime), int(info.st_ctime))
    rest = (info.st_mode & ~0o222, info.st_nlink, info.st_uid, info.st_gid, 0, 4096, 0)
    return struct.pack("<6Q10I", info.st_ino, info.st_size, info.st_blocks, *seconds, 0, 0, 0, *rest)


def entries(path: Path, offset: int, size: int) -> bytes:
    """Pack the names in a directory from the one numbered ``offset`` on."""
    names = [".", "..", *sorted(child.name for child in path.iterdir())]
    packed = b""
    for number, name in enumerate(names[offset:], offset + 1):
        raw = os.fsencode(name)
        entry = struct.pack("<QQII", number, number, len(raw), 0) + raw + bytes(-len(raw) % 8)
        if len(packed) + len(entry) > size:
            break
        packed += entry
    return packed


def main(arguments: list[str]) -> None:
    """Mount, say so in one line, serve."""
    mountpoint, root, faults = (Path(argument).resolve() for argument in arguments[:3])
    server = FaultFs(root, faults, cached="--cached" in arguments)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={server.device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()},allow_other"
    flags = 1 | 2 | 4  # read-only, no set-user-ids, no devices
    if libc.mount(b"gids-faults", bytes(mountpoint), b"fuse.gids", flags, options.encode()) != 0:
        print(f"cannot mount: {os.strerror(ctypes.get_errno())}", flush=True)
        raise SystemExit(1)
    print("mounted", flush=True)
    server.serve()


if __name__ == "__main__":
    main(sys.argv[1:])
