"""The ledger that memory is drawn from: each part of a loader has an account with a limit, what it uses, and its peak."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from gids.errors import ConfigError
from gids.units import format_bytes


class Stopped(Exception):
    """Raised inside a thread that waits when its run is stopped."""


@dataclass(frozen=True)
class Usage:
    """One part of a budget, in bytes: what it was allotted, uses now, and used at most since it was allotted."""

    allotted: int
    used: int
    peak: int


class Account:
    """Memory of one part. Invariant: ``0 <= used``; ``used <= limit`` but for a first draw that is larger alone.

    Where nothing is in use any amount is given: a limit that is too small slows down and never blocks for ever.

    Parameters
    ----------
    name : str
        Of the part, for messages.
    limit : int
        Bytes it was allotted.
    """

    def __init__(self, name: str, limit: int):
        self.name, self.limit = name, limit
        self._used = 0  # guarded by _lock
        self._peak = 0  # guarded by _lock
        self._stopped = False  # guarded by _lock
        # Entered as a lock, not as a condition: an interrupt cannot come between its taking and the block.
        self._lock = threading.RLock()  # reentrant: the collector may give memory back while we hold it
        self._changed = threading.Condition(self._lock)

    def allot(self, limit: int) -> None:
        """Change the limit; the peak then counts anew, as a peak under the old limit says nothing of the new one."""
        with self._lock:
            if limit != self.limit:
                self.limit, self._peak = limit, self._used
                self._changed.notify_all()

    def draw(self, size_bytes: int) -> None:
        """Take memory, waiting until it fits; raises :class:`Stopped` if the account is stopped meanwhile."""
        with self._lock:
            while self._used and self._used + size_bytes > self.limit and not self._stopped:
                self._changed.wait()
            if self._stopped:
                raise Stopped
            self._add(size_bytes)

    def take(self, size_bytes: int) -> None:
        """Take note of memory that is in use already."""
        with self._lock:
            self._add(size_bytes)

    def reserve(self, size_bytes: int) -> None:
        """Take memory, or refuse what does not fit."""
        with self._lock:
            if self._used + size_bytes > self.limit:
                raise ConfigError(
                    f"{self.name} must fit in {format_bytes(self.limit)} "
                    f"(got {format_bytes(size_bytes)} beside {format_bytes(self._used)} in use)"
                )
            self._add(size_bytes)

    def give(self, size_bytes: int) -> None:
        """Return memory to the account."""
        with self._lock:
            self._used -= size_bytes
            self._changed.notify_all()

    def has_room(self, size_bytes: int) -> bool:
        """Whether :meth:`draw` would not wait."""
        with self._lock:
            return not self._used or self._used + size_bytes <= self.limit

    def stop(self) -> None:
        """Wake whoever waits, with :class:`Stopped`."""
        with self._lock:
            self._stopped = True
            self._changed.notify_all()

    def resume(self) -> None:
        """Let memory be drawn again."""
        with self._lock:
            self._stopped = False

    @property
    def used(self) -> int:
        """Bytes in use."""
        return self._used

    @property
    def usage(self) -> Usage:
        """Return what the account stands at."""
        with self._lock:
            return Usage(self.limit, self._used, self._peak)

    def _add(self, size_bytes: int) -> None:
        self._used += size_bytes
        self._peak = max(self._peak, self._used)


class Ledger:
    """The accounts of one memory: of a loader's host memory, or of its device's.

    Parameters
    ----------
    limit : int
        Bytes that all parts may take together.
    """

    def __init__(self, limit: int):
        self.limit = limit
        self._accounts: dict[str, Account] = {}

    def account(self, part: str, limit: int | None = None) -> Account:
        """Return the account of a part; a limit, where given, becomes its limit from now on."""
        account = self._accounts.setdefault(part, Account(part, 0))
        if limit is not None:
            account.allot(limit)
        return account

    def usage(self) -> dict[str, Usage]:
        """Return what every part was allotted, uses, and used at most."""
        return {name: account.usage for name, account in self._accounts.items()}

    def stop(self) -> None:
        """Wake whoever waits for memory."""
        for account in self._accounts.values():
            account.stop()

    def resume(self) -> None:
        """Let memory be drawn again."""
        for account in self._accounts.values():
            account.resume()
