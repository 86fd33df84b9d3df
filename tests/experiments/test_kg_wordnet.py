"""The training run on WordNet: through slices and through exact extraction every loss is the same, and answers are ranked."""

import random

import pytest

from experiments import kg_wordnet


@pytest.fixture
def database(tmp_path):
    """A database of a hundred synsets, each with two hypernyms, in WordNet's own format."""
    drawn = random.Random(0)
    lines = []
    for number in range(1, 101):
        pointers = " ".join(f"@ {8 * drawn.randint(1, 100):08d} n 0000" for _ in range(2))
        lines.append(f"{8 * number:08d} 03 n 01 word{number} 0 002 {pointers} | a thing\n")
    for part in ("noun", "verb", "adj", "adv"):
        (tmp_path / f"data.{part}").write_text("".join(lines) if part == "noun" else "")
    return tmp_path


@pytest.mark.parametrize("model", list(kg_wordnet.MODELS))
def test_both_ways_train_alike(database, model, capsys):
    sizes = ["--epochs", "1", "--queries", "40", "--test-queries", "8", "--batch", "8", "--hops", "2", "--dim", "4"]
    report = kg_wordnet.main([str(database), str(database / "work"), "--model", model, *sizes])
    assert report["losses_equal_to_the_bit"] is True
    assert report["batches"] == 5
    for ranked in (report["test"], report["untrained"]):
        assert 0 < ranked["queries"] <= 8
        assert 0 < ranked["mrr"] <= 1
        assert ranked["hits@1"] <= ranked["mrr"]
    assert capsys.readouterr().out.startswith("{")
