"""From training to answers: exact inference over every node out of core, and evaluation of what it wrote.

The package itself can be called: ``gids.infer(model, dataset, "answers")`` is :func:`gids.infer.infer`.
"""

import sys
from types import ModuleType
from typing import Any

from gids.dataset import Dataset
from gids.infer.call import infer
from gids.infer.evaluate import Accuracy, LinkRanks, accuracy, link_ranks
from gids.infer.export import to_parquet
from gids.infer.layers import BlockLayer, ConvLayer, LayerBlock
from gids.infer.run import Inference, InferOptions

__all__ = [
    "Accuracy",
    "BlockLayer",
    "ConvLayer",
    "InferOptions",
    "Inference",
    "LayerBlock",
    "LinkRanks",
    "accuracy",
    "infer",
    "link_ranks",
    "to_parquet",
]


class _CallableModule(ModuleType):
    """A package whose name users know as a function."""

    def __call__(self, *arguments: Any, **keywords: Any) -> Dataset:
        """Infer; see :func:`infer`."""
        return infer(*arguments, **keywords)


sys.modules[__name__].__class__ = _CallableModule
