"""RED-GNN and NBFNet: the same losses to the bit through slices and through exact extraction; ranks as counted by hand."""

import copy

import numpy as np
import pytest
import torch

from gids.kg import Answers, Batch, Graph, Loader, Slices, Subgraphs, filtered_ranks, with_reverse
from gids.models import NbfNet, RedGnn, ranking_loss
from gids.runtime.batch import map_tensors

from .far import Far, to_far
from .graphs import make


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """People (0..79) live in towns (80..99) of countries (100..104); who lives in a town is a citizen of its country."""
    generator = np.random.default_rng(0)
    town = generator.integers(80, 100, 80)
    triples = [(person, 0, int(town[person])) for person in range(80)]
    triples += [(place, 1, 100 + place % 5) for place in range(80, 100)]
    triples += [(person, 2, 100 + int(town[person]) % 5) for person in range(80)]
    return make(tmp_path_factory.mktemp("models"), triples)


def losses(model_type, dataset, slices, through, epochs):
    torch.manual_seed(1)
    model = model_type(dataset.knowledge.num_relations, 16, layers=3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    queries = dataset.knowledge.queries("train")
    citizens = np.asarray(queries[queries[:, 1] == 2])
    found = []
    options = {"split": citizens, "hops": 3, "batch_size": 8, "remove_target": True, "budget": "64MiB"}
    with Loader(slices.graph, slices=slices if through == "slices" else None, through=through, **options) as loader:
        for _ in range(epochs):
            for batch in loader:
                scores = model(batch.subgraphs, batch.relations)
                loss = ranking_loss(scores, batch.subgraphs.node_ptr, batch.tail_positions, 105) / len(batch)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                found.append(loss.item())
    return found


@pytest.mark.parametrize("model_type", [RedGnn, NbfNet])
def test_losses_are_the_same_and_fall(dataset, tmp_path, model_type):
    with Graph(dataset, on_disk=True) as graph, Slices(graph, tmp_path / "s", hops=3, slice_bytes=512) as slices:
        through_slices = losses(model_type, dataset, slices, "slices", 3)
        exact = losses(model_type, dataset, slices, "graph", 3)
    assert through_slices == exact
    assert np.mean(exact[-5:]) < 0.6 * np.mean(exact[:5])


def test_ranking_loss_counts_candidates_outside_the_subgraph():
    scores = torch.tensor([1.0, 2.0, 0.5])
    node_ptr, targets = torch.tensor([0, 2, 3]), torch.tensor([1, -1])
    expected = np.log(np.e + np.e**2 + 8) - 2 + np.log(np.e**0.5 + 9)
    assert float(ranking_loss(scores, node_ptr, targets, 10)) == pytest.approx(expected, rel=1e-6)


def test_reverse_queries_and_filtered_ranks(dataset):
    known = dataset.knowledge
    assert with_reverse(known, np.array([[1, 0, 85]], np.int32)).tolist() == [[1, 0, 85], [85, 3, 1]]
    answers = Answers(known, ["train"])
    town = int(known.queries("train")[7][2])
    assert answers.of(7, 0).tolist() == [town]
    assert 7 in answers.of(town, 3)
    # Nodes of one query: 7, 80, 81, 90; the answer is 90, and 81 is an answer too.
    entities = torch.tensor([7, 80, 81, 90], dtype=torch.int32)
    empty = torch.empty(0, dtype=torch.int32)
    ptr = torch.tensor([0, 4])
    subgraphs = Subgraphs(ptr, torch.tensor([0, 0]), entities, torch.zeros(4, dtype=torch.uint8), empty, empty, empty)

    class Two:
        def of(self, head, relation):
            return np.array([81, 90], np.int32)

    def rank(scores, target):
        batch = Batch(0, 0, *torch.tensor([[7], [0], [90]]), subgraphs, torch.tensor([0]), torch.tensor([target]))
        return float(filtered_ranks(batch, torch.tensor(scores), Two(), 10)[0])

    assert rank([0.3, 0.1, 9.0, 0.2], 3) == 2  # 81 is left out
    assert rank([0.3, 0.2, 9.0, 0.2], 3) == 2.5  # a tie counts half
    assert rank([0.3, 0.1, 9.0, -1.0], 3) == 9  # six of the ten are outside, with score 0
    assert rank([-0.3, -0.1, 9.0, 0.5], -1) == 1 + 6 / 2  # the answer is outside too


@pytest.mark.parametrize("model_type", [RedGnn, NbfNet])
def test_what_is_delivered_to_a_gpu_is_trained_on_and_ranked_there(dataset, far, model_type):
    known = dataset.knowledge
    with Graph(dataset) as graph, Loader(graph, through="graph", hops=2, batch_size=8, budget="64MiB") as loader:
        batch = next(iter(loader))
    moved = map_tensors(batch, Far)
    model = model_type(known.num_relations, 8, layers=2)
    answers, results = Answers(known, ["train"]), []
    for there, trained in ((batch, model), (moved, to_far(copy.deepcopy(model)))):
        scores = trained(there.subgraphs, there.relations)
        loss = ranking_loss(scores, there.subgraphs.node_ptr, there.tail_positions, 105)
        loss.backward()
        gradients = [parameter.grad for parameter in trained.parameters()]
        assert {part.device for part in (scores, loss, *gradients)} == {there.heads.device}
        ranks = filtered_ranks(there, scores, answers, 105)
        results.append([part.tolist() for part in (scores, loss, ranks, *gradients)])
    assert results[0] == results[1]
