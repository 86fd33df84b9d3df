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
    in_degrees : dict of EdgeType to Tensor[int64], or None
        In-edges that each source has in the whole graph from other nodes, where the layer says ``needs_in_degrees``; of
        edge types between nodes of one type.
    edge_features : dict of EdgeType to Tensor, or None
        Rows of the edges, where ``infer`` was asked for them.
    """

    nodes: dict[str, Tensor] = field(default_factory=dict)
    out_degrees: dict[EdgeType, Tensor] | None = None
    edge_features: dict[EdgeType, Tensor] | None = None
    in_degrees: dict[EdgeType, Tensor] | None = None


#: ``layer(block, rows)`` returns the rows of the destinations.
LayerFunction = Callable[[LayerBlock, Any], Any]


class Reduced:
    """What a layer makes of the sum or the mean of its neighbours' rows, where it needs no more of them.

    Parameters
    ----------
    module : Module
        With ``reduce``, "sum" or "mean", and ``update(own_rows, reduced)``; where they need it, with
        ``contribution(x, sent)``, the rows that are added, and ``received`` and ``sent`` as parameters of ``update``.
    """

    def __init__(self, module: Any):
        if module.reduce not in ("sum", "mean"):
            raise ConfigError(f"reduce of a layer must be 'sum' or 'mean' (got {module.reduce!r})")
        self._module, self.mean = module, module.reduce == "mean"
        self._named = inspect.signature(module.update).parameters

    def contribution(self, rows: Tensor, sent: Tensor | None) -> Tensor:
        """Return what sources with these rows, and out-degrees, add to each of their destinations."""
        made = getattr(self._module, "contribution", None)
        found: Tensor = rows if made is None else made(rows, sent)
        return found

    def update(self, own_rows: Tensor, reduced: Tensor, received: Tensor, sent: Tensor | None) -> Tensor:
        """Return the rows of destinations; ``received`` and ``sent`` are their degrees in the whole graph."""
        more = {name: value for name, value in (("received", received), ("sent", sent)) if name in self._named}
        found: Tensor = self._module.update(own_rows, reduced, **more)
        return found


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
        self.reduced = Reduced(module) if hasattr(module, "reduce") and hasattr(module, "update") else None

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
        return self.activated(self.module(x, block.indptr[etype], block.src[etype], **more))

    def activated(self, out: Tensor) -> Tensor:
        """Return rows as the next layer gets them."""
        return out if self.activation is None else self.activation(out)


class BlockLayer:
    """A module that takes (block, rows), with what follows it.

    Parameters
    ----------
    module : Module
        Returns the rows of the destinations, by node type where it was given them so.
    activation : callable, optional
        Applied to what it returns.
    """

    def __init__(self, module: nn.Module, activation: Callable[[Tensor], Tensor] | None = None):
        self.module, self.activation = module, activation

    def __call__(self, block: LayerBlock, rows: Rows) -> Rows:
        """Return the rows of the destinations."""
        found: Rows = activated(self.module(block, rows), self.activation)
        return found


def activated(out: Any, activation: Callable[[Tensor], Tensor] | None) -> Any:
    """Apply an activation to rows, of all types."""
    if activation is None:
        return out
    return {t: activation(rows) for t, rows in out.items()} if isinstance(out, Mapping) else activation(out)


def layers_of(model: Any) -> list[LayerFunction]:
    """Return the layers of a model, first one first.

    Parameters
    ----------
    model : Module or sequence of callables
        One of :mod:`gids.models`; or a module with ``inference_layers()``, which returns functions of (block, rows); or
        those functions themselves. A module whose ``forward`` begins with ``x, indptr, src`` is a layer too.
    """
    if hasattr(model, "inference_layers"):
        return [as_layer(layer) for layer in model.inference_layers()]
    if isinstance(model, nn.Module) and isinstance(layers := getattr(model, "layers", None), nn.ModuleList):
        activation = getattr(model, "activation", None)
        if (
            callable(activation)
            and len(layers)
            and all(_begins(layer, CONV) or _begins(layer, BLOCK) for layer in layers)
        ):
            last = len(layers) - 1
            return [as_layer(layer, activation if n < last else None) for n, layer in enumerate(layers)]
    if isinstance(model, Sequence | nn.ModuleList) and not isinstance(model, str):
        found = [as_layer(layer) for layer in model]
        if found:
            return found
    raise ConfigError(
        "model must be one of gids.models, have inference_layers(), or be a sequence of layers "
        f"(got {type(model).__name__})"
    )


#: How the parameters of a layer's ``forward`` begin.
CONV, BLOCK = ["x", "indptr", "src"], ["block", "x"]


def _begins(layer: Any, names: list[str]) -> bool:
    if not isinstance(layer, nn.Module):
        return False
    return list(inspect.signature(layer.forward).parameters)[: len(names)] == names


def as_layer(layer: Any, activation: Callable[[Tensor], Tensor] | None = None) -> LayerFunction:
    """Return a layer as a function of (block, rows)."""
    if _begins(layer, CONV):
        return ConvLayer(layer, activation)
    if isinstance(layer, nn.Module):
        return BlockLayer(layer, activation)
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


def digest_of(model: Any, layers: Sequence[LayerFunction]) -> str:
    """Name what a model computes, as hexadecimal text: its structure, every parameter and buffer, and its functions.

    Of a plain function only the name is known.
    """
    digest = xxhash.xxh3_128()
    for layer in layers:
        for part in (layer, getattr(layer, "activation", None)):
            kind: Any = part if hasattr(part, "__qualname__") else type(part)
            digest.update(f"{kind.__module__}.{kind.__qualname__} ".encode())
    for module in modules_of(model):
        digest.update(repr(module).encode())
        for name, value in sorted(module.state_dict().items()):
            digest.update(name.encode())
            if isinstance(value, Tensor):
                digest.update(f"{value.dtype}{tuple(value.shape)}".encode())
                digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return str(digest.hexdigest())


def compute_device(device: torch.device) -> torch.device:
    """Return where layers compute for a device of the loader: a torch without CUDA shares memory that the CPU addresses."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return torch.device("cpu")
    return device if device.index is not None else torch.device("cuda", torch.cuda.current_device())


