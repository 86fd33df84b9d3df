"""Every system call of cpp/ that a signal can interrupt is made through the one helper that makes it again."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Not close: Linux has closed the descriptor even when it reports an interrupt.
CALLS = re.compile(
    r"(?<![\w.>:~&])(open|openat|creat|p?readv?|p?writev?|recv|recvmsg|send|sendmsg|accept4?|connect|p?poll|select"
    r"|epoll_wait|ioctl|f?truncate|fallocate|fsync|fdatasync|flock|lseek|fstat|statx|waitpid|nanosleep"
    r"|io_uring_(?:queue_init|register)\w*)\("
)
SYSTEM = re.compile(r"#include <(?:fcntl|unistd|liburing|poll|sys/\w+)\.h>")


def calls_without_retry(text: str) -> list[str]:
    """Return the lines with such a call outside `retry_on_eintr` and without a comment that says why."""
    code = re.sub(r"//(?! Not retry).*", "", text)
    found = []
    for match in CALLS.finditer(code):
        before, line = code[max(0, match.start() - 160) : match.start()], code[: match.start()].count("\n")
        words = code.splitlines()[line].strip()
        calls_own_name = re.search(
            rf"\b(?:bool|void|int|auto|Open>|byte>) (?:\w+::)*{match[1]}\($", code[: match.end()]
        )
        after = code[match.end() : match.end() + 160]
        if calls_own_name or "retry_on_" in before or "// Not retry" in after:
            continue
        found.append(words)
    return found


def test_the_search_finds_a_bare_call():
    assert calls_without_retry("const int file = open(path, O_RDONLY);") == ["const int file = open(path, O_RDONLY);"]
    assert calls_without_retry("x = retry_on_eintr([&] { return open(path, O_RDONLY); });") == []
    assert calls_without_retry("drive.read(1);\nqueue->send(2);\nReader::open(3);\nvoid send(int);") == []


def test_every_call_is_made_again():
    # Calls of functions of ours that bear such a name.
    ours = {
        "cpp/nvme/qtest.cpp": ("send(line(", "send(lines, count)", "send(const"),
        "cpp/nvme/engine.cpp": ("send(lane",),
        "cpp/cufile/batches.cpp": ("send(lane",),
        "cpp/storage/reader.cpp": ("open(layout_, options_, pool_)",),
    }
    bare = {}
    for path in sorted((ROOT / "cpp").rglob("*.[ch]pp")):
        name, text = str(path.relative_to(ROOT)), path.read_text()
        if not SYSTEM.search(text):
            continue
        lines = [line for line in calls_without_retry(text) if not any(own in line for own in ours.get(name, ()))]
        if lines:
            bare[name] = lines
    assert bare == {}
