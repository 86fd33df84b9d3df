"""Conv layers of DGL in gids.infer."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

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
        Called as ``conv(block, (rows, rows of destinations))``; a ``HeteroGraphConv`` with both by node type. One that
        normalises by the out-degrees of sources, which a block does not know, is refused.
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
            if type(part).__name__ == "GraphConv" and getattr(part, "_norm", None) in ("both", "left"):
                raise ConfigError(
                    "norm of GraphConv must be 'right' or 'none': a block does not know the out-degrees of its sources "
                    f"(got {getattr(part, '_norm', None)!r}); gids.models.GCN is given them"
                )
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
        if self._by_type and more:
            names = list(more)
            more = {"mod_kwargs": {etype[1]: {name: more[name][etype] for name in names} for etype in block.edge_types}}
        found: Rows = activated(self.module(graph, (rows, own), **more), self.activation)
        return found

    def _argument(self, block: LayerBlock, name: str | None, values: dict[Any, Tensor], what: str) -> dict[str, Any]:
        if self._by_type:
            return {name or WEIGHTS[0]: values}
        if name is None:
            raise ConfigError(f"{what} needs a conv layer with an argument for them (got {type(self.module).__name__})")
        return {name: values[block.only(None)]}
