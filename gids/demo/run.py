"""The demo from end to end: train from disk, from memory, and without the graph; then say how they compare."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from gids.dataset import Dataset
from gids.dataset.rows import as_tensor, read_rows
from gids.demo.progress import Steps
from gids.demo.settings import TABLE_OVER_BUDGET, Settings
from gids.demo.sources import FromDisk, FromMemory, open_or_generate
from gids.demo.training import EpochResult, accuracy, train_epoch, train_mlp
from gids.infer.call import infer
from gids.infer.evaluate import accuracy as exact_accuracy
from gids.models import MLP, GraphSAGE
from gids.report import Epoch, Memory, Run
from gids.report.bars import Bar
from gids.report.growth import MemoryMeter, growth_allowed
from gids.report.run import SOURCES
from gids.runtime import LoaderStats
from gids.sampling import Topology
from gids.units import format_bytes

#: Points by which the two ways of training may differ. Batches are the same, so it should be none.
ACCURACY_WITHIN = 1.0
#: Points by which a graph-blind model must lose, or the graph was not needed.
MLP_LOSES_BY = 10.0
TIME_LIMIT_S = 240.0


def run_demo(settings: Settings, show_progress: bool = False) -> Run:
    """Run the demo and give its record; nothing is printed but progress."""
    begin = time.perf_counter()
    with _torch_threads(settings.torch_threads), Steps(show_progress) as steps:
        dataset = open_or_generate(settings, steps)
        disk = _Disk(dataset, settings)
        disk.measure(steps)
        disk.train(steps)
        table = as_tensor(dataset.feature_table(), read_rows(dataset.feature_table()))
        memory_epochs, memory_accuracy, memory_losses = _train_from_memory(dataset, settings, table, steps)
        mlp_accuracy = _graph_blind_accuracy(dataset, settings, table, steps)
    seconds = time.perf_counter() - begin
    bars = [
        Bar(
            "points between accuracy from disk and from memory",
            100 * abs(disk.accuracy - memory_accuracy),
            ACCURACY_WITHIN,
            True,
        ),
        Bar("points by which the graph-blind model is worse", 100 * (disk.accuracy - mlp_accuracy), MLP_LOSES_BY),
        Bar("feature table / budget", settings.table_bytes / settings.budget_bytes, TABLE_OVER_BUDGET),
        Bar("growth of the process / (1.05 x budget + 32 MiB)", disk.growth_share, 1.0, True),
        Bar("seconds", seconds, TIME_LIMIT_S, True),
    ]
    totals = {source: sum(epoch.rows[source] for epoch in disk.epochs) for source in SOURCES}
    return Run(
        name="demo",
        title="gids demo: training on features larger than memory",
        settings={**asdict(settings), "directory": str(settings.directory), "dataset": str(dataset.path)},
        headline={
            "test accuracy, from disk": f"{100 * disk.accuracy:.2f} %",
            "test accuracy, exact: every neighbour of every node": f"{100 * disk.exact_accuracy:.2f} %",
            "test accuracy, from memory": f"{100 * memory_accuracy:.2f} %",
            "test accuracy, without the graph": f"{100 * mlp_accuracy:.2f} %",
            "rows/s, reading only": f"{disk.rows_per_s:,.0f}",
            "feature table": format_bytes(settings.table_bytes),
            "memory budget": format_bytes(settings.budget_bytes),
        },
        results={
            "accuracy": {
                "disk": disk.accuracy,
                "exact": disk.exact_accuracy,
                "memory": memory_accuracy,
                "without_graph": mlp_accuracy,
            },
            "losses_identical": disk.losses == memory_losses,
            "rows_per_s": disk.rows_per_s,
            "rows_by_source": totals,
            "served_without_disk": 1 - totals["disk"] / max(1, sum(totals.values())),
            "read_bytes": sum(epoch.bytes_read for epoch in disk.epochs),
            "seconds": seconds,
        },
        epochs=[*disk.epochs, *memory_epochs],
        memory=disk.memory,
        bars=[{**asdict(bar), "holds": bar.holds} for bar in bars],
        trace=disk.trace,
    )


@contextlib.contextmanager
def _torch_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Disk:
    """Training from disk, with everything that is to be reported about it."""

    def __init__(self, dataset: Dataset, settings: Settings):
        self._dataset, self._settings = dataset, settings
        self.epochs: list[Epoch] = []
        self.losses: list[tuple[float, ...]] = []
        self.accuracy = 0.0
        self.exact_accuracy = 0.0
        self.rows_per_s = 0.0
        self.trace: list[dict[str, Any]] = []
        self.memory = Memory(settings.budget_bytes, 0, settings.table_bytes)

    def measure(self, steps: Steps) -> None:
        """Walk over one epoch without training: rows per second, and by how much the process grows."""
        rows = 0
        with (
            MemoryMeter() as meter,
            FromDisk(self._dataset, self._settings, "train") as source,
            steps.step("read from disk, without training", len(source)) as step,
        ):
            begin = time.perf_counter()
            for _, x, _ in source.epoch(0):
                rows += len(x)
                step.tick()
            self.rows_per_s = rows / (time.perf_counter() - begin)
        self.memory.rss_growth_bytes = meter.growth_bytes

    @property
    def growth_share(self) -> float:
        """By how much the process grew while reading, over what a loader of this budget may make it grow."""
        assert self.memory.rss_growth_bytes is not None
        return self.memory.rss_growth_bytes / growth_allowed(self._settings.budget_bytes)

    def train(self, steps: Steps) -> None:
        """Train, then test with a loader of the same budget once the first one is closed."""
        settings, trainer = self._settings, _Trainer(self._settings)
        with (
            tempfile.TemporaryDirectory() as scratch,
            FromDisk(self._dataset, settings, "train") as source,
            steps.step("train from disk", settings.epochs * len(source)) as step,
        ):
            for number in range(settings.epochs):
                source.loader.reset_stats()
                with source.loader.tracing(Path(scratch) / "trace.json") as trace:
                    result = train_epoch(trainer.model, trainer.optimizer, source.epoch(number), step.tick)
                self._note(number, result, source.loader.stats())
                self.trace = trace.as_dict()["traceEvents"]
        with (
            FromDisk(self._dataset, settings, "test") as source,
            steps.step("test from disk", len(source)) as step,
        ):
            self.accuracy = accuracy(trainer.model, source.epoch(0), step.tick)
        self.exact_accuracy = self._infer(trainer.model, steps)

    def _infer(self, model: torch.nn.Module, steps: Steps) -> float:
        """Compute the model for every node with all its neighbours, within the same budget; returns the test accuracy."""
        settings, name = self._settings, "answers"
        last = f"_N/{name}_class"
        with (
            tempfile.TemporaryDirectory(dir=settings.directory) as scratch,
            steps.step("infer for every node, from disk", self._dataset.num_nodes() * 4) as step,
        ):
            answers = infer(
                model,
                self._dataset,
                Path(scratch) / name,
                budget=settings.budget_bytes,
                tile=settings.tile,
                name=name,
                rows=False,
                top_k=1,
                progress=step.bytes_of(last),
            )
            return exact_accuracy(answers, self._dataset, "test", name=name, budget=settings.budget_bytes).share

    def _note(self, number: int, result: EpochResult, stats: LoaderStats) -> None:
        tables = stats.tables.values()
        rows = {source: sum(getattr(table, source) for table in tables) for source in SOURCES}
        self.losses.append(result.losses)
        self.epochs.append(_epoch("from disk", number, result, rows, sum(table.bytes_read for table in tables)))
        assert stats.memory is not None
        self.memory.peak_bytes = max(self.memory.peak_bytes, stats.memory.total)
        self.memory.parts = {name: size for name, size in asdict(stats.memory).items() if name != "budget"}


class _Trainer:
    """A model and its optimizer, from the same first weights every time."""

    def __init__(self, settings: Settings):
        torch.manual_seed(settings.seed)
        layers = len(settings.fanouts)
        self.model = GraphSAGE(settings.dim, settings.hidden_dim, settings.num_classes, layers, settings.dropout)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=settings.learning_rate)


def _train_from_memory(
    dataset: Dataset, settings: Settings, table: torch.Tensor, steps: Steps
) -> tuple[list[Epoch], float, list[tuple[float, ...]]]:
    topology, trainer = Topology.from_dataset(dataset), _Trainer(settings)
    source = FromMemory(dataset, settings, "train", topology, table)
    with steps.step("train from memory", settings.epochs * len(source)) as step:
        results = [
            train_epoch(trainer.model, trainer.optimizer, source.epoch(number), step.tick)
            for number in range(settings.epochs)
        ]
    test = FromMemory(dataset, settings, "test", topology, table)
    with steps.step("test from memory", len(test)) as step:
        right = accuracy(trainer.model, test.epoch(0), step.tick)
    epochs = [_epoch("from memory", number, result, {}, 0) for number, result in enumerate(results)]
    return epochs, right, [result.losses for result in results]


def _graph_blind_accuracy(dataset: Dataset, settings: Settings, table: torch.Tensor, steps: Steps) -> float:
    """Test accuracy of a perceptron that sees a node's own features and no neighbour."""
    labels = dataset.labels()
    assert labels is not None
    seeds, test = dataset.split("train"), dataset.split("test")
    torch.manual_seed(settings.seed)
    model = MLP(settings.dim, settings.hidden_dim, settings.num_classes, len(settings.fanouts), settings.dropout)
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.learning_rate)
    with steps.step("train without the graph", settings.mlp_epochs) as step:
        for number in range(settings.mlp_epochs):
            train_mlp(model, optimizer, table[seeds], labels[seeds], settings.batch_size, settings.seed + number)
            step.tick()
    model.eval()
    with torch.no_grad():
        return float((model(table[test]).argmax(1) == labels[test]).float().mean())


def _epoch(trainer: str, number: int, result: EpochResult, rows: dict[str, int], bytes_read: int) -> Epoch:
    loss = sum(result.losses) / max(1, len(result.losses))
    return Epoch(trainer, number, result.seconds, len(result.losses), loss, result.accuracy, rows, bytes_read)
