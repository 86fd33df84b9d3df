"""gids configured as each of the papers' systems, and the way every configuration is measured.

What a policy was in a paper's code is a setting here, so a comparison changes one thing at a time; reads bypass the
page cache (O_DIRECT) in all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

import gids
from gids.bench import Contender, alternate

#: name -> options of gids.Loader
SYSTEMS: dict[str, dict[str, Any]] = {
    "BaM": {"policy": "random", "window": 0, "max_group": 1, "host_buffer": 0},
    "GIDS": {"policy": "gids", "window": 8, "max_group": 8},
    "Ginex": {"policy": "belady", "window": 32, "max_group": 1, "host_buffer": 0},
    "GNNDrive": {"policy": "lru", "window": 0, "max_group": 1, "host_buffer": 0, "in_order": False},
    "gids": {"policy": "window", "window": 16, "max_group": 16},
}


@dataclass
class Configuration:
    """One loader that stays open over all rounds; a round is the first ``batches`` batches of a new epoch."""

    name: str
    dataset: gids.Dataset
    batches: int
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.loader = gids.Loader(self.dataset, "train", labels=False, **self.options)
        self._epoch = 0

    def round(self) -> float:
        """Deliver the batches of one round; gives the rows that arrived, after a look at the bytes of the last."""
        self.loader.set_epoch(self._epoch)
        self._epoch += 1
        rows, batch = 0, None
        for number, batch in enumerate(self.loader, start=1):
            rows += len(batch.x)
            if number == self.batches:
                break
        assert batch is not None
        verify(self.dataset, batch.input_nodes[:64], batch.x[:64])
        return float(rows)

    def summary(self) -> dict[str, float]:
        """Where rows came from since the warm-up."""
        (table,) = self.loader.stats().tables.values()
        return {
            "cache": table.cache / table.requests,
            "host": table.host / table.requests,
            "duplicates": table.duplicates / table.requests,
            "disk": table.disk / table.requests,
            "merge_factor": table.merge_factor,
            "bytes_per_read": table.bytes_read / max(1, table.reads),
        }


def verify(dataset: gids.Dataset, nodes: torch.Tensor, rows: torch.Tensor) -> None:
    """Compare delivered rows with the file, byte for byte, through plain reads."""
    table = dataset.feature_table()
    for node, row in zip(nodes.tolist(), rows, strict=True):
        stripe, offset = table.locate(node)
        with table.stripes[stripe].path.open("rb") as file:
            file.seek(offset)
            expected = torch.frombuffer(bytearray(file.read(table.row_bytes)), dtype=table.torch_dtype)
        assert torch.equal(expected, row), f"row {node} of {table.name} differs from its file"


def compare(configurations: list[Configuration], rounds: int) -> dict[str, dict[str, Any]]:
    """Warm every configuration up with one round, then let them take turns."""
    try:
        for configuration in configurations:
            configuration.round()
            configuration.loader.reset_stats()
        measured = alternate([Contender(c.name, c.round) for c in configurations], unit="rows", rounds=rounds)
        return {
            c.name: {"rows_per_s": measured[c.name].median, "mad": measured[c.name].mad, **c.summary()}
            for c in configurations
        }
    finally:
        for configuration in configurations:
            configuration.loader.close()
