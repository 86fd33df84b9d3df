"""Peers are tuned in the run: every setting of every kind is tried, the best of each kind is used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gids.errors import GidsError

#: Settings of this unit start processes: where some need too much memory, more of them need more.
WORKERS = "workers"


def in_words(unit: str, setting: int) -> str:
    """Return a setting in words."""
    return f"{setting} {unit}" if unit else "all of them"


def tune(
    kinds: Mapping[str, tuple[str, tuple[int, ...]]], rate_of: Callable[[str, int], float], *, every: bool
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Return, for each kind, its best ``setting``, its ``rate`` and all that was tried; and why others could not run.

    Parameters
    ----------
    kinds : mapping of str to (str, tuple of int)
        Kind -> what its setting is called, and the settings.
    rate_of : callable
        Measures a kind with a setting; raises GidsError where that cannot run.
    every : bool
        Try every setting, or one in the middle.
    """
    tuned: dict[str, dict[str, Any]] = {}
    left_out: dict[str, str] = {}
    for kind, (unit, settings) in kinds.items():
        tried: dict[int, float] = {}
        for setting in settings if every else settings[(len(settings) - 1) // 2 :][:1]:
            try:
                tried[setting] = rate_of(kind, setting)
            except GidsError as error:  # as when its processes take more memory than the limit
                left_out[f"{kind}, {in_words(unit, setting)}"] = str(error)
                if unit == WORKERS:
                    break
        if tried:
            best = max(tried, key=lambda setting: tried[setting])
            tuned[kind] = {"setting": best, "rate": tried[best], "rate_by_setting": tried}
    return tuned, left_out
