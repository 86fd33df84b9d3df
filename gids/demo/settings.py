"""Everything that the demo can be asked to do differently, and the small version that tests run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gids.errors import ConfigError
from gids.table import DTYPES
from gids.units import format_bytes

#: The feature table is at least this many times the memory that the loader may use.
TABLE_OVER_BUDGET = 4


@dataclass(frozen=True)
class Settings:
    """Settings of one demo.

    Attributes
    ----------
    directory : Path
        Holds the dataset, which is generated once and used again, and the run with its report.
    num_nodes, degree, dim, num_classes, homophily, signal : int or float
        Of the graph, see :func:`gids.generate.communities`. Features are noisy: without the graph they say little.
    train, test : float
        Shares of the nodes.
    budget_bytes : int
        Memory that the loader may use.
    host_buffer_bytes : int
        Part of it for the rows that the graph says will be wanted most, kept for the whole run.
    staging_bytes : int
        Part of it that the device writes to.
    window, sweep_batches : int
        Batches that the cache sees ahead, and batches read together: few, as every sampled batch takes memory.
    tile : int
        Nodes that inference computes in one call of a layer.
    fanouts : tuple of int
        Neighbours sampled per layer; as many layers has the model.
    batch_size, epochs, hidden_dim, learning_rate, dropout
        Of the training.
    mlp_epochs : int
        Epochs of the graph-blind model; it has few rows to look at, so it gets more of them.
    torch_threads : int
        Cores that train. On batches this small threads of torch mostly wait for each other, and the cores that they
        wait on are the ones that sample and read.
    seed : int
        Of graph, batches and models.
    """

    directory: Path = Path("gids-demo")
    num_nodes: int = 1_100_000
    degree: float = 8.0
    dim: int = 128
    num_classes: int = 16
    homophily: float = 0.6
    signal: float = 1.5
    train: float = 0.02
    test: float = 0.01
    budget_bytes: int = 128 << 20
    host_buffer_bytes: int = 12 << 20
    staging_bytes: int = 8 << 20
    window: int = 4
    sweep_batches: int = 4
    tile: int = 1024
    fanouts: tuple[int, ...] = (4, 4, 4)
    batch_size: int = 128
    epochs: int = 3
    hidden_dim: int = 64
    learning_rate: float = 0.003
    dropout: float = 0.1
    mlp_epochs: int = 6
    torch_threads: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if self.table_bytes < TABLE_OVER_BUDGET * self.budget_bytes:
            raise ConfigError(
                f"budget must be at most a quarter of the feature table's {format_bytes(self.table_bytes)} "
                f"(got {format_bytes(self.budget_bytes)}): otherwise the demo shows nothing"
            )

    @classmethod
    def quick(cls) -> Settings:
        """Return a graph that is generated and trained on in seconds."""
        return cls(
            num_nodes=100_000,
            degree=8.0,
            train=0.012,
            test=0.006,
            epochs=2,
            num_classes=8,
            budget_bytes=12 << 20,
            host_buffer_bytes=256 << 10,
            staging_bytes=1 << 20,
            tile=64,
            fanouts=(3, 3, 3),
            batch_size=16,
            hidden_dim=32,
            learning_rate=0.01,
        )

    @property
    def table_bytes(self) -> int:
        """Bytes of the feature table."""
        return self.num_nodes * self.dim * DTYPES["float32"].itemsize
