"""Conv layers of PyG in gids.infer."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from gids.errors import ConfigError
from gids.infer.layers import LayerBlock, Rows, activated

#: Normalise by degrees of both ends, of which a block knows one.
REFUSED = ("GCN2Conv", "ChebConv", "SGConv", "APPNP", "TAGConv", "ARMAConv", "LGConv", "SSGConv")
WEIGHTS, FEATURES = ("edge_weight", "edge_attr"), ("edge_attr", "edge_feature")


class ConvLayer:
    """A conv layer of PyG as a layer of :func:`gids.infer`.

    Parameters
    ----------
    conv : Module
        Called as ``conv((rows, rows of destinations), edge_index)``; a ``HeteroConv`` with rows and edges by type. A
        ``GCNConv`` is given the degrees of the whole graph; another that normalises by the degrees of both ends, which a
        block does not know, is refused, and so are edge weights with it, which would change degrees.
    activation : callable, optional
        Applied to what it returns.

    Examples
    --------
    >>> layers = [gids.pyg.ConvLayer(model.conv1, torch.relu), gids.pyg.ConvLayer(model.conv2)]
    >>> gids.infer(layers, "my-graph", "answers")
    """

    def __init__(self, conv: nn.Module, activation: Callable[[Tensor], Tensor] | None = None):
        for part in conv.modules():
            if type(part).__name__ in REFUSED or (_normalises(part) and not (part is conv and part.add_self_loops)):
                raise ConfigError(
                    f"conv must not normalise by degrees of both ends, of which a block knows one "
                    f"(got {type(part).__name__}); gids.models.GCN is given them, and so is a GCNConv that is a layer and adds loops"
                )
        self.needs_in_degrees = _normalises(conv)
        self.module, self.activation = conv, activation
        self._by_type = type(conv).__name__ == "HeteroConv"

    def __call__(self, block: LayerBlock, rows: Rows) -> Any:
        """Return the rows of the destinations."""
        if isinstance(rows, dict):
            return self._hetero(block, rows)
        if block.in_degrees is not None and self.needs_in_degrees:
            return activated(self._normalised(block, rows), self.activation)
        etype = block.only(None)
        more: dict[str, Tensor] = {}
        if block.weights is not None:
            more[self._named(WEIGHTS, "edge_weights")] = block.weights[etype]
        if block.edge_features is not None:
            more[self._named(FEATURES, "edge_features")] = block.edge_features[etype]
        count = len(block.indptr[etype]) - 1
        out = self.module((rows, rows[:count]), block.edge_index(etype), **more)
        return activated(out, self.activation)

    def _normalised(self, block: LayerBlock, x: Tensor) -> Tensor:
        """Return what a GCNConv makes of the whole graph's degrees for the destinations."""
        if block.weights is not None or block.edge_features is not None:
            raise ConfigError(
                "edge_weights and edge_features must not be given with GCNConv, which knows the degrees of nodes alone"
            )
        assert block.in_degrees is not None
        conv: Any = self.module
        etype = block.only(None)
        count = len(block.indptr[etype]) - 1
        edges = block.edge_index(etype)
        degrees = block.in_degrees[etype].to(x.dtype)
        # A loop that a node has gives way to the one that every node gets.
        looped = edges[0] == edges[1]
        edges = torch.cat([edges[:, ~looped], torch.arange(count, device=x.device).repeat(2, 1)], 1)
        scale = (degrees + 1).rsqrt()
        plain = copy.copy(conv)  # with the same parameters
        plain.normalize = False
        found: Tensor = plain(x, edges, scale[edges[0]] * scale[edges[1]])
        return found[:count]

    def _hetero(self, block: LayerBlock, rows: dict[str, Tensor]) -> dict[str, Tensor]:
        edges = {etype: block.edge_index(etype) for etype in block.edge_types}
        more: dict[str, Any] = {}
        if block.weights is not None:
            more["edge_weight_dict"] = block.weights
        if block.edge_features is not None:
            more["edge_attr_dict"] = block.edge_features
        found = self.module(rows, edges, **more)
        # Edges lead to the first rows of a type only: those after them have no in-edges here, and are not asked for.
        out = {ntype: values[: block.num_dst[ntype]] for ntype, values in found.items() if values is not None}
        activated_out: dict[str, Tensor] = activated(out, self.activation)
        return activated_out

    def _named(self, names: tuple[str, ...], what: str) -> str:
        taken = inspect.signature(self.module.forward).parameters
        found = next((name for name in names if name in taken), None)
        if found is None:
            raise ConfigError(f"{what} needs a conv layer with an argument for them (got {type(self.module).__name__})")
        return found


def _normalises(part: Any) -> bool:
    """Whether a module is a GCNConv that divides rows by the degrees of both ends."""
    return type(part).__name__ == "GCNConv" and bool(part.normalize)
