"""Conv layers of DGL in gids.infer."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from gids.dgl.blocks import to_dgl_block
from gids.errors import ConfigError
from gids.infer.layers import LayerBlock, Rows, activated

#: Names under which convs of DGL take the weights of edges.
WEIGHTS = ("edge_weight", "edge_weights")


class ConvLayer:
    """A conv layer of DGL as a layer of :func:`gids.infer`.

    Parameters
    ----------
    conv : Module
        Called as ``conv(block, (rows, rows of destinations))``; a ``HeteroGraphConv`` with both by node type. A
        ``GraphConv`` that normalises by the out-degrees of sources is given those of the whole graph; within another
        module it is refused.
    activation : callable, optional
        Applied to what it returns.
    edge_features : str, optional
        Name of the argument that takes the rows of edges, e.g. ``"efeat"``.

    Examples
    --------
    >>> layers = [gids.dgl.ConvLayer(model.conv1, torch.relu), gids.dgl.ConvLayer(model.conv2)]
    >>> gids.infer(layers, "my-graph", "answers")
    """

    def __init__(
        self,
        conv: nn.Module,
        activation: Callable[[Tensor], Tensor] | None = None,
        *,
        edge_features: str | None = None,
    ):
        for part in conv.modules():
            if part is not conv and _by_sources(part):
                raise ConfigError(
                    "norm of GraphConv must be 'right' or 'none' within another module: a block does not know the "
                    f"out-degrees of its sources there (got {part._norm!r} in {type(conv).__name__})"
                )
        self.needs_out_degrees = _by_sources(conv)
        self.module, self.activation, self._edge_features = conv, activation, edge_features
        named = inspect.signature(conv.forward).parameters
        self._weights = next((name for name in WEIGHTS if name in named), None)
        self._by_type = "mod_kwargs" in named

    def __call__(self, block: LayerBlock, rows: Rows) -> Rows:
        """Return the rows of the destinations."""
        graph = to_dgl_block(block, block.nodes)
        more: dict[str, Any] = {}
        if isinstance(rows, dict):
            own: Any = {ntype: values[: block.num_dst[ntype]] for ntype, values in rows.items()}
        else:
            own = rows[: graph.num_dst_nodes()]
        if block.weights is not None:
            more |= self._argument(block, self._weights, block.weights, "edge_weights")
        if block.edge_features is not None:
            more |= self._argument(block, self._edge_features, block.edge_features, "edge_features")
        module = self.module
        if block.out_degrees is not None and self.needs_out_degrees:
            module, more = self._normalised(block, more)
        if self._by_type and more:
            names = list(more)
            more = {"mod_kwargs": {etype[1]: {name: more[name][etype] for name in names} for etype in block.edge_types}}
        found: Rows = activated(module(graph, (rows, own), **more), self.activation)
        return found

    def _normalised(self, block: LayerBlock, more: dict[str, Any]) -> tuple[nn.Module, dict[str, Any]]:
        """Return a GraphConv that leaves edges as they are, and their weights: what it would make of the whole graph's degrees."""
        assert block.out_degrees is not None
        etype = block.only(None)
        indptr, src = block.indptr[etype], block.src[etype]
        sent, received = block.out_degrees[etype].clamp(min=1), indptr.diff()
        dtype = next((parameter.dtype for parameter in self.module.parameters()), torch.get_default_dtype())
        both = self.module._norm == "both"
        weights = sent.to(dtype).pow(-0.5 if both else -1)[src]
        if both:
            weights = weights * received.clamp(min=1).to(dtype).pow(-0.5).repeat_interleave(received)
        if "edge_weight" in more:
            weights = weights * more["edge_weight"]
        plain: Any = copy.copy(self.module)  # with the same parameters
        plain._norm = "none"
        return plain, more | {"edge_weight": weights}

    def _argument(self, block: LayerBlock, name: str | None, values: dict[Any, Tensor], what: str) -> dict[str, Any]:
        if self._by_type:
            return {name or WEIGHTS[0]: values}
        if name is None:
            raise ConfigError(f"{what} needs a conv layer with an argument for them (got {type(self.module).__name__})")
        return {name: values[block.only(None)]}


def _by_sources(part: Any) -> bool:
    """Whether a module is a GraphConv that divides rows by the out-degrees of their nodes."""
    return type(part).__name__ == "GraphConv" and getattr(part, "_norm", None) in ("both", "left")
