"""A real heterogeneous graph: the section of a Debian package from its text and its relations."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
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
SECONDS = 50
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


class Pupil:
    """A model with its optimiser and the way in which it sees a batch; made from the same random numbers as every other."""

    def __init__(self, make: Callable[[], nn.Module], logits: Callable[[nn.Module, gids.Batch], Tensor]):
        torch.manual_seed(0)
        self.model = make()
        self._logits = logits
        self._optimiser = torch.optim.Adam(self.model.parameters(), lr=5e-3)
        self.loss = 0.0
        self.right = 0

    def learn(self, batch: gids.Batch) -> None:
        loss = nn.functional.cross_entropy(self._logits(self.model, batch), batch.y)
        self._optimiser.zero_grad()
        loss.backward()
        self._optimiser.step()
        self.loss = loss.item()

    @torch.no_grad()
    def answer(self, batch: gids.Batch) -> None:
        self.right += int((self._logits(self.model, batch).argmax(1) == batch.y).sum())


def run(config: dict) -> dict:
    packages = debian_packages.parse_index(debian_packages.read_index(), config["packages"])
    with tempfile.TemporaryDirectory() as folder:
        dataset = debian_packages.write_dataset(packages, Path(folder) / "debian")
        dim, classes, hidden = dataset.feature_table("package").dim, dataset.num_classes, config["hidden"]
        in_memory = torch.from_numpy(debian_packages.features(packages)).float()

        def relational() -> nn.Module:
            return RelationalModel(dataset.edge_types, dim, hidden, classes)

        # Each batch comes once from disk, and every model learns from it: one sees its rows, one takes the same rows from
        # memory, one has no graph.
        pupils = {
            "gids": Pupil(relational, lambda model, batch: model(batch.blocks, batch.x)),
            "memory": Pupil(relational, lambda model, batch: model(batch.blocks, in_memory[batch.input_nodes])),
            "MLP (no graph)": Pupil(
                lambda: MLP(dim, hidden, classes, num_layers=2), lambda model, batch: model(in_memory[batch.seeds])
            ),
        }
        wrong_rows = 0  # a difference of weights is then either of rows, or of how sums were rounded
        options = {"fanouts": FANOUTS, "batch_size": config["batch_size"], "budget": config["budget"]}
        options["output"] = gids.OutputOptions(dtype=torch.float32)
        with gids.Loader(dataset, "train", **options) as loader:
            for epoch in range(config["epochs"]):
                loader.set_epoch(epoch)
                for batch in loader:
                    for pupil in pupils.values():
                        pupil.learn(batch)
                    wrong_rows += int((batch.x != in_memory[batch.input_nodes]).any(1).sum())
        tested = 0
        with gids.Loader(dataset, "test", **options) as loader:
            for batch in loader:
                tested += len(batch.y)
                for pupil in pupils.values():
                    pupil.answer(batch)
    same = all(
        torch.equal(one, other)
        for one, other in zip(*(p.model.parameters() for n, p in pupils.items() if n != "MLP (no graph)"), strict=True)
    )
    return {
        "packages": len(packages),
        "classes": classes,
        "tested": tested,
        "accuracy": {name: pupil.right / tested for name, pupil in pupils.items()},
        "final_loss": {name: pupil.loss for name, pupil in pupils.items()},
        "same_parameters": same,
        "wrong_rows": wrong_rows,
    }


def here(results: dict) -> str:
    accuracy, loss = results["accuracy"], results["final_loss"]
    same = (
        "identical"
        if results["same_parameters"]
        else f"not identical (last losses {loss['gids']} and {loss['memory']})"
    )
    return (
        f"{results['packages']:,} packages in {results['classes']} sections: through gids {accuracy['gids']:.2%} of the {results['tested']:,} test packages are put in the right section, "
        f"from memory {accuracy['memory']:.2%}, by a perceptron that sees no graph {accuracy['MLP (no graph)']:.2%}; after training, every weight of the models through gids and from "
        f"memory is {same}; {results['wrong_rows']} rows differed from the table."
    )


def draw(results: dict, figure: Figure) -> None:
    axis = figure.subplots()
    bars = axis.bar(list(results["accuracy"]), [100 * a for a in results["accuracy"].values()])
    axis.bar_label(bars, fmt="%.1f %%")
    axis.set_ylabel(f"test accuracy, {results['classes']} sections, {results['packages']:,} packages")
