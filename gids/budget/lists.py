"""How much of a budget goes to neighbour lists of a graph on disk: as long as they save more disk time than rows would."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gids.budget.division import Division
from gids.errors import ConfigError
from gids.units import format_bytes

#: Parts of all lists that are tried, beside what nobody else asked for.
SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
#: A larger setting must save at least this share of the disk time, or the smaller one is kept.
WORTHWHILE = 0.01


def divide_with_lists(
    divide: Callable[[int], Division],
    most_bytes: int,
    seconds: Callable[[int], float],
    left: Callable[[Division], int],
) -> Division:
    """Divide memory between neighbour lists and everything else by the disk time of a batch.

    Parameters
    ----------
    divide : callable
        Divides what is left beside lists of so many bytes; refuses (ConfigError) where that is too little.
    most_bytes : int
        Of all lists.
    seconds : callable
        Disk time of a batch's lists beside so many bytes of them.
    left : callable
        Host memory that a division gives to nobody.
    """
    best = divide(0)
    chosen, unused = 0, min(most_bytes, max(left(best), 0))
    if best.seconds is None:
        # Nothing was weighed up: lists get what nobody else asked for.
        tried = [f"{format_bytes(unused)}: {seconds(unused) * 1e3:.1f}"]
        best, chosen = _divided(divide, unused) or best, unused
    else:
        least = best.seconds + seconds(0)
        tried = [f"0: {least * 1e3:.1f}"]
        for size in sorted({unused, *(int(most_bytes * share) for share in SHARES)} - {0}):
            division = _divided(divide, size)
            if division is None or division.seconds is None:
                break
            time = division.seconds + seconds(size)
            tried.append(f"{format_bytes(size)}: {time * 1e3:.1f}")
            if time < least * (1 - WORTHWHILE):
                best, chosen, least = division, size, time
    reason = f"neighbour lists {format_bytes(chosen)}: disk time of a batch in ms by their memory: {', '.join(tried)}"
    return replace(best, list_bytes=chosen, reasons=(*best.reasons, reason))


def _divided(divide: Callable[[int], Division], list_bytes: int) -> Division | None:
    try:
        return divide(list_bytes)
    except ConfigError:
        return None
