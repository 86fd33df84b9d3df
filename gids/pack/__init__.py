"""Packed epochs: rows laid out on disk as training will read them (DiskGNN).

The package itself can be called: ``gids.pack(dataset, "packed", ...)`` is :func:`gids.pack.pack`.
"""

import sys
from types import ModuleType
from typing import Any

from gids.dataset.packed import Packed
from gids.pack.maker import pack

__all__ = ["Packed", "pack"]


class _CallableModule(ModuleType):
    """A package whose name users know as a function."""

    def __call__(self, *arguments: Any, **keywords: Any) -> Packed:
        """Pack; see :func:`pack`."""
        return pack(*arguments, **keywords)


sys.modules[__name__].__class__ = _CallableModule
