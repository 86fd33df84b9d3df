"""One target under atheris: ``python -m tests.fuzz.instrumented TARGET [libFuzzer's options] DIRECTORY`` (see run.py).

Functions are instrumented where they stand, not as they are imported: an editable install imports them by a loader of its own.
"""

from __future__ import annotations

import sys
from types import FunctionType
from typing import Any

import atheris

from tests.fuzz.targets import opened


def function_of(value: Any) -> FunctionType | None:
    """Return the function behind a method, a property or a decorator; None where there is none of gids."""
    for behind in ("__func__", "fget", "__wrapped__"):
        value = getattr(value, behind, value)
    return value if isinstance(value, FunctionType) and value.__module__.startswith("gids") else None


def instrument() -> int:
    """Let every function and method of gids that is imported tell its branches; return how many there are."""
    found: set[FunctionType] = set()
    for module in [module for name, module in sys.modules.items() if name.partition(".")[0] == "gids"]:
        for value in vars(module).values():
            parts = vars(value).values() if isinstance(value, type) else [value]
            found |= {function for part in parts if (function := function_of(part)) is not None}
    for function in found:
        atheris.instrument_func(function)
    return len(found)


if __name__ == "__main__":
    target = opened(sys.argv[1])
    assert instrument() > 100
    atheris.Setup([sys.argv[0], *sys.argv[2:]], target.both)
    atheris.Fuzz()
