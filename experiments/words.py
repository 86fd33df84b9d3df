"""Numbers as words: how figures say what they measured, whatever it was, and that something is missing where it is."""

from __future__ import annotations

from typing import Any

Contenders = dict[str, dict[str, Any]]


def faster(contenders: Contenders, name: str, other: str, key: str = "rows_per_s") -> str:
    """How many times the rate of ``other`` that of ``name`` is, or the lack of one of them."""
    for one in (name, other):
        if key not in contenders.get(one, {}):
            return f"unknown ({one} has no result)"
    ratio = contenders[name][key] / contenders[other][key]
    return f"{ratio:.3g}x" if ratio < 100 else f"{ratio:.0f}x"


def per_batch(contenders: Contenders, name: str) -> str:
    """Milliseconds of a batch."""
    result = contenders.get(name, {})
    return f"{1e3 * result['seconds_per_batch']:.1f} ms" if "rows_per_s" in result else missing(result)


def missing(result: dict[str, Any]) -> str:
    """Why a contender has no rate."""
    return f"nothing ({result.get('failed') or result.get('skipped') or 'not run'})"


def listed(parts: list[str]) -> str:
    """``a, b and c``."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def sentence(*parts: str) -> str:
    """Parts with semicolons between them, a capital at the beginning and a full stop at the end."""
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."
