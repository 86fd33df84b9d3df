"""From training to answers: exact inference over every node out of core, and evaluation of what it wrote.

The package itself can be called: ``gids.infer(model, dataset, "answers")`` is :func:`gids.infer.infer`.
"""

import sys
from types import ModuleType
from typing import Any

from gids.dataset import Dataset
from gids.infer.layers import ConvLayer, LayerBlock
from gids.infer.run import Inference, infer

__all__ = ["ConvLayer", "Inference", "LayerBlock", "infer"]


class _CallableModule(ModuleType):
    """A package whose name users know as a function."""

    def __call__(self, *arguments: Any, **keywords: Any) -> Dataset:
        """Infer; see :func:`infer`."""
        return infer(*arguments, **keywords)


sys.modules[__name__].__class__ = _CallableModule
