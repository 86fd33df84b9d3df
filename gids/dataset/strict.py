"""Documents that strangers may have written: every value is what it should be, or the error says which one is not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gids.errors import ConfigError, DatasetError

MOST = 2**62  # of any count or offset
#: What taking a document apart ends in where something in it is not what it should be.
DAMAGE = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)


@contextmanager
def damage_in(path: Path) -> Iterator[None]:
    """Turn whatever goes wrong while a document is taken apart into a :class:`DatasetError` that names its file."""
    try:
        yield
    except ConfigError as error:
        raise DatasetError(f"{path} contradicts itself: {error}") from error
    except DAMAGE as error:
        raise DatasetError(f"{path} is damaged: {type(error).__name__}: {error}") from error


def count(document: dict[str, Any], name: str, least: int = 0) -> int:
    """Take a number of things or bytes, small enough that no product of two sizes of one table overflows."""
    return as_count(document[name], name, least)


def as_count(value: object, name: str, least: int = 0) -> int:
    """Check a number of things or bytes."""
    if type(value) is not int or not least <= value < MOST:
        raise ConfigError(f"{name} must be a whole number in [{least}, 2**62) (got {value!r})")
    return value


def flag(document: dict[str, Any], name: str) -> bool:
    """Take a truth value."""
    value = document[name]
    if type(value) is not bool:
        raise ConfigError(f"{name} must be true or false (got {value!r})")
    return value


def text(document: dict[str, Any], name: str) -> str:
    """Take text that is not empty."""
    return as_text(document[name], name)


def as_text(value: object, name: str) -> str:
    """Check text that is not empty."""
    if not isinstance(value, str) or not value or "\0" in value:
        raise ConfigError(f"{name} must be text (got {value!r})")
    return value


@dataclass(frozen=True)
class Places:
    """The directories that a document may name files in: its own, and those allowed when it was written."""

    root: Path
    outside: tuple[str, ...] = ()

    def file(self, name: str) -> Path:
        """Return the path of a file, which must lie in one of the directories."""
        path = Path(os.path.normpath(self.root / name))
        own = path.is_relative_to(os.path.normpath(self.root)) and not Path(name).is_absolute()
        if own or (Path(name).is_absolute() and any(path.is_relative_to(place) for place in self.outside)):
            return path
        raise ConfigError(
            f"{name!r} must lie in the dataset's directory, or in one that was allowed at its conversion "
            f"(allowed: {', '.join(self.outside) or 'none'})"
        )
