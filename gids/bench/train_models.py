"""The models of ``gids bench train``: SAGE, GAT and a relational one, of each framework's own layers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

import gids
from gids import models
from gids.bench.typed_graph import TARGET
from gids.errors import ConfigError

#: Of a graph with one node type, and of one with several.
MODELS, TYPED_MODELS = ("sage", "gat"), ("rgcn",)
HEADS = 4
#: Layers, and hops of the sampler.
LAYERS = 2


def make_model(framework: str, kind: str, dataset: gids.Dataset, hidden: int) -> nn.Module:
    """Return a model: called with what its framework samples and with input rows, it returns logits, those of seeds first.

    Parameters
    ----------
    framework : {"plain", "dgl", "pyg"}
        Whose layers, and whose idea of a sampled graph.
    kind : {"sage", "gat", "rgcn"}
        The model; ``"rgcn"`` is for a graph of several node types.
    dataset : Dataset
        Widths, classes and types.
    hidden : int
        Width of what is between the layers.
    """
    makers = {"plain": _plain, "dgl": _dgl, "pyg": _pyg}
    if framework not in makers or kind not in (*MODELS, *TYPED_MODELS):
        raise ConfigError(
            f"model must be one of {MODELS + TYPED_MODELS} of {tuple(makers)} (got {kind!r} of {framework!r})"
        )
    return makers[framework](kind, dataset, hidden)


def _widths(dataset: gids.Dataset) -> dict[str, int]:
    return {ntype: dataset.feature_table(ntype).dim for ntype in dataset.node_types}


def _classes(dataset: gids.Dataset) -> int:
    classes = dataset.num_classes
    assert classes is not None, "both graphs have labels"
    return classes


def _relu_of_each(x: dict[str, Tensor]) -> dict[str, Tensor]:
    return {ntype: functional.relu(rows) for ntype, rows in x.items()}


class _Target(nn.Module):
    """A model of several types, of which only the rows of the type with labels are returned."""

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, graph: Any, x: dict[str, Tensor]) -> Tensor:
        """Return the logits."""
        logits: Tensor = self.inner(graph, x)[TARGET]
        return logits


def _plain(kind: str, dataset: gids.Dataset, hidden: int) -> nn.Module:
    classes = _classes(dataset)
    if kind == "rgcn":
        return _Target(models.RGCN(_widths(dataset), hidden, classes, dataset.edge_types, LAYERS))
    width = dataset.feature_table().dim
    if kind == "gat":
        return models.GAT(width, hidden, classes, LAYERS, heads=HEADS)
    return models.GraphSAGE(width, hidden, classes, LAYERS)


class _OnBlocks(nn.Module):
    """DGL's layers, one for each block, and what is done with their results."""

    def __init__(self, layers: Sequence[nn.Module], between: Callable[[Any], Any], last: Callable[[Any], Any]):
        super().__init__()
        self.layers, self.between, self.last = nn.ModuleList(layers), between, last

    def forward(self, blocks: list[Any], x: Any) -> Any:
        """Return the logits of the seeds."""
        for number, (layer, block) in enumerate(zip(self.layers, blocks, strict=True)):
            x = (self.last if number == LAYERS - 1 else self.between)(layer(block, x))
        return x


def _dgl(kind: str, dataset: gids.Dataset, hidden: int) -> nn.Module:
    from dgl import nn as layers

    classes = _classes(dataset)
    if kind == "sage":
        widths = itertools.pairwise((dataset.num_features, hidden, classes))
        return _OnBlocks([layers.SAGEConv(a, b, "mean") for a, b in widths], functional.relu, lambda x: x)
    if kind == "gat":
        pairs = ((dataset.num_features, hidden // HEADS), (hidden, classes))
        heads = [layers.GATConv(a, b, HEADS, allow_zero_in_degree=True) for a, b in pairs]
        return _OnBlocks(heads, lambda x: functional.elu(x.flatten(1)), lambda x: x.mean(1))
    first, second = _widths(dataset), dict.fromkeys(dataset.node_types, hidden)
    relational = [
        layers.HeteroGraphConv(
            {name: layers.SAGEConv((here[a], here[b]), there, "mean") for a, name, b in dataset.edge_types}, "sum"
        )
        for here, there in ((first, hidden), (second, classes))
    ]
    return _Target(_OnBlocks(relational, _relu_of_each, lambda x: x))


class _OnEdges(nn.Module):
    """PyG's layers for several types, all of them over all edges of a batch."""

    def __init__(self, layers: Sequence[nn.Module]):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, edges: Any, x: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the logits of all nodes."""
        for number, layer in enumerate(self.layers):
            x = layer(x, edges)
            x = x if number == LAYERS - 1 else _relu_of_each(x)
        return x


class _Turned(nn.Module):
    """A model of PyG's, called with the graph first."""

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, edges: Any, x: Tensor) -> Tensor:
        """Return the logits of all nodes."""
        logits: Tensor = self.inner(x, edges)
        return logits


def _pyg(kind: str, dataset: gids.Dataset, hidden: int) -> nn.Module:
    from torch_geometric import nn as layers

    classes = _classes(dataset)
    if kind == "sage":
        return _Turned(layers.GraphSAGE(dataset.num_features, hidden, LAYERS, classes))
    if kind == "gat":
        return _Turned(layers.GAT(dataset.num_features, hidden, LAYERS, classes, heads=HEADS))
    first, second = _widths(dataset), dict.fromkeys(dataset.node_types, hidden)
    relational = [
        layers.HeteroConv(
            {etype: layers.SAGEConv((here[etype[0]], here[etype[2]]), there) for etype in dataset.edge_types}
        )
        for here, there in ((first, hidden), (second, classes))
    ]
    return _Target(_OnEdges(relational))
