"""A real heterogeneous graph: the section of a Debian package from its text and its relations."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

import gids
from experiments import debian_packages
from gids.models import MLP, mean_of_neighbours
from gids.sampling import Block, EdgeType

TITLE = "A real graph on every Debian machine: package sections"
CLAIM = "None of the papers: they train on OGB, IGB and MAG240M, which are not here."
DIFFERS = (
    "Packages with Depends, Recommends and Suggests in both directions; features are the words of the one-line description; "
    "the label is one of the archive's sections. The same relational model is trained through gids and from memory on the same batches."
)
CONFIG = {
    "full": {"packages": None, "epochs": 3, "hidden": 128, "batch_size": 512, "budget": "160MiB"},
    "tiny": {"packages": 600, "epochs": 1, "hidden": 16, "batch_size": 64, "budget": "160MiB"},
}
SECONDS = 60
FANOUTS = [6, 6]


class RelationalLayer(nn.Module):
    """``W x_i + sum over relations of W_r mean(x_j)``."""

    def __init__(self, relations: list[EdgeType], in_dim: int, out_dim: int):
        super().__init__()
        self.own = nn.Linear(in_dim, out_dim)
        self.relations = nn.ModuleDict({name: nn.Linear(in_dim, out_dim, bias=False) for _, name, _ in relations})

    def forward(self, block: Block, x: Tensor) -> Tensor:
        result = self.own(x[: block.num_dst["package"]])
        for etype, indptr in block.indptr.items():
            result = result + self.relations[etype[1]](mean_of_neighbours(x, indptr, block.src[etype]))
        return result


class RelationalModel(nn.Module):
    """Two relational layers."""

    def __init__(self, relations: list[EdgeType], in_dim: int, hidden: int, classes: int):
        super().__init__()
        self.first = RelationalLayer(relations, in_dim, hidden)
        self.second = RelationalLayer(relations, hidden, classes)

    def forward(self, blocks: list[Block], x: Tensor) -> Tensor:
        return self.second(blocks[1], torch.relu(self.first(blocks[0], x)))


#: What a training step needs: logits and labels of one batch.
Batches = Callable[[str, int], Iterator[gids.loader.Batch]]


def _train(
    model: nn.Module, logits: Callable[[gids.loader.Batch], Tensor], batches: Batches, epochs: int
) -> list[float]:
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-3)
    losses = []
    for epoch in range(epochs):
        for batch in batches("train", epoch):
            loss = nn.functional.cross_entropy(logits(batch), batch.y)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
    return losses


@torch.no_grad()
def _accuracy(logits: Callable[[gids.loader.Batch], Tensor], batches: Batches) -> float:
    right = total = 0
    for batch in batches("test", 0):
        right += int((logits(batch).argmax(1) == batch.y).sum())
        total += len(batch.y)
    return right / total


def run(config: dict) -> dict:
    packages = debian_packages.parse_index(debian_packages.read_index(), config["packages"])
    with tempfile.TemporaryDirectory() as folder:
        dataset = debian_packages.write_dataset(packages, Path(folder) / "debian")
        table = dataset.feature_table("package")
        classes = dataset.num_classes
        in_memory = torch.from_numpy(debian_packages.features(packages)).float()
        results: dict = {"packages": len(packages), "classes": classes, "accuracy": {}, "final_loss": {}}

        def from_disk(split: str, epoch: int) -> Iterator[gids.loader.Batch]:
            with gids.Loader(
                dataset,
                split,
                fanouts=FANOUTS,
                batch_size=config["batch_size"],
                budget=config["budget"],
                dtype=torch.float32,
            ) as loader:
                loader.set_epoch(epoch)
                yield from loader

        def memory_rows(batch: gids.loader.Batch) -> Tensor:
            return in_memory[batch.input_nodes]

        def disk_rows(batch: gids.loader.Batch) -> Tensor:
            return batch.x

        for name, rows in (("gids", disk_rows), ("memory", memory_rows)):
            torch.manual_seed(0)
            model = RelationalModel(dataset.edge_types, table.dim, config["hidden"], classes)

            def logits(batch: gids.loader.Batch, model: nn.Module = model, rows: Callable = rows) -> Tensor:
                return model(batch.blocks, rows(batch))

            results["final_loss"][name] = _train(model, logits, from_disk, config["epochs"])[-1]
            results["accuracy"][name] = _accuracy(logits, from_disk)
        torch.manual_seed(0)
        blind = MLP(table.dim, config["hidden"], classes, num_layers=2)

        def blind_logits(batch: gids.loader.Batch) -> Tensor:
            return blind(in_memory[batch.seeds])

        results["final_loss"]["MLP (no graph)"] = _train(blind, blind_logits, from_disk, config["epochs"])[-1]
        results["accuracy"]["MLP (no graph)"] = _accuracy(blind_logits, from_disk)
    return results


def here(results: dict) -> str:
    accuracy, loss = results["accuracy"], results["final_loss"]
    same = (
        "the same to the last bit"
        if loss["gids"] == loss["memory"]
        else f"{abs(loss['gids'] - loss['memory']):.2g} apart"
    )
    return (
        f"{results['packages']:,} packages in {results['classes']} sections: through gids {accuracy['gids']:.2%} of the test packages are put in the right section, "
        f"from memory {accuracy['memory']:.2%}, by a perceptron that sees no graph {accuracy['MLP (no graph)']:.2%}; final losses through gids and from memory are {same}."
    )


def draw(results: dict, figure: Figure) -> None:
    axis = figure.subplots()
    bars = axis.bar(list(results["accuracy"]), [100 * a for a in results["accuracy"].values()])
    axis.bar_label(bars, fmt="%.1f %%")
    axis.set_ylabel(f"test accuracy, {results['classes']} sections, {results['packages']:,} packages")
