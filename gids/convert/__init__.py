"""Other people's graphs to datasets: streaming, in bounded memory, resumable after a kill.

The package itself can be called: ``gids.convert(data, "my-graph")`` is :func:`gids.convert.convert`.
"""

import sys
from types import ModuleType
from typing import Any

from gids.convert.arrays import ArrayFiles
from gids.convert.formats import FORMATS, convert, detect
from gids.convert.graph import ConvertOptions
from gids.convert.workers import LocalWorkers, RayWorkers
from gids.dataset import Dataset

__all__ = ["FORMATS", "ArrayFiles", "ConvertOptions", "LocalWorkers", "RayWorkers", "convert", "detect"]


class _CallableModule(ModuleType):
    """A package whose name users know as a function."""

    def __call__(self, *arguments: Any, **keywords: Any) -> Dataset:
        """Convert; see :func:`convert`."""
        return convert(*arguments, **keywords)


sys.modules[__name__].__class__ = _CallableModule
