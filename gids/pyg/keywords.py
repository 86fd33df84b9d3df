"""Which keywords of PyG's loaders mean something here, which make no difference, and which are refused, and why."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch_geometric.sampler.base import SubgraphType

from gids.errors import ConfigError
from gids.pyg.hops import Subgraph
from gids.runtime.options import OutputOptions, PipelineOptions

_OWN_SAMPLER = (
    "PyG's NodeLoader and LinkLoader take (gids.pyg.FeatureStore, gids.pyg.GraphStore) with a sampler of your own"
)
_NO_PROCESSES = "batches are made on threads of this process; pipeline=PipelineOptions(...) says how"

#: Keywords of PyG's neighbour loaders that only one value is taken for, and the alternative to the others.
REFUSED: dict[str, tuple[Any, str]] = {
    "neighbor_sampler": (None, _OWN_SAMPLER),
    "custom_cls": (None, "transform= may return any object"),
    "sampler": (
        None,
        "give the seeds in the order you want, with shuffle=False, or order=OrderOptions(rank=, world_size=)",
    ),
    "batch_sampler": (None, "batch_size=, shuffle= and drop_last= decide the batches"),
    "worker_init_fn": (None, _NO_PROCESSES),
    "multiprocessing_context": (None, _NO_PROCESSES),
    "timeout": (0, "a failed read raises by itself, and none is waited for for ever"),
    "generator": (None, "seed= is the only source of randomness"),
    "pin_memory_device": ("", "device= says where batches are delivered"),
}
#: Keywords of PyTorch's DataLoader that are taken and change nothing: what they speed up runs on threads here.
WITHOUT_EFFECT = ("num_workers", "persistent_workers", "prefetch_factor", "dataset", "collate_fn")
#: Keywords that :class:`TorchKeywords` turns into options.
TRANSLATED = ("pin_memory", "in_order", "input_id")


@dataclass(frozen=True)
class TorchKeywords:
    """What keywords of PyTorch's DataLoader and PyG's NodeLoader mean here.

    Attributes
    ----------
    pipeline : PipelineOptions
        With ``in_order`` as given.
    output : OutputOptions
        With ``pin_memory`` as given.
    input_id : Tensor, optional
        Names of the seeds, instead of their positions.
    """

    pipeline: PipelineOptions
    output: OutputOptions
    input_id: torch.Tensor | None

    @classmethod
    def read(
        cls, keywords: Mapping[str, Any], loader: str, pipeline: PipelineOptions | None, output: OutputOptions | None
    ) -> TorchKeywords:
        """Translate keywords, or refuse them by name."""
        for name, value in keywords.items():
            if name not in (*WITHOUT_EFFECT, *TRANSLATED):
                refuse(name, value, loader)
        pipeline, output = pipeline or PipelineOptions(), output or OutputOptions()
        if keywords.get("in_order") is False:
            pipeline = replace(pipeline, in_order=False)
        if keywords.get("pin_memory"):
            if torch.cuda.is_available():
                output = replace(output, pin_memory=True)
            else:
                warnings.warn("pin_memory=True makes no difference: torch sees no CUDA device", stacklevel=4)
        return cls(pipeline, output, keywords.get("input_id"))


def refuse(name: str, value: Any, loader: str) -> None:
    """Raise ConfigError for a value that cannot be honoured, with the reason and the alternative."""
    if name not in REFUSED:
        known = sorted({*WITHOUT_EFFECT, *TRANSLATED, *REFUSED, *inspect.signature(DataLoader.__init__).parameters})
        raise ConfigError(f"{loader} has no argument {name!r} (those of PyTorch's DataLoader are {', '.join(known)})")
    taken, why = REFUSED[name]
    if value is not taken and (value is None or isinstance(value, torch.Tensor) or value != taken):
        raise ConfigError(f"{name} must be {taken!r} (got {_short(value)}): {why}")


def subgraph_of(subgraph_type: Any, directed: bool) -> Subgraph:
    """Return which edges a subgraph has; ``directed=False`` is what PyG called "induced" before."""
    kind: Subgraph = SubgraphType(subgraph_type).value
    if not directed:
        if kind == "bidirectional":
            raise ConfigError("directed must be True with subgraph_type='bidirectional' (got False)")
        warnings.warn("directed=False is deprecated in PyG: give subgraph_type='induced'", stacklevel=4)
        return "induced"
    return kind


def _short(value: Any) -> str:
    return f"a {type(value).__name__}" if isinstance(value, torch.Tensor) or callable(value) else repr(value)
