"""Historical embeddings: what is pulled was pushed, carries no gradient, and with nothing pruned nothing changes."""

import pytest
import torch

import gids
import gids.partition
import gids.report
from gids import ConfigError, GidsError, HistoryOptions, generate
from gids.models import GraphSAGE, History
from gids.sampling.history import Candidates
from tests.loading import load


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    path = tmp_path_factory.mktemp("history") / "g"
    return generate.communities(path, num_nodes=3000, degree=10, dim=16, num_classes=4, signal=3.0, train=0.4, seed=1)


def loader_of(dataset, max_age, dim, share=0.3, **options):
    popular = torch.from_numpy(gids.partition.degree_order(dataset)["_N"][: int(share * 3000)])
    history = HistoryOptions(dim=dim, max_age=max_age, nodes=popular)
    memory = gids.MemoryOptions(history=options.pop("history", history))
    arguments = {"fanouts": [4, 4], "batch_size": 100, "budget": "32MiB", "memory": memory} | options
    return gids.Loader(dataset, "train", **arguments)


def train(dataset, max_age, epochs=1):
    torch.manual_seed(0)
    loader = loader_of(dataset, max_age, 32)
    history, model = loader.history, GraphSAGE(16, 32, 4, num_layers=2)
    optimizer, rows, losses = torch.optim.Adam(model.parameters(), 0.01), 0, []
    with loader:
        for _ in range(epochs):
            for batch in loader:
                out = model(batch.blocks, batch.x, exchange=lambda h, batch=batch: history.exchange(h, batch))
                loss = torch.nn.functional.cross_entropy(out, batch.y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                rows += len(batch.input_nodes)
                losses.append(float(loss))
    return rows, losses, history


def test_nothing_pruned_nothing_changes(dataset):
    rows, losses, history = train(dataset, max_age=0)
    torch.manual_seed(0)
    model = GraphSAGE(16, 32, 4, num_layers=2)
    optimizer, exact_rows, exact = torch.optim.Adam(model.parameters(), 0.01), 0, []
    with gids.Loader(dataset, "train", fanouts=[4, 4], batch_size=100, budget="32MiB") as loader:
        for batch in loader:
            loss = torch.nn.functional.cross_entropy(model(batch.blocks, batch.x), batch.y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            exact_rows += len(batch.input_nodes)
            exact.append(float(loss))
    assert (rows, losses) == (exact_rows, exact)
    assert history.stats()["pulled"] == 0


@pytest.mark.slow
def test_fewer_rows_and_it_still_learns(dataset):
    exact_rows, exact, _ = train(dataset, max_age=0, epochs=3)
    rows, losses, history = train(dataset, max_age=5, epochs=3)
    assert rows < 0.9 * exact_rows
    assert sum(losses[-6:]) < 1.15 * sum(exact[-6:]) + 0.1
    stats = history.stats()
    assert stats["approximate"] is True
    assert stats["pulled"] > 0
    assert 1 <= stats["mean_age_batches"] <= 5
    assert 0 < stats["pulled_share"] < 1
    assert stats["bytes"] == 900 * (32 * 4 + 8) + 3000 * 4
    assert train(dataset, max_age=5, epochs=3)[1] == losses  # to the bit


def test_what_is_pulled_was_pushed_and_has_no_gradient(dataset):
    loader = loader_of(dataset, max_age=3, dim=2)
    history, stored = loader.history, {}
    with loader:
        for number, batch in enumerate(loader):
            step = batch.sample.history
            if number % 4 == 0:
                stored.clear()
            # Every row says which node and batch computed it.
            fresh = batch.input_nodes[: len(step.fresh["_N"])]
            h = torch.stack([fresh.float(), torch.full((len(fresh),), float(number))], 1).requires_grad_()
            whole = history.exchange(h, batch)
            assert whole.shape == (batch.blocks[-1].num_src["_N"], 2)
            assert torch.equal(whole[step.fresh["_N"]], h)
            for row, slot in zip(step.pulled["_N"].tolist(), step.pulled_slots["_N"].tolist(), strict=True):
                assert whole[row].tolist() == stored[slot]
                assert number - 3 <= whole[row][1] < number
            for place, slot in zip(step.pushed["_N"].tolist(), step.pushed_slots["_N"].tolist(), strict=True):
                stored[slot] = h[place].tolist()
            whole.sum().backward()
            assert torch.equal(h.grad, torch.ones_like(h))
            assert not history._rows["_N"].requires_grad


def test_a_pull_before_its_push_is_an_error(dataset):
    loader = loader_of(dataset, max_age=3, dim=1)
    with loader:
        batches = [batch for _, batch in zip(range(3), loader, strict=False)]
    history = loader.history

    def exchange(batch):
        return history.exchange(torch.zeros(len(batch.sample.history.fresh["_N"]), 1), batch)

    exchange(batches[0])
    with pytest.raises(GidsError, match="batches 0 to 1 of this epoch before batch 2 pulls them"):
        exchange(batches[2])
    exchange(batches[1])
    exchange(batches[2])
    loader = loader_of(dataset, max_age=3, dim=1)
    with loader:
        loader.set_epoch(1)
        later = [batch for _, batch in zip(range(2), loader, strict=False)]
    with pytest.raises(GidsError, match="pulls them"):
        exchange(later[1])  # of another epoch: what is stored does not count


def test_resumed_within_a_window(dataset):
    loader = loader_of(dataset, max_age=5, dim=1)
    history = loader.history
    with loader:
        stream = iter(loader)
        for _ in range(3):
            batch = next(stream)
            history.exchange(torch.rand(len(batch.sample.history.fresh["_N"]), 1), batch)
        state, stored = loader.state_dict(), history.state_dict()
        batch = next(stream)
        expected = history.exchange(torch.zeros(len(batch.sample.history.fresh["_N"]), 1), batch)
    again = loader_of(dataset, max_age=5, dim=1)
    resumed = again.history
    resumed.load_state_dict(stored)
    with again:
        again.load_state_dict(state)
        batch = next(iter(again))
        assert batch.index == 3
        assert torch.equal(resumed.exchange(torch.zeros(len(batch.sample.history.fresh["_N"]), 1), batch), expected)
    with pytest.raises(ConfigError, match="must have shape"):
        History(again.sampler.candidates, 2).load_state_dict(stored)


def test_batches_without_history_pass_through(dataset):
    history, h = History(Candidates(torch.arange(3), 5), 3), torch.ones(2, 3)
    assert history.exchange(h, object()) is h
    with pytest.raises(ConfigError, match="dim must be at least 1"):
        HistoryOptions(dim=0)


def test_a_wrong_width_is_told(dataset):
    with loader_of(dataset, max_age=1, dim=3) as loader:
        batch = next(iter(loader))
    with pytest.raises(ConfigError, match="h of _N must have shape"):
        loader.history.exchange(torch.zeros(1, 3), batch)


def rows_of(loader, batches=None, epoch=None):
    """What batches of a loader exchange when every row is the node's id, epoch and number; and the batches."""
    found = []
    if epoch is not None:
        loader.set_epoch(epoch)
    for number, batch in enumerate(loader):
        if batches is not None and number == batches:
            break
        step = batch.sample.history
        h = batch.input_nodes[: len(step.fresh["_N"])].float()[:, None].repeat(1, 2)
        h[:, 1] = batch.index + 1000 * batch.epoch
        found.append((batch, loader.history.exchange(h, batch)))
    return found


def test_epochs_left_early_and_begun_again(dataset):
    with loader_of(dataset, max_age=3, dim=2) as loader:
        whole = rows_of(loader, epoch=2)
    with loader_of(dataset, max_age=3, dim=2) as loader:
        rows_of(loader, batches=6, epoch=1)  # left within a window, with batches sampled ahead
        for (batch, rows), (expected, due) in zip(rows_of(loader, epoch=2), whole, strict=True):
            assert torch.equal(batch.input_nodes, expected.input_nodes)
            assert torch.equal(rows, due)
        for (_, rows), (_, due) in zip(rows_of(loader, epoch=2), whole, strict=True):  # the same epoch once more
            assert torch.equal(rows, due)


def test_every_rank_has_a_history_of_its_own(dataset):
    seen = []
    for rank in range(2):
        order = gids.OrderOptions(rank=rank, world_size=2)
        with loader_of(dataset, max_age=3, dim=2, order=order) as loader:
            got = rows_of(loader)  # raises where something is pulled that this rank has not pushed
            seen.append(torch.cat([batch.seeds for batch, _ in got]))
            assert loader.stats().history["pulled"] > 0
    assert torch.equal(torch.cat(seen).sort().values, dataset.split("train").sort().values)


def test_stats_and_report_say_that_it_is_approximate(dataset, tmp_path):
    with loader_of(dataset, max_age=3, dim=2) as loader:
        rows_of(loader)
        stats = loader.stats()
        run = gids.report.load_run(gids.report.record(loader, tmp_path))
    assert stats.approximate == ("historical embeddings, at most 3 batches old",)
    assert stats.history["pulled"] > 0
    assert "APPROXIMATE (historical embeddings, at most 3 batches old)" in str(stats)
    assert stats.as_dict()["approximate"] == stats.approximate
    assert stats.memory.embeddings == loader.history.bytes
    assert run.headline["approximate"] == "historical embeddings, at most 3 batches old"
    with gids.Loader(dataset, "train", fanouts=[4, 4], budget="32MiB") as exact:
        assert exact.stats().approximate == ()
        assert "APPROXIMATE" not in str(exact.stats())


def test_candidates_are_those_that_sampling_needs_most(dataset):
    history = HistoryOptions(dim=2, max_age=3, nodes=0.1)
    with load(dataset, "train", fanouts=[4, 4], batch_size=100, budget="32MiB", history=history) as loader:
        rows_of(loader)
        assert loader.sampler.candidates.num_slots == {"_N": 300}
        few = loader.stats().history["pulled_share"]
    rare = torch.from_numpy(gids.partition.degree_order(dataset)["_N"][-300:].copy())
    with loader_of(dataset, max_age=3, dim=2, history=HistoryOptions(dim=2, max_age=3, nodes=rare)) as loader:
        rows_of(loader)
        assert loader.stats().history["pulled_share"] < 0.7 * few


def test_nodes_are_chosen_by_benefit_per_byte(dataset):
    def opened(dim, budget, **options):
        history = HistoryOptions(dim=dim, max_age=3, nodes=None)
        return load(dataset, "train", fanouts=[4, 4], batch_size=100, history=history, budget=budget, **options)

    few = {"cache": "64KiB", "host_buffer": 0}
    with opened(2, "32MiB", **few) as narrow, opened(2000, "32MiB", **few) as wide:
        assert "save" in narrow.history.stats()["reason"]
        assert narrow.history.stats()["nodes"] > wide.history.stats()["nodes"]
        assert narrow.stats().memory.embeddings == narrow.history.bytes
        rows_of(narrow)
        assert narrow.stats().history["pulled"] > 0
    with opened(2, "32MiB") as whole:
        assert whole.history.stats()["nodes"] == 0
        assert "every table fits in the cache" in whole.history.stats()["reason"]
        rows_of(whole)
    with pytest.raises(ConfigError, match="a share, None, or ids"):
        HistoryOptions(dim=2, nodes="many")


@pytest.mark.parametrize(
    ("wrong", "rule"),
    [
        ({"fanouts": None, "sampler": gids.LadiesSampler([40, 40])}, "history must be given with fanouts"),
        ({"pipeline": gids.PipelineOptions(in_order=False)}, "in_order=True"),
        ({"fanouts": [4]}, "at least two layers"),
        ({"budget": "2MiB"}, "embeddings"),
    ],
)
def test_what_is_refused(dataset, wrong, rule):
    with pytest.raises(ConfigError, match=rule):
        loader_of(dataset, max_age=3, dim=64, **wrong)
    with pytest.raises(ConfigError, match="share in"):
        HistoryOptions(dim=2, nodes=1.5)
