"""Sizes for people: ``"512MiB"`` to bytes and back."""

from __future__ import annotations

import re

from gids.errors import ConfigError

_UNITS = {"": 1, "B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_UNITS |= {f"{letter}iB": 2 ** (10 * power) for power, letter in enumerate("KMGT", start=1)}
_UNITS |= {f"{letter}B": 10 ** (3 * power) for power, letter in enumerate("KMGT", start=1)}
_LOOKUP = {unit.lower(): factor for unit, factor in _UNITS.items()}


def parse_bytes(value: int | str, name: str = "size") -> int:
    """Turn ``4096``, ``"512MiB"``, ``"2 GB"`` or ``"1.5G"`` into a number of bytes.

    ``KiB/MiB/GiB/TiB`` and the bare letters are powers of 1024, ``KB/MB/GB/TB`` powers of 1000.
    """
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ConfigError(f"{name} must be a number of bytes or a string like '512MiB' (got {value!r})")
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", value)
        if match is None or match[2].lower() not in _LOOKUP:
            raise ConfigError(f"{name} must be a number of bytes or a string like '512MiB' (got {value!r})")
        value = int(float(match[1]) * _LOOKUP[match[2].lower()])
    if value < 0:
        raise ConfigError(f"{name} must not be negative (got {value})")
    return value


def format_bytes(count: float) -> str:
    """Write a number of bytes with the largest binary unit that keeps it above one: ``"1.5 GiB"``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
