"""What models on sampled blocks share: layers from the outermost block to the seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from torch import Tensor, nn
from torch.nn import functional


class Layer(Protocol):
    """What a layer needs of a sampled block of one edge type; ``gids.sampling.Block`` has it."""

    @property
    def indptr(self) -> Mapping[tuple[str, str, str], Tensor]:
        """In-edges of destination ``i`` are ``indptr[i]:indptr[i + 1]``."""

    @property
    def src(self) -> Mapping[tuple[str, str, str], Tensor]:
        """Source of each edge."""


class BlockModel(nn.Module):
    """Layers that take rows, offsets and sources, with an activation and dropout between them.

    Parameters
    ----------
    layers : sequence of Module
        As many as a batch has blocks, outermost first.
    activation : callable
        Applied after every layer but the last.
    dropout : float
        Share of hidden values that training drops.
    """

    def __init__(self, layers: Sequence[nn.Module], activation: Callable[[Tensor], Tensor], dropout: float):
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.activation = activation
        self.dropout = dropout

    def forward(self, blocks: Sequence[Layer], x: Tensor, exchange: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Return float logits ``[seeds, out_dim]`` for the blocks of a batch (outermost first) and its input rows.

        ``exchange`` gets the last layer's input and returns what is used instead, see :class:`gids.loader.history.History`.
        """
        for number, (layer, block) in enumerate(zip(self.layers, blocks, strict=True)):
            ((etype, indptr),) = block.indptr.items()
            x = layer(x, indptr, block.src[etype])
            if number == len(self.layers) - 1:
                break
            x = self.activation(x)
            if exchange is not None and number == len(self.layers) - 2:
                x = exchange(x)
            x = functional.dropout(x, self.dropout, self.training)
        return x
