"""Tiles in order: what is kept is chosen as written here, what is read is known beforehand, and neither changes a bit."""

import re

import numpy as np
import pytest
import torch

import gids
from gids.errors import ConfigError
from gids.infer import Inference, InferOptions
from gids.infer.forecast import forecast
from gids.infer.inorder import InOrderSweep
from gids.infer.keeping import Group, Survey, gap_beforehand, grouped, keep
from gids.infer.layers import layers_of
from gids.infer.run import Opened
from gids.infer.tiles import Tile
from gids.models import GraphSAGE
from gids.storage.curve import ReadCost, modelled_curve

from .conftest import DIM, NODES, in_memory, result

pytestmark = pytest.mark.usefixtures("nothing_left", "seeded")


def tiles(*ends):
    return [Tile("_N", begin, end) for begin, end in zip((0, *ends), ends, strict=False)]


def test_groups_are_of_equally_many_tiles():
    found = grouped(tiles(2, 4, 6, 9), 5)
    assert [(group.begin, group.end) for group in found] == [(0, 4), (4, 9)]
    assert [len(group.tiles) for group in grouped(tiles(2, 4, 6, 9), 1)] == [1, 1, 1, 1]


def surveyed(uses):
    """Groups of two rows each; ``uses[row]`` are the groups that need it from elsewhere."""
    first, last, count = np.full(8, -1, np.int32), np.full(8, -1, np.int32), np.zeros(8, np.uint16)
    for row, groups in uses.items():
        first[row], last[row], count[row] = min(groups), max(groups), len(groups)
    groups = [Group(n, [tile]) for n, tile in enumerate(tiles(2, 4, 6, 8))]
    return Survey(groups, first, last, count, np.zeros(4, np.int64), 0, 0, 0)


def test_rows_are_kept_from_their_group_on_or_from_the_begin():
    # Row 1 is its group's, then used twice; row 7 is used before its own group comes; row 4 both before and after it.
    found = surveyed({1: [1, 3], 7: [0], 4: [1, 3]})
    all_of_them = keep(found, lambda worth: worth)
    assert all_of_them.slots == 3
    assert all_of_them.beforehand.tolist() == [4, 7]
    assert all_of_them.taken.tolist() == [1]
    assert [all_of_them.done_after(n).tolist() for n in range(4)] == [[7], [], [], [1, 4]]
    assert [all_of_them.taken_of(group).tolist() for group in found.groups] == [[1], [], [], []]
    # Row 7 is used once in the one group in which it takes memory, the others twice in four.
    one = keep(found, lambda worth: 1)
    assert (one.slots, one.by_last.tolist()) == (1, [7])
    none = keep(found, lambda worth: 0)
    assert (none.slots, none.by_last.tolist()) == (0, [])


def test_rows_of_groups_that_are_not_visited_again_are_read_beforehand():
    found = surveyed({0: [1, 2], 3: [2]})
    later = Survey(found.groups[1:], *(getattr(found, name) for name in ("first", "last", "count", "outside")), 0, 0, 0)
    shifted = Survey([Group(n, group.tiles) for n, group in enumerate(later.groups)], later.first - 1, later.last - 1,
                     later.count, later.outside, 0, 0, 0)  # fmt: skip
    kept = keep(shifted, lambda worth: worth)
    assert kept.beforehand.tolist() == [0]
    assert kept.taken.tolist() == [3]


def test_holes_are_read_as_long_as_that_is_faster_and_little():
    rows = np.array([0, 2, 3, 10, 50])
    curve = modelled_curve(ReadCost(10e-6, 1e-9), 50.0)  # another read costs as much as 10 kB
    assert gap_beforehand(rows, 100, 1000, curve) == 6000  # holes of one row and of six
    assert gap_beforehand(rows, 100, 7000, curve) == 7000
    assert gap_beforehand(rows, 15, 1000, curve) == 1000  # at most seven of 15 rows
    assert gap_beforehand(np.array([4]), 100, 1000, curve) == 0


def job(dataset, out, budget):
    return Inference(GraphSAGE(DIM, 24, 5, 2), dataset, out, InferOptions(budget=budget, tile=128))


def least(dataset, out):
    """The least budget of any layer."""
    budget = "1MiB"
    while True:
        try:
            with Opened(run := job(dataset, out, budget)) as opened:
                for plan in opened.plans:
                    sweep = opened.sweep(plan, run.tables)
                    assert isinstance(sweep, InOrderSweep)
                    sweep.divide(sweep.of_type.tiles)
            return budget
        except ConfigError as refused:
            budget = re.search(r"budget must be at least ([\d.]+ MiB) for layer \d", str(refused))[1]


def test_the_least_budget_and_a_large_one_give_the_same_bits_and_the_plan_knows_the_bytes(graph, tmp_path):
    torch.manual_seed(3)
    expected, read = None, []
    for number, budget in enumerate([least(graph, tmp_path / "out"), "1GiB"]):
        torch.manual_seed(3)
        run = job(graph, tmp_path / str(number), budget)
        if expected is None:
            expected = in_memory(layers_of(run.model), graph)
        planned = forecast(run)
        assert torch.equal(result(run.run()), expected)
        facts = run.facts["layers"]
        assert [layer.bytes_written for layer in planned.layers] == [fact["bytes_written"] for fact in facts]
        for layer, fact in zip(planned.layers, facts, strict=True):
            assert layer.bytes_read == pytest.approx(fact["bytes_read"], rel=0.25)
            for usage in fact["memory"].values():
                assert usage["peak"] <= usage["allotted"]
        read.append(run.facts["bytes_read"])
    assert read[0] > read[1]  # rows are read again where memory is short


def test_rows_that_a_layer_passes_on_are_not_overwritten(graph, tmp_path):
    def same(block, x):
        return x[: block.num_dst["_N"]]

    found = gids.infer([same], graph, tmp_path / "out", budget="64MiB", tile=128)
    assert len(result(found)) == NODES
    assert torch.equal(result(found), in_memory([same], graph))


@pytest.mark.parametrize("budget", ["24MiB", "1GiB"])
def test_the_runtime_writes_the_same_files(graph, tmp_path, monkeypatch, budget):
    model = GraphSAGE(DIM, 24, 5, 2)
    written = []
    for name in ("in order", "runtime"):
        with monkeypatch.context() as patched:
            if name == "runtime":
                patched.setattr(Inference, "in_order", property(lambda self: False))
            found = gids.infer(model, graph, tmp_path / name, budget=budget, tile=256, top_k=2)
        written.append({file.name: file.read_bytes() for file in found.path.rglob("*.bin")})
    assert len(written[0]) >= 3
    assert written[0] == written[1]
