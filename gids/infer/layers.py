"""What inference asks of a model: layers, each a function of a block and of the rows of its sources."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import xxhash
from torch import Tensor, nn

from gids.errors import ConfigError
from gids.sampling import Block
from gids.types import EdgeType

#: Rows by node type; a layer of a homogeneous graph takes and returns the tensor alone.
Rows = Tensor | dict[str, Tensor]


@dataclass(frozen=True, repr=False)
class LayerBlock(Block):
    """The destinations of one tile with their in-edges; sources as in :class:`gids.sampling.Block`.

    ``weights`` are the stored weights of the edges, where ``infer`` was asked for them.

    Attributes
    ----------
    nodes : dict of str to Tensor[int64]
        Ids of the sources, destinations first.
    out_degrees : dict of EdgeType to Tensor[int64], or None
        Out-edges that each source has in the whole graph, where the layer says ``needs_out_degrees``.
    edge_features : dict of EdgeType to Tensor, or None
        Rows of the edges, where ``infer`` was asked for them.
    """

    nodes: dict[str, Tensor] = field(default_factory=dict)
    out_degrees: dict[EdgeType, Tensor] | None = None
    edge_features: dict[EdgeType, Tensor] | None = None


#: ``layer(block, rows)`` returns the rows of the destinations.
LayerFunction = Callable[[LayerBlock, Any], Any]


class ConvLayer:
    """A layer of :mod:`gids.models`, ``layer(x, indptr, src)``, with what follows it.

    Parameters
    ----------
    module : Module
        Takes rows, offsets and sources; ``sent`` and ``weights`` too where its ``forward`` names them.
    activation : callable, optional
        Applied to what it returns.
    """

    def __init__(self, module: nn.Module, activation: Callable[[Tensor], Tensor] | None = None):
        self.module, self.activation = module, activation
        named = inspect.signature(module.forward).parameters
        self.needs_out_degrees, self.takes_weights = "sent" in named, "weights" in named

    def __call__(self, block: LayerBlock, x: Tensor) -> Tensor:
        """Return the rows of the destinations."""
        etype = block.only(None)
        more: dict[str, Tensor] = {}
        if block.out_degrees is not None and self.needs_out_degrees:
            more["sent"] = block.out_degrees[etype]
        if block.weights is not None:
            if not self.takes_weights:
                raise ConfigError(
                    f"edge_weights needs layers whose forward takes weights (got {type(self.module).__name__})"
                )
            more["weights"] = block.weights[etype]
        out: Tensor = self.module(x, block.indptr[etype], block.src[etype], **more)
        return out if self.activation is None else self.activation(out)


def layers_of(model: Any) -> list[LayerFunction]:
    """Return the layers of a model, first one first.

    Parameters
    ----------
    model : Module or sequence of callables
        One of :mod:`gids.models`; or a module with ``inference_layers()``, which returns functions of (block, rows); or
        those functions themselves. A module whose ``forward`` begins with ``x, indptr, src`` is a layer too.
    """
    if hasattr(model, "inference_layers"):
        return [_as_layer(layer) for layer in model.inference_layers()]
    if isinstance(model, nn.Module) and isinstance(layers := getattr(model, "layers", None), nn.ModuleList):
        activation = getattr(model, "activation", None)
        if callable(activation) and all(map(_is_conv, layers)):
            last = len(layers) - 1
            return [ConvLayer(layer, activation if n < last else None) for n, layer in enumerate(layers)]
    if isinstance(model, Sequence | nn.ModuleList) and not isinstance(model, str):
        found = [_as_layer(layer) for layer in model]
        if found:
            return found
    raise ConfigError(
        "model must be one of gids.models, have inference_layers(), or be a sequence of layers "
        f"(got {type(model).__name__})"
    )


def _is_conv(layer: Any) -> bool:
    if not isinstance(layer, nn.Module):
        return False
    return list(inspect.signature(layer.forward).parameters)[:3] == ["x", "indptr", "src"]


def _as_layer(layer: Any) -> LayerFunction:
    if _is_conv(layer):
        return ConvLayer(layer)
    if not callable(layer):
        raise ConfigError(f"layer must be a function of (block, rows) (got {type(layer).__name__})")
    found: LayerFunction = layer
    return found


def modules_of(model: Any) -> list[nn.Module]:
    """Return the modules that hold a model's parameters."""
    if isinstance(model, nn.Module):
        return [model]
    if isinstance(model, Sequence):
        inner = [getattr(layer, "module", layer) for layer in model]
        return [module for module in inner if isinstance(module, nn.Module)]
    return []


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Switch dropout and the like off while the body runs, and compute no gradients."""
    modules = [part for module in modules_of(model) for part in module.modules()]
    before = [part.training for part in modules]
    for part in modules:
        part.training = False
    try:
        with torch.inference_mode():
            yield
    finally:
        for part, training in zip(modules, before, strict=True):
            part.training = training


def digest_of(model: Any) -> str:
    """Name what a model computes: its structure and every parameter and buffer, as hexadecimal text."""
    digest = xxhash.xxh3_128()
    for module in modules_of(model):
        digest.update(repr(module).encode())
        for name, value in sorted(module.state_dict().items()):
            digest.update(name.encode())
            if isinstance(value, Tensor):
                digest.update(f"{value.dtype}{tuple(value.shape)}".encode())
                digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return str(digest.hexdigest())


def check_device(model: Any) -> None:
    """Refuse a model that is not on the CPU."""
    for module in modules_of(model):
        for name, value in module.state_dict().items():
            if isinstance(value, Tensor) and value.device.type != "cpu":
                raise ConfigError(f"model must be on the CPU for inference (got {name} on {value.device})")


def unwrap(rows: Mapping[str, Tensor], homogeneous: bool) -> Any:
    """Return what a layer takes: the only tensor of a homogeneous graph, or all by type."""
    return next(iter(rows.values())) if homogeneous else dict(rows)


def result_of(out: Any, ntype: str, block: Block, number: int) -> Tensor | None:
    """Return the rows that a layer computed for the destinations of a type; None where it has none for them."""
    rows = out.get(ntype) if isinstance(out, Mapping) else out
    if rows is None:
        return None
    count = block.num_dst[ntype]
    if not isinstance(rows, Tensor) or rows.ndim < 1 or len(rows) != count:
        got = tuple(rows.shape) if isinstance(rows, Tensor) else type(rows).__name__
        raise ConfigError(f"layer {number} must return a tensor of {count} rows for {ntype!r} (got {got})")
    if not rows.is_floating_point():
        raise ConfigError(f"layer {number} must return floating-point rows for {ntype!r} (got {rows.dtype})")
    return rows.reshape(count, -1)
