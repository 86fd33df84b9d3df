"""GraphSAGE against literal values and an independent formula; the same bits from the same start."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from gids.models import MLP, GraphSAGE, mean_of_neighbours

EDGE = ("_N", "_E", "_N")


@dataclass
class FakeBlock:
    indptr: dict[tuple[str, str, str], torch.Tensor]
    src: dict[tuple[str, str, str], torch.Tensor]


def block(indptr: list[int], src: list[int]) -> FakeBlock:
    return FakeBlock({EDGE: torch.tensor(indptr)}, {EDGE: torch.tensor(src, dtype=torch.int64)})


def random_block(num_src: int, num_dst: int, degree: int, seed: int) -> FakeBlock:
    generator = torch.Generator().manual_seed(seed)
    src = torch.randint(0, num_src, (num_dst * degree,), generator=generator)
    return FakeBlock({EDGE: torch.arange(0, num_dst * degree + 1, degree)}, {EDGE: src})


def test_mean_of_neighbours_by_hand() -> None:
    x = torch.tensor([[1.0, 10.0], [3.0, 30.0], [5.0, 50.0]])
    mean = mean_of_neighbours(x, torch.tensor([0, 2, 2, 5]), torch.tensor([0, 1, 2, 2, 0]))
    expected = torch.tensor([[2.0, 20.0], [0.0, 0.0], [11 / 3, 110 / 3]])
    torch.testing.assert_close(mean, expected)


def test_mean_of_neighbours_passes_gradients_back() -> None:
    x = torch.zeros(3, 1, requires_grad=True)
    mean_of_neighbours(x, torch.tensor([0, 2, 3]), torch.tensor([0, 1, 1])).sum().backward()
    assert x.grad is not None
    assert x.grad.flatten().tolist() == [0.5, 1.5, 0.0]


def test_a_layer_is_own_plus_mean() -> None:
    model = GraphSAGE(2, 8, 3, num_layers=1)
    x = torch.randn(4, 2)
    layer = model.layers[0]
    got = model([block([0, 2, 3], [2, 3, 1])], x)
    mean = torch.stack([(x[2] + x[3]) / 2, x[1]])
    torch.testing.assert_close(got, layer.own(x[:2]) + layer.neighbours(mean))


def test_three_layers_give_a_row_for_each_seed() -> None:
    blocks = [random_block(500, 100, 5, 1), random_block(100, 20, 5, 2), random_block(20, 4, 5, 3)]
    assert GraphSAGE(16, 32, 7)(blocks, torch.randn(500, 16)).shape == (4, 7)


def test_as_many_layers_as_blocks() -> None:
    with pytest.raises(ValueError, match="zip"):
        GraphSAGE(16, 32, 7, num_layers=2)([random_block(50, 10, 5, 1)], torch.randn(50, 16))


def train(steps: int) -> list[float]:
    torch.manual_seed(0)
    blocks = [random_block(2000, 400, 6, 1), random_block(400, 80, 6, 2)]
    x, y = torch.randn(2000, 32), torch.randint(0, 5, (80,))
    model = GraphSAGE(32, 64, 5, num_layers=2, dropout=0.2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(steps):
        loss = torch.nn.functional.cross_entropy(model(blocks, x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_training_repeats_to_the_last_bit() -> None:
    first = train(8)
    assert train(8) == first
    assert first[-1] < first[0]


def test_mlp_shapes() -> None:
    model = MLP(6, 16, 3, num_layers=3)
    assert model(torch.randn(5, 6)).shape == (5, 3)
    assert len([m for m in model.modules() if isinstance(m, torch.nn.Linear)]) == 3
    assert isinstance(list(model.layers)[-1], torch.nn.Linear)