def check_device(model: Any, device: torch.device) -> None:
    """Refuse a model that is not where its rows will be."""
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device must be 'cpu' or 'cuda' (got {str(device)!r})")
    wanted = compute_device(device)
    for module in modules_of(model):
        for name, value in module.state_dict().items():
            if isinstance(value, Tensor) and value.device != wanted:
                raise ConfigError(f"model must be on {wanted} for inference (got {name} on {value.device})")


def unwrap(rows: Mapping[str, Tensor], homogeneous: bool) -> Any:
    """Return what a layer takes: the only tensor of a homogeneous graph, or all by type."""
    return next(iter(rows.values())) if homogeneous else dict(rows)


def result_of(out: Any, ntype: str, block: Block, number: int) -> Tensor | None:
    """Return the rows that a layer computed for the destinations of a type; None where it has none for them."""
    rows = out.get(ntype) if isinstance(out, Mapping) else out
    if rows is None:
        return None
    return result_rows(rows, block.num_dst[ntype], ntype, number)


def result_rows(rows: Any, count: int, ntype: str, number: int) -> Tensor:
    """Check the rows that a layer returned for some destinations: ``[count, width]``."""
    if not isinstance(rows, Tensor) or rows.ndim < 1 or len(rows) != count:
        got = tuple(rows.shape) if isinstance(rows, Tensor) else type(rows).__name__
        raise ConfigError(f"layer {number} must return a tensor of {count} rows for {ntype!r} (got {got})")
    if not rows.is_floating_point():
        raise ConfigError(f"layer {number} must return floating-point rows for {ntype!r} (got {rows.dtype})")
    return rows.reshape(count, -1)
